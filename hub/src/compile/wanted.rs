//! Which (cluster, namespace) pairs a spec asks for, given the members and their last known inventories.
//!
//! Decides nothing about other shards: that is `arbitrate`.

use std::cell::RefCell;
use std::collections::BTreeSet;

use portolan_crds::{ClusterEntry, ConditionReason, OperatorName, ShardName, ShardingConfigSpec};

use super::Ledger;
use super::ledger::{Field, Homes, Pair};
use crate::facts::{Facts, MemberObject};
use crate::settings::Settings;

mod asked;

pub(super) use asked::{Answers, Asked};

/// As many namespaces as a condition names.
const UNREAD_NAMED: usize = 5;

/// What one spec asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// With whose shards it contends.
    pub(crate) operator: OperatorName,
    /// The members in the order of `clusters[]`; several members of one entry by name.
    pub(crate) members: Vec<WantedMember>,
    /// Why, and `field: message`, for each member that the spec names and cannot have: it does not exist, or does not allow it.
    pub(crate) refused_clusters: Vec<(ConditionReason, String)>,
}

/// What one spec asks for in one member.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WantedMember {
    pub(crate) cluster: String,
    pub(crate) namespaces: BTreeSet<String>,
    /// Named exactly, but not in the member's inventory.
    pub(crate) absent: BTreeSet<String>,
    /// Asked for and there, but the shard has it in another member: where it was first, else the earlier in the order.
    pub(crate) shadowed: BTreeSet<String>,
    /// The inventory is asked for, and the agent has not told it to this process: what the shard has there stands in for it.
    pub(crate) unreported: bool,
    /// Some of those that it might choose by their labels, which are too many to be known: it does not.
    pub(crate) unread: BTreeSet<String>,
    /// What it asks for, whatever is there now.
    pub(crate) rules: Rules,
}

/// Which new Namespaces of a member a spec asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) names: BTreeSet<String>,
    /// As text; system namespaces excepted.
    pub(crate) selectors: BTreeSet<String>,
    /// It takes what several members could take.
    pub(crate) default: bool,
}

impl Wanted {
    /// What is left to tell of a root, which owns nothing itself.
    pub(super) fn without_members(&self) -> Self {
        Self {
            operator: self.operator.clone(),
            members: Vec::new(),
            refused_clusters: self.refused_clusters.clone(),
        }
    }

    /// Whether it asks for this pair, as a shard of the same operator.
    pub(super) fn has(&self, (operator, cluster, namespace): Pair<'_>) -> bool {
        let mut members = self.members.iter().filter(|member| member.cluster == cluster);
        self.operator == *operator && members.any(|member| member.namespaces.contains(namespace))
    }

    /// Where it contends for pairs.
    pub(super) fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        let clusters = self.members.iter().map(|member| member.cluster.as_str());
        clusters.map(|cluster| (&self.operator, cluster))
    }

    /// Pairs in these fields, in order.
    pub(super) fn pairs_in(&self, is_in: impl Fn(Field<'_>) -> bool) -> impl Iterator<Item = Pair<'_>> {
        let members = self.members.iter();
        let members = members.filter(move |member| is_in((&self.operator, &member.cluster)));
        members.flat_map(|member| {
            let namespaces = member.namespaces.iter();
            namespaces.map(|namespace| (&self.operator, member.cluster.as_str(), namespace.as_str()))
        })
    }

    /// Cluster and namespace of all pairs, in order.
    #[cfg(test)]
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.pairs_in(|_| true);
        pairs.map(|(_, cluster, namespace)| (cluster, namespace))
    }
}

/// What a spec is seen against.
pub(super) struct Known<'a> {
    pub(super) facts: &'a Facts,
    pub(super) settings: &'a Settings,
    pub(super) ledger: &'a Ledger,
    /// The answers of the last run.
    pub(super) asked: &'a Asked,
    /// Those of this one.
    // A RefCell: one run is one thread's.
    pub(super) noted: RefCell<Answers>,
}

