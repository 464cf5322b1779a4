//! Who may have which pair where the ledger does not tell: whom statuses name, and what specs in force ask for. Pure.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;
use portolan_crds::ledger::{Pair, PairFence, SpecInForce};
use portolan_crds::{
    Bucketing, ClusterEntry, Contention, MemberCluster, OperatorName, ShardName, ShardingConfig, ShardingConfigSpec,
};

/// Namespaces of a member, with their labels.
pub(crate) type Inventory = BTreeMap<String, BTreeMap<String, String>>;
/// A (cluster, namespace), as an operator's shards contend for it.
pub(crate) type PairName = (String, String, OperatorName);

/// What is known, from wherever it could be read.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    pub(crate) shards: Vec<ShardingConfig>,
    pub(crate) members: Vec<MemberCluster>,
    /// Namespaces of the members whose kubeconfigs were given.
    pub(crate) inventories: BTreeMap<String, Inventory>,
    /// Who contends with whom, by what is left of the ledger.
    pub(crate) contention: Contention,
    /// Pairs in what is left of the ledger.
    pub(crate) pairs: BTreeMap<PairName, Pair>,
    /// The hub's buckets, by which specs choose namespaces.
    pub(crate) bucketing: Bucketing,
    /// Specs in what is left of the ledger.
    pub(crate) specs: BTreeMap<ShardName, SpecInForce>,
}

/// What can be said about who has what.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Adoption {
    /// One shard claims it, or the ledger tells.
    pub(crate) certain: BTreeMap<PairName, Pair>,
    /// Several claim it, or one and perhaps another that does not tell all.
    pub(crate) ambiguous: BTreeMap<PairName, BTreeSet<ShardName>>,
    /// The spec in force of each shard.
    pub(crate) specs: BTreeMap<ShardName, SpecInForce>,
    /// What nobody can tell, in words.
    pub(crate) unknown: Vec<String>,
}

/// One shard's claims.
struct Claimant<'a> {
    evidence: &'a Evidence,
    name: &'a ShardName,
    /// Where its status says that it has a namespace.
    told: BTreeMap<&'a str, &'a str>,
    /// Clusters and namespaces.
    claimed: BTreeSet<(String, String)>,
    /// Members of which it may have more than it claims, and why.
    unknown: BTreeMap<String, String>,
}

/// Weighs all evidence. Pairs that are not in the ledger get view revisions after `view_revision`.
pub(crate) fn claims(evidence: &Evidence, mut view_revision: u64) -> Adoption {
    let mut claims = Adoption::default();
    let mut claimants = BTreeMap::<PairName, BTreeSet<ShardName>>::new();
    // Members in which some shard may have more than it claims: those of a spec that cannot be read may be any.
    let (mut unsure, mut everywhere) = (BTreeSet::new(), false);
    for object in &evidence.shards {
        let Ok(name) = ShardName::new(object.namespace().unwrap_or_default(), object.name_any()) else {
            continue;
        };
        let mut claimant = Claimant::new(evidence, &name, object);
        let mut operator = evidence.contention.of(&name, &object.spec);
        match in_force(evidence, &name, object) {
            Ok(Some(spec)) => {
                match spec.read() {
                    Ok(read) => {
                        claimant.ask(&read);
                        operator = evidence.contention.of(&name, &read);
                        claims.specs.insert(name.clone(), spec);
                    }
                    // A hub would not start with it.
                    Err(unread) => {
                        everywhere = true;
                        claims.unknown.push(unread);
                    }
                }
            }
            Ok(None) => {}
            Err(unknown) => {
                unsure.extend(claimant.told.values().map(|cluster| (*cluster).to_owned()));
                claims.unknown.push(unknown);
            }
        }
        unsure.extend(claimant.unknown.keys().cloned());
        claims.unknown.extend(claimant.unknown.into_values());
        for (cluster, namespace) in claimant.claimed {
            let pair = (cluster, namespace, operator.clone());
            claimants.entry(pair).or_default().insert(name.clone());
        }
    }
    claims.certain = evidence.pairs.clone();
    let is_sure = |cluster: &String| !everywhere && !unsure.contains(cluster);
    for (pair, shards) in claimants {
        if evidence.pairs.contains_key(&pair) {
            continue;
        }
        match shards.first().filter(|_| shards.len() == 1 && is_sure(&pair.0)) {
            Some(owner) => {
                view_revision += 1;
                let entry = found(owner, &claims.certain, &pair, view_revision);
                claims.certain.insert(pair, entry);
            }
            None => drop(claims.ambiguous.insert(pair, shards)),
        }
    }
    claims
}

