//! Statuses by what is known of containers.

use std::net::Ipv4Addr;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::record::{Running, records};

fn pod(spec: Value) -> Pod {
    let mut pod = json!({"metadata": {"name": "a", "generation": 3}, "spec": {"containers": [{"name": "main"}]}});
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    serde_json::from_value(pod).unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn told(pod: &Pod, records: &[Record], over: bool, before: Option<&PodStatus>) -> PodStatus {
    let place = Place {
        node: "n".to_owned(),
        host_ip: Ipv4Addr::new(10, 244, 0, 1),
        pod_ip: Ipv4Addr::new(10, 244, 1, 1),
    };
    let now = if before.is_some() { at(20) } else { at(10) };
    status(
        records,
        &Facts {
            pod,
            place: Some(&place),
            start: at(5),
            over,
            now,
        },
        before,
    )
}

fn holds(status: &PodStatus, kind: &str) -> (bool, i64) {
    let mut conditions = status.conditions.iter().flatten();
    let found = conditions.find(|condition| condition.type_ == kind).unwrap();
    (
        found.status == "True",
        found.last_transition_time.as_ref().unwrap().0.as_second(),
    )
}

fn running(ready: bool) -> State {
    State::Running(Running {
        id: "process://1".to_owned(),
        since: at(8),
        started: true,
        ready,
    })
}

fn ended(code: i32) -> State {
    State::Ended(Ended {
        id: "process://1".to_owned(),
        code,
        reason: "Error",
        message: None,
        started: at(8),
        finished: at(9),
    })
}

#[test]
fn a_pod_becomes_ready_and_conditions_keep_their_times() {
    let pod = pod(json!({}));
    let mut all = records(&pod);
    let first = told(&pod, &all, false, None);
    assert_eq!(first.phase.as_deref(), Some("Pending"));
    assert_eq!(
        (holds(&first, "Initialized"), holds(&first, "Ready")),
        ((true, 10), (false, 10))
    );
    all[0].state = running(true);
    let second = told(&pod, &all, false, Some(&first));
    assert_eq!(second.phase.as_deref(), Some("Running"));
    assert_eq!(
        (holds(&second, "Initialized"), holds(&second, "Ready")),
        ((true, 10), (true, 20))
    );
    assert_eq!(
        (second.pod_ip.as_deref(), second.observed_generation),
        (Some("10.244.1.1"), Some(3))
    );
    let container = &second.container_statuses.unwrap()[0];
    assert!(container.ready && container.started == Some(true));
    assert_eq!(container.container_id.as_deref(), Some("process://1"));
}

#[test]
fn an_unready_container_is_named() {
    let pod = pod(json!({}));
    let mut all = records(&pod);
    all[0].state = running(false);
    let status = told(&pod, &all, false, None);
    let conditions = status.conditions.unwrap();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready").unwrap();
    assert_eq!(ready.message.as_deref(), Some("containers with unready status: [main]"));
}

#[test]
fn gates_of_others_count() {
    let mut gated = pod(json!({"readinessGates": [{"conditionType": "example.com/go"}]}));
    let mut all = records(&gated);
    all[0].state = running(true);
    assert!(!holds(&told(&gated, &all, false, None), "Ready").0);
    let set = json!({"conditions": [{"type": "example.com/go", "status": "True"}]});
    gated.status = Some(serde_json::from_value(set).unwrap());
    let status = told(&gated, &all, false, None);
    assert!(holds(&status, "Ready").0 && holds(&status, "ContainersReady").0);
}

#[test]
fn a_failing_container_tells_of_its_last_run() {
    let pod = pod(json!({}));
    let mut all = records(&pod);
    all[0].state = ended(3);
    let state = |all: &[Record], over| told(&pod, all, over, None).container_statuses.unwrap()[0].clone();
    assert_eq!(state(&all, false).state.unwrap().terminated.unwrap().exit_code, 3);
    all[0].pause = Duration::from_secs(1);
    all[0].restarts = 1;
    let waits = state(&all, false);
    assert_eq!(
        waits.state.unwrap().waiting.unwrap().reason.as_deref(),
        Some("CrashLoopBackOff")
    );
    assert_eq!(waits.last_state.unwrap().terminated.unwrap().exit_code, 3);
    assert_eq!(waits.restart_count, 1);
    // It ends for good while it waits.
    assert!(state(&all, true).state.unwrap().terminated.is_some());
    assert_eq!(told(&pod, &all, true, None).phase.as_deref(), Some("Failed"));
    all[0].state = ended(0);
    assert_eq!(told(&pod, &all, true, None).phase.as_deref(), Some("Succeeded"));
}

#[test]
fn init_containers_have_statuses_of_their_own() {
    let pod = pod(json!({"initContainers": [{"name": "first"}, {"name": "side", "restartPolicy": "Always"}]}));
    let mut all = records(&pod);
    all[0].state = ended(0);
    all[1].state = running(true);
    let status = told(&pod, &all, false, None);
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    let init = status.init_container_statuses.unwrap();
    assert_eq!(
        init.iter()
            .map(|one| (one.name.as_str(), one.ready))
            .collect::<Vec<_>>(),
        [("first", true), ("side", true)]
    );
    assert_eq!(status.container_statuses.unwrap().len(), 1);
}

#[test]
fn a_pod_that_lost_its_node_counts_on() {
    let mut pod = pod(json!({}));
    let status = |id: &str| {
        let status =
            json!({"name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 2, "containerID": id});
        Some(serde_json::from_value(json!({"containerStatuses": [status]})).unwrap())
    };
    pod.status = status("process://1");
    assert_eq!(records(&pod)[0].restarts, 3);
    pod.status = status("");
    assert_eq!(records(&pod)[0].restarts, 2);
}