impl Known<'_> {
    /// What `spec` of `shard` asks for. Of a root all that its children do: of a namespace that two members have, both.
    pub(super) fn wanted(&self, shard: &ShardName, spec: &ShardingConfigSpec) -> Wanted {
        let mut wanted = Wanted {
            operator: self.ledger.operator(shard, spec),
            members: Vec::new(),
            refused_clusters: refused_clusters(self.facts, shard, spec),
        };
        if spec.root.is_some() && spec.active_root().is_none() {
            return wanted;
        }
        for entry in &spec.clusters {
            for cluster in clusters_of(self.facts, shard, entry) {
                let found = self.in_member(shard, cluster, entry);
                match wanted.members.iter_mut().find(|member| member.cluster == cluster) {
                    Some(member) => member.merge(found),
                    None => wanted.members.push(found),
                }
            }
        }
        if spec.root.is_none() {
            wanted.shadow(self.facts, &self.ledger.homes(shard));
        }
        wanted
    }

    fn in_member(&self, shard: &ShardName, cluster: &str, entry: &ClusterEntry) -> WantedMember {
        let Settings { keys, bucketing, .. } = self.settings;
        let inventory = self.facts.inventory(cluster);
        let mut member = WantedMember {
            cluster: cluster.to_owned(),
            rules: Rules {
                names: entry.namespaces.iter().cloned().collect(),
                selectors: entry.labelled(keys).iter().map(ToString::to_string).collect(),
                default: entry.default,
            },
            ..WantedMember::default()
        };
        member.namespaces.extend(entry.namespaces.iter().cloned());
        let absent = entry
            .namespaces
            .iter()
            .filter(|name| inventory.is_some_and(|all| !all.contains_key(*name)));
        member.absent.extend(absent.cloned());
        if entry.by_labels().is_none() {
            return member;
        }
        if let Some(inventory) = inventory {
            // What asks for no label chooses also where they are not known.
            let needs_none = entry.by_labels().is_some_and(|selector| selector.is_everything());
            let read = inventory
                .iter()
                .filter(|(_, namespace)| needs_none || namespace.labels_cut == 0);
            let labels = read.map(|(name, namespace)| (name, &namespace.labels));
            member.namespaces.extend(entry.chosen_by_labels(labels, *bucketing));
            let unread = inventory
                .iter()
                .filter(|(_, namespace)| !needs_none && namespace.labels_cut > 0);
            member
                .unread
                .extend(unread.map(|(name, _)| name.clone()).take(UNREAD_NAMED));
        } else {
            member.unreported = true;
            let owned = self.ledger.owned_in(cluster, shard);
            member.namespaces.extend(owned.map(str::to_owned));
        }
        member
    }
}

/// Members of one entry that exist and allow the shard, by name.
pub(super) fn clusters_of<'a>(facts: &'a Facts, shard: &ShardName, entry: &ClusterEntry) -> Vec<&'a str> {
    if let Some(name) = &entry.name {
        // Most entries name one: it is not looked for among all members.
        let named = facts.members.get_key_value(name);
        let named = named.filter(|(_, member)| allows(member, shard));
        return named.map(|(name, _)| name.as_str()).into_iter().collect();
    }
    let is_chosen = entry.cluster_filter();
    let members = facts.members.iter().filter(|(_, member)| allows(member, shard));
    let chosen = members.filter(|(name, member)| is_chosen(name, &member.labels));
    chosen.map(|(name, _)| name.as_str()).collect()
}

fn refused_clusters(facts: &Facts, shard: &ShardName, spec: &ShardingConfigSpec) -> Vec<(ConditionReason, String)> {
    let refused = |(field, name): (String, &str)| match facts.members.get(name) {
        None => {
            let fix = "join it with portolanctl, or correct the name";
            let message = format!("{field}: no MemberCluster is named {name:?}: {fix}");
            Some((ConditionReason::UnknownCluster, message))
        }
        Some(member) if !allows(member, shard) => {
            let namespace = shard.namespace();
            let fix = "name that namespace in its spec.allowedNamespaces, or leave the cluster out";
            let message =
                format!("{field}: MemberCluster {name:?} takes no ShardingConfigs of namespace {namespace:?}: {fix}");
            Some((ConditionReason::NotAllowed, message))
        }
        Some(_) => None,
    };
    spec.named_clusters().into_iter().filter_map(refused).collect()
}

/// Whether the member may be a shard's, by its spec in force; the shard's callers may run there, too.
pub(super) fn allows(member: &MemberObject, shard: &ShardName) -> bool {
    let spec = member.in_force.as_ref();
    spec.is_none_or(|spec| spec.allows(shard.namespace()))
}

impl Wanted {
    /// Why the shard cannot have members that it names; the first reason stands for all.
    pub(crate) fn refusal(&self) -> Option<(ConditionReason, String)> {
        let (reason, _) = self.refused_clusters.first()?;
        let all: Vec<&str> = self
            .refused_clusters
            .iter()
            .map(|(_, message)| message.as_str())
            .collect();
        Some((*reason, all.join("; ")))
    }
}

impl WantedMember {
    fn merge(&mut self, other: Self) {
        self.namespaces.extend(other.namespaces);
        self.absent.extend(other.absent);
        self.unreported |= other.unreported;
        self.unread.extend(other.unread);
        self.rules.names.extend(other.rules.names);
        self.rules.selectors.extend(other.rules.selectors);
        self.rules.default |= other.rules.default;
    }
}

impl Wanted {
    /// A namespace belongs to one member of a shard: the one where the shard has it already, else the first that is asked
    /// for it. Otherwise whoever makes a namespace of that name in an earlier member would draw the writes to it.
    fn shadow(&mut self, facts: &Facts, homes: &Homes<'_>) {
        let mut taken = BTreeSet::new();
        for member in &mut self.members {
            let inventory = facts.inventory(&member.cluster);
            let is_mine = |name: &String| match homes.get(name.as_str()) {
                Some(home) => *home == member.cluster,
                None => !taken.contains(name),
            };
            let (mine, others): (BTreeSet<_>, BTreeSet<_>) =
                std::mem::take(&mut member.namespaces).into_iter().partition(is_mine);
            member.absent.retain(|name| mine.contains(name));
            // What is not there cannot be missed in merged answers, so it is not worth a warning.
            let there = others
                .into_iter()
                .filter(|name| inventory.is_none_or(|all| all.contains_key(name)));
            member.shadowed = there.collect();
            taken.extend(mine.iter().cloned());
            member.namespaces = mine;
        }
    }
}
