//! How long, and how many pairs of one shard, wait for their namespace to be made again. Which do at all is `compile::vacant`'s.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use portolan_crds::ShardName;

use super::Entry;

/// How long a pair waits for its namespace to be made again.
pub(in crate::compile) const VACANT_FOR: SignedDuration = SignedDuration::from_hours(1);
/// Most vacant pairs of one shard in one member: beyond it those that are vacant longest are released. Routers name each in what they
/// ask members for.
pub(in crate::compile) const MOST_VACANT: usize = 64;

/// Of the vacant pairs of one member those that are too many of their shard, by namespace.
pub(super) fn too_many(entries: &BTreeMap<String, Entry>) -> BTreeSet<String> {
    let mut of_shard = BTreeMap::<&ShardName, Vec<(Timestamp, &String)>>::new();
    for (namespace, entry) in entries {
        let is_held = entry.releasing_since.is_none();
        if let (Some(owner), Some(from)) = (&entry.owner, entry.vacant_from.filter(|_| is_held)) {
            of_shard.entry(owner).or_default().push((from, namespace));
        }
    }
    let excess = of_shard.into_values().flat_map(|mut vacant| {
        vacant.sort_unstable();
        let excess = vacant.len().saturating_sub(MOST_VACANT);
        vacant.into_iter().take(excess)
    });
    excess.map(|(_, namespace)| namespace.clone()).collect()
}