/// A pair that is in no ledger. No two operators of a namespace have the same epoch.
fn found(owner: &ShardName, certain: &BTreeMap<PairName, Pair>, pair: &PairName, view_revision: u64) -> Pair {
    let (cluster, namespace, _) = pair;
    let first = (cluster.clone(), namespace.clone(), OperatorName::default());
    let beside = certain
        .range(first..)
        .take_while(|(of, _)| (&of.0, &of.1) == (cluster, namespace));
    let highest = beside.map(|(_, pair)| pair.owner_count.max(pair.fence.epoch)).max();
    Pair {
        fence: PairFence::default(),
        owner: Some(owner.clone()),
        owner_count: highest.unwrap_or_default() + 1,
        view_revision,
        releasing: false,
    }
}

/// The spec by which the shard was served last: as the ledger, or else its status, tells. A present spec that was accepted
/// is that too.
fn in_force(evidence: &Evidence, name: &ShardName, object: &ShardingConfig) -> Result<Option<SpecInForce>, String> {
    let uid = object.uid().unwrap_or_default();
    if let Some(spec) = evidence.specs.get(name).filter(|spec| spec.uid == uid) {
        return Ok(Some(spec.clone()));
    }
    if object.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let Some(status) = &object.status else { return Ok(None) };
    let of = |generation, spec| SpecInForce {
        shard: name.clone(),
        uid,
        generation,
        spec,
        before: None,
        lock: None,
        withheld: Vec::new(),
    };
    if let Some(accepted) = &status.accepted {
        return Ok(Some(of(accepted.generation, accepted.spec.clone())));
    }
    let accepted = status.conditions.iter().find(|condition| condition.type_ == "Accepted");
    let present = status
        .observed_generation
        .filter(|observed| object.metadata.generation == Some(*observed));
    match (accepted, present) {
        (Some(condition), Some(generation)) if condition.status == "True" => {
            let spec = serde_json::to_value(&object.spec).map_err(|error| error.to_string())?;
            Ok(Some(of(generation, spec)))
        }
        _ => Err(format!(
            "{name}: which spec was in force is not known, as the present one was not accepted yet: it has nothing until one is"
        )),
    }
}

impl<'a> Claimant<'a> {
    fn new(evidence: &'a Evidence, name: &'a ShardName, object: &'a ShardingConfig) -> Self {
        let mut claimant = Self {
            evidence,
            name,
            told: BTreeMap::new(),
            claimed: BTreeSet::new(),
            unknown: BTreeMap::new(),
        };
        for cluster in object.status.iter().flat_map(|status| &status.clusters) {
            if i64::try_from(cluster.namespaces.len()).is_ok_and(|named| named < cluster.namespace_count) {
                let (named, all, of) = (cluster.namespaces.len(), cluster.namespace_count, &cluster.name);
                let unknown = format!("{name}: its status names {named} of the {all} namespaces that it has in {of}");
                claimant.unknown.insert(of.clone(), unknown);
            }
            for namespace in &cluster.namespaces {
                claimant.told.insert(namespace, &cluster.name);
                claimant.claimed.insert((cluster.name.clone(), namespace.clone()));
            }
        }
        claimant
    }

    /// Adoption what `spec` asks for: of a name in several members where the shard is told to have it, else in the first.
    fn ask(&mut self, spec: &ShardingConfigSpec) {
        // What a root spans is its children's, who say so themselves.
        if spec.root.is_some() {
            return;
        }
        let mut taken = BTreeMap::<String, String>::new();
        for entry in &spec.clusters {
            for cluster in self.clusters_of(entry) {
                for namespace in self.namespaces_of(entry, &cluster) {
                    let home = match self.told.get(namespace.as_str()) {
                        Some(told) => (*told).to_owned(),
                        None => taken
                            .entry(namespace.clone())
                            .or_insert_with(|| cluster.clone())
                            .clone(),
                    };
                    if home == cluster {
                        self.claimed.insert((cluster.clone(), namespace));
                    }
                }
            }
        }
    }

    fn clusters_of(&self, entry: &ClusterEntry) -> Vec<String> {
        let is_chosen = entry.cluster_filter();
        let mut members: Vec<_> = self.evidence.members.iter().collect();
        members.sort_by_key(|member| member.name_any());
        let chosen = members.into_iter();
        let chosen = chosen.filter(|member| is_chosen(&member.name_any(), member.labels()));
        chosen.map(kube::ResourceExt::name_any).collect()
    }

