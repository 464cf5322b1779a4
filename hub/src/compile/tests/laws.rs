//! Properties over random histories.

use super::*;

const SHARDS: [&str; 3] = ["a", "b", "c"];
/// Gateways, and then one router of one shard.
const ROUTERS: usize = 3;
const OF_SHARD: &str = "a";
const NAMESPACES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// Something that happens to a fleet.
#[derive(Debug, Clone)]
enum Step {
    Apply(usize, Vec<(usize, Vec<usize>)>),
    Delete(usize),
    Inventory(usize, Vec<usize>),
    AgentSilent(usize),
    /// A router takes what was compiled last, and acknowledges it.
    Take(usize),
    /// The hub dies and starts again; if it says so, after it has stored what it was about to publish.
    Restart(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let namespaces = || prop::collection::vec(0..NAMESPACES.len(), 0..3);
    let entries = prop::collection::vec((0..CLUSTERS.len(), namespaces()), 1..3);
    prop_oneof![
        4 => (0..SHARDS.len(), entries).prop_map(|(shard, entries)| Step::Apply(shard, entries)),
        1 => (0..SHARDS.len()).prop_map(Step::Delete),
        2 => (0..CLUSTERS.len(), namespaces()).prop_map(|(cluster, names)| Step::Inventory(cluster, names)),
        1 => (0..CLUSTERS.len()).prop_map(Step::AgentSilent),
        4 => (0..ROUTERS).prop_map(Step::Take),
        1 => any::<bool>().prop_map(Step::Restart),
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
            Step::AgentSilent(cluster) => self.agent(CLUSTERS[*cluster]).namespaces = None.into(),
            Step::Take(_) | Step::Restart(_) => {}
        }
    }
}

/// What callers of each shard may act on: cluster, namespace, shard, and whether for writes too.
fn pairs(world: &World) -> BTreeSet<(String, String, String, bool)> {
    let mut pairs = BTreeSet::new();
    for compiled in world.resources.values() {
        let Some(v1::resource::Body::Ownership(owned)) = &compiled.resource.body else {
            continue;
        };
        for grant in &owned.namespaces {
            let granted = grant.state() == v1::GrantState::Granted;
            pairs.insert((
                owned.cluster.clone(),
                grant.namespace.clone(),
                owned.shard.clone(),
                granted,
            ));
        }
    }
    pairs
}

/// Routers that take worlds when they please.
#[derive(Default)]
struct Routers {
    serving: [Option<World>; ROUTERS],
    /// Of the hub as it runs now.
    acknowledged: [u64; ROUTERS],
}

impl Routers {
    fn take(&mut self, router: usize, world: &World) {
        self.serving[router] = Some(world.clone());
        self.acknowledged[router] = world.state.run;
    }

    fn released(&self) -> Released {
        let of_gateways = self.acknowledged[..ROUTERS - 1]
            .iter()
            .min()
            .copied()
            .unwrap_or_default();
        let by_all = of_gateways.min(self.acknowledged[ROUTERS - 1]);
        let of = |shard| if shard == OF_SHARD { by_all } else { of_gateways };
        Released {
            by_all,
            of_shard: SHARDS.map(|shard| (shard_name(shard), of(shard))).into(),
            ..Released::default()
        }
    }

    /// They go on serving what they have.
    fn restart(&mut self, fleet: &mut Fleet, written: bool) {
        if written {
            fleet.compile(self.released());
        }
        fleet.restart();
        self.acknowledged = [0; ROUTERS];
    }

    /// The shards that some router lets write to each pair.
    fn writers(&self) -> BTreeMap<(String, String), BTreeSet<String>> {
        let mut writers = BTreeMap::<_, BTreeSet<_>>::new();
        let serving = self.serving.iter().enumerate();
        let served = serving.flat_map(|(router, world)| world.iter().flat_map(pairs).map(move |pair| (router, pair)));
        for (router, (cluster, namespace, shard, granted)) in served {
            if granted && (router < ROUTERS - 1 || shard == shard_name(OF_SHARD).to_string()) {
                writers.entry((cluster, namespace)).or_default().insert(shard);
            }
        }
        writers
    }
}

/// One caller per shard, so that each has a view of its own.
fn callers_apart(fleet: &mut Fleet) {
    for shard in SHARDS {
        if let Some(object) = fleet.facts.shards.get_mut(&shard_name(shard)) {
            let mut spec = (**object.spec.as_ref().unwrap()).clone();
            spec.selector = Some(serde_json::from_value(json!({"matchLabels": {"app": shard}})).unwrap());
            object.take_spec(&shard_name(shard), Ok(Arc::new(spec)));
        }
    }
}

fn three_callers() -> Fleet {
    let mut fleet = Fleet::new(&["n1", "n2"]);
    for (index, shard) in SHARDS.iter().enumerate() {
        fleet.caller("east", &format!("uid-{index}"), shard);
    }
    fleet
}

