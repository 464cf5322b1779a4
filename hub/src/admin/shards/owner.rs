//! Whose a namespace is, by which words of which spec, since when, and who waits for it. Pure.

use std::collections::BTreeSet;

use portolan_crds::{Bucketing, ConditionType, OperatorName, ShardName, ShardingConfigSpec, system_namespace};
use serde::Serialize;

use super::held::{self, Routers};
use crate::compile::{Verdict, World};
use crate::facts::{Facts, ShardObject};

/// A namespace of one member.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PairOwner {
    /// `spec.operator` of those whose it may be; each operator's shards have a namespace for themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    operator: Option<String>,
    cluster: String,
    namespace: String,
    /// Whether the member has it; `None`: its agent has not told this hub yet.
    exists: Option<bool>,
    owner: Option<ShardName>,
    state: PairState,
    /// View revision at which it entered its owner's shard.
    #[serde(skip_serializing_if = "Option::is_none")]
    view_revision: Option<u64>,
    owner_count: u64,
    /// The field of the owner's spec in force that asks for it; `None`: none does any more.
    field: Option<String>,
    because: String,
    /// Shards that wait for it, and since when.
    waiting: Vec<Waiting>,
    /// Routers that may still let callers of the owner write there.
    held_up_by: Vec<String>,
    /// Shards whose present spec is refused and asks for it.
    refused_to: Vec<ShardName>,
    /// Shards that ask for it and have a namespace of that name in another member.
    shadowed_in: Vec<ShardName>,
}

/// Where a pair is in its life.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum PairState {
    /// Nobody has it.
    #[default]
    Free,
    /// Its owner has it.
    Granted,
    /// Its owner lets go of it; some router may not know yet.
    Releasing,
}

/// Who waits.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Waiting {
    pub(super) shard: ShardName,
    /// RFC 3339; when its condition Complete became false, as far as that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<String>,
}

/// What is known.
pub(super) struct Known<'a> {
    pub(super) facts: &'a Facts,
    pub(super) world: &'a World,
    pub(super) routers: &'a Routers,
    pub(super) bucketing: Bucketing,
}

/// The pairs of `namespace`, in all members that have it or in one, of all operators or of one.
pub(super) fn of(
    known: &Known<'_>,
    (cluster, namespace): (Option<&str>, &str),
    operator: Option<&OperatorName>,
) -> Vec<PairOwner> {
    let Known { facts, world, .. } = known;
    let ledger = &world.state.ledger;
    let has = |cluster: &str| facts.inventory(cluster).is_some_and(|all| all.contains_key(namespace));
    let all = facts.members.keys().map(String::as_str).chain(ledger.clusters());
    let clusters: BTreeSet<_> = all
        .filter(|one| match cluster {
            Some(cluster) => *one == cluster,
            None => has(one) || ledger.all_of(one, namespace).next().is_some(),
        })
        .collect();
    let pairs = clusters.into_iter().flat_map(|cluster| {
        let operators = match operator {
            Some(operator) => [operator.clone()].into(),
            None => operators(world, cluster, namespace),
        };
        operators
            .into_iter()
            .map(move |operator| pair(known, (&operator, cluster, namespace)))
    });
    pairs.collect()
}

/// Whose shards have to do with the pair; everybody's, if none have.
fn operators(world: &World, cluster: &str, namespace: &str) -> BTreeSet<OperatorName> {
    let have = world
        .state
        .ledger
        .all_of(cluster, namespace)
        .filter(|(_, entry)| entry.owner.is_some());
    let text = format!("{cluster}/{namespace}");
    let contend = world.shards.values().filter(|verdict| {
        let mut contested = verdict.awaited.iter().chain(&verdict.conflicts);
        contested.any(|contested| contested.pair == text)
    });
    let contend = contend.map(|verdict| &verdict.wanted.operator);
    let mut operators: BTreeSet<_> = have.map(|(operator, _)| operator).chain(contend).cloned().collect();
    if operators.is_empty() {
        operators.insert(OperatorName::default());
    }
    operators
}