    fn namespaces_of(&mut self, entry: &ClusterEntry, cluster: &str) -> Vec<String> {
        let named = entry.namespaces.clone();
        if entry.by_labels().is_none() {
            return named;
        }
        let Some(inventory) = self.evidence.inventories.get(cluster) else {
            let unknown = format!(
                "{}: which namespaces of {cluster} it asks for is not known without --member {cluster}=FILE",
                self.name
            );
            self.unknown.entry(cluster.to_owned()).or_insert(unknown);
            return named;
        };
        [named, entry.chosen_by_labels(inventory, self.evidence.bucketing)].concat()
    }
}

#[cfg(test)]
mod tests {
    use portolan_crds::{AcceptedSpec, ClusterShardStatus, ShardingConfigStatus};
    use serde_json::json;

    use super::*;

    fn shard(name: &str) -> ShardName {
        ShardName::new("ops", name).unwrap()
    }

    fn object(name: &str, clusters: serde_json::Value, told: &[&str]) -> ShardingConfig {
        let spec: ShardingConfigSpec = serde_json::from_value(json!({"clusters": clusters})).unwrap();
        let mut object = ShardingConfig::new(name, spec.clone());
        object.metadata.namespace = Some("ops".to_owned());
        object.metadata.uid = Some(format!("uid-{name}"));
        object.metadata.generation = Some(3);
        object.status = Some(ShardingConfigStatus {
            accepted: Some(AcceptedSpec {
                generation: 2,
                spec: serde_json::to_value(&spec).unwrap(),
            }),
            clusters: vec![ClusterShardStatus {
                name: "east".to_owned(),
                namespaces: told.iter().map(|name| (*name).to_owned()).collect(),
                ..ClusterShardStatus::default()
            }],
            ..ShardingConfigStatus::default()
        });
        object
    }

    fn evidence(shards: Vec<ShardingConfig>) -> Evidence {
        let member = |name| MemberCluster::new(name, portolan_crds::MemberClusterSpec::default());
        Evidence {
            shards,
            members: vec![member("west"), member("east")],
            ..Evidence::default()
        }
    }

    fn inventory(names: &[&str]) -> Inventory {
        names.iter().map(|name| ((*name).to_owned(), BTreeMap::new())).collect()
    }

    fn owners(claims: &Adoption) -> Vec<String> {
        let owners = claims.certain.iter().map(|((cluster, namespace, _), pair)| {
            let owner = pair.owner.as_ref().map(ShardName::name).unwrap_or_default();
            format!("{cluster}/{namespace}={owner}")
        });
        owners.collect()
    }

    #[test]
    fn what_one_shard_claims_is_its() {
        let all = json!([{"name": "east"}, {"name": "west"}]);
        let mut evidence = evidence(vec![object("a", all, &["ns-a"])]);
        let without = claims(&evidence, 7);
        assert_eq!(owners(&without), [""; 0], "another may have it");
        assert_eq!(without.ambiguous.len(), 1);
        assert_eq!(without.unknown.len(), 2);
        assert!(
            without.unknown[0].contains("--member east=FILE"),
            "{:?}",
            without.unknown
        );
        for cluster in ["east", "west"] {
            let names = inventory(&["ns-a", "ns-b", "kube-system"]);
            evidence.inventories.insert(cluster.to_owned(), names);
        }
        let with = claims(&evidence, 7);
        assert_eq!(
            owners(&with),
            ["east/ns-a=a", "east/ns-b=a"],
            "one name is in one member"
        );
        assert!(with.unknown.is_empty());
        assert_eq!(with.specs[&shard("a")].generation, 2);
        let revisions: Vec<_> = with.certain.values().map(|pair| pair.view_revision).collect();
        assert_eq!(revisions, [8, 9]);
    }

    #[test]
    fn no_two_operators_of_a_namespace_have_one_epoch() {
        let of = |name: &str, operator: &str| {
            let mut object = object(name, json!([{"name": "east", "namespaces": ["ns-a"]}]), &["ns-a"]);
            object.spec.operator = Some(operator.to_owned());
            let spec = serde_json::to_value(&object.spec).unwrap();
            object.status.as_mut().unwrap().accepted.as_mut().unwrap().spec = spec;
            object
        };
        let evidence = Evidence {
            contention: Contention::Operator,
            inventories: [("east".to_owned(), inventory(&["ns-a"]))].into(),
            ..evidence(vec![of("a", "prometheus"), of("b", "rollouts")])
        };
        let found = claims(&evidence, 7);
        assert_eq!(owners(&found), ["east/ns-a=a", "east/ns-a=b"]);
        let epochs: Vec<_> = found.certain.values().map(|pair| pair.owner_count).collect();
        assert_eq!(epochs, [1, 2]);
    }

