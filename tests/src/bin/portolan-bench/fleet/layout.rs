//! What a fleet is made of: which namespaces each member has, and which of them each shard asks for. Pure.
//!
//! A shard is in up to ten members, and has namespaces in each of them by a label. The last members have namespaces of a root
//! beside that.

use std::collections::BTreeMap;

use portolan_crds::labels::LabelKeys;
use portolan_crds::{Bucketing, ShardName};
use portolan_tests::hub_cluster::NAMESPACE;
use portolan_wire::v1;
use serde_json::{Value, json};

/// Members of one shard.
const SPAN: usize = 10;
/// Of the root that is shared out, in each of its members.
const ROOT_NAMESPACES: usize = 100;
/// The label of namespaces that says whose they are.
const TEAM: &str = "team";
/// The label of a shard's callers.
const APP: &str = "app";
/// Name and team of the root, and the prefix of its children.
const ROOT: &str = "root";

/// How much there is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) members: usize,
    /// Of all members, those of the root not counted.
    pub(crate) namespaces: usize,
    pub(crate) shards: usize,
}

impl Layout {
    pub(super) fn member(number: usize) -> String {
        format!("member-{number:04}")
    }

    pub(super) fn shard(number: usize) -> String {
        format!("shard-{number:04}")
    }

    /// The name of a shard on the wire.
    pub(super) fn wire_name(shard: &str) -> String {
        ShardName::new(NAMESPACE, shard).map_or_else(|_| String::new(), |name| name.to_string())
    }

    /// The shards that have something in a member, in order; the first ones have one namespace more where it does not come out
    /// even.
    pub(super) fn shards_in(self, member: usize) -> Vec<usize> {
        let first = member * self.shards / self.members;
        let span = SPAN.max(self.shards.div_ceil(self.members)).min(self.shards);
        (0..span).map(|step| (first + step) % self.shards).collect()
    }

    /// What the agent of a member tells of at first.
    pub(super) fn inventory(self, member: usize) -> Vec<v1::NamespaceFact> {
        let (shards, each) = (self.shards_in(member), self.namespaces.div_ceil(self.members));
        let plain = (0..each).map(|number| namespace(member, number, &Self::shard(shards[number % shards.len()])));
        let of_root = self.root_members().contains(&member).then_some(ROOT_NAMESPACES);
        let of_root = (0..of_root.unwrap_or(0)).map(|number| namespace(member, each + number, ROOT));
        plain.chain(of_root).collect()
    }

    /// The spec of a shard; `edits`: how often it was changed.
    pub(super) fn spec(self, shard: usize, edits: usize) -> Value {
        let members = (0..self.members).filter(|member| self.shards_in(*member).contains(&shard));
        let members: Vec<_> = members.map(Self::member).collect();
        let team = Self::shard(shard);
        let view = if edits.is_multiple_of(2) { "Deny" } else { "Allow" };
        json!({
            "selector": {"matchLabels": {APP: team}},
            "callerClusters": members.iter().take(1).collect::<Vec<_>>(),
            "controller": {"leaderElection": "Disabled"},
            "explicitView": view,
            "clusters": entries(&members, &team),
        })
    }

    /// The root over its members, in so many shards.
    pub(super) fn root(self, size: usize) -> Value {
        let members: Vec<_> = self.root_members().map(Self::member).collect();
        json!({
            "selector": {"matchLabels": {APP: ROOT}},
            "callerClusters": members.iter().take(1).collect::<Vec<_>>(),
            "controller": {"leaderElection": "Disabled"},
            "clusters": entries(&members, ROOT),
            "root": {
                "prefix": ROOT, "targetStatefulSet": ROOT,
                "auto": {"shardingSize": size, "everyShardReplicas": 1},
            },
        })
    }

    pub(super) fn root_name() -> &'static str {
        ROOT
    }

    /// Namespaces of the root.
    pub(super) fn root_namespaces(self) -> usize {
        self.root_members().len() * ROOT_NAMESPACES
    }

    /// Pairs of cluster and bucket that the root shares out.
    pub(super) fn root_pairs(self) -> usize {
        self.root_members().len() * usize::from(Bucketing::default().buckets())
    }

    /// All namespaces that shards are to have.
    pub(super) fn owned(self) -> usize {
        self.members * self.namespaces.div_ceil(self.members)
    }

    fn root_members(self) -> std::ops::Range<usize> {
        self.members - self.members.min(SPAN)..self.members
    }
}

/// One entry for each member.
fn entries(members: &[String], team: &str) -> Vec<Value> {
    let entry = |name: &String| json!({"name": name, "namespaceSelector": {"matchLabels": {TEAM: team}}});
    members.iter().map(entry).collect()
}

/// A namespace as its agent tells of it, labelled.
pub(super) fn namespace(member: usize, number: usize, team: &str) -> v1::NamespaceFact {
    let name = format!("ns-{member:04}-{number:05}");
    let (keys, bucketing) = (LabelKeys::default(), Bucketing::default());
    let labels = [
        ("kubernetes.io/metadata.name", name.clone()),
        (TEAM, team.to_owned()),
        (keys.namespace(), name.clone()),
        (keys.sharding_hash(), bucketing.bucket_of(&name).to_string()),
    ];
    let labels: BTreeMap<_, _> = labels.map(|(key, value)| (key.to_owned(), value)).into();
    v1::NamespaceFact {
        uid: format!("0b1c2d3e-4f50-4617-{member:04}-{number:012}"),
        name,
        labels: labels.into_iter().collect(),
        terminating: false,
        epoch: None,
        ..v1::NamespaceFact::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shard_asks_for_all_that_is_its_own() {
        for (members, shards) in [(4, 4), (50, 50), (20, 7), (7, 20)] {
            let layout = Layout {
                members,
                namespaces: members * 40,
                shards,
            };
            for shard in 0..shards {
                let spec = layout.spec(shard, 0);
                let entries = spec["clusters"].as_array().unwrap();
                assert!(!entries.is_empty(), "{members} {shards}: shard {shard} has no member");
                let asked: Vec<_> = entries.iter().map(|entry| entry["name"].as_str().unwrap()).collect();
                for member in (0..members).filter(|member| layout.shards_in(*member).contains(&shard)) {
                    assert!(asked.contains(&Layout::member(member).as_str()));
                }
            }
            let all: usize = (0..members).map(|member| layout.inventory(member).len()).sum();
            assert_eq!(all, layout.owned() + layout.root_namespaces());
        }
    }
}
