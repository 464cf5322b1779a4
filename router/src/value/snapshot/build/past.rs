//! The shard as it was: what a client held that comes with a cursor of an older view, and who else may have had what it asks
//! for. From what the hub remembers of departures, 24 hours.

use std::collections::HashSet;
use std::sync::Arc;

use super::shard;
use crate::value::snapshot::{Departed, GrantState, MadeOf, Ownership, Pair, Shard, ShardName, Snapshot};

impl Shard {
    /// The shard at an older view revision, by the rules of now: without what entered since, with what left. What came and
    /// went in between is in it as well: nobody held it, and nobody minds that it is gone. `None`: what was whose is not known.
    pub(crate) fn as_of(&self, home: &str, revision: u64) -> Option<Self> {
        let mut left = HashSet::new();
        let MadeOf {
            rules,
            owned,
            elsewhere,
        } = &self.made_of;
        if elsewhere.iter().any(|owned| owned.last_revision() > revision) {
            return None;
        }
        let owned = owned.iter().map(|owned| {
            let Some(owned) = owned else { return Some(None) };
            Some(Some(Arc::new(owned.as_of(revision, &mut left)?)))
        });
        let owned: Vec<Option<Arc<Ownership>>> = owned.collect::<Option<_>>()?;
        // What several members have had since, when which one had it is not known.
        let once = |namespace: &Arc<str>| {
            let has = |owned: &&Arc<Ownership>| owned.namespaces.contains_key(namespace);
            owned.iter().flatten().filter(has).count() == 1
        };
        if !left.iter().all(once) {
            return None;
        }
        let made_of = MadeOf {
            rules: rules.clone(),
            owned,
            elsewhere: elsewhere.clone(),
        };
        shard::shard(made_of, home).ok()
    }

    /// The cluster that a namespace left last, if it is in none of the shard's now.
    pub(crate) fn departed(&self, namespace: &str) -> Option<(&Arc<str>, &Departed)> {
        let departed = self.made_of.all_owned().flat_map(|owned| {
            let departed = owned.remembered();
            departed.map(move |departed| (&owned.cluster, departed))
        });
        departed
            .filter(|(_, departed)| *departed.namespace == *namespace)
            .max_by_key(|(_, departed)| departed.view_revision)
    }
}

impl Ownership {
    /// `left`: gets the namespaces that were here then and are not now.
    fn as_of(&self, revision: u64, left: &mut HashSet<Arc<str>>) -> Option<Self> {
        if revision < self.departed_dropped_up_to {
            return None;
        }
        let mut before = self.clone();
        before.namespaces.retain(|_, pair| pair.view_revision <= revision);
        for Departed { namespace, .. } in self
            .departed
            .iter()
            .filter(|departed| departed.view_revision > revision)
        {
            // It is back: whether it was here before it left is not known.
            if self.namespaces.contains_key(namespace) {
                return None;
            }
            let pair = Pair {
                owner_count: 0,
                view_revision: revision,
                state: GrantState::Releasing,
                fenced: false,
                vacant: false,
            };
            before.namespaces.insert(namespace.clone(), pair);
            left.insert(namespace.clone());
        }
        Some(before)
    }

    /// What left in the last 24 hours. The newest departure of a shard stays for its view revision when it is older.
    fn remembered(&self) -> impl Iterator<Item = &Departed> {
        let all = self.departed.iter();
        all.filter(|departed| departed.view_revision > self.departed_dropped_up_to)
    }

    /// Whether it has, or has had, anything (of this namespace).
    fn knows(&self, namespace: Option<&str>) -> bool {
        match namespace {
            None => !self.namespaces.is_empty() || self.remembered().next().is_some(),
            Some(name) => {
                let departed = || self.remembered().any(|departed| *departed.namespace == *name);
                self.namespaces.contains_key(name) || departed()
            }
        }
    }
}

impl Snapshot {
    /// Whether no member but this one has had anything (of this namespace) for the shard in 24 hours.
    pub(crate) fn is_only_member(&self, shard: &ShardName, cluster: &str, namespace: Option<&str>) -> bool {
        let others = self.ownership.iter().filter(|(other, _)| ***other != *cluster);
        others
            .filter_map(|(_, shards)| shards.get(shard))
            .all(|owned| !owned.knows(namespace))
    }
}
