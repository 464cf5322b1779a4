//! Who holds which (cluster, namespace) pair, how often it changed hands, and what is on its way back.
//!
//! A pair is *held*, *releasing* (its owner no longer wants it, but some router may still let the owner's callers
//! write) or *free*. Only a free pair can be claimed by another shard. Each change of ownership, entering or leaving,
//! takes the next *view revision*; what left is kept for a day. Callers: `judge` asks, `compile` moves it on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use portolan_crds::{ClusterShardStatus, ShardName, ShardingConfigSpec};

use super::wanted::wanted;
use crate::facts::Facts;

/// Claims of one run: cluster → namespace → shard.
pub(super) type Claims = BTreeMap<String, BTreeMap<String, ShardName>>;

/// Where each namespace that a shard has is: shard → namespace → cluster.
pub(super) type Homes<'a> = BTreeMap<&'a ShardName, BTreeMap<&'a str, &'a str>>;

/// How long departures are kept: a cursor that is older may not be told what left since.
const DEPARTURES_KEPT: SignedDuration = SignedDuration::from_hours(24);
/// Departures are dropped this many seconds' worth at a time, so that time alone seldom changes the ledger.
const DEPARTURES_DROPPED_EVERY: i64 = 3600;
/// Most departures kept of one member, as many as it may have namespaces. Beyond it the earliest are dropped sooner.
const DEPARTURES_MAX: usize = 50_000;

/// Pairs that have or had an owner, by cluster and namespace.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Ledger {
    pairs: BTreeMap<String, BTreeMap<String, Entry>>,
    departures: BTreeMap<String, Departures>,
    /// The last view revision that was given.
    view_revision: u64,
    partial: Partial,
}

/// What left the shards of one cluster.
#[derive(Debug, Clone, Default, PartialEq)]
struct Departures {
    /// The last time that each namespace left each shard.
    by_shard: BTreeMap<ShardName, BTreeMap<String, Departure>>,
    /// The highest view revision of what was dropped.
    dropped_up_to: u64,
}

/// A pair that left its shard: since then no caller of the shard is served it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Departure {
    pub(crate) view_revision: u64,
    pub(crate) unix_seconds: i64,
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
    /// View revision at which it entered its owner's shard, or that of the last one while it is free.
    pub(crate) view_revision: u64,
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

    /// The last view revision that was given to any change of ownership.
    pub(crate) fn view_revision(&self) -> u64 {
        self.view_revision
    }

    /// What left `shard` in `cluster` during the last day, by namespace: the last time each, also of what has come back.
    pub(crate) fn departures(
        &self,
        cluster: &str,
        shard: &ShardName,
    ) -> impl Iterator<Item = (&str, Departure)> + use<'_> {
        let of_shard = self
            .departures
            .get(cluster)
            .and_then(|departures| departures.by_shard.get(shard));
        let departures = of_shard.into_iter().flatten();
        departures.map(|(namespace, departure)| (namespace.as_str(), *departure))
    }

    /// Departures from `cluster` are known completely after this view revision.
    pub(crate) fn departures_dropped_up_to(&self, cluster: &str) -> u64 {
        self.departures
            .get(cluster)
            .map_or(0, |departures| departures.dropped_up_to)
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
                self.view_revision += 1;
                let entry = Entry {
                    owner: Some(shard.clone()),
                    generation,
                    view_revision: self.view_revision,
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

    /// Frees what was being released in a run that every router has acknowledged: it leaves its shard.
    pub(super) fn free(&mut self, released_up_to: u64, now: Timestamp) {
        for (cluster, namespaces) in &mut self.pairs {
            for (namespace, entry) in namespaces {
                if entry.releasing_since.is_none_or(|since| since > released_up_to) {
                    continue;
                }
                entry.releasing_since = None;
                let Some(shard) = entry.owner.take() else { continue };
                self.view_revision += 1;
                let departure = Departure {
                    view_revision: self.view_revision,
                    unix_seconds: now.as_second(),
                };
                let departures = self.departures.entry(cluster.clone()).or_default();
                let of_shard = departures.by_shard.entry(shard).or_default();
                of_shard.insert(namespace.clone(), departure);
            }
        }
    }

    /// Drops departures that are too old or too many.
    pub(super) fn drop_departures(&mut self, now: Timestamp) {
        let seconds = now.as_second();
        let hour = seconds - seconds.rem_euclid(DEPARTURES_DROPPED_EVERY);
        let since = hour - DEPARTURES_KEPT.as_secs();
        for departures in self.departures.values_mut() {
            departures.retain(|departure| departure.unix_seconds >= since);
            departures.bound();
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
            view_revision: 0,
            releasing_since: None,
        });
        match &entry.owner {
            // `judge` lets nobody claim what another shard holds, nor take back what another one waits for.
            Some(owner) if owner != shard => return,
            Some(_) => {}
            None => {
                self.view_revision += 1;
                entry.owner = Some(shard.clone());
                entry.generation += 1;
                entry.view_revision = self.view_revision;
            }
        }
        entry.releasing_since = None;
    }
}

impl Departures {
    fn retain(&mut self, keep: impl Fn(&Departure) -> bool) {
        let dropped_up_to = &mut self.dropped_up_to;
        self.by_shard.retain(|_, namespaces| {
            namespaces.retain(|_, departure| {
                let kept = keep(departure);
                if !kept {
                    *dropped_up_to = departure.view_revision.max(*dropped_up_to);
                }
                kept
            });
            !namespaces.is_empty()
        });
    }

    fn bound(&mut self) {
        let count: usize = self.by_shard.values().map(BTreeMap::len).sum();
        let Some(excess) = count.checked_sub(DEPARTURES_MAX).filter(|excess| *excess > 0) else {
            return;
        };
        let all = self.by_shard.values().flat_map(BTreeMap::values);
        let mut revisions: Vec<_> = all.map(|departure| departure.view_revision).collect();
        let (_, last_dropped, _) = revisions.select_nth_unstable(excess - 1);
        let last_dropped = *last_dropped;
        self.retain(|departure| departure.view_revision > last_dropped);
    }
}
