//! Deployments and StatefulSets, placed by the scheduler.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{ListParams, PostParams};
use portolan_testbed::eventually;
use serde_json::{Value, json};

use crate::world::{NODE, PROGRAM, Room, World, ask, condition, in_networks, ip, on};

fn workload(kind: &str, name: &str, replicas: u32) -> Value {
    let probe = json!({"httpGet": {"path": "/status/200", "port": 80}, "periodSeconds": 1});
    let env = json!([{"name": "VERSION", "value": "1"}]);
    let main = json!({"name": "main", "image": PROGRAM, "args": ["80"], "env": env, "readinessProbe": probe});
    json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "serviceName": name, "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"nodeSelector": on(NODE), "terminationGracePeriodSeconds": 0, "containers": [main]},
            },
        },
    })
}

/// The Pods of a workload that are ready and not on their way out, by name.
async fn ready(room: &Room, app: &str) -> Vec<Pod> {
    let pods = room
        .pods
        .list(&ListParams::default().labels(&format!("app={app}")))
        .await
        .unwrap();
    let is_there = |pod: &Pod| condition(pod, "Ready") == "True" && pod.metadata.deletion_timestamp.is_none();
    pods.items.into_iter().filter(is_there).collect()
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap()
}

#[test]
fn a_deployment_runs_and_is_scaled() {
    in_networks(async {
        let world = World::shared().await;
        let room = world.room("deployments").await;
        let mut deployment = workload("Deployment", "web", 2);
        deployment["spec"].as_object_mut().unwrap().remove("serviceName");
        let deployment: Deployment = serde_json::from_value(deployment).unwrap();
        let deployments = Api::<Deployment>::namespaced(room.client.clone(), &room.namespace);
        deployments.create(&PostParams::default(), &deployment).await.unwrap();
        let expose = ["expose", "-n", "deployments", "deployment/web", "--port=80"];
        assert!(world.kubectl(&expose).await.contains("exposed"));
        let pods = eventually("two are ready", || async {
            let pods = ready(&room, "web").await;
            if pods.len() == 2 { Ok(pods) } else { Err(pods.len()) }
        })
        .await;
        let available =
            || async { deployments.get("web").await.unwrap().status.unwrap().available_replicas == Some(2) };
        eventually("the Deployment is available", available).await;
        let ips: BTreeSet<_> = pods.iter().map(|pod| ip(pod).to_string()).collect();
        let slices = Api::<EndpointSlice>::namespaced(room.client.clone(), &room.namespace);
        eventually("their addresses are the Service's", || async {
            let slices = slices.list(&ListParams::default()).await.unwrap().items;
            let all = slices.into_iter().filter_map(|slice| slice.endpoints).flatten();
            let good = all.filter(|endpoint| endpoint.conditions.as_ref().is_some_and(|is| is.ready == Some(true)));
            let found: BTreeSet<_> = good.flat_map(|endpoint| endpoint.addresses).collect();
            if found == ips { Ok(()) } else { Err(found) }
        })
        .await;
        world
            .kubectl(&["scale", "-n", "deployments", "deployment/web", "--replicas=0"])
            .await;
        eventually("none is left", || async {
            room.pods.list(&ListParams::default()).await.unwrap().items.is_empty()
        })
        .await;
    });
}

#[test]
fn a_stateful_set_is_rolled_one_after_the_other() {
    in_networks(async {
        let world = World::shared().await;
        let room = world.room("stateful-sets").await;
        let set: StatefulSet = serde_json::from_value(workload("StatefulSet", "op", 2)).unwrap();
        let sets = Api::<StatefulSet>::namespaced(room.client.clone(), &room.namespace);
        sets.create(&PostParams::default(), &set).await.unwrap();
        let pods = eventually("two are ready", || async {
            let pods = ready(&room, "op").await;
            if pods.len() == 2 { Ok(pods) } else { Err(pods.len()) }
        })
        .await;
        assert_eq!(pods.iter().map(name).collect::<Vec<_>>(), ["op-0", "op-1"]);
        let hosts = ask((ip(&pods[1]), 80), "/env/HOSTNAME").await;
        assert_eq!(hosts.as_deref(), Ok("op-1"));
        let set = ["set", "env", "-n", "stateful-sets", "statefulset/op", "VERSION=2"];
        assert!(world.kubectl(&set).await.contains("updated"));
        let status = [
            "rollout",
            "status",
            "-n",
            "stateful-sets",
            "statefulset/op",
            "--timeout=60s",
        ];
        let said = world.kubectl(&status).await;
        assert!(said.contains("roll out complete"), "{said}");
        let new = ready(&room, "op").await;
        assert_eq!(new.len(), 2);
        for (old, new) in pods.iter().zip(&new) {
            assert_eq!(name(old), name(new));
            assert_ne!(old.metadata.uid, new.metadata.uid);
            assert_eq!(ask((ip(new), 80), "/env/VERSION").await.as_deref(), Ok("2"));
        }
    });
}
