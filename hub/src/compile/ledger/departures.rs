//! What left the shards of one cluster during the last day, bounded in time and number.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use portolan_crds::ShardName;
use portolan_crds::ledger::Departure;

/// How long departures are kept: a cursor that is older may not be told what left since.
const KEPT: SignedDuration = SignedDuration::from_hours(24);
/// Departures are dropped this many seconds' worth at a time, so that time alone seldom changes the ledger.
const DROPPED_EVERY_SECONDS: i64 = 3600;
/// Most departures kept of one member, as many as it may have namespaces. Beyond it the earliest are dropped sooner, of the namespaces of the
/// hub whose shards have more than their part of it.
const MAX: usize = 50_000;

/// In the place of namespaces that left again, or of which too many left: what stays for its revision alone.
pub(super) const NOBODY: &str = "";

/// What left the shards of one cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Departures {
    /// The last time that each namespace left each shard.
    pub(super) by_shard: BTreeMap<ShardName, BTreeMap<String, Departure>>,
    /// The highest view revision of what was dropped of any shard as too old. What stays of these stays for its revision alone.
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
            mark(of_shard, before);
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
        let dropped_up_to = too_old.max(self.dropped_up_to);
        self.dropped_up_to = dropped_up_to;
        self.drop_excess();
        self.by_shard.retain(|shard, namespaces| {
            let last = dropped_last(namespaces, dropped_up_to).filter(|_| is(shard));
            namespaces.retain(|namespace, departure| {
                !is_dropped((namespace, departure), dropped_up_to) || Some(departure.view_revision) == last
            });
            !namespaces.is_empty()
        });
    }

    /// Drops the earliest of each author that has more than its part.
    fn drop_excess(&mut self) {
        let mut known = BTreeMap::<String, Vec<u64>>::new();
        for (shard, namespaces) in &self.by_shard {
            let all = namespaces.iter().filter(|one| !is_dropped(*one, self.dropped_up_to));
            let of_author = known.entry(shard.namespace().to_owned()).or_default();
            of_author.extend(all.map(|(_, departure)| departure.view_revision));
        }
        let Some(part) = part_of_each(known.values().map(Vec::len).collect()) else {
            return;
        };
        known.retain(|_, revisions| revisions.len() > part);
        let cuts = known.iter_mut().map(|(author, revisions)| {
            let excess = revisions.len() - part;
            let (_, last_dropped, _) = revisions.select_nth_unstable(excess - 1);
            (author.as_str(), *last_dropped)
        });
        let cuts: BTreeMap<_, _> = cuts.collect();
        for (shard, namespaces) in &mut self.by_shard {
            let Some(cut) = cuts.get(shard.namespace()) else {
                continue;
            };
            let excess = namespaces.extract_if(.., |_, departure| departure.view_revision <= *cut);
            if let Some((_, last)) = excess.max_by_key(|(_, departure)| departure.view_revision) {
                mark(namespaces, last);
            }
        }
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

/// How many may be kept of each author that has more, where these are too many: all that others leave, in even parts.
fn part_of_each(mut counts: Vec<usize>) -> Option<usize> {
    counts.sort_unstable();
    let (mut left, authors) = (MAX, counts.len());
    for (at, count) in counts.into_iter().enumerate() {
        let part = left / (authors - at);
        if count > part {
            return Some(part);
        }
        left -= count;
    }
    None
}

/// How far departures of the shard are dropped; it never falls.
fn mark(of_shard: &mut BTreeMap<String, Departure>, dropped: Departure) {
    let mark = of_shard.entry(NOBODY.to_owned()).or_insert(dropped);
    if mark.view_revision < dropped.view_revision {
        *mark = dropped;
    }
}

/// Whether it stays for its revision alone.
fn is_dropped((namespace, departure): (&String, &Departure), dropped_up_to: u64) -> bool {
    namespace == NOBODY || departure.view_revision <= dropped_up_to
}

fn dropped_last(namespaces: &BTreeMap<String, Departure>, dropped_up_to: u64) -> Option<u64> {
    let dropped = namespaces.iter().filter(|one| is_dropped(*one, dropped_up_to));
    dropped.map(|(_, departure)| departure.view_revision).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(name: &str) -> ShardName {
        name.parse().unwrap()
    }

    /// Leaves this many, one revision after the other, all in the same second.
    fn leave(departures: &mut Departures, shard: &ShardName, revisions: std::ops::Range<u64>) {
        for view_revision in revisions {
            let departure = Departure {
                view_revision,
                unix_seconds: 1,
            };
            departures.add(shard.clone(), &format!("ns-{view_revision}"), departure);
        }
    }

    #[test]
    fn no_author_uses_up_what_others_need() {
        let [few, many, most] = ["few/a", "many/a", "many/b"].map(shard);
        let max = u64::try_from(MAX).unwrap();
        let mut departures = Departures::default();
        leave(&mut departures, &few, 1..11);
        leave(&mut departures, &many, 11..21);
        leave(&mut departures, &most, 21..max + 1);
        let all = departures.clone();
        departures.drop(None, |_| true);
        assert_eq!(departures, all, "not more than there may be");
        leave(&mut departures, &most, max + 1..max + 16);
        departures.drop(None, |_| true);
        let told = |shard: &ShardName| departures.by_shard[shard].keys().filter(|name| *name != NOBODY).count();
        assert_eq!(
            (told(&few), departures.dropped_up_to(&few)),
            (10, 0),
            "the earliest of all"
        );
        assert_eq!((told(&many), departures.dropped_up_to(&many)), (0, 20));
        assert_eq!((told(&most), departures.dropped_up_to(&most)), (MAX - 10, 25));
        let again = departures.clone();
        departures.drop(None, |_| true);
        assert_eq!(departures, again);
        departures.drop(None, |shard| *shard != many);
        assert!(
            !departures.by_shard.contains_key(&many),
            "a shard that is gone needs no mark"
        );
    }

    #[test]
    fn a_mark_never_falls() {
        let of = shard("ops/a");
        let mut departures = Departures::default();
        leave(&mut departures, &of, 1..u64::try_from(MAX).unwrap() + 6);
        departures.drop(None, |_| true);
        assert_eq!(departures.dropped_up_to(&of), 5);
        let old = Timestamp::from_second(2).unwrap();
        departures.drop(Some(old), |_| true);
        let last = u64::try_from(MAX).unwrap() + 5;
        assert_eq!(
            (departures.dropped_up_to(&of), departures.by_shard[&of].len()),
            (last, 1)
        );
        // It comes and leaves again.
        let departure = Departure {
            view_revision: last + 2,
            unix_seconds: 3,
        };
        departures.add(of.clone(), &format!("ns-{last}"), departure);
        assert_eq!(departures.dropped_up_to(&of), last);
    }

    #[test]
    fn what_some_leave_others_have() {
        assert_eq!(part_of_each(vec![MAX]), None);
        assert_eq!(part_of_each(vec![MAX + 1]), Some(MAX));
        assert_eq!(part_of_each(vec![MAX, MAX]), Some(MAX / 2));
        assert_eq!(part_of_each(vec![MAX, 10, MAX]), Some((MAX - 10) / 2));
    }
}
