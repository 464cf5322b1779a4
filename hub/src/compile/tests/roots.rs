//! Roots: their children are made, updated and deleted as `children` does it, and who has what follows.

use portolan_crds::ShardName;
use portolan_crds::partition::{Part, moves, share_out};

use super::*;

/// Of each member: none is in two, or the shard that has both would have one.
const NAMESPACES: [(&str, [&str; 6]); 2] = [
    ("east", ["a", "b", "default", "ns-1", "ns-2", "kube-system"]),
    ("west", ["c", "ns-3", "ns-4", "ns-5", "tenant-1", "kube-public"]),
];

/// Those that nobody has who does not name them, left out.
fn everywhere() -> impl Iterator<Item = (String, String)> {
    let all = NAMESPACES.into_iter();
    let all = all.flat_map(|(cluster, names)| names.map(|name| (cluster.to_owned(), name.to_owned())));
    all.filter(|(_, name)| !portolan_crds::system_namespace(name))
}

pub(super) fn root(rest: &str) -> ShardingConfigSpec {
    let yaml = format!(
        "{{selector: {{matchLabels: {{app: op}}}}, callerClusters: [east], clusters: [{{name: east}}, {{name: west}}],
          root: {{prefix: op, targetStatefulSet: op, {rest}}}}}"
    );
    serde_yaml_ng::from_str(&yaml).unwrap()
}

pub(super) fn sized(size: usize) -> ShardingConfigSpec {
    root(&format!("auto: {{shardingSize: {size}, everyShardReplicas: 1}}"))
}

pub(super) fn fleet() -> Fleet {
    let mut fleet = Fleet::new(&[]);
    for (cluster, names) in NAMESPACES {
        for namespace in names {
            let namespaces = fleet.agent(cluster).namespaces.get_or_insert_default();
            let labels = [("kubernetes.io/metadata.name".to_owned(), namespace.to_owned())];
            namespaces.entry(namespace.to_owned()).or_default().labels = labels.into();
        }
    }
    fleet
}

impl Fleet {
    /// As the writers of children and finalizers do; objects that are deleted stay while they have anything.
    pub(super) fn write_children(&mut self, world: &World) {
        for (name, verdict) in &world.shards {
            if verdict.discarded
                && let Some(object) = self.facts.shards.get_mut(name)
            {
                object.deleting = true;
            }
        }
        for (root, children) in &world.state.roots {
            let Some(uid) = self.facts.shards.get(root).map(|object| object.uid.clone()) else {
                continue;
            };
            let in_force = children.in_force.iter().map(|generated| (generated, false));
            let coming = children.coming.iter().map(|generated| (generated, true));
            for (generated, only_made) in in_force.chain(coming) {
                for child in &generated.expansion.children {
                    let object = self.facts.shards.get(&shard_name(&child.name));
                    let same = |object: &&ShardObject| object.spec.as_deref() == Ok(&child.spec);
                    if object.is_some_and(|object| object.deleting || only_made || same(&object)) {
                        continue;
                    }
                    self.apply(&child.name, child.spec.clone());
                    let object = self.facts.shards.get_mut(&shard_name(&child.name)).unwrap();
                    object.root = Some(uid.clone());
                }
            }
        }
        self.facts
            .shards
            .retain(|name, object| !object.deleting || world.state.ledger.is_owner(name));
    }

    /// Until nothing happens any more; every router acknowledges at once.
    pub(super) fn settle(&mut self) -> World {
        for _ in 0..8 {
            let world = self.compile(u64::MAX);
            self.write_children(&world);
        }
        self.compile(u64::MAX)
    }

    fn children(&self) -> Vec<&str> {
        let children = self.facts.shards.iter().filter(|(_, object)| object.root.is_some());
        children.map(|(name, _)| name.name()).collect()
    }

    fn generations(&self) -> Vec<i64> {
        let children = self.facts.shards.values().filter(|object| object.root.is_some());
        children.map(|object| object.generation).collect()
    }
}

