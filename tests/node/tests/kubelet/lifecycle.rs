//! Pods come, run to their ends, and go: order, restarts, hooks, grace.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::DeleteParams;
use portolan_testbed::eventually;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::world::{Room, SH, World, in_networks, phase};

/// The status of a container, of whatever kind; an empty one before there is any.
fn container(pod: &Pod, name: &str) -> ContainerStatus {
    let status = pod.status.clone().unwrap_or_default();
    let all = status
        .init_container_statuses
        .into_iter()
        .chain(status.container_statuses)
        .flatten();
    all.into_iter().find(|status| status.name == name).unwrap_or_default()
}

fn exit_code(status: ContainerStatus) -> Option<i32> {
    Some(status.state.as_ref()?.terminated.as_ref()?.exit_code)
}

/// A container that runs a script, with a folder that all of its Pod share.
fn script(name: &str, script: &str) -> Value {
    let mounts = json!([{"name": "shared", "mountPath": "/shared"}]);
    json!({"name": name, "image": SH, "args": ["-c", script], "volumeMounts": mounts})
}

fn spec(init: &[Value], containers: &[Value]) -> Value {
    json!({
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "volumes": [{"name": "shared", "emptyDir": {}}],
        "initContainers": init, "containers": containers,
    })
}

/// All that a container has written.
async fn logs(room: &Room, pod: &str, container: &str) -> String {
    World::shared()
        .await
        .kubectl(&["logs", "-n", &room.namespace, pod, "-c", container])
        .await
}

#[test]
fn a_pod_runs_to_its_end_and_is_deleted() {
    in_networks(async {
        let room = World::shared().await.room("ends").await;
        room.sh("good", "echo hello").await;
        let good = room.until_phase("good", "Succeeded").await;
        let ended = container(&good, "main").state.unwrap().terminated.unwrap();
        assert_eq!((ended.exit_code, ended.reason.as_deref()), (0, Some("Completed")));
        room.sh("bad", "exit 3").await;
        let bad = room.until_phase("bad", "Failed").await;
        assert_eq!(exit_code(container(&bad, "main")), Some(3));
        room.delete("good").await;
        room.sh("long", "trap 'exit 0' TERM; sleep 100 & wait").await;
        room.until_ready("long").await;
        room.delete("long").await;
    });
}

#[test]
fn containers_start_in_order_and_sidecars_end_last() {
    in_networks(async {
        let room = World::shared().await.room("order").await;
        let say = "say() { echo $1 >> /shared/said; }; ";
        let first = script("first", &format!("{say} say first"));
        let mut side = script(
            "side",
            &format!("{say} say side; trap 'say side-ends; exit 0' TERM; while :; do sleep 0.1; done"),
        );
        side["restartPolicy"] = "Always".into();
        side["startupProbe"] = json!({"exec": {"command": ["grep", "-q", "side", "/shared/said"]}, "periodSeconds": 1});
        let second = script("second", &format!("{say} say second"));
        // It can read what the sidecar says at its end only if it outlives it, so the sidecar says it in its log.
        let main = script("main", &format!("{say} say main; sleep 1; say main-ends"));
        side["lifecycle"] = json!({"preStop": {"exec": {"command": ["sh", "-c", "cat /shared/said > /proc/1/fd/1"]}}});
        room.create("ordered", spec(&[first, side, second], &[main])).await;
        let pod = room.until_phase("ordered", "Succeeded").await;
        assert_eq!(exit_code(container(&pod, "side")), Some(0));
        let said = logs(&room, "ordered", "side").await;
        assert_eq!(
            said.split_whitespace().collect::<Vec<_>>(),
            ["first", "side", "second", "main", "main-ends"]
        );
    });
}