fn pair(known: &Known<'_>, (operator, cluster, namespace): (&OperatorName, &str, &str)) -> PairOwner {
    let Known {
        facts, world, routers, ..
    } = known;
    let text = format!("{cluster}/{namespace}");
    let mut told = PairOwner {
        operator: operator.name().map(str::to_owned),
        cluster: cluster.to_owned(),
        namespace: namespace.to_owned(),
        exists: facts.inventory(cluster).map(|all| all.contains_key(namespace)),
        ..PairOwner::default()
    };
    let contend = |verdict: &Verdict| operator.is_everybody() || verdict.wanted.operator == *operator;
    for (name, verdict) in world.shards.iter().filter(|(_, verdict)| contend(verdict)) {
        if verdict.awaited.iter().any(|awaited| awaited.pair == text) {
            told.waiting.push(Waiting::of(facts, name));
        }
        if verdict.refusal.is_some() && verdict.conflicts.iter().any(|conflict| conflict.pair == text) {
            told.refused_to.push(name.clone());
        }
        let members = verdict.wanted.members.iter().filter(|member| member.cluster == cluster);
        if members.into_iter().any(|member| member.shadowed.contains(namespace)) {
            told.shadowed_in.push(name.clone());
        }
    }
    let entry = world.state.ledger.get(operator, cluster, namespace);
    let Some((entry, owner)) = entry.and_then(|entry| Some((entry, entry.owner.clone()?))) else {
        told.because = nobody(&told, namespace);
        return told;
    };
    told.view_revision = Some(entry.view_revision);
    told.owner_count = entry.owner_count;
    let spec = world.state.accepted.get(&owner).map(|accepted| &*accepted.spec);
    let asked = spec.and_then(|spec| field(known, spec, cluster, namespace));
    if let Some(run) = entry.releasing_since {
        told.state = PairState::Releasing;
        told.held_up_by = held::holding_up(routers, &owner, run);
    } else {
        told.state = PairState::Granted;
    }
    (told.field, told.because) = match asked {
        Some((field, because)) => (Some(field), because),
        None if told.state == PairState::Releasing => (None, format!("{owner} asks for it no more, and lets go of it")),
        None if entry.vacant_from.is_some() => (
            None,
            format!(
                "the namespace is gone from {cluster}, and {owner}, which had it, may make it again: for an hour, or until another shard names it"
            ),
        ),
        None => (
            None,
            format!("{owner} has it from before, and the inventory of {cluster} is not known yet"),
        ),
    };
    told.owner = Some(owner);
    told
}

/// Why nobody has it.
fn nobody(told: &PairOwner, namespace: &str) -> String {
    if !told.shadowed_in.is_empty() {
        return "who asks for it has a namespace of that name in another member".to_owned();
    }
    match told.exists {
        Some(false) => "the member has no such namespace, and no shard names it".to_owned(),
        _ if system_namespace(namespace) => {
            "it is a system namespace, and no shard names it in spec.clusters[].namespaces".to_owned()
        }
        _ => "no shard asks for it".to_owned(),
    }
}

/// The words of `spec` by which the shard has it.
fn field(known: &Known<'_>, spec: &ShardingConfigSpec, cluster: &str, namespace: &str) -> Option<(String, String)> {
    let facts = known.facts;
    let labels = &facts.members.get(cluster)?.labels;
    let entries = spec.clusters.iter().enumerate();
    let mut entries = entries.filter(|(_, entry)| entry.cluster_filter()(cluster, labels));
    entries.find_map(|(index, entry)| {
        let field = format!("spec.clusters[{index}]");
        if let Some(place) = entry.namespaces.iter().position(|name| name == namespace) {
            return Some((format!("{field}.namespaces[{place}]"), "it is named".to_owned()));
        }
        let selector = entry.by_labels()?;
        let labels = &facts.inventory(cluster)?.get(namespace)?.labels;
        let bucket = known.bucketing.bucket_of(namespace);
        let buckets = entry.bucket_set().ok()?;
        let in_buckets = buckets.as_ref().is_none_or(|buckets| buckets.contains(bucket));
        if system_namespace(namespace) || !in_buckets || !selector.matches(labels) {
            return None;
        }
        Some(match (&buckets, &entry.namespace_selector) {
            (Some(_), _) => (
                format!("{field}.buckets"),
                if selector.is_everything() {
                    format!("its bucket is {bucket}")
                } else {
                    format!("its bucket is {bucket}, and its labels match {selector}")
                },
            ),
            (None, Some(_)) => (
                format!("{field}.namespaceSelector"),
                format!("its labels match {selector}"),
            ),
            (None, None) => (field, "the entry has all namespaces but system ones".to_owned()),
        })
    })
}

impl Waiting {
    pub(super) fn of(facts: &Facts, name: &ShardName) -> Self {
        let since = facts.shards.get(name).and_then(incomplete_since);
        Self {
            shard: name.clone(),
            since,
        }
    }
}

