//! How each shard stands: what it has, what it waits for and lets go of, which routers do not serve it as it is. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use portolan_crds::{ConditionType, LockStatus, ShardName};
use serde::Serialize;

use super::held::{self, Routers};
use super::owner::Waiting;
use crate::acks::moving_lock;
use crate::compile::World;
use crate::facts::{Facts, ShardObject};

/// Most pairs named for one shard; all are counted.
const NAMED_MAX: usize = 50;

/// One shard.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Progress {
    shard: ShardName,
    deleting: bool,
    /// metadata.generation of the object, and of the spec in force.
    generation: i64,
    in_force: Option<i64>,
    /// Why the present spec is not in force.
    refusal: Option<String>,
    /// Number of namespaces that it has, by member.
    pairs: BTreeMap<String, usize>,
    /// Number of objects in the pairs of cluster and bucket of a root's child, as they were weighed last; `None`: they are not.
    objects: Option<u64>,
    waiting_count: usize,
    /// Pairs that it waits for, and who has each.
    waiting: Vec<Awaited>,
    waiting_since: Option<String>,
    releasing_count: usize,
    /// Pairs that it lets go of, and who waits for each.
    releasing: Vec<Released>,
    /// Routers that have not acknowledged yet that it lets go of these.
    held_up_by: Vec<String>,
    /// Routers that do not serve it as it is.
    lagging: Vec<String>,
    callers: Callers,
    /// The Lease by which its callers elect their leader, and where that is.
    lease: Option<Lease>,
    /// Condition OneLeader.
    one_leader: Option<Told>,
    /// Condition Replicated.
    replicated: Option<Told>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Awaited {
    pair: String,
    /// `None`: some router may serve it to somebody, while the ledger was adopted.
    of: Option<ShardName>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Released {
    pair: String,
    to: Option<ShardName>,
    /// As the object's status has it, which names the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Time>,
}

#[derive(Debug, Default, PartialEq, Serialize)]
struct Callers {
    total: i64,
    current: i64,
}

#[derive(Debug, PartialEq, Serialize)]
struct Lease {
    name: String,
    /// `None`: each caller's own.
    cluster: Option<String>,
    /// While it is on its way there.
    #[serde(skip_serializing_if = "Option::is_none")]
    moving: Option<LockStatus>,
}

/// A condition.
#[derive(Debug, PartialEq, Serialize)]
struct Told {
    status: String,
    message: String,
}

impl Told {
    fn of(condition: &Condition) -> Self {
        Self {
            status: condition.status.clone(),
            message: condition.message.clone(),
        }
    }
}

pub(super) fn of_all(facts: &Facts, world: &World, routers: &Routers) -> Vec<Progress> {
    let mut of_ledger = ledger(world);
    let mut of_children = objects(world);
    let shards = facts.shards.iter();
    shards
        .map(|(name, object)| {
            let mut progress = progress(facts, world, routers, name, object);
            let (pairs, releasing) = of_ledger.remove(name).unwrap_or_default();
            progress.pairs = pairs;
            progress.objects = of_children.remove(name);
            progress.add_releasing(world, routers, (name, object), releasing);
            progress
        })
        .collect()
}

/// Objects of each child of a root that is shared out by them.
fn objects(world: &World) -> BTreeMap<ShardName, u64> {
    let roots = world.state.roots.iter();
    let generated = roots.filter_map(|(root, children)| Some((root, children.in_force.as_ref()?)));
    let all = generated.flat_map(|(root, generated)| {
        let children = generated.expansion.children.iter();
        children.filter_map(|child| {
            let name = ShardName::new(root.namespace(), child.name.as_str()).ok()?;
            Some((name, generated.objects(child)?))
        })
    });
    all.collect()
}

/// What a shard has by member, and the pairs among it that it lets go of, each with the run since which it does.
type OfLedger<'a> = (BTreeMap<String, usize>, Vec<(String, u64)>);

fn ledger(world: &World) -> BTreeMap<&ShardName, OfLedger<'_>> {
    let ledger = &world.state.ledger;
    let mut of_shards = BTreeMap::<&ShardName, OfLedger<'_>>::new();
    for cluster in ledger.clusters() {
        for (namespace, entry) in ledger.in_cluster(cluster) {
            let Some(owner) = &entry.owner else { continue };
            let (pairs, releasing) = of_shards.entry(owner).or_default();
            *pairs.entry(cluster.to_owned()).or_default() += 1;
            releasing.extend(entry.releasing_since.map(|run| (format!("{cluster}/{namespace}"), run)));
        }
    }
    of_shards
}

