//! What left the shards of one cluster during the last day, bounded in time and number.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use portolan_crds::ShardName;
use portolan_crds::ledger::Departure;

/// How long departures are kept: a cursor that is older may not be told what left since.
const KEPT: SignedDuration = SignedDuration::from_hours(24);
/// Departures are dropped this many seconds' worth at a time, so that time alone seldom changes the ledger.
const DROPPED_EVERY_SECONDS: i64 = 3600;
/// Most departures kept of one member, as many as it may have namespaces. Beyond it the earliest are dropped sooner.
const MAX: usize = 50_000;

/// What left the shards of one cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Departures {
    /// The last time that each namespace left each shard.
    pub(super) by_shard: BTreeMap<ShardName, BTreeMap<String, Departure>>,
    /// The highest view revision of what was dropped, or stays for its revision alone.
    pub(super) dropped_up_to: u64,
}

impl Departures {
    pub(super) fn is_empty(&self) -> bool {
        self.by_shard.is_empty()
    }

    /// Drops those that are too old or too many. The last one of each shard that there `is` stays however old it is: the view
    /// revision of a shard is the highest that it names, and must not fall.
    pub(super) fn drop(&mut self, now: Timestamp, is: impl Fn(&ShardName) -> bool) {
        let seconds = now.as_second();
        let since = seconds - seconds.rem_euclid(DROPPED_EVERY_SECONDS) - KEPT.as_secs();
        let last = |shard: &ShardName, all: &BTreeMap<String, Departure>| {
            let revisions = all.values().map(|departure| departure.view_revision);
            revisions.max().filter(|_| is(shard))
        };
        let last: BTreeSet<u64> = self
            .by_shard
            .iter()
            .filter_map(|(shard, all)| last(shard, all))
            .collect();
        self.retain(|departure| departure.unix_seconds >= since, &last);
        let count: usize = self.by_shard.values().map(BTreeMap::len).sum();
        let Some(excess) = count.checked_sub(MAX).filter(|excess| *excess > 0) else {
            return;
        };
        let all = self.by_shard.values().flat_map(BTreeMap::values);
        let mut revisions: Vec<_> = all.map(|departure| departure.view_revision).collect();
        let (_, last_dropped, _) = revisions.select_nth_unstable(excess - 1);
        let last_dropped = *last_dropped;
        self.retain(|departure| departure.view_revision > last_dropped, &last);
    }

    fn retain(&mut self, counts: impl Fn(&Departure) -> bool, last: &BTreeSet<u64>) {
        let dropped_up_to = &mut self.dropped_up_to;
        self.by_shard.retain(|_, namespaces| {
            namespaces.retain(|_, departure| {
                let counts = counts(departure);
                if !counts {
                    *dropped_up_to = departure.view_revision.max(*dropped_up_to);
                }
                counts || last.contains(&departure.view_revision)
            });
            !namespaces.is_empty()
        });
    }
}