/// When the shard was last known to begin to wait.
fn incomplete_since(object: &ShardObject) -> Option<String> {
    let complete = ConditionType::Complete.to_string();
    let conditions = &object.status.conditions;
    let condition = conditions.iter().find(|condition| condition.type_ == complete);
    let condition = condition.filter(|condition| condition.status == "False")?;
    Some(condition.last_transition_time.0.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{Fleet, shard};
    use super::*;
    use crate::acks::RouterState;

    fn who(fleet: &Fleet, world: &World, namespace: &str) -> Vec<PairOwner> {
        whose(fleet, world, namespace, None)
    }

    fn whose(fleet: &Fleet, world: &World, namespace: &str, cluster: Option<&str>) -> Vec<PairOwner> {
        let routers = Routers::from([("gateway".to_owned(), RouterState::new(1, [].into()))]);
        let known = Known {
            facts: &fleet.facts,
            world,
            routers: &routers,
            bucketing: Bucketing::default(),
        };
        of(&known, (cluster, namespace), None)
    }

    #[test]
    fn an_entry_of_other_buckets_is_not_why() {
        let mut fleet = Fleet::new(&["ns-a"]);
        let bucket = Bucketing::default().bucket_of("ns-a");
        let others = if bucket == 0 { json!(["1-31"]) } else { json!([0]) };
        fleet.apply(
            "a",
            &json!([{"name": "east", "buckets": others}, {"name": "east", "buckets": [bucket]}]),
        );
        let world = fleet.compile();
        let told = &whose(&fleet, &world, "ns-a", Some("east"))[0];
        assert_eq!(told.owner, Some(shard("a")));
        assert_eq!(told.field.as_deref(), Some("spec.clusters[1].buckets"));
        assert_eq!(told.because, format!("its bucket is {bucket}"));
    }

    #[test]
    fn the_words_that_ask_for_it_are_named() {
        let mut fleet = Fleet::new(&["ns-a", "ns-b", "kube-system"]);
        let not_a = json!({"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["ns-a"]}]});
        fleet.apply(
            "a",
            &json!([{"name": "west", "namespaces": ["ns-b"]}, {"name": "east", "namespaces": ["ns-a"]}]),
        );
        fleet.apply(
            "b",
            &json!([{"selector": {"matchLabels": {"region": "east"}}, "namespaceSelector": not_a}]),
        );
        let world = fleet.compile();
        let told = who(&fleet, &world, "ns-a");
        let [east, west] = &told[..] else { panic!("{told:?}") };
        assert_eq!(
            (&east.owner, east.field.as_deref()),
            (&Some(shard("a")), Some("spec.clusters[1].namespaces[0]"))
        );
        assert_eq!(
            (east.state, east.owner_count, east.exists),
            (PairState::Granted, 1, Some(true))
        );
        assert_eq!((&west.owner, west.because.as_str()), (&None, "no shard asks for it"));
        let told = who(&fleet, &world, "ns-b");
        assert_eq!(told[0].field.as_deref(), Some("spec.clusters[0].namespaceSelector"));
        assert!(
            told[0].because.contains("kubernetes.io/metadata.name!=ns-a"),
            "{:?}",
            told[0]
        );
        assert!(
            who(&fleet, &world, "kube-system")[0]
                .because
                .contains("system namespace")
        );
        fleet.gone("east", "ns-b");
        let world = fleet.compile();
        let vacant = &whose(&fleet, &world, "ns-b", Some("east"))[0];
        assert_eq!((&vacant.owner, vacant.exists), (&Some(shard("b")), Some(false)));
        assert!(vacant.because.contains("is gone from east"), "{vacant:?}");
        let nowhere = whose(&fleet, &world, "ns-z", Some("east"));
        assert!(nowhere[0].because.contains("no such namespace"), "{nowhere:?}");
    }

    #[test]
    fn who_waits_for_whom_and_who_holds_it_up_is_told() {
        let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
        fleet.apply("a", &json!([{"name": "east", "namespaces": ["ns-a", "ns-b"]}]));
        fleet.compile();
        fleet.apply("a", &json!([{"name": "east", "namespaces": ["ns-a"]}]));
        fleet.apply("b", &json!([{"name": "east", "namespaces": ["ns-b"]}]));
        fleet.apply("c", &json!([{"name": "east", "namespaces": ["ns-a"]}]));
        let world = fleet.compile_seen(0);
        let told = &who(&fleet, &world, "ns-b")[0];
        assert_eq!(
            (&told.owner, told.state, &told.field),
            (&Some(shard("a")), PairState::Releasing, &None)
        );
        assert_eq!(
            (&told.waiting[0].shard, told.held_up_by.as_slice()),
            (&shard("b"), &["gateway".to_owned()][..])
        );
        assert!(told.because.contains("lets go"), "{told:?}");
        assert_eq!(who(&fleet, &world, "ns-a")[0].refused_to, [shard("c")]);
    }
}
