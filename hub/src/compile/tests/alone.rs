//! What is decided for one operator beside others is what is decided with that one alone, over random histories.

use portolan_crds::Contention;
use portolan_crds::labels::{FENCE_EPOCH, FENCE_SHARD};

use super::operators::{carry_out, fence_released};
use super::*;

const OPERATORS: [Option<&str>; 3] = [None, Some("rollouts"), Some("prometheus")];
const SHARDS: [&str; 3] = ["a", "b", "c"];
const NAMESPACES: [&str; 3] = ["n1", "n2", "n3"];

/// Something that happens to a fleet: to a shard of one operator, or to all.
#[derive(Debug, Clone)]
enum Step {
    Apply(usize, usize, Vec<(usize, Vec<usize>)>),
    Delete(usize, usize),
    /// A namespace is there, or is not.
    Namespace(usize, usize, bool),
    /// Whether writes may say epochs in east.
    MayFence(bool),
    /// Agents do what they are told.
    CarryOut,
    /// All routers have acknowledged what was compiled; whether what is closed is over.
    Acknowledged(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let (operator, shard) = (0..OPERATORS.len(), 0..SHARDS.len());
    let names = prop::collection::vec(0..NAMESPACES.len(), 1..3);
    let entries = prop::collection::vec((0..CLUSTERS.len(), names), 1..3);
    prop_oneof![
        6 => (operator.clone(), shard.clone(), entries).prop_map(|(operator, shard, entries)| Step::Apply(operator, shard, entries)),
        1 => (operator, shard).prop_map(|(operator, shard)| Step::Delete(operator, shard)),
        3 => (0..CLUSTERS.len(), 0..NAMESPACES.len(), any::<bool>()).prop_map(|(cluster, name, is)| Step::Namespace(cluster, name, is)),
        1 => any::<bool>().prop_map(Step::MayFence),
        3 => Just(Step::CarryOut),
        4 => any::<bool>().prop_map(Step::Acknowledged),
    ]
}

fn name_of(operator: usize, shard: usize) -> ShardName {
    let operator = OPERATORS[operator].unwrap_or("nameless");
    shard_name(&format!("{operator}-{}", SHARDS[shard]))
}

/// A fleet of some of the operators.
struct Seen {
    fleet: Fleet,
    last: World,
    released: Released,
    of: Vec<usize>,
}

impl Seen {
    fn new(of: &[usize]) -> Self {
        let mut fleet = Fleet::new(&["n1", "n2"]);
        fleet.state.ledger = Arc::new(Ledger::restore(Contention::Operator, [], 0, false));
        let last = fleet.compile(0);
        Self {
            fleet,
            last,
            released: 0.into(),
            of: of.to_vec(),
        }
    }

    fn take(&mut self, at: usize, step: &Step) {
        let fleet = &mut self.fleet;
        match step {
            Step::Apply(operator, shard, entries) if self.of.contains(operator) => {
                let name = name_of(*operator, *shard);
                let is_new = !fleet.facts.shards.contains_key(&name);
                fleet.apply_of(&name, wanted(*operator, entries));
                if is_new {
                    let object = fleet.facts.shards.get_mut(&name).unwrap();
                    object.created = Timestamp::from_second(i64::try_from(at).unwrap()).unwrap();
                }
            }
            Step::Delete(operator, shard) => {
                fleet.facts.shards.remove(&name_of(*operator, *shard));
            }
            Step::Namespace(cluster, name, is_there) => {
                let namespaces = fleet.agent(CLUSTERS[*cluster]).namespaces.as_mut().unwrap();
                let name = NAMESPACES[*name].to_owned();
                if *is_there {
                    namespaces.entry(name).or_default();
                } else {
                    namespaces.remove(&name);
                }
            }
            Step::MayFence(may) => {
                let extras = may.then_some([FENCE_EPOCH, FENCE_SHARD]);
                fleet.agent("east").allowed = Some(v1::Allowed {
                    extras: extras.into_iter().flatten().map(str::to_owned).collect(),
                    fence_lists: *may,
                    ..v1::Allowed::default()
                });
            }
            Step::CarryOut => carry_out(fleet, &self.last),
            Step::Acknowledged(over) => {
                self.released = Released {
                    by_all: self.last.state.run,
                    ..fence_released(fleet)
                };
                if !over {
                    self.released.over.clear();
                }
            }
            Step::Apply(..) => {}
        }
        self.last = self.fleet.compile(self.released.clone());
        self.released.over.clear();
    }

