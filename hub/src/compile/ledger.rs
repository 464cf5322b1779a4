//! Who holds which (cluster, namespace) pair, how often it changed hands, and what is on its way back.
//!
//! A pair is *held*, *releasing* (its owner no longer wants it, but some router may still let the owner's callers
//! write) or *free*. Only a free pair can be claimed by another shard. Callers: `judge` asks, `compile` moves it on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_crds::{ClusterShardStatus, ShardName, ShardingConfigSpec};

use super::wanted::wanted;
use crate::facts::Facts;

/// Claims of one run: cluster → namespace → shard.
pub(super) type Claims = BTreeMap<String, BTreeMap<String, ShardName>>;

/// Where each namespace that a shard has is: shard → namespace → cluster.
pub(super) type Homes<'a> = BTreeMap<&'a ShardName, BTreeMap<&'a str, &'a str>>;

/// Pairs that have or had an owner, by cluster and namespace.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Ledger {
    pairs: BTreeMap<String, BTreeMap<String, Entry>>,
    partial: Partial,
}

/// Shards that have more in a cluster than a status can name, since a restart and until the agent there has spoken: cluster
/// → shard → the spec by which it has it. What nobody is known to have there may be theirs.
type Partial = BTreeMap<String, BTreeMap<ShardName, Arc<ShardingConfigSpec>>>;

/// One pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// `None`: free.
    pub(crate) owner: Option<ShardName>,
    /// Number of owners it has had.
    pub(crate) generation: u64,
    /// The run in which its owner stopped wanting it.
    pub(crate) releasing_since: Option<u64>,
}

impl Ledger {
    pub(crate) fn get(&self, cluster: &str, namespace: &str) -> Option<&Entry> {
        self.pairs.get(cluster)?.get(namespace)
    }

    /// Pairs of one cluster, free ones included.
    pub(crate) fn in_cluster(&self, cluster: &str) -> impl Iterator<Item = (&str, &Entry)> {
        self.pairs
            .get(cluster)
            .into_iter()
            .flatten()
            .map(|(namespace, entry)| (namespace.as_str(), entry))
    }

    /// Whether anything is on its way back.
    pub(crate) fn is_releasing(&self) -> bool {
        self.pairs
            .values()
            .flat_map(BTreeMap::values)
            .any(|entry| entry.releasing_since.is_some())
    }

    /// Whether `shard` has anything, releasing or not.
    pub(crate) fn is_owner(&self, shard: &ShardName) -> bool {
        self.clusters().any(|cluster| self.is_owner_in(cluster, shard))
    }

    /// The same, in one cluster.
    pub(super) fn is_owner_in(&self, cluster: &str, shard: &ShardName) -> bool {
        let mut entries = self.in_cluster(cluster);
        entries.any(|(_, entry)| entry.owner.as_ref() == Some(shard)) || self.is_partial(cluster, shard)
    }

    /// Whether not all is known that `shard` has in `cluster`.
    pub(super) fn is_partial(&self, cluster: &str, shard: &ShardName) -> bool {
        self.partial
            .get(cluster)
            .is_some_and(|shards| shards.contains_key(shard))
    }

    /// A shard other than `name` that may have what nobody is known to have in `cluster`.
    pub(super) fn possible_owner(&self, cluster: &str, name: &ShardName) -> Option<&ShardName> {
        self.partial.get(cluster)?.keys().find(|shard| *shard != name)
    }

    /// Clusters with pairs of any state.
    pub(crate) fn clusters(&self) -> impl Iterator<Item = &str> {
        self.pairs.keys().map(String::as_str)
    }

    /// Namespaces of `cluster` that `shard` holds, releasing ones excepted.
    pub(super) fn held_in(&self, cluster: &str, shard: &ShardName) -> impl Iterator<Item = &str> {
        let held = |entry: &Entry| entry.owner.as_ref() == Some(shard) && entry.releasing_since.is_none();
        self.in_cluster(cluster)
            .filter(move |(_, entry)| held(entry))
            .map(|(namespace, _)| namespace)
    }

