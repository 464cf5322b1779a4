//! What a Lease says, and when it has run out: by the clock of whoever looks at it, never by the time that stands in it. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use tokio::time::Instant;

use crate::candidate::{Candidate, Leads};

/// Who holds the Lease; none: nobody does.
pub(crate) fn holder<L: Leads>(lease: &Lease) -> Option<L> {
    let identity = lease.spec.as_ref()?.holder_identity.clone()?;
    let annotations = lease.metadata.annotations.clone().unwrap_or_default();
    (!identity.is_empty()).then(|| L::read(identity, &annotations))
}

/// The Lease that says that `candidate` holds it, from what is there: to be created, or to replace that.
pub(crate) fn held_by<C: Candidate>(
    candidate: &C,
    name: &str,
    runs_out_after: Duration,
    before: Option<&Lease>,
) -> Lease {
    let now = MicroTime(Timestamp::now());
    let spec = before.and_then(|lease| lease.spec.clone()).unwrap_or_default();
    let is_new = spec.holder_identity.as_deref() != Some(candidate.identity());
    let since = spec.acquire_time.filter(|_| !is_new);
    let changes = spec.lease_transitions.unwrap_or_default();
    let annotations = candidate.annotations();
    Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            annotations: (!annotations.is_empty()).then_some(annotations),
            resource_version: before.and_then(|lease| lease.metadata.resource_version.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(candidate.identity().to_owned()),
            lease_duration_seconds: i32::try_from(runs_out_after.as_secs()).ok(),
            acquire_time: since.or_else(|| Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(changes.saturating_add(i32::from(is_new))),
            ..LeaseSpec::default()
        }),
    }
}

/// The Lease that nobody holds any more, in place of one that ends by itself.
pub(crate) fn given_back(lease: &Lease) -> Lease {
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
pub(crate) struct Observer {
    seen: Option<(Option<LeaseSpec>, Instant)>,
}

impl Observer {
    /// A look found this. True: it was found so for `runs_out_after`, which is as long as it is good for, and more where one waits.
    pub(crate) fn looked(&mut self, lease: &Lease, now: Instant, runs_out_after: Duration) -> bool {
        match &self.seen {
            Some((spec, since)) if *spec == lease.spec => now.duration_since(*since) >= runs_out_after,
            _ => {
                self.seen = Some((lease.spec.clone(), now));
                false
            }
        }
    }

    /// Whether whoever holds it wrote this since the look before.
    pub(crate) fn is_renewed(&self, lease: &Lease) -> bool {
        self.seen.as_ref().is_some_and(|(spec, _)| *spec != lease.spec)
    }

    /// A look failed: the holder may be as unable to renew. What was seen before says nothing about it.
    pub(crate) fn failed(&mut self) {
        self.seen = None;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const NAME: &str = "n";
    const GOOD_FOR: Duration = Duration::from_secs(3);

    #[derive(Debug, Clone, PartialEq)]
    struct Named(String, BTreeMap<String, String>);

    impl Candidate for Named {
        type Leader = Self;

        fn identity(&self) -> &str {
            &self.0
        }

        fn annotations(&self) -> BTreeMap<String, String> {
            self.1.clone()
        }
    }

    impl Leads for Named {
        fn identity(&self) -> &str {
            &self.0
        }

        fn read(identity: String, annotations: &BTreeMap<String, String>) -> Self {
            Self(identity, annotations.clone())
        }
    }

    fn named(identity: &str) -> Named {
        Named(
            identity.to_owned(),
            [("at".to_owned(), "10.0.0.1:7443".to_owned())].into(),
        )
    }

    fn lease(identity: &str, before: Option<&Lease>) -> Lease {
        held_by(&named(identity), NAME, GOOD_FOR, before)
    }

    #[test]
    fn what_a_lease_says_is_read_back() {
        let first = lease("a", None);
        assert_eq!(holder(&first), Some(named("a")));
        let renewed = lease("a", Some(&first));
        let spec = |lease: &Lease| lease.spec.clone().unwrap();
        assert_eq!(spec(&renewed).acquire_time, spec(&first).acquire_time);
        assert_eq!(spec(&renewed).lease_transitions, Some(1));
        let taken = lease("b", Some(&renewed));
        assert_eq!(spec(&taken).lease_transitions, Some(2));
        assert_eq!(holder::<Named>(&given_back(&taken)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn it_has_run_out_when_it_was_seen_unchanged_for_long_enough_by_ones_own_clock() {
        let first = lease("a", None);
        let mut observer = Observer::default();
        let begun = Instant::now();
        let after = |seconds: f64| begun + Duration::from_secs_f64(seconds);
        assert!(!observer.looked(&first, begun, GOOD_FOR));
        assert!(!observer.looked(&first, after(2.9), GOOD_FOR));
        assert!(observer.looked(&first, after(3.0), GOOD_FOR));
        let patience = GOOD_FOR + Duration::from_secs(1);
        assert!(!observer.looked(&first, after(3.0), patience));
        let mut renewed = lease("a", Some(&first));
        // However old the time is that stands in it.
        renewed.spec.as_mut().unwrap().renew_time = Some(MicroTime(Timestamp::UNIX_EPOCH));
        assert!(!observer.looked(&renewed, after(3.1), GOOD_FOR));
        assert!(!observer.looked(&renewed, after(6.0), GOOD_FOR));
        observer.failed();
        assert!(
            !observer.looked(&renewed, after(9.0), GOOD_FOR),
            "nobody looked meanwhile"
        );
        assert!(observer.looked(&renewed, after(12.0), GOOD_FOR));
    }
}