fn progress(facts: &Facts, world: &World, routers: &Routers, name: &ShardName, object: &ShardObject) -> Progress {
    let verdict = world.shards.get(name);
    let accepted = world.state.accepted.get(name);
    let awaited = verdict.map(|verdict| verdict.awaited.as_slice()).unwrap_or_default();
    let refusal = verdict.and_then(|verdict| verdict.refusal.as_ref());
    let callers = object.status.callers.as_ref();
    let condition = |type_: ConditionType| {
        let type_ = type_.to_string();
        let mut conditions = object.status.conditions.iter();
        conditions.find(|one| one.type_ == type_).map(Told::of)
    };
    Progress {
        shard: name.clone(),
        deleting: object.deleting,
        generation: object.generation,
        in_force: accepted.map(|accepted| accepted.generation),
        refusal: refusal.map(|refusal| format!("{}: {}", refusal.reason, refusal.message)),
        waiting_count: awaited.len(),
        waiting: awaited
            .iter()
            .take(NAMED_MAX)
            .map(|awaited| Awaited {
                pair: awaited.pair.clone(),
                of: awaited.owner.clone(),
            })
            .collect(),
        waiting_since: Some(awaited)
            .filter(|awaited| !awaited.is_empty())
            .and_then(|_| Waiting::of(facts, name).since),
        lagging: held::lagging(world, routers, name),
        callers: Callers {
            total: callers.map_or(0, |callers| callers.total),
            current: callers.map_or(0, |callers| callers.current),
        },
        lease: accepted.and_then(|accepted| {
            Some(Lease {
                name: accepted.spec.leader_election_name()?.to_owned(),
                cluster: accepted.spec.primary_cluster().map(str::to_owned),
                moving: moving_lock(name, accepted, routers),
            })
        }),
        one_leader: condition(ConditionType::OneLeader),
        replicated: condition(ConditionType::Replicated),
        pairs: BTreeMap::new(),
        objects: None,
        releasing_count: 0,
        releasing: Vec::new(),
        held_up_by: Vec::new(),
    }
}

impl Progress {
    fn add_releasing(
        &mut self,
        world: &World,
        routers: &Routers,
        (name, object): (&ShardName, &ShardObject),
        releasing: Vec<(String, u64)>,
    ) {
        let last = releasing.iter().map(|(_, run)| *run).max();
        self.held_up_by = last.map_or_else(Vec::new, |run| held::holding_up(routers, name, run));
        self.releasing_count = releasing.len();
        let named = releasing.into_iter().take(NAMED_MAX);
        self.releasing = named
            .map(|(pair, _)| {
                let waits = |(_, verdict): &(&ShardName, &crate::compile::Verdict)| {
                    verdict.awaited.iter().any(|awaited| awaited.pair == pair)
                };
                let to = world.shards.iter().find(waits).map(|(to, _)| to.clone());
                let mut told = object.status.releases.iter();
                let told = told.find(|told| pair == format!("{}/{}", told.cluster, told.namespace));
                Released {
                    to,
                    waits_for: told.map(|told| told.waits_for.clone()),
                    since: told.and_then(|told| told.since.clone()),
                    pair,
                }
            })
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{Fleet, shard};
    use super::*;
    use crate::acks::RouterState;

    #[test]
    fn both_sides_of_a_handover_are_told() {
        let mut fleet = Fleet::new(&["ns-a", "ns-b"]);
        fleet.apply(
            "a",
            &json!([{"name": "east", "namespaces": ["ns-a", "ns-b"]}, {"name": "west", "namespaces": ["ns-c"]}]),
        );
        fleet.compile();
        fleet.apply(
            "a",
            &json!([{"name": "east", "namespaces": ["ns-a"]}, {"name": "west", "namespaces": ["ns-c"]}]),
        );
        fleet.apply("b", &json!([{"name": "east", "namespaces": ["ns-b"]}]));
        fleet.apply("c", &json!([{"name": "east", "namespaces": ["ns-a"]}]));
        let world = fleet.compile_seen(0);
        let routers = Routers::from([("gateway".to_owned(), RouterState::new(1, [].into()))]);
        let told = of_all(&fleet.facts, &world, &routers);
        let [a, b, c] = &told[..] else { panic!("{told:?}") };
        assert_eq!(a.pairs, [("east".to_owned(), 2), ("west".to_owned(), 1)].into());
        assert_eq!((a.releasing_count, &a.releasing[0].to), (1, &Some(shard("b"))));
        assert_eq!(
            (a.held_up_by.as_slice(), a.lagging.as_slice()),
            (&["gateway".to_owned()][..], &["gateway".to_owned()][..])
        );
        assert_eq!(
            (b.waiting_count, b.waiting[0].pair.as_str(), &b.waiting[0].of),
            (1, "east/ns-b", &Some(shard("a")))
        );
        assert_eq!((b.pairs.len(), c.in_force), (0, None));
        assert!(c.refusal.as_ref().unwrap().starts_with("Overlap: "), "{c:?}");
    }
}
