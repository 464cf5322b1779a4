//! A client whose decoder wants whole objects, as kube-rs' does for custom resources with required fields.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt as _;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use portolan_testbed::eventually;
use portolan_tests::programs::admin_get;
use serde::Deserialize;
use serde_json::json;
use tokio::task::JoinSet;

use crate::plans::own;
use crate::{MEMBERS, door, world};

/// A ConfigMap that must have data.
#[derive(Clone, Debug, Deserialize)]
struct Whole {
    metadata: ObjectMeta,
    #[expect(dead_code, reason = "only its decoder asks for it")]
    data: BTreeMap<String, String>,
}

impl Resource for Whole {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "ConfigMap".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "configmaps".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

async fn make(member: &str, namespace: &str, name: &str) {
    let door = world().await.direct_door(member).await.unwrap();
    let metadata = json!({"name": name});
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}});
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let answer = door.post(&path, &object).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.message());
}

/// kube-rs' reflector; its store as long as the set is not dropped.
fn reflected(client: &Client, config: watcher::Config) -> (Store<Whole>, JoinSet<()>) {
    let (store, writer) = reflector::store();
    let events = watcher(Api::all(client.clone()), config).default_backoff();
    let mut task = JoinSet::new();
    task.spawn(reflector::reflector(writer, events).for_each(|_| async {}));
    (store, task)
}

/// Beside what every namespace has.
async fn holds(store: &Store<Whole>, wanted: &[&str]) {
    let wanted: BTreeSet<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
    eventually(&format!("it holds {wanted:?}"), || async {
        let held = store.state();
        let held = held.iter().map(|object| object.name_any());
        let held: BTreeSet<String> = held.filter(|name| name != "kube-root-ca.crt").collect();
        if held == wanted { Ok(()) } else { Err(held) }
    })
    .await;
}

#[tokio::test]
async fn who_reads_whole_objects_keeps_nothing_that_has_left() {
    let _calm = MEMBERS.read().await;
    let world = world().await;
    world.namespace("east", "wholes-x").await.unwrap();
    for (member, namespace, name) in [
        ("east", "wholes-e", "stays"),
        ("east", "wholes-x", "leaves"),
        ("west", "wholes-w", "stays-too"),
    ] {
        make(member, namespace, name).await;
    }
    let with =
        |east: &[&str]| json!([{"name": "east", "namespaces": east}, {"name": "west", "namespaces": ["wholes-w"]}]);
    own("wholes", with(&["wholes-e", "wholes-x"])).await;
    door("wholes").await;
    let client = world
        .client(world.fleet.merged_kubeconfig("wholes"), None)
        .await
        .unwrap();
    let stores = [watcher::Config::default(), watcher::Config::default().streaming_lists()]
        .map(|config| reflected(&client, config));
    for (store, _) in &stores {
        holds(store, &["stays", "leaves", "stays-too"]).await;
    }
    own("wholes", with(&["wholes-e"])).await;
    for (store, _) in &stores {
        holds(store, &["stays", "stays-too"]).await;
    }
    let router = world.fleet.process("router").unwrap();
    let metrics = admin_get(&router.admin, "/metrics").await.unwrap();
    let told = metrics
        .lines()
        .find(|line| line.contains("watches_expired_total{reason=\"metadata\"}"));
    assert!(told.is_some_and(|line| !line.ends_with(" 0")), "{told:?}");
    make("east", "wholes-e", "after").await;
    for (store, _) in &stores {
        holds(store, &["stays", "stays-too", "after"]).await;
    }
}
