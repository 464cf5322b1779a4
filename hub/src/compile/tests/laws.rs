//! Properties over random histories.

use super::*;

const SHARDS: [&str; 3] = ["a", "b", "c"];
const CLUSTERS: [&str; 2] = ["east", "west"];
const NAMESPACES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// Something that happens to a fleet.
#[derive(Debug, Clone)]
enum Step {
    Apply(usize, Vec<(usize, Vec<usize>)>),
    Delete(usize),
    Inventory(usize, Vec<usize>),
    AgentSilent(usize),
    /// Every router acknowledges what has been compiled so far.
    Acknowledge,
}

fn step() -> impl Strategy<Value = Step> {
    let namespaces = || prop::collection::vec(0..NAMESPACES.len(), 0..3);
    let entries = prop::collection::vec((0..CLUSTERS.len(), namespaces()), 1..3);
    prop_oneof![
        4 => (0..SHARDS.len(), entries).prop_map(|(shard, entries)| Step::Apply(shard, entries)),
        1 => (0..SHARDS.len()).prop_map(Step::Delete),
        2 => (0..CLUSTERS.len(), namespaces()).prop_map(|(cluster, names)| Step::Inventory(cluster, names)),
        1 => (0..CLUSTERS.len()).prop_map(Step::AgentSilent),
        2 => Just(Step::Acknowledge),
    ]
}

fn names(indexes: &[usize]) -> Vec<&'static str> {
    indexes.iter().map(|index| NAMESPACES[*index]).collect()
}

impl Fleet {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Apply(shard, entries) => {
                let mut seen = BTreeSet::new();
                let entries: Vec<_> = entries
                    .iter()
                    .filter(|(cluster, _)| seen.insert(*cluster))
                    .map(|(cluster, namespaces)| {
                        let mut names = names(namespaces);
                        names.sort_unstable();
                        names.dedup();
                        (CLUSTERS[*cluster], names)
                    })
                    .collect();
                let entries: Vec<_> = entries
                    .iter()
                    .map(|(cluster, names)| (*cluster, names.as_slice()))
                    .collect();
                self.apply(SHARDS[*shard], spec(&entries));
            }
            Step::Delete(shard) => self.delete(SHARDS[*shard]),
            Step::Inventory(cluster, namespaces) => self.inventory(CLUSTERS[*cluster], &names(namespaces)),
            Step::AgentSilent(cluster) => self.agent(CLUSTERS[*cluster]).namespaces = None,
            Step::Acknowledge => {}
        }
    }
}

/// Pairs that callers of each shard may act on (granted), by what views say.
fn granted(world: &World) -> Vec<(String, String, String)> {
    let mut pairs = Vec::new();
    for view in world.resources.values() {
        let Some(v1::resource::Body::CallerView(view)) = &view.resource.body else {
            continue;
        };
        let Some(shard) = &view.shard else { continue };
        for member in &shard.members {
            for grant in &member.namespaces {
                pairs.push((member.cluster.clone(), grant.namespace.clone(), shard.name.clone()));
            }
        }
    }
    pairs.sort();
    pairs.dedup();
    pairs
}

proptest! {
    /// In every state of every history each pair is in the views of one shard at most, and it changes from one shard to
    /// another only after every router has acknowledged that the first let go. No shard has one name in two members.
    #[test]
    fn every_pair_has_one_owner(steps in prop::collection::vec(step(), 1..40)) {
        let mut fleet = Fleet::new(&["n1", "n2"]);
        for (index, shard) in SHARDS.iter().enumerate() {
            fleet.caller("east", &format!("uid-{index}"), shard);
        }
        let mut acknowledged = 0;
        let mut last: Option<World> = None;
        for step in &steps {
            fleet.step(step);
            for shard in SHARDS {
                // One caller per shard, so that each has a view of its own.
                if let Some(object) = fleet.facts.shards.get_mut(&shard_name(shard)) {
                    let mut spec = (**object.spec.as_ref().unwrap()).clone();
                    spec.selector = Some(serde_json::from_value(json!({"matchLabels": {"app": shard}})).unwrap());
                    object.spec = Ok(Arc::new(spec));
                }
            }
            if matches!(step, Step::Acknowledge) {
                acknowledged = fleet.state.run;
            }
            let world = fleet.compile(acknowledged);
            let pairs = granted(&world);
            for (left, right) in pairs.iter().zip(pairs.iter().skip(1)) {
                prop_assert!((&left.0, &left.1) != (&right.0, &right.1), "{left:?} and {right:?}");
            }
            let names: BTreeSet<_> = pairs.iter().map(|(_, namespace, shard)| (shard, namespace)).collect();
            prop_assert_eq!(names.len(), pairs.len(), "one name in two members: {:?}", pairs);
            if let Some(last) = &last {
                for cluster in CLUSTERS {
                    for (namespace, entry) in last.state.ledger.in_cluster(cluster) {
                        let now = world.state.ledger.get(cluster, namespace).unwrap();
                        prop_assert!(now.generation >= entry.generation);
                        if entry.owner.is_some() && now.owner.is_some() && now.owner != entry.owner {
                            let released = entry.releasing_since.is_some_and(|since| since <= acknowledged);
                            prop_assert!(released, "{cluster}/{namespace} moved without a release");
                            prop_assert_eq!(now.generation, entry.generation + 1);
                        }
                    }
                }
            }
            last = Some(world);
        }
    }

    /// Without new facts, nothing changes, whatever has happened before.
    #[test]
    fn same_facts_same_hashes(steps in prop::collection::vec(step(), 1..20)) {
        let mut fleet = Fleet::new(&["n1", "n2", "n3"]);
        fleet.caller("east", "p", "op");
        for step in &steps {
            fleet.step(step);
        }
        fleet.compile(0);
        let first = fleet.compile(0);
        let second = fleet.compile(0);
        prop_assert!(first.same_outcome(&second));
        let versions = |world: &World| -> Vec<String> {
            world.resources.values().map(|compiled| compiled.resource.version.clone()).collect()
        };
        prop_assert_eq!(versions(&first), versions(&second));
    }
}