#[test]
fn what_fails_is_run_again_after_ever_longer_pauses() {
    in_networks(async {
        let room = World::shared().await.room("restarts").await;
        let flaky = script(
            "flaky",
            "echo run >> /shared/runs; echo run $(wc -l < /shared/runs); [ $(wc -l < /shared/runs) -ge 3 ]",
        );
        let mut pod = spec(&[], &[flaky]);
        pod["restartPolicy"] = "OnFailure".into();
        room.create("flaky", pod).await;
        let pod = room.until_phase("flaky", "Succeeded").await;
        let flaky = container(&pod, "flaky");
        assert_eq!(flaky.restart_count, 2);
        assert_eq!(
            flaky
                .last_state
                .as_ref()
                .unwrap()
                .terminated
                .as_ref()
                .unwrap()
                .exit_code,
            1
        );
        assert_eq!(logs(&room, "flaky", "flaky").await, "run 3\n");
        let before = ["logs", "-n", "restarts", "flaky", "-p"];
        assert_eq!(World::shared().await.kubectl(&before).await, "run 2\n");

        let mut pod = spec(&[], &[script("main", "exit 1")]);
        pod["restartPolicy"] = "Always".into();
        room.create("hopeless", pod).await;
        let waits = |pod: &Pod| {
            let status = container(pod, "main");
            let waiting = status.state.as_ref().and_then(|state| state.waiting.as_ref());
            status.restart_count >= 2
                && waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("CrashLoopBackOff"))
        };
        room.until("hopeless", "it waits for another try", waits).await;

        // What is not there at all is told, and not run.
        let missing = json!({"name": "main", "image": "registry.example.com/none:1"});
        room.create("missing", spec(&[], &[missing])).await;
        let told = |pod: &Pod| format!("{:?}", container(pod, "main").state).contains("no program for image");
        let pod = room.until("missing", "it says what is missing", told).await;
        assert_eq!(phase(&pod), "Pending");
        room.delete("missing").await;
    });
}

#[test]
fn hooks_and_grace_are_kept() {
    in_networks(async {
        let room = World::shared().await.room("hooks").await;
        let mut main = script("main", "trap 'echo term; exit 7' TERM; while :; do sleep 0.1; done");
        let say = |text: &str| json!({"exec": {"command": ["sh", "-c", format!("echo {text} > /proc/1/fd/1")]}});
        main["lifecycle"] = json!({"postStart": say("begun"), "preStop": say("ending")});
        let mut guarded = spec(&[], &[main]);
        // Kept after its end, so that its log can be read.
        guarded["restartPolicy"] = "Always".into();
        guarded["terminationGracePeriodSeconds"] = 2.into();
        let other = script("other", "sleep 100");
        guarded["containers"].as_array_mut().unwrap().push(other);
        room.create("guarded", guarded).await;
        room.until_ready("guarded").await;
        assert_eq!(logs(&room, "guarded", "main").await, "begun\n");
        let begun = Instant::now();
        room.pods.delete("guarded", &DeleteParams::default()).await.unwrap();
        let said = eventually("it has ended, and the other has not", || async {
            let said = logs(&room, "guarded", "main").await;
            if said.contains("term") { Ok(said) } else { Err(said) }
        })
        .await;
        assert_eq!(said, "begun\nending\nterm\n");
        room.until_gone("guarded").await;
        // The other one does not listen, as the first process of a container: it takes all of the grace.
        assert!(begun.elapsed().as_secs() >= 2, "{:?}", begun.elapsed());
    });
}

#[test]
fn a_failed_hook_and_a_failed_probe_end_the_container() {
    in_networks(async {
        let room = World::shared().await.room("failing").await;
        let ended = |pod: &Pod| exit_code(container(pod, "main")).is_some();
        let mut main = script("main", "sleep 100");
        main["lifecycle"] = json!({"postStart": {"exec": {"command": ["sh", "-c", "echo no >&2; exit 4"]}}});
        let mut pod = spec(&[], &[main]);
        pod["terminationGracePeriodSeconds"] = 0.into();
        room.create("hook", pod).await;
        let pod = room.until("hook", "it is ended", ended).await;
        let state = format!("{:?}", container(&pod, "main").state);
        assert!(state.contains("postStart failed: exit code 4: no"), "{state}");
    });
}
