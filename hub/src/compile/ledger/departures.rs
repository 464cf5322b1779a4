//! What left the shards of one cluster during the last day, bounded in time and number.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use portolan_crds::ShardName;
use portolan_crds::ledger::Departure;

/// How long departures are kept: a cursor that is older may not be told what left since.
const KEPT: SignedDuration = SignedDuration::from_hours(24);
/// Departures are dropped this many seconds' worth at a time, so that time alone seldom changes the ledger.
const DROPPED_EVERY_SECONDS: i64 = 3600;
/// Most departures kept of one member, as many as it may have namespaces. Beyond it the earliest are dropped sooner.
const MAX: usize = 50_000;

/// In the place of a namespace that left again: what stays for its revision alone.
pub(super) const NOBODY: &str = "";

/// What left the shards of one cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Departures {
    /// The last time that each namespace left each shard.
    pub(super) by_shard: BTreeMap<ShardName, BTreeMap<String, Departure>>,
    /// The highest view revision of what was dropped of any shard, or stays for its revision alone.
    pub(super) dropped_up_to: u64,
}

impl Departures {
    pub(super) fn is_empty(&self) -> bool {
        self.by_shard.is_empty()
    }

    /// A namespace left a shard.
    pub(super) fn add(&mut self, shard: ShardName, namespace: &str, departure: Departure) {
        let of_shard = self.by_shard.entry(shard).or_default();
        let before = of_shard.insert(namespace.to_owned(), departure);
        // How far the shard's departures are dropped must not be forgotten with it.
        if let Some(before) = before.filter(|before| before.view_revision <= self.dropped_up_to) {
            of_shard.insert(NOBODY.to_owned(), before);
        }
    }

    /// Whether any may be too old or too many, or some were before: else nothing is dropped.
    pub(super) fn may_drop(&self, now: Timestamp) -> bool {
        let since = kept_since(now).as_second();
        let mut all = self.by_shard.values().flat_map(BTreeMap::values);
        let count: usize = self.by_shard.values().map(BTreeMap::len).sum();
        self.dropped_up_to > 0 || count > MAX || all.any(|departure| departure.unix_seconds < since)
    }

    /// Drops those that are too old (of before `since`, if any is) or too many. Of each shard that there `is` the last one of these stays: it says how far the
    /// shard's departures are dropped, and its view revision, the highest that it names, must not fall.
    pub(super) fn drop(&mut self, since: Option<Timestamp>, is: impl Fn(&ShardName) -> bool) {
        let since = since.map_or(i64::MIN, Timestamp::as_second);
        let all = || self.by_shard.values().flat_map(BTreeMap::values);
        let too_old = all().filter(|departure| departure.unix_seconds < since);
        let too_old = too_old.map(|departure| departure.view_revision).max().unwrap_or(0);
        let mut dropped_up_to = too_old.max(self.dropped_up_to);
        let mut kept: Vec<_> = all().map(|departure| departure.view_revision).collect();
        kept.retain(|revision| *revision > dropped_up_to);
        if let Some(excess) = kept.len().checked_sub(MAX).filter(|excess| *excess > 0) {
            let (_, last_dropped, _) = kept.select_nth_unstable(excess - 1);
            dropped_up_to = *last_dropped;
        }
        self.dropped_up_to = dropped_up_to;
        self.by_shard.retain(|shard, namespaces| {
            let last = dropped_last(namespaces, dropped_up_to).filter(|_| is(shard));
            namespaces.retain(|_, departure| {
                departure.view_revision > dropped_up_to || Some(departure.view_revision) == last
            });
            !namespaces.is_empty()
        });
    }

    /// The highest view revision of what of `shard` was dropped, or stays for its revision alone; 0: all is known.
    pub(super) fn dropped_up_to(&self, shard: &ShardName) -> u64 {
        let of_shard = self.by_shard.get(shard);
        of_shard
            .and_then(|namespaces| dropped_last(namespaces, self.dropped_up_to))
            .unwrap_or(0)
    }
}

/// What left before is too old.
pub(super) fn kept_since(now: Timestamp) -> Timestamp {
    let into = now.as_second().rem_euclid(DROPPED_EVERY_SECONDS);
    now - SignedDuration::from_secs(into) - KEPT
}

fn dropped_last(namespaces: &BTreeMap<String, Departure>, dropped_up_to: u64) -> Option<u64> {
    let revisions = namespaces.values().map(|departure| departure.view_revision);
    revisions.filter(|revision| *revision <= dropped_up_to).max()
}