    /// What is decided for an operator, without the numbers of epochs and of view revisions.
    fn decided(&self, operator: usize) -> Vec<String> {
        let mut decided = Vec::new();
        for name in (0..SHARDS.len()).map(|shard| name_of(operator, shard)) {
            let Some(verdict) = self.last.shards.get(&name) else {
                continue;
            };
            let refused = verdict.refusal.as_ref().map(|refusal| refusal.reason);
            let (awaited, conflicts) = (&verdict.awaited, &verdict.conflicts);
            decided.push(format!(
                "{name}: {refused:?}, waits for {awaited:?}, conflicts {conflicts:?}"
            ));
            for cluster in CLUSTERS {
                let Some(owned) = self.last.owned(cluster, name.name()) else {
                    continue;
                };
                let of = |one: &v1::NamespaceGrant| (one.namespace.clone(), one.state(), one.fenced, one.vacant);
                let grants: BTreeSet<_> = owned.namespaces.iter().map(of).map(|one| format!("{one:?}")).collect();
                decided.push(format!("{name} in {cluster}: {grants:?}"));
            }
        }
        for cluster in CLUSTERS {
            let ledger = &self.last.state.ledger;
            let pairs = ledger
                .pairs_in(cluster)
                .filter(|(one, ..)| one.name() == OPERATORS[operator]);
            decided.extend(pairs.map(|(_, namespace, entry)| {
                let (owner, since) = (&entry.owner, entry.releasing_since);
                let (closing, vacant) = (entry.closing.is_some(), entry.vacant_from.is_some());
                format!(
                    "{cluster}/{namespace}: {owner:?}, {since:?}, closing {closing}, vacant {vacant}, {}",
                    entry.is_fenced()
                )
            }));
        }
        decided
    }
}

fn wanted(operator: usize, entries: &[(usize, Vec<usize>)]) -> ShardingConfigSpec {
    let mut wanted = spec(&[]);
    for (cluster, names) in entries {
        let names: BTreeSet<_> = names.iter().map(|name| NAMESPACES[*name].to_owned()).collect();
        wanted.clusters.push(portolan_crds::ClusterEntry {
            name: Some(CLUSTERS[*cluster].to_owned()),
            namespaces: names.into_iter().collect(),
            ..Default::default()
        });
    }
    wanted.clusters.dedup_by(|one, other| one.name == other.name);
    wanted.operator = OPERATORS[operator].map(str::to_owned);
    wanted
}

proptest! {
    #[test]
    fn beside_others_each_has_what_it_has_alone(steps in prop::collection::vec(step(), 1..30)) {
        let mut all = Seen::new(&[0, 1, 2]);
        let mut alone = [0, 1, 2].map(|operator| Seen::new(&[operator]));
        for (at, step) in steps.iter().enumerate() {
            all.take(at, step);
            for (operator, seen) in alone.iter_mut().enumerate() {
                seen.take(at, step);
                prop_assert_eq!(all.decided(operator), seen.decided(operator), "after {:?}", step);
            }
            for cluster in CLUSTERS {
                let mut epochs = BTreeMap::<_, BTreeSet<_>>::new();
                for (operator, namespace, entry) in all.last.state.ledger.pairs_in(cluster) {
                    let is_new = epochs.entry(namespace).or_default().insert(entry.owner_count);
                    prop_assert!(is_new, "{operator} has an epoch of {cluster}/{namespace} that another has");
                }
            }
        }
    }
}
