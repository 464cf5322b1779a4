//! A root over three members: its children, as a real API server keeps them.

use std::collections::BTreeMap;

use kube::api::{Api, ListParams, Patch, PatchParams};
use portolan_crds::labels::LABEL_ROOT;
use portolan_crds::{Bucketing, LabelKeys, ShardingConfig};
use portolan_testbed::eventually;
use portolan_wire::v1;
use portolan_wire::v1::agent_message::Kind;
use serde_json::{Value, json};

use crate::scene::{Agent, Scene};

const MEMBERS: [&str; 3] = ["east", "north", "west"];

fn root(rest: &Value) -> Value {
    let mut generates = json!({"prefix": "op", "targetStatefulSet": "op"});
    for (key, value) in rest.as_object().unwrap() {
        generates[key] = value.clone();
    }
    json!({
        "selector": {"matchLabels": {"app": "operator"}}, "callerClusters": ["east"],
        "clusters": MEMBERS.map(|name| json!({"name": name})), "root": generates,
    })
}

fn sized(size: u16) -> Value {
    root(&json!({
        "auto": {"shardingSize": size, "everyShardReplicas": 1},
        "canary": {"replicas": 1, "inNamespaces": ["east-0"], "inShardHash": ["0", "1", "2"]},
    }))
}

