//! What the Lease of the hub says, and when it has run out: by the clock of whoever looks at it, never by the time that stands in
//! it. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use portolan_crds::labels::{ANNOTATION_HUB_ADDRESS, ANNOTATION_HUB_SETTINGS, ANNOTATION_ROUTERS_KNOWN, LEASE_HUB};
use tokio::time::Instant;

/// A Lease that nobody renewed for this long has run out.
pub(crate) const RUNS_OUT_AFTER: Duration = Duration::from_secs(3);

/// The replica that leads, as its Lease tells of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Leader {
    /// Another one with each start of the program.
    pub(crate) identity: String,
    /// `host:port` at which other replicas reach it; none: it has not told any.
    pub(crate) address: Option<String>,
    /// Values of the flags that replicas must agree on, by flag.
    pub(crate) settings: BTreeMap<String, String>,
}

impl Leader {
    /// Who holds the Lease; none: nobody does.
    pub(super) fn of(lease: &Lease) -> Option<Self> {
        let identity = lease.spec.as_ref()?.holder_identity.clone()?;
        let annotation = |key: &str| lease.metadata.annotations.as_ref()?.get(key).cloned();
        let settings = annotation(ANNOTATION_HUB_SETTINGS);
        let settings = settings.and_then(|text| serde_json::from_str(&text).ok());
        (!identity.is_empty()).then(|| Self {
            identity,
            address: annotation(ANNOTATION_HUB_ADDRESS),
            settings: settings.unwrap_or_default(),
        })
    }

    /// The Lease that says so, from what is there: to be created, or to replace that. `known_for`: as [`known_for`] reads it.
    pub(super) fn lease(&self, before: Option<&Lease>, known_for: Duration) -> Lease {
        let now = MicroTime(Timestamp::now());
        let spec = before.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let is_new = spec.holder_identity.as_ref() != Some(&self.identity);
        let since = spec.acquire_time.filter(|_| !is_new);
        let changes = spec.lease_transitions.unwrap_or_default();
        let settings = serde_json::to_string(&self.settings).unwrap_or_default();
        let mut annotations = BTreeMap::from([(ANNOTATION_HUB_SETTINGS.to_owned(), settings)]);
        let address = self.address.clone().into_iter();
        annotations.extend(address.map(|address| (ANNOTATION_HUB_ADDRESS.to_owned(), address)));
        annotations.insert(ANNOTATION_ROUTERS_KNOWN.to_owned(), known_for.as_secs().to_string());
        Lease {
            metadata: ObjectMeta {
                name: Some(LEASE_HUB.to_owned()),
                annotations: Some(annotations),
                resource_version: before.and_then(|lease| lease.metadata.resource_version.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: i32::try_from(RUNS_OUT_AFTER.as_secs()).ok(),
                acquire_time: since.or_else(|| Some(now.clone())),
                renew_time: Some(now),
                lease_transitions: Some(changes.saturating_add(i32::from(is_new))),
                ..LeaseSpec::default()
            }),
        }
    }

    /// In what this one's settings are other than `ours`, for people; none: in nothing. A flag that one of the two does not tell of is
    /// none of its release, which an update replaces replica by replica.
    pub(crate) fn differs(&self, ours: &BTreeMap<String, String>) -> Option<String> {
        let lines = ours.iter().filter_map(|(flag, here)| {
            let there = self.settings.get(flag)?;
            (here != there).then(|| format!("{flag} is {here:?} here and {there:?} there"))
        });
        let lines: Vec<_> = lines.collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }
}

/// For how long no router has acted that has no Router object, as who holds the Lease told. Whole seconds; zero where it told nothing.
pub(super) fn known_for(lease: &Lease) -> Duration {
    let annotations = lease.metadata.annotations.as_ref();
    let told = annotations.and_then(|all| all.get(ANNOTATION_ROUTERS_KNOWN)?.parse().ok());
    Duration::from_secs(told.unwrap_or_default())
}