/// Which pairs each child has, as it says itself.
pub(super) fn parts(world: &World) -> Vec<Part> {
    let generated = world.state.roots[&shard_name("root")].in_force.as_ref().unwrap();
    let normal = generated.expansion.children.iter();
    let normal = normal.filter(|child| child.name.ends_with("-normal"));
    normal.map(|child| child.part.clone()).collect()
}

pub(super) fn owners(world: &World) -> BTreeMap<(String, String), String> {
    let mut owners = BTreeMap::new();
    for cluster in CLUSTERS {
        for (namespace, entry) in world.state.ledger.in_cluster(cluster) {
            if let Some(owner) = &entry.owner {
                owners.insert((cluster.to_owned(), namespace.to_owned()), owner.name().to_owned());
            }
        }
    }
    owners
}

/// All namespaces but system ones are the children's.
pub(super) fn check_whole(world: &World) {
    let owners = owners(world);
    for pair in everywhere() {
        let owner = owners.get(&pair);
        assert!(
            owner.is_some_and(|owner| owner.starts_with("op-")),
            "{pair:?}: {owner:?}"
        );
    }
}

#[test]
fn a_root_has_children_that_own_what_it_spans() {
    let mut fleet = fleet();
    fleet.apply("root", sized(3));
    let world = fleet.compile(0);
    assert_eq!(world.refusal("root"), None);
    assert_eq!(owners(&world), BTreeMap::new(), "it owns nothing itself");
    assert_eq!(world.rules("root"), None, "and routers are not told of it");
    // Before the children are there, what they are to have is nobody else's.
    fleet.apply("late", spec(&[("east", &["a"])]));
    let world = fleet.compile(0);
    assert_eq!(world.refusal("late"), Some(ConditionReason::Overlap));
    assert!(world.message("late").contains("ops/root"), "{}", world.message("late"));
    let world = fleet.settle();
    assert_eq!(fleet.children(), ["op-1-normal", "op-2-normal", "op-3-normal"]);
    assert_eq!(fleet.generations(), [1, 1, 1]);
    check_whole(&world);
    assert_eq!(world.refusal("late"), Some(ConditionReason::Overlap));
    // A new namespace is the child's that has its bucket.
    fleet
        .agent("east")
        .namespaces
        .as_mut()
        .unwrap()
        .insert("new".to_owned(), crate::facts::Namespace::default());
    let owners = owners(&fleet.compile(0));
    assert!(owners[&("east".to_owned(), "new".to_owned())].starts_with("op-"));
}

#[test]
fn each_pod_sees_its_childs_pairs() {
    let mut fleet = fleet();
    for ordinal in 0..4 {
        let uid = format!("uid-{ordinal}");
        fleet.caller("east", &uid, "op");
        let fact = fleet.agent("east").callers.as_mut().unwrap().get_mut(&uid).unwrap();
        let label = "statefulset.kubernetes.io/pod-name".to_owned();
        fact.labels.insert(label, format!("op-{ordinal}"));
    }
    fleet.apply(
        "root",
        root("auto: {shardingSize: 2, everyShardReplicas: 1}, canary: {replicas: 1, inNamespaces: [a, c]}"),
    );
    let world = fleet.settle();
    let shards = |uid| world.view("east", uid).map(|view| view.shards.clone());
    assert_eq!(shards("uid-0").unwrap(), ["ops/op-0-canary"]);
    assert_eq!(shards("uid-1").unwrap(), ["ops/op-1-normal"]);
    assert_eq!(shards("uid-2").unwrap(), ["ops/op-2-normal"]);
    assert_eq!(shards("uid-3"), None, "no child has it");
    let owners = owners(&world);
    for (cluster, namespace) in [("east", "a"), ("west", "c")] {
        assert_eq!(owners[&(cluster.to_owned(), namespace.to_owned())], "op-0-canary");
    }
    let asked = &world.agent_configs["east"].rest().caller_selectors;
    let asked: Vec<_> = asked.iter().map(|asked| asked.selector.as_str()).collect();
    assert_eq!(asked, ["app=op"], "one question for all children");
}