/// Each with twelve namespaces, and Pods op-0 to op-3 in east.
async fn members(scene: &Scene) -> Vec<Agent> {
    let mut agents = Vec::new();
    for member in MEMBERS {
        let agent = scene.join(member).await;
        let names: Vec<_> = (0..12).map(|index| format!("{member}-{index}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        agent.report(&names, &[]).await;
        agents.push(agent);
    }
    let pod = |ordinal: u16| v1::CallerFact {
        namespace: "ops".to_owned(),
        pod: format!("op-{ordinal}"),
        uid: format!("uid-{ordinal}"),
        service_account: "operator".to_owned(),
        labels: [
            ("app".to_owned(), "operator".to_owned()),
            ("statefulset.kubernetes.io/pod-name".to_owned(), format!("op-{ordinal}")),
        ]
        .into(),
        phase: "Running".to_owned(),
        created_unix_seconds: None,
        ..v1::CallerFact::default()
    };
    let pods = v1::CallerDelta {
        reset: true,
        upserted: (0..4).map(pod).collect(),
        removed: Vec::new(),
        ..v1::CallerDelta::default()
    };
    agents[0].say(Kind::Callers(pods)).await;
    agents
}

async fn children(scene: &Scene) -> Vec<ShardingConfig> {
    let api = Api::<ShardingConfig>::namespaced(scene.client().await, "ops");
    let children = ListParams::default().labels(LABEL_ROOT);
    api.list(&children).await.unwrap().items
}

/// Waits until the children have all namespaces, each one; returns the children by name.
async fn whole(scene: &Scene, count: usize) -> BTreeMap<String, ShardingConfig> {
    eventually("the children have all", || async {
        let mut owners = BTreeMap::new();
        let children = children(scene).await;
        anyhow::ensure!(children.len() == count, "{} children", children.len());
        for child in &children {
            let (name, status) = (child.metadata.name.clone(), child.status.clone().unwrap_or_default());
            anyhow::ensure!(
                status.observed_generation == child.metadata.generation,
                "{name:?} is not told of"
            );
            for cluster in &status.clusters {
                for namespace in &cluster.namespaces {
                    let other = owners.insert((cluster.name.clone(), namespace.clone()), name.clone());
                    anyhow::ensure!(other.is_none(), "{namespace} is {other:?}'s and {name:?}'s");
                }
            }
        }
        anyhow::ensure!(owners.len() == 36, "{} namespaces are owned", owners.len());
        let canary = owners.get(&("east".to_owned(), "east-0".to_owned()));
        anyhow::ensure!(
            canary == Some(&Some("op-0-canary".to_owned())),
            "east-0 is {canary:?}'s"
        );
        let named = children.into_iter();
        Ok(named
            .map(|child| (child.metadata.name.clone().unwrap(), child))
            .collect())
    })
    .await
}

#[tokio::test]
async fn a_root_over_three_members_has_children() {
    let scene = Scene::start().await.unwrap();
    let _agents = members(&scene).await;
    let mut router = scene.router("gateway", Vec::new()).await;
    router.during(lives(&scene)).await;
    scene.leaks_nothing().await;
}

async fn lives(scene: &Scene) {
    scene.shard("root", sized(2)).await;
    let first = whole(scene, 3).await;
    for condition in ["Accepted", "Complete", "Disjoint"] {
        scene.shard_says("root", condition, "True/Ok").await;
    }
    let message = scene.shard_says("root", "ChildrenServed", "False/PodsInNoShard").await;
    assert!(message.contains("op-3 in east"), "{message}");
    let message = scene
        .shard_says("root", "NamespacesResolved", "False/NamespaceMissing")
        .await;
    assert!(
        message.contains("inNamespaces[0]") && message.contains("north, west"),
        "{message}"
    );
    for child in first.keys() {
        scene.shard_says(child, "Distributed", "True/Ok").await;
        assert_eq!(scene.shard_status(child).await["callers"]["total"], 1, "{child}");
    }

    scene.shard("root", sized(3)).await;
    let second = whole(scene, 4).await;
    scene.shard_says("root", "ChildrenServed", "True/Ok").await;
    for (name, child) in &first {
        assert_eq!(second[name].metadata.uid, child.metadata.uid, "{name} was made anew");
    }
    is_taken_back(scene).await;

    let mut bad = sized(3);
    bad["root"]["canary"]["inShardHash"] = json!(["32"]);
    scene.shard("root", bad).await;
    let message = scene.shard_says("root", "Accepted", "False/Invalid").await;
    assert!(message.contains("spec.root.canary.inShardHash[0]"), "{message}");
    whole(scene, 4).await;

    scene.shard("root", root(&json!({"disable": true}))).await;
    eventually("the children are gone", || async {
        let left = children(scene).await.len();
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await;
    scene.shard_says("root", "Complete", "True/Ok").await;
}

/// Buckets of east that a child has.
fn of_east(child: &ShardingConfig) -> Vec<u16> {
    let entries = child.spec.clusters.iter();
    let east = entries.filter(|entry| entry.name.as_deref() == Some("east"));
    let buckets = east.filter_map(|entry| entry.bucket_set().unwrap());
    buckets.flat_map(|buckets| buckets.iter().collect::<Vec<_>>()).collect()
}

/// Ten buckets of east have nearly all objects, and one child has them all as long as nobody has counted.
#[tokio::test]
async fn a_root_is_shared_out_by_objects() {
    const HEAVY: usize = 10;
    let scene = Scene::start().await.unwrap();
    let agents = members(&scene).await;
    let mut router = scene.router("gateway", Vec::new()).await;
    let by_objects = root(&json!({"auto": {"shardingSize": 2, "everyShardReplicas": 1, "balance": "Objects"}}));
    let balanced = async {
        scene.shard("root", by_objects).await;
        scene.shard_says("root", "Complete", "True/Ok").await;
        let heavy = of_east(&children(&scene).await[0]);
        let heavy = &heavy[..HEAVY];
        for (member, agent) in MEMBERS.into_iter().zip(&agents) {
            let is_heavy = |bucket: &u16| member == "east" && heavy.contains(bucket);
            agent
                .say(Kind::Coverage(counts(
                    |bucket| if is_heavy(&bucket) { 4096 } else { 1 },
                )))
                .await;
        }
        eventually("the children have as many objects each", || async {
            let children = children(&scene).await;
            let each: Vec<_> = children
                .iter()
                .map(|child| of_east(child).iter().filter(|bucket| heavy.contains(bucket)).count())
                .collect();
            if each == [HEAVY / 2; 2] { Ok(()) } else { Err(each) }
        })
        .await;
        scene.shard_says("root", "Complete", "True/Ok").await;
    };
    router.during(balanced).await;
}

/// What an agent says that labels nothing but Pods, all of them.
fn counts(by_bucket: impl Fn(u16) -> u64) -> v1::CoverageDelta {
    let bucketing = Bucketing::default();
    let by_bucket: Vec<_> = (0..bucketing.buckets()).map(by_bucket).collect();
    let total = by_bucket.iter().sum();
    let pods = v1::CoverageFact {
        kind: Some(v1::KindRef {
            group: String::new(),
            resource: "pods".to_owned(),
        }),
        labelled: total,
        total,
        complete: true,
        rule: Some(v1::LabelRule {
            prefix: LabelKeys::default().prefix().to_owned(),
            bucketing: Some(bucketing.into()),
        }),
        at_admission: Some(true),
        by_bucket,
    };
    v1::CoverageDelta {
        reset: true,
        upserted: vec![pods],
        removed: Vec::new(),
        ..v1::CoverageDelta::default()
    }
}

/// A field that the root does not have, written into a child by somebody else.
async fn is_taken_back(scene: &Scene) {
    let api = Api::<ShardingConfig>::namespaced(scene.client().await, "ops");
    let edit = json!({"spec": {"serviceAccounts": ["mine"], "explicitView": "Allow"}});
    let edited = api
        .patch("op-1-normal", &PatchParams::default(), &Patch::Merge(edit))
        .await;
    let generation = edited.unwrap().metadata.generation.unwrap();
    eventually("the edit is taken back", || async {
        let child = api.get("op-1-normal").await.unwrap();
        let good = child.spec.service_accounts.is_empty() && child.metadata.generation > Some(generation);
        if good { Ok(()) } else { Err(child.spec.service_accounts) }
    })
    .await;
}