/// The Lease that nobody holds any more, in place of one that ends by itself.
pub(super) fn given_back(lease: &Lease) -> Lease {
    let mut lease = lease.clone();
    if let Some(spec) = &mut lease.spec {
        spec.holder_identity = None;
        spec.renew_time = Some(MicroTime(Timestamp::now()));
    }
    lease.metadata.annotations = None;
    lease.metadata.managed_fields = None;
    lease
}

/// For how long one record of the Lease was seen, without a change and without a look that failed.
#[derive(Debug, Default)]
pub(super) struct Observer {
    seen: Option<(Option<LeaseSpec>, Instant)>,
}

impl Observer {
    /// A look found this. True: it has run out, `patience` beyond the time that it is good for.
    pub(super) fn looked(&mut self, lease: &Lease, now: Instant, patience: Duration) -> bool {
        match &self.seen {
            Some((spec, since)) if *spec == lease.spec => now.duration_since(*since) >= RUNS_OUT_AFTER + patience,
            _ => {
                self.seen = Some((lease.spec.clone(), now));
                false
            }
        }
    }

    /// Whether whoever holds it wrote this since the look before.
    pub(super) fn is_renewed(&self, lease: &Lease) -> bool {
        self.seen.as_ref().is_some_and(|(spec, _)| *spec != lease.spec)
    }

    /// A look failed: the holder may be as unable to renew. What was seen before says nothing about it.
    pub(super) fn failed(&mut self) {
        self.seen = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leader(identity: &str) -> Leader {
        Leader {
            identity: identity.to_owned(),
            address: Some("10.0.0.1:7443".to_owned()),
            settings: [("--buckets".to_owned(), "32".to_owned())].into(),
        }
    }

    #[test]
    fn what_a_lease_says_is_read_back() {
        let first = leader("a").lease(None, Duration::ZERO);
        assert_eq!(Leader::of(&first), Some(leader("a")));
        let renewed = leader("a").lease(Some(&first), Duration::ZERO);
        let spec = |lease: &Lease| lease.spec.clone().unwrap();
        assert_eq!(spec(&renewed).acquire_time, spec(&first).acquire_time);
        assert_eq!(spec(&renewed).lease_transitions, Some(1));
        let taken = leader("b").lease(Some(&renewed), Duration::ZERO);
        assert_eq!(spec(&taken).lease_transitions, Some(2));
        assert_eq!(Leader::of(&given_back(&taken)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn it_has_run_out_when_it_was_seen_unchanged_for_long_enough_by_ones_own_clock() {
        let lease = leader("a").lease(None, Duration::ZERO);
        let mut observer = Observer::default();
        let begun = Instant::now();
        let after = |seconds: f64| begun + Duration::from_secs_f64(seconds);
        let none = Duration::ZERO;
        assert!(!observer.looked(&lease, begun, none));
        assert!(!observer.looked(&lease, after(2.9), none));
        assert!(observer.looked(&lease, after(3.0), none));
        assert!(!observer.looked(&lease, after(3.0), Duration::from_secs(1)), "patience");
        let mut renewed = leader("a").lease(Some(&lease), Duration::ZERO);
        // However old the time is that stands in it.
        renewed.spec.as_mut().unwrap().renew_time = Some(MicroTime(Timestamp::UNIX_EPOCH));
        assert!(!observer.looked(&renewed, after(3.1), none));
        assert!(!observer.looked(&renewed, after(6.0), none));
        observer.failed();
        assert!(!observer.looked(&renewed, after(9.0), none), "nobody looked meanwhile");
        assert!(observer.looked(&renewed, after(12.0), none));
    }

    #[test]
    fn it_is_said_which_settings_differ() {
        let ours = |buckets: &str| BTreeMap::from([("--buckets".to_owned(), buckets.to_owned())]);
        assert_eq!(leader("a").differs(&ours("32")), None);
        let said = leader("a").differs(&ours("64")).unwrap();
        assert_eq!(said, r#"--buckets is "64" here and "32" there"#);
        // Of a release that has one more.
        let more = BTreeMap::from([("--later".to_owned(), "x".to_owned())]);
        assert_eq!(leader("a").differs(&ours("32").into_iter().chain(more).collect()), None);
    }
}
