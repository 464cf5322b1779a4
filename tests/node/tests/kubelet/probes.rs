//! Probes of every kind, and what their verdicts do.

use k8s_openapi::api::core::v1::Pod;
use portolan_testbed::eventually;
use serde_json::{Value, json};

use crate::world::{PROGRAM, World, ask, condition, in_networks, ip};

/// `pod-program` on port 80 with these probes, a second apart.
fn probed(probes: Value) -> Value {
    let mut main = json!({
        "name": "main", "image": PROGRAM, "args": ["80"], "ports": [{"name": "web", "containerPort": 80}],
    });
    for (kind, probe) in probes.as_object().unwrap() {
        let mut probe = probe.clone();
        probe["periodSeconds"] = 1.into();
        main[kind] = probe;
    }
    json!({"terminationGracePeriodSeconds": 0, "containers": [main]})
}

fn restarts(pod: &Pod) -> i32 {
    pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].restart_count
}

#[test]
fn readiness_follows_its_probe() {
    in_networks(async {
        let room = World::shared().await.room("readiness").await;
        let probe = json!({"httpGet": {"path": "/unless/tmp/down", "port": "web"}, "failureThreshold": 1});
        room.create("web", probed(json!({"readinessProbe": probe}))).await;
        let pod = room.until_ready("web").await;
        let address = (ip(&pod), 80);
        ask(address, "/write/tmp/down").await.unwrap();
        let unready = |pod: &Pod| condition(pod, "Ready") == "False" && condition(pod, "ContainersReady") == "False";
        room.until("web", "it is not ready", unready).await;
        ask(address, "/remove/tmp/down").await.unwrap();
        let pod = room.until_ready("web").await;
        assert_eq!(restarts(&pod), 0);
    });
}

#[test]
fn a_container_that_is_not_alive_is_run_again() {
    in_networks(async {
        let room = World::shared().await.room("liveness").await;
        let command = ["sh", "-c", "test ! -e /tmp/down"];
        let probe = json!({"exec": {"command": command}, "failureThreshold": 2});
        room.create("web", probed(json!({"livenessProbe": probe}))).await;
        let pod = room.until_ready("web").await;
        ask((ip(&pod), 80), "/write/tmp/down").await.unwrap();
        let pod = room
            .until("web", "it has been run again", |pod| {
                restarts(pod) == 1 && condition(pod, "Ready") == "True"
            })
            .await;
        // A new root, and the address of before.
        assert!(ask((ip(&pod), 80), "/unless/tmp/down").await.is_ok());
        let last = pod.status.unwrap().container_statuses.unwrap()[0]
            .last_state
            .clone()
            .unwrap();
        let message = last.terminated.unwrap().message.unwrap();
        assert!(message.starts_with("liveness failed: exit code 1"), "{message}");
    });
}

#[test]
fn nothing_is_probed_before_the_container_has_started() {
    in_networks(async {
        let room = World::shared().await.room("startup").await;
        let command = ["sh", "-c", "echo tried >> /tmp/tries; test -e /tmp/up"];
        let startup = json!({"exec": {"command": command}, "failureThreshold": 1000});
        let liveness = json!({"httpGet": {"path": "/read/tmp/up", "port": 80}, "failureThreshold": 1});
        let readiness = json!({"tcpSocket": {"port": 80}});
        let probes = json!({"startupProbe": startup, "livenessProbe": liveness, "readinessProbe": readiness});
        room.create("web", probed(probes)).await;
        let pod = room.until_phase("web", "Running").await;
        let started = |pod: &Pod| pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].started;
        // As often as the others would have been tried.
        eventually("it was probed", || async {
            let tries = ask((ip(&pod), 80), "/read/tmp/tries").await;
            tries.is_ok_and(|tries| tries.lines().count() >= 3)
        })
        .await;
        let pod = room.pods.get(&pod.metadata.name.unwrap()).await.unwrap();
        assert_eq!(
            (restarts(&pod), started(&pod), condition(&pod, "Ready")),
            (0, Some(false), "False")
        );
        ask((ip(&pod), 80), "/write/tmp/up").await.unwrap();
        let pod = room.until_ready("web").await;
        assert_eq!(started(&pod), Some(true));
        ask((ip(&pod), 80), "/remove/tmp/up").await.unwrap();
        room.until("web", "it has been run again", |pod| restarts(pod) == 1)
            .await;
    });
}