#[test]
fn a_root_that_overlaps_is_refused_whole() {
    let mut fleet = fleet();
    fleet.apply("mine", spec(&[("east", &["a"])]));
    fleet.settle();
    fleet.apply("root", sized(3));
    let world = fleet.settle();
    assert_eq!(world.refusal("root"), Some(ConditionReason::Overlap));
    assert!(
        world.message("root").contains("east/a (of ops/mine)"),
        "{}",
        world.message("root")
    );
    assert!(fleet.children().is_empty());
    fleet.delete("mine");
    let world = fleet.settle();
    assert_eq!(world.refusal("root"), None);
    check_whole(&world);
}

#[test]
fn a_shard_that_becomes_a_root_hands_over_to_its_children_alone() {
    let mut fleet = fleet();
    let plain = ShardingConfigSpec { root: None, ..sized(1) };
    fleet.apply("other", spec(&[("east", &["x"])]));
    fleet.apply("root", plain.clone());
    let before = owners(&fleet.settle());
    // Older than the root, and waiting for what that has.
    fleet.apply("other", spec(&[("east", &["x", "a"])]));
    fleet.apply("root", sized(2));
    let world = fleet.compile(u64::MAX);
    assert_eq!(world.refusal("root"), Some(ConditionReason::Progressing));
    assert_eq!(
        owners(&world),
        before,
        "until the children are there it keeps what it has"
    );
    assert!(world.rules("root").is_some());
    let world = fleet.settle();
    assert_eq!(
        (world.refusal("root"), world.refusal("other")),
        (None, Some(ConditionReason::Overlap))
    );
    check_whole(&world);
    // And back.
    fleet.apply("root", plain);
    let world = fleet.compile(0);
    assert_eq!(world.refusal("root"), None);
    assert!(world.shards[&shard_name("op-1-normal")].discarded);
    let world = fleet.settle();
    assert!(fleet.children().is_empty());
    assert_eq!(owners(&world), before);
}

#[test]
fn a_disabled_root_takes_its_children_back() {
    let mut fleet = fleet();
    fleet.apply("root", sized(2));
    let there = fleet.settle();
    fleet.apply("root", root("disable: true"));
    let world = fleet.compile(0);
    assert_eq!(world.callers_of("op-1-normal"), 0);
    fleet.write_children(&world);
    let world = fleet.compile(0);
    assert_eq!(owners(&world), owners(&there), "no router has let go");
    assert_eq!(fleet.children().len(), 2);
    let world = fleet.settle();
    assert!(fleet.children().is_empty() && owners(&world).is_empty());
    // Or goes itself.
    fleet.apply("root", sized(2));
    check_whole(&fleet.settle());
    fleet.facts.shards.get_mut(&shard_name("root")).unwrap().deleting = true;
    let world = fleet.compile(0);
    assert!(world.shards[&shard_name("op-2-normal")].discarded);
}

#[test]
fn an_edit_of_a_child_is_not_followed() {
    let mut fleet = fleet();
    fleet.apply("root", sized(2));
    let before = owners(&fleet.settle());
    fleet.apply("op-1-normal", spec(&[("east", &["a"])]));
    let world = fleet.compile(u64::MAX);
    assert_eq!(owners(&world), before);
    assert!(world.message("op-1-normal").contains("edit the root"));
    assert_eq!(owners(&fleet.settle()), before);
}