    /// The cluster where each shard has a namespace, releasing ones included: until every router has let go of it, callers
    /// may still write there. Of several, the one that is not being released.
    pub(super) fn homes(&self) -> Homes<'_> {
        let mut homes = Homes::new();
        for (cluster, namespaces) in &self.pairs {
            for (namespace, entry) in namespaces {
                let Some(owner) = &entry.owner else { continue };
                let of_shard = homes.entry(owner).or_default();
                if entry.releasing_since.is_none() {
                    of_shard.insert(namespace, cluster);
                } else {
                    of_shard.entry(namespace).or_insert(cluster);
                }
            }
        }
        homes
    }

    /// Takes back what a status says was held before this process started. Of several that say so, the last owner has it:
    /// the other status was not written any more.
    pub(super) fn recover(
        &mut self,
        shard: &ShardName,
        status: &ClusterShardStatus,
        spec: Option<&Arc<ShardingConfigSpec>>,
    ) {
        let named = i64::try_from(status.namespaces.len()).unwrap_or(i64::MAX);
        if let Some(spec) = spec.filter(|_| status.namespace_count > named) {
            let partial = self.partial.entry(status.name.clone()).or_default();
            partial.insert(shard.clone(), spec.clone());
        }
        let cluster = self.pairs.entry(status.name.clone()).or_default();
        for namespace in &status.namespaces {
            let told = status.generations.get(namespace);
            let generation = told.and_then(|told| u64::try_from(*told).ok()).unwrap_or(1);
            if cluster.get(namespace).is_none_or(|entry| entry.generation < generation) {
                let entry = Entry {
                    owner: Some(shard.clone()),
                    generation,
                    releasing_since: None,
                };
                cluster.insert(namespace.clone(), entry);
            }
        }
    }

    /// Recovers what statuses could not name, of clusters whose agents have told what there is: what the spec in force asks
    /// for and nobody else has. What its owner no longer asked for is among what a status names, see `status::shard`.
    pub(super) fn complete(&mut self, facts: &Facts) {
        // Nobody will tell any more what there is in a member that is gone.
        self.partial.retain(|cluster, _| facts.members.contains_key(cluster));
        let known = |cluster: &String| facts.inventory(cluster).is_some();
        let clusters: Vec<_> = self.partial.keys().filter(|cluster| known(cluster)).cloned().collect();
        for cluster in clusters {
            for (shard, spec) in self.partial.remove(&cluster).unwrap_or_default() {
                let wanted = wanted(facts, (self, &self.homes()), &shard, &spec);
                let here = wanted.members.into_iter().filter(|member| member.cluster == cluster);
                for namespace in here.flat_map(|member| member.namespaces) {
                    self.claim(&cluster, &namespace, &shard);
                }
            }
        }
    }

    /// Frees what was being released in a run that every router has acknowledged.
    pub(super) fn free(&mut self, released_up_to: u64) {
        let entries = self.pairs.values_mut().flat_map(BTreeMap::values_mut);
        for entry in entries.filter(|entry| entry.releasing_since.is_some_and(|since| since <= released_up_to)) {
            entry.owner = None;
            entry.releasing_since = None;
        }
    }

    /// Moves on to the claims of `run`: what is claimed is held, what is no longer claimed is being released.
    pub(super) fn settle(&mut self, claims: &Claims, run: u64) {
        for (cluster, namespaces) in claims {
            for (namespace, shard) in namespaces {
                self.claim(cluster, namespace, shard);
            }
        }
        for (cluster, namespaces) in &mut self.pairs {
            for (namespace, entry) in namespaces {
                let claimed = claims.get(cluster).is_some_and(|claims| claims.contains_key(namespace));
                if entry.owner.is_some() && !claimed {
                    entry.releasing_since.get_or_insert(run);
                }
            }
        }
    }

    /// Forgets free pairs that are no more: their member is gone, or known not to have the namespace. While some status
    /// still names one its number is kept, or that status would win over the next owner's after a restart.
    pub(super) fn forget(&mut self, facts: &Facts) {
        let is_there = |cluster: &str, namespace: &str| {
            let inventory = facts.inventory(cluster);
            facts.members.contains_key(cluster) && inventory.is_none_or(|all| all.contains_key(namespace))
        };
        let told: BTreeSet<(&str, &str)> = facts
            .shards
            .values()
            .flat_map(|shard| &shard.status.clusters)
            .flat_map(|cluster| {
                cluster
                    .namespaces
                    .iter()
                    .map(|namespace| (cluster.name.as_str(), namespace.as_str()))
            })
            .collect();
        self.pairs.retain(|cluster, namespaces| {
            namespaces.retain(|namespace, entry| {
                entry.owner.is_some() || is_there(cluster, namespace) || told.contains(&(cluster, namespace))
            });
            !namespaces.is_empty()
        });
    }

    fn claim(&mut self, cluster: &str, namespace: &str, shard: &ShardName) {
        let namespaces = self.pairs.entry(cluster.to_owned()).or_default();
        let entry = namespaces.entry(namespace.to_owned()).or_insert(Entry {
            owner: None,
            generation: 0,
            releasing_since: None,
        });
        match &entry.owner {
            // `judge` lets nobody claim what another shard holds, nor take back what another one waits for.
            Some(owner) if owner != shard => return,
            Some(_) => {}
            None => {
                entry.owner = Some(shard.clone());
                entry.generation += 1;
            }
        }
        entry.releasing_since = None;
    }
}