proptest! {
    /// In every state of every history each pair is in the views of one shard at most, and it changes from one shard to
    /// another only after every router has acknowledged that the first let go. No shard has one name in two members.
    #[test]
    fn every_pair_has_one_owner(steps in prop::collection::vec(step(), 1..40)) {
        let (mut fleet, mut routers) = (three_callers(), Routers::default());
        let mut last: Option<World> = None;
        for step in &steps {
            fleet.step(step);
            callers_apart(&mut fleet);
            match (step, &last) {
                (Step::Take(router), Some(last)) => routers.take(*router, last),
                (Step::Restart(written), _) => {
                    routers.restart(&mut fleet, *written);
                    last = None;
                }
                _ => {}
            }
            let acknowledged = routers.released();
            let world = fleet.compile(acknowledged.clone());
            let pairs = pairs(&world);
            for (left, right) in pairs.iter().zip(pairs.iter().skip(1)) {
                prop_assert!((&left.0, &left.1) != (&right.0, &right.1), "{left:?} and {right:?}");
            }
            let names: BTreeSet<_> = pairs.iter().map(|(_, namespace, shard, _)| (shard, namespace)).collect();
            prop_assert_eq!(names.len(), pairs.len(), "one name in two members: {:?}", pairs);
            if let Some(last) = &last {
                for cluster in CLUSTERS {
                    for (namespace, entry) in last.state.ledger.in_cluster(cluster) {
                        let seen = entry.owner.as_ref().map_or(0, |owner| acknowledged.of(owner));
                        let released = entry.releasing_since.is_some_and(|since| since <= seen);
                        let Some(now) = world.state.ledger.get(&OperatorName::default(), cluster, namespace) else {
                            prop_assert!(entry.owner.is_none() || released, "{cluster}/{namespace} is forgotten");
                            continue;
                        };
                        prop_assert!(now.owner_count >= entry.owner_count);
                        if entry.owner.is_some() && now.owner.is_some() && now.owner != entry.owner {
                            prop_assert!(released, "{cluster}/{namespace} moved without a release");
                            prop_assert_eq!(now.owner_count, entry.owner_count + 1);
                        }
                    }
                }
            }
            last = Some(world);
        }
    }

    /// A pair enters a shard, and leaves it, at a view revision of its own that is higher than all before.
    #[test]
    fn view_revisions_only_grow(steps in prop::collection::vec(step(), 1..40)) {
        let mut fleet = three_callers();
        let mut before = Arc::<Ledger>::default();
        for (index, step) in steps.iter().enumerate() {
            fleet.step(step);
            if matches!(step, Step::Restart(_)) {
                fleet.restart();
            }
            let released_up_to = if index % 2 == 0 { u64::MAX } else { 0 };
            let ledger = fleet.compile(released_up_to).state.ledger;
            let mut given = Vec::new();
            for cluster in CLUSTERS {
                for (namespace, entry) in ledger.in_cluster(cluster) {
                    let earlier = before.get(&OperatorName::default(), cluster, namespace);
                    if earlier.is_none_or(|earlier| earlier.view_revision != entry.view_revision) {
                        given.push(entry.view_revision);
                    } else if entry.owner.is_some() {
                        prop_assert_eq!(&earlier.unwrap().owner, &entry.owner);
                    }
                }
                for shard in SHARDS.map(shard_name) {
                    let earlier: BTreeMap<_, _> = before.departures(cluster, &shard).collect();
                    let departures = ledger.departures(cluster, &shard);
                    given.extend(departures.filter_map(|(namespace, departure)| {
                        (earlier.get(namespace) != Some(&departure)).then_some(departure.view_revision)
                    }));
                }
            }
            given.sort_unstable();
            // Epochs of what is forgotten are left out.
            let new = before.view_revision() + 1..=ledger.view_revision();
            prop_assert!(given.iter().all(|revision| new.contains(revision)), "{given:?} of {new:?}");
            prop_assert!(given.is_sorted_by(|one, other| one < other), "{given:?}");
            before = ledger;
        }
    }

    /// Whatever routers serve at any moment, the latest or something older: no two shards may write to one pair.
    #[test]
    fn no_two_shards_are_granted_one_pair_anywhere(steps in prop::collection::vec(step(), 1..60)) {
        let (mut fleet, mut routers) = (three_callers(), Routers::default());
        let mut world = fleet.compile(0);
        for step in &steps {
            fleet.step(step);
            callers_apart(&mut fleet);
            if let Step::Take(router) = step {
                routers.take(*router, &world);
                for (pair, shards) in routers.writers() {
                    prop_assert!(shards.len() == 1, "{pair:?} is granted to {shards:?}");
                }
            }
            if let Step::Restart(written) = step {
                routers.restart(&mut fleet, *written);
            }
            world = fleet.compile(routers.released());
        }
    }

    /// When the edits end and routers keep up, but for one that serves none of these shards, nobody waits any longer, and each shard in force has what it asks for but
    /// for what others go on wanting.
    #[test]
    fn every_handover_ends(steps in prop::collection::vec(step(), 1..40)) {
        let mut fleet = three_callers();
        for step in &steps {
            fleet.step(step);
            callers_apart(&mut fleet);
            fleet.compile(0);
        }
        let all = Released {
            by_all: 0,
            of_shard: SHARDS.map(|shard| (shard_name(shard), u64::MAX)).into(),
            ..Released::default()
        };
        // One run frees and grants; what that accepts may let go of more.
        for _ in 0..2 * SHARDS.len() {
            fleet.compile(all.clone());
        }
        let world = fleet.compile(all);
        for (name, verdict) in &world.shards {
            prop_assert!(verdict.awaited.is_empty(), "{name} waits for {:?}", verdict.awaited);
            for (cluster, namespace) in verdict.wanted.pairs() {
                let entry = world.state.ledger.get(&OperatorName::default(), cluster, namespace);
                let owner = entry.and_then(|entry| entry.owner.as_ref());
                let mine = owner == Some(name);
                let kept = verdict.conflicts.iter().any(|contested| contested.pair == format!("{cluster}/{namespace}"));
                prop_assert!(mine || kept || verdict.refusal.is_some(), "{name} lacks {cluster}/{namespace}: {owner:?}");
            }
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