#[test]
fn a_bad_edit_of_a_root_leaves_its_children() {
    let mut fleet = fleet();
    fleet.apply("root", sized(2));
    let before = owners(&fleet.settle());
    let bad = [
        (
            "auto: {shardingSize: 0, everyShardReplicas: 1}",
            "spec.root.auto.shardingSize",
        ),
        (
            "auto: {shardingSize: -1, everyShardReplicas: 1}",
            "spec.root.auto.shardingSize",
        ),
        (
            "auto: {shardingSize: 1025, everyShardReplicas: 1}",
            "spec.root.auto.shardingSize",
        ),
        (
            "auto: {shardingSize: 2, everyShardReplicas: 0}",
            "spec.root.auto.everyShardReplicas",
        ),
        (
            "auto: {shardingSize: 2, everyShardReplicas: 1}, canary: {replicas: 1, inShardHash: ['32']}",
            "spec.root.canary.inShardHash[0]",
        ),
    ];
    for restart in [false, true] {
        for (rest, field) in bad {
            fleet.apply("root", root(rest));
            let world = fleet.settle();
            assert!(world.message("root").contains(field), "{}", world.message("root"));
            assert_eq!(owners(&world), before, "{rest}");
            if restart {
                fleet.restart();
            }
        }
    }
    let mut pinned = sized(2);
    pinned.selector =
        serde_json::from_value(json!({"matchLabels": {"statefulset.kubernetes.io/pod-name": "op-0"}})).unwrap();
    fleet.apply("root", pinned);
    let world = fleet.settle();
    assert!(
        world.message("root").contains("spec.selector: leaves out Pod \"op-1\""),
        "{}",
        world.message("root")
    );
    assert_eq!(owners(&world), before);
}

#[test]
fn a_prefix_is_one_roots() {
    let mut fleet = fleet();
    fleet.apply("root", sized(2));
    let mut other = sized(1);
    other.clusters = spec(&[("east", &["kube-system"])]).clusters;
    fleet.apply("second", other.clone());
    let world = fleet.settle();
    assert_eq!(world.refusal("root"), None);
    assert!(
        world.message("second").contains("spec.root.prefix"),
        "{}",
        world.message("second")
    );
    // Of another namespace it is no matter.
    let object = fleet.facts.shards.remove(&shard_name("second")).unwrap();
    let elsewhere = ShardName::new("elsewhere", "root").unwrap();
    fleet.facts.shards.insert(elsewhere.clone(), object);
    let world = fleet.compile(u64::MAX);
    assert_eq!(world.shards[&elsewhere].refusal, None);
    assert_eq!(fleet.settle().state.roots.len(), 2);
}

#[test]
fn a_cordoned_member_can_be_shared_out_anew() {
    let mut fleet = fleet();
    fleet.apply("root", sized(2));
    fleet.settle();
    let member = fleet.facts.members.get_mut("west").unwrap();
    let spec = MemberClusterSpec {
        cordoned: true,
        ..(**member.in_force.as_ref().unwrap()).clone()
    };
    member.in_force = Some(Arc::new(spec));
    fleet.apply("root", sized(5));
    let world = fleet.settle();
    assert_eq!(world.refusal("root"), None);
    assert_eq!(fleet.children().len(), 5);
    check_whole(&world);
}

#[test]
fn buckets_narrow_what_an_entry_chooses() {
    let mut fleet = fleet();
    let bucketing = Settings::default().bucketing;
    let bucket = bucketing.bucket_of("a");
    let mut wanted = spec(&[("east", &["kube-system"])]);
    wanted.clusters[0].buckets = Some(vec![serde_json::from_value(json!(bucket)).unwrap()]);
    fleet.apply("shard", wanted.clone());
    let world = fleet.compile(0);
    let names = NAMESPACES[0].1.iter();
    let expected = names.filter(|name| **name == "kube-system" || bucketing.bucket_of(name) == bucket);
    let expected: BTreeSet<_> = expected.map(|name| ("east".to_owned(), (*name).to_owned())).collect();
    assert_eq!(owners(&world).into_keys().collect::<BTreeSet<_>>(), expected);
    let rules = world.rules("shard").unwrap().members[0]
        .namespace_rules
        .clone()
        .unwrap();
    assert_eq!(
        rules.selectors,
        [format!("ctrlmesh.kusionstack.io/sharding-hash={bucket}")]
    );
    wanted.clusters[0].buckets = Some(vec![serde_json::from_value(json!("7-32")).unwrap()]);
    fleet.apply("shard", wanted.clone());
    let world = fleet.compile(0);
    assert!(
        world
            .message("shard")
            .contains("spec.clusters[0].buckets: this hub has no bucket 32")
    );
    wanted.clusters[0].buckets = Some(Vec::new());
    fleet.apply("shard", wanted);
    let world = fleet.compile(u64::MAX);
    assert_eq!(
        world.rules("shard").unwrap().members[0]
            .namespace_rules
            .clone()
            .unwrap()
            .selectors,
        [""; 0]
    );
}

