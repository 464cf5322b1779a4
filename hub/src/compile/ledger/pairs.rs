//! One operator's pairs of one cluster, and what is to be known of all of them without looking at each. Ledgers in which they are the same share
//! them: from one run to the next nearly all clusters stay as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use portolan_crds::{OperatorName, ShardName};

use super::vacancies::VACANT_FOR;
use super::{ByCluster, Entry, Field};

/// One operator's pairs of one cluster by namespace. Never changed: others take their place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::compile) struct Pairs {
    entries: BTreeMap<String, Entry>,
    /// Whoever has any of them, releasing or not.
    owners: BTreeSet<ShardName>,
    /// Some of it is being released.
    pub(in crate::compile) is_releasing: bool,
    /// Of some of it the member is to fence off what still arrives.
    pub(super) is_closing: bool,
    /// Writes to some of it do not say their epoch, though it has an owner.
    is_open: bool,
    /// For some of it, it is waited until all routers have acknowledged a later run: they have heard then that writes are to say their
    /// epoch. The first of these runs.
    pub(super) awaits_epochs: Option<u64>,
    /// Since when the one of them is vacant that is so longest.
    vacant_from: Option<Timestamp>,
    /// The highest epoch of any of them.
    pub(super) highest_epoch: u64,
}

impl Pairs {
    pub(super) fn new(entries: BTreeMap<String, Entry>) -> Self {
        let mut pairs = Self::default();
        for entry in entries.values() {
            if let Some(owner) = entry.owner.as_ref().filter(|owner| !pairs.owners.contains(*owner)) {
                pairs.owners.insert(owner.clone());
            }
            pairs.is_releasing |= entry.releasing_since.is_some();
            pairs.is_closing |= entry.closing.is_some();
            pairs.is_open |= entry.owner.is_some() && !entry.is_fenced();
            pairs.awaits_epochs = pairs.awaits_epochs.into_iter().chain(entry.saying_since).min();
            let vacant_from = entry.vacant_from.filter(|_| entry.releasing_since.is_none());
            pairs.vacant_from = pairs.vacant_from.into_iter().chain(vacant_from).min();
            pairs.highest_epoch = pairs.highest_epoch.max(entry.highest_epoch());
        }
        pairs.entries = entries;
        pairs
    }

    pub(super) fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// Whoever has any of them, releasing or not.
    pub(in crate::compile) fn owners(&self) -> &BTreeSet<ShardName> {
        &self.owners
    }

    /// Whether there is any that its member may have to be told to fence off.
    pub(in crate::compile) fn may_want_fences(&self) -> bool {
        self.is_closing || self.is_open
    }

    /// When the first of them has been vacant for too long.
    pub(in crate::compile) fn vacancy_ends(&self) -> Option<Timestamp> {
        self.vacant_from.map(|from| from + VACANT_FOR)
    }

    /// Whether what becomes of them depends on how far routers are, and on how often it was looked, where all have acknowledged this run.
    pub(in crate::compile) fn are_on_their_way(&self, by_all: u64) -> bool {
        // Until then each look comes to the same; while routers come one after the other, for minutes.
        let have_heard = self.awaits_epochs.is_some_and(|since| since <= by_all);
        self.is_releasing || self.is_closing || have_heard
    }
}

/// Clusters of which the two do not share what they say, with that.
pub(in crate::compile) fn unshared<'a, V>(
    ours: &'a BTreeMap<String, Arc<V>>,
    theirs: &'a BTreeMap<String, Arc<V>>,
) -> impl Iterator<Item = (&'a String, Option<&'a V>, Option<&'a V>)> {
    let here = ours
        .iter()
        .map(|(cluster, one)| (cluster, Some(one), theirs.get(cluster)));
    let there = theirs.iter().filter(|(cluster, _)| !ours.contains_key(*cluster));
    let all = here.chain(there.map(|(cluster, other)| (cluster, None, Some(other))));
    let shared = |one: Option<&Arc<V>>, other: Option<&Arc<V>>| {
        one.zip(other).is_some_and(|(one, other)| Arc::ptr_eq(one, other))
    };
    let unshared = all.filter(move |(_, one, other)| !shared(*one, *other));
    unshared.map(|(cluster, one, other)| (cluster, one.map(|one| &**one), other.map(|other| &**other)))
}

/// Operators and clusters of which the two do not share what they say, with that.
pub(in crate::compile) fn unshared_fields<'a>(
    ours: &'a BTreeMap<OperatorName, ByCluster>,
    theirs: &'a BTreeMap<OperatorName, ByCluster>,
) -> impl Iterator<Item = (Field<'a>, Option<&'a Pairs>, Option<&'a Pairs>)> {
    static NONE: ByCluster = ByCluster::new();
    let operators: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    operators.into_iter().flat_map(move |operator| {
        let of = |all: &'a BTreeMap<OperatorName, ByCluster>| all.get(operator).unwrap_or(&NONE);
        let unshared = unshared(of(ours), of(theirs));
        unshared.map(move |(cluster, one, other)| ((operator, cluster.as_str()), one, other))
    })
}
