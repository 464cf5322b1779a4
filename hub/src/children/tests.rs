//! A hub with a root: objects of children come, change in place, and go.

use std::collections::BTreeSet;

use portolan_wire::v1;
use portolan_wire::v1::agent_message::Kind;

use super::*;
use crate::testing::{Objects, TestAgent, TestHub, faulty_api};

const FOLDER: &str = "/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/ops/shardingconfigs/";

fn root(rest: Value) -> Value {
    let mut generates = json!({"prefix": "op", "targetStatefulSet": "op"});
    generates
        .as_object_mut()
        .unwrap()
        .extend(rest.as_object().unwrap().clone());
    json!({
        "selector": {"matchLabels": {"app": "op"}}, "callerClusters": ["east"],
        "clusters": [{"name": "east"}, {"name": "west"}], "root": generates,
    })
}

fn sized(size: u16) -> Value {
    root(json!({"auto": {"shardingSize": size, "everyShardReplicas": 1}}))
}

/// Creates the root, or edits it.
fn put_root(hub: &TestHub, spec: &Value) {
    let mut objects = hub.objects.lock();
    let object = objects.entry(format!("{FOLDER}root")).or_insert_with(|| {
        json!({
            "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "ShardingConfig",
            "metadata": {"name": "root", "namespace": "ops", "uid": "uid-root", "generation": 0, "resourceVersion": "1"},
        })
    });
    let generation = object["metadata"]["generation"].as_i64().unwrap();
    object["metadata"]["generation"] = json!(generation + 1);
    object["spec"] = spec.clone();
}

/// Somebody edits a ShardingConfig.
fn edit(hub: &TestHub, path: &str, clusters: Value) {
    let mut objects = hub.objects.lock();
    let object = objects.get_mut(path).unwrap();
    let generation = object["metadata"]["generation"].as_i64().unwrap();
    object["metadata"]["generation"] = json!(generation + 1);
    object["spec"]["clusters"] = clusters;
}

/// As the watch would.
async fn watch_shards(objects: Objects, index: Arc<Index>) {
    loop {
        let kept: Vec<DynamicObject> = {
            let objects = objects.lock();
            let shards = objects.iter().filter(|(path, _)| path.starts_with(FOLDER));
            shards
                .map(|(_, object)| serde_json::from_value(object.clone()).unwrap())
                .collect()
        };
        index.write(|facts| facts.reset_shards(&kept));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A hub whose members' agents have told some namespaces, with all that makes children.
async fn hub_with_a_writer() -> (TestHub, Vec<TestAgent>, Vec<tokio::task::JoinHandle<()>>) {
    let hub = TestHub::start().await;
    let mut agents = Vec::new();
    for cluster in ["east", "west"] {
        let agent = hub.join(cluster).await;
        let namespace = |name: String| v1::NamespaceFact {
            labels: [("kubernetes.io/metadata.name".to_owned(), name.clone())].into(),
            uid: name.clone(),
            name,
            terminating: false,
            epoch: None,
            epochs: Vec::new(),
            ..v1::NamespaceFact::default()
        };
        let namespaces = (0..20).map(|index| namespace(format!("{cluster}-{index}")));
        let namespaces = v1::NamespaceDelta {
            reset: true,
            upserted: namespaces.collect(),
            removed: Vec::new(),
            ..v1::NamespaceDelta::default()
        };
        agent.say(Kind::Namespaces(namespaces)).await;
        let callers = v1::CallerDelta {
            reset: true,
            ..v1::CallerDelta::default()
        };
        agent.say(Kind::Callers(callers)).await;
        agents.push(agent);
    }
    let client = faulty_api(hub.objects.clone(), hub.faults.clone());
    let writer = ChildWriter::new(client, hub.index.clone());
    #[expect(clippy::disallowed_methods, reason = "ended by the test's runtime")]
    let tasks = vec![
        tokio::spawn(watch_shards(hub.objects.clone(), hub.index.clone())),
        tokio::spawn(writer.run(hub.worlds.subscribe(), Metrics::default())),
    ];
    (hub, agents, tasks)
}

/// Names of the children that are there, each with UID and generation.
fn children(hub: &TestHub) -> Vec<(String, String, i64)> {
    let objects = hub.objects.lock();
    let shards = objects.iter().filter(|(path, _)| path.starts_with(FOLDER));
    let children = shards.filter(|(_, object)| object["metadata"]["ownerReferences"][0]["uid"] == "uid-root");
    children
        .map(|(path, object)| {
            let metadata = &object["metadata"];
            let uid = metadata["uid"].as_str().unwrap().to_owned();
            (
                path[FOLDER.len()..].to_owned(),
                uid,
                metadata["generation"].as_i64().unwrap(),
            )
        })
        .collect()
}

/// How many namespaces each shard has.
fn owned(hub: &TestHub) -> BTreeMap<String, usize> {
    let mut owned = BTreeMap::new();
    let worlds = hub.worlds.borrow();
    let ledger = &worlds.as_ref().unwrap().world.state.ledger;
    let pairs = ["east", "west"]
        .into_iter()
        .flat_map(|cluster| ledger.in_cluster(cluster));
    for owner in pairs.filter_map(|(_, entry)| entry.owner.as_ref()) {
        *owned.entry(owner.name().to_owned()).or_default() += 1;
    }
    owned
}

async fn until_there(hub: &TestHub, count: usize) -> Vec<(String, String, i64)> {
    hub.until("the children are there, and have all", |hub| {
        let children = children(hub);
        let names: BTreeSet<_> = children.iter().map(|(name, ..)| name.clone()).collect();
        let owned = owned(hub);
        let whole = owned.values().sum::<usize>() == 40 && owned.keys().eq(&names);
        (children.len() == count && whole).then_some(children)
    })
    .await
}

#[tokio::test]
async fn children_come_change_in_place_and_go() {
    let (hub, _agents, _tasks) = hub_with_a_writer().await;
    put_root(&hub, &sized(2));
    let first = until_there(&hub, 2).await;
    assert_eq!([&*first[0].0, &*first[1].0], ["op-1-normal", "op-2-normal"]);
    let made = hub.objects.lock()[&format!("{FOLDER}op-1-normal")].clone();
    assert_eq!(made["metadata"]["labels"][LABEL_ROOT], "root");
    assert_eq!(made["metadata"]["ownerReferences"][0]["controller"], true);

    put_root(&hub, &sized(3));
    let second = until_there(&hub, 3).await;
    for ((name, uid, _), (_, after, generation)) in first.iter().zip(&second) {
        assert_eq!((uid, *generation), (after, 2), "{name}");
    }
    // A child that somebody edits is taken back.
    let edited = format!("{FOLDER}op-1-normal");
    let good = hub.objects.lock()[&edited]["spec"].clone();
    edit(&hub, &edited, json!([{"name": "east"}]));
    hub.until("the edit is taken back", |hub| {
        (hub.objects.lock()[&edited]["spec"] == good).then_some(())
    })
    .await;
    assert_eq!(until_there(&hub, 3).await[0].1, first[0].1);

    put_root(&hub, &root(json!({"disable": true})));
    hub.until("the children are gone", |hub| children(hub).is_empty().then_some(()))
        .await;
    hub.until("nobody has anything", |hub| owned(hub).is_empty().then_some(()))
        .await;
}

#[test]
fn a_label_has_as_much_of_the_name_as_it_takes() {
    let name = |name: &str| ShardName::new("ops", name).unwrap();
    assert_eq!(label_of(&name("root")), "root");
    let long = format!("{}.b", "a".repeat(62));
    assert_eq!(label_of(&name(&long)), "a".repeat(62));
}