/// Edits of a root, among them some that are refused.
fn edit() -> impl Strategy<Value = ShardingConfigSpec> {
    let canary = prop::sample::select(vec![
        "",
        ", canary: {replicas: 1, inNamespaces: [a, ns-3]}",
        ", canary: {replicas: 1, inShardHash: ['3', '9']}",
        ", canary: {replicas: 2, percent: 10, inNamespaces: [b]}",
        ", canary: {replicas: 1}",
    ]);
    (0..7_usize, canary).prop_map(|(size, canary)| {
        root(&format!(
            "auto: {{shardingSize: {size}, everyShardReplicas: 1}}{canary}"
        ))
    })
}

/// What happens between two edits: how far the writers and the routers come, and whether the hub starts again.
#[derive(Debug, Clone)]
struct Meanwhile {
    writes: usize,
    acknowledged: bool,
    restart: bool,
}

fn meanwhile() -> impl Strategy<Value = Meanwhile> {
    (0..4_usize, any::<bool>(), prop::bool::weighted(0.2)).prop_map(|(writes, acknowledged, restart)| Meanwhile {
        writes,
        acknowledged,
        restart,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever a root is edited to, and wherever it is interrupted: nobody else is given what it spans, and in the end all of
    /// it is the children's again.
    #[test]
    fn what_a_root_spans_is_its_childrens(edits in prop::collection::vec((edit(), meanwhile()), 1..6)) {
        let mut fleet = fleet();
        fleet.apply("root", sized(3));
        fleet.settle();
        fleet.apply("greedy", spec(&[("east", &["a", "b", "ns-1", "ns-2"]), ("west", &[])]));
        for (edit, meanwhile) in edits {
            fleet.apply("root", edit);
            for _ in 0..meanwhile.writes {
                let world = fleet.compile(if meanwhile.acknowledged { u64::MAX } else { 0 });
                let foreign: Vec<_> = owners(&world).into_iter().filter(|(_, owner)| !owner.starts_with("op-")).collect();
                prop_assert!(foreign.is_empty(), "{foreign:?}");
                fleet.write_children(&world);
            }
            if meanwhile.restart {
                fleet.restart();
            }
        }
        check_whole(&fleet.settle());
    }

    /// An edit moves no more pairs than it must, and what does not move is not even released.
    #[test]
    fn an_edit_moves_what_it_must(first in edit(), second in edit()) {
        let mut fleet = fleet();
        fleet.apply("root", sized(3));
        fleet.settle();
        fleet.apply("root", first);
        let before = fleet.settle();
        fleet.apply("root", second);
        let after = fleet.settle();
        check_whole(&after);
        let (old, new) = (parts(&before), parts(&after));
        let pairs: Part = new.iter().flat_map(Part::pairs).collect();
        let fewest = moves(&old, &share_out(&pairs, new.len(), &old, None));
        prop_assert_eq!(moves(&old, &new), fewest);
        let (had, has) = (owners(&before), owners(&after));
        for (pair, owner) in &has {
            let counts = [&before, &after].map(|world| world.state.ledger.get(&OperatorName::default(), &pair.0, &pair.1).map(|entry| entry.owner_count));
            let moved = u64::from(had.get(pair) != Some(owner));
            prop_assert_eq!(counts[1], counts[0].map(|count| count + moved), "{:?}", pair);
        }
    }
}
