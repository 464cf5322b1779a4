//! Leases that callers renew although their shard elects its leader by another one: for the hub to say so
//! (`docs/semantics.md#leader-election`).
//!
//! Writer: `edge`; reader: `subscribe`.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use parking_lot::Mutex;

use crate::value::snapshot::CallerKey;

/// Most of one caller that are told: names are its choice, and those of others are told whatever it chooses.
const MOST: usize = 4;
/// How long one counts after its last renewal, in seconds.
const COUNTS_SECONDS: i64 = 120;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OtherLease {
    /// The ShardingConfig, `namespace/name`.
    pub(crate) shard: String,
    pub(crate) name: String,
}

/// Leases by caller, and when each was renewed last, in seconds of Unix time.
type ByCaller = BTreeMap<CallerKey, BTreeMap<OtherLease, i64>>;

/// All callers' of late. A mutex: held to note or copy some names.
#[derive(Debug, Default)]
pub(crate) struct OtherLeases(Mutex<ByCaller>);

impl OtherLeases {
    pub(crate) fn renewed(&self, caller: CallerKey, lease: OtherLease) {
        self.renewed_at(caller, lease, unix_seconds());
    }

    fn renewed_at(&self, caller: CallerKey, lease: OtherLease, now_unix_seconds: i64) {
        let mut all = self.0.lock();
        all.retain(|_, leases| {
            leases.retain(|_, renewed| now_unix_seconds - *renewed <= COUNTS_SECONDS);
            !leases.is_empty()
        });
        let leases = all.entry(caller).or_default();
        if leases.len() < MOST || leases.contains_key(&lease) {
            leases.insert(lease, now_unix_seconds);
        }
    }

    /// Each once, with the time of its last renewal.
    pub(crate) fn of_late(&self) -> BTreeMap<OtherLease, i64> {
        self.of_late_at(unix_seconds())
    }

    fn of_late_at(&self, now_unix_seconds: i64) -> BTreeMap<OtherLease, i64> {
        let mut of_late = BTreeMap::new();
        for (lease, renewed) in self.0.lock().values().flatten() {
            if now_unix_seconds - *renewed <= COUNTS_SECONDS {
                let last = of_late.entry(lease.clone()).or_insert(*renewed);
                *last = (*last).max(*renewed);
            }
        }
        of_late
    }
}

fn unix_seconds() -> i64 {
    let since = UNIX_EPOCH.elapsed().unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_renewed_of_late_is_told_and_bounded_by_caller() {
        let leases = OtherLeases::default();
        let lease = |name: usize| OtherLease {
            shard: "ops/blue".to_owned(),
            name: name.to_string(),
        };
        let renew = |pod: &str, name: usize, now| {
            let caller = CallerKey {
                home_cluster: "east".into(),
                pod_uid: pod.into(),
            };
            leases.renewed_at(caller, lease(name), now);
        };
        renew("a", 1, 100);
        renew("a", 2, 200);
        renew("a", 1, 210);
        renew("b", 1, 205);
        assert_eq!(leases.of_late_at(330), [(lease(1), 210)].into());
        for name in 0..1_000 {
            renew("a", name, 400);
        }
        assert_eq!(leases.of_late_at(400).len(), MOST);
        renew("a", 1, 401);
        renew("b", 2_000, 401);
        let late = leases.of_late_at(401);
        assert_eq!(late.get(&lease(1)), Some(&401));
        assert_eq!(late.get(&lease(2_000)), Some(&401), "whatever others do");
    }
}