    #[test]
    fn of_a_root_the_children_claim_what_is_in_their_buckets() {
        let bucketing = Bucketing::default();
        let buckets: Vec<u16> = ["ns-a", "ns-b"].map(|name| bucketing.bucket_of(name)).to_vec();
        let mut root = object("root", json!([{"name": "east"}]), &[]);
        let generates =
            json!({"prefix": "op", "targetStatefulSet": "op", "auto": {"shardingSize": 2, "everyShardReplicas": 1}});
        root.status.as_mut().unwrap().accepted.as_mut().unwrap().spec["root"] = generates;
        let child = |name, bucket: u16| object(name, json!([{"name": "east", "buckets": [bucket]}]), &[]);
        let children = vec![root, child("op-1-normal", buckets[0]), child("op-2-normal", buckets[1])];
        let mut evidence = evidence(children);
        let names = inventory(&["ns-a", "ns-b"]);
        evidence.inventories.insert("east".to_owned(), names);
        let claims = claims(&evidence, 0);
        assert_eq!(owners(&claims), ["east/ns-a=op-1-normal", "east/ns-b=op-2-normal"]);
        assert!(claims.specs.contains_key(&shard("root")), "it is in force");
    }

    #[test]
    fn what_several_claim_is_nobodys() {
        let named = |name: &str| json!([{"name": "east", "namespaces": [name]}]);
        let a = object("a", named("ns-a"), &["ns-a", "ns-b"]);
        let evidence = evidence(vec![a, object("b", named("ns-b"), &[])]);
        let claims = claims(&evidence, 0);
        assert_eq!(owners(&claims), ["east/ns-a=a"]);
        let pair = ("east".to_owned(), "ns-b".to_owned(), OperatorName::default());
        assert_eq!(claims.ambiguous[&pair], [shard("a"), shard("b")].into());
    }

    #[test]
    fn what_is_left_of_the_ledger_counts_before_all_else() {
        let named = json!([{"name": "east", "namespaces": ["ns-b"]}]);
        let mut evidence = evidence(vec![object("a", named.clone(), &["ns-b"]), object("b", named, &[])]);
        let pair = Pair {
            fence: portolan_crds::ledger::PairFence::default(),
            owner: Some(shard("b")),
            owner_count: 2,
            view_revision: 5,
            releasing: true,
        };
        evidence.pairs.insert(
            ("east".to_owned(), "ns-b".to_owned(), OperatorName::default()),
            pair.clone(),
        );
        let claims = claims(&evidence, 5);
        assert_eq!(claims.certain.values().collect::<Vec<_>>(), [&pair]);
        assert!(claims.ambiguous.is_empty());
    }

    /// In a handover one shard lets go of what another already asks for.
    #[test]
    fn where_a_status_does_not_tell_all_one_claim_is_not_enough() {
        let named = |name: &str| json!([{"name": "east", "namespaces": [name]}]);
        let mut losing = object("b", named("ns-c"), &["ns-c"]);
        let clusters = &mut losing.status.as_mut().unwrap().clusters;
        clusters[0].namespace_count = 501;
        let mut evidence = evidence(vec![object("a", named("ns-b"), &[]), losing]);
        let known = Pair {
            fence: portolan_crds::ledger::PairFence::default(),
            owner: Some(shard("b")),
            owner_count: 1,
            view_revision: 5,
            releasing: false,
        };
        let pair = ("east".to_owned(), "ns-c".to_owned(), OperatorName::default());
        evidence.pairs.insert(pair, known);
        let claims = claims(&evidence, 7);
        assert_eq!(
            owners(&claims),
            ["east/ns-c=b"],
            "what is left of the ledger is certain"
        );
        let pair = ("east".to_owned(), "ns-b".to_owned(), OperatorName::default());
        assert_eq!(claims.ambiguous[&pair], [shard("a")].into());
        assert!(claims.unknown[0].contains("1 of the 501"), "{:?}", claims.unknown);
    }

    #[test]
    fn a_refused_spec_is_not_taken_for_the_one_in_force() {
        let named = json!([{"name": "east", "namespaces": ["ns-b"]}]);
        let mut object = object("a", named, &["ns-a"]);
        object.status.as_mut().unwrap().accepted = None;
        let claims = claims(&evidence(vec![object]), 0);
        assert!(claims.certain.is_empty() && claims.specs.is_empty(), "{claims:?}");
        assert!(claims.unknown[0].contains("ops/a"), "{:?}", claims.unknown);
    }
}
