//! Leases that callers renew although their shard elects its leader by another one: for the hub to say so
//! (`docs/semantics.md#leader-election`).
//!
//! Writer: `edge`; reader: `subscribe`.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use parking_lot::Mutex;

/// Most of them that are told: names are the callers' choice.
const MOST: usize = 64;
/// How long one counts after its last renewal, in seconds.
const COUNTS_SECONDS: i64 = 120;

/// By shard and name, when it was renewed last, in seconds of Unix time. A mutex: held to note or copy some names.
#[derive(Debug, Default)]
pub(crate) struct OtherLeases(Mutex<BTreeMap<(String, String), i64>>);

impl OtherLeases {
    pub(crate) fn renewed(&self, shard: String, lease: String) {
        self.renewed_at(shard, lease, unix_seconds());
    }

    fn renewed_at(&self, shard: String, lease: String, now_unix_seconds: i64) {
        let mut all = self.0.lock();
        all.retain(|_, renewed| now_unix_seconds - *renewed <= COUNTS_SECONDS);
        let key = (shard, lease);
        if all.len() < MOST || all.contains_key(&key) {
            all.insert(key, now_unix_seconds);
        }
    }

    /// Shard, name and time of the last renewal.
    pub(crate) fn of_late(&self) -> Vec<(String, String, i64)> {
        self.of_late_at(unix_seconds())
    }

    fn of_late_at(&self, now_unix_seconds: i64) -> Vec<(String, String, i64)> {
        let all = self.0.lock();
        let late = all
            .iter()
            .filter(|(_, renewed)| now_unix_seconds - **renewed <= COUNTS_SECONDS);
        late.map(|((shard, lease), renewed)| (shard.clone(), lease.clone(), *renewed))
            .collect()
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
    fn what_was_renewed_of_late_is_told_and_bounded() {
        let leases = OtherLeases::default();
        let renew = |lease: usize, now| leases.renewed_at("ops/blue".to_owned(), lease.to_string(), now);
        renew(1, 100);
        renew(2, 200);
        renew(1, 210);
        let told: Vec<_> = leases
            .of_late_at(330)
            .into_iter()
            .map(|(_, lease, at)| (lease, at))
            .collect();
        assert_eq!(told, [("1".to_owned(), 210)]);
        for lease in 0..1_000 {
            renew(lease, 400);
        }
        assert_eq!(leases.of_late_at(400).len(), MOST);
        renew(1, 401);
        assert!(
            leases
                .of_late_at(401)
                .iter()
                .any(|(_, lease, at)| lease == "1" && *at == 401)
        );
    }
}
