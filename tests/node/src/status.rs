//! The status of a Pod, of what is known of its containers. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, HostIP,
    Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::field::Place;
use crate::plan::{has_succeeded, is_initialized};
use crate::record::{Ended, Record, Role, State};

/// What a status is made of besides its containers.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) pod: &'a Pod,
    /// None before the Pod has a network.
    pub(crate) place: Option<&'a Place>,
    /// When the node took it on.
    pub(crate) start: Timestamp,
    /// Nothing runs, and nothing will.
    pub(crate) over: bool,
    pub(crate) now: Timestamp,
}

/// The status of a Pod, whose conditions keep the time of `before` where they are as they were.
pub(crate) fn status(records: &[Record], facts: &Facts<'_>, before: Option<&PodStatus>) -> PodStatus {
    let phase = phase(records, facts.over);
    let ip = facts.place.map(|place| place.pod_ip.to_string());
    let host = facts.place.map(|place| place.host_ip.to_string());
    let of = |main: bool| -> Vec<ContainerStatus> {
        let wanted = records.iter().filter(|record| (record.role == Role::Main) == main);
        wanted.map(|record| container(record, facts.over)).collect()
    };
    let init = of(false);
    PodStatus {
        phase: Some(phase.to_owned()),
        conditions: Some(conditions(records, facts, phase, before)),
        host_ips: host.clone().map(|ip| vec![HostIP { ip }]),
        host_ip: host,
        pod_ips: ip.clone().map(|ip| vec![PodIP { ip }]),
        pod_ip: ip,
        start_time: Some(Time(facts.start)),
        observed_generation: facts.pod.metadata.generation,
        init_container_statuses: (!init.is_empty()).then_some(init),
        container_statuses: Some(of(true)),
        ..PodStatus::default()
    }
}

fn phase(records: &[Record], over: bool) -> &'static str {
    if over {
        return if has_succeeded(records) { "Succeeded" } else { "Failed" };
    }
    let mut mains = records.iter().filter(|record| record.role == Role::Main);
    let has_run =
        |record: &Record| !matches!(record.state, State::Waiting { .. } | State::Starting) || record.last.is_some();
    if mains.any(has_run) { "Running" } else { "Pending" }
}

fn container(record: &Record, over: bool) -> ContainerStatus {
    let is_running = matches!(record.state, State::Running(_));
    let (state, last) = match &record.state {
        State::Waiting { reason, message } => (waiting(reason, message.clone()), record.last.as_ref()),
        State::Starting => (waiting("ContainerCreating", None), record.last.as_ref()),
        State::Running(running) => {
            let running = ContainerStateRunning {
                started_at: Some(Time(running.since)),
            };
            let state = ContainerState {
                running: Some(running),
                ..ContainerState::default()
            };
            (state, record.last.as_ref())
        }
        // It is about to be run again: what counts is how long that takes.
        State::Ended(ended) if !over && record.wants_again() && !record.pause.is_zero() => {
            let message = format!("back-off {:?} restarting failed container", record.pause);
            (waiting("CrashLoopBackOff", Some(message)), Some(ended))
        }
        State::Ended(ended) => (terminated(ended), record.last.as_ref()),
    };
    let id = match &record.state {
        State::Running(running) => Some(&running.id),
        State::Ended(ended) => Some(&ended.id),
        _ => record.last.as_ref().map(|last| &last.id),
    };
    ContainerStatus {
        name: record.name.clone(),
        image: record.image.clone(),
        image_id: record.image.clone(),
        container_id: id.cloned(),
        ready: record.is_ready(),
        started: Some(matches!(&record.state, State::Running(running) if running.started)),
        restart_count: i32::try_from(record.restarts).unwrap_or(i32::MAX),
        state: Some(state),
        last_state: last.filter(|_| is_running || record.restarts > 0).map(terminated),
        ..ContainerStatus::default()
    }
}

fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    let waiting = ContainerStateWaiting {
        reason: Some(reason.to_owned()),
        message,
    };
    ContainerState {
        waiting: Some(waiting),
        ..ContainerState::default()
    }
}

fn terminated(ended: &Ended) -> ContainerState {
    let terminated = ContainerStateTerminated {
        container_id: Some(ended.id.clone()),
        exit_code: ended.code,
        reason: Some(ended.reason.to_owned()),
        message: ended.message.clone(),
        started_at: Some(Time(ended.started)),
        finished_at: Some(Time(ended.finished)),
        ..ContainerStateTerminated::default()
    };
    ContainerState {
        terminated: Some(terminated),
        ..ContainerState::default()
    }
}

/// Why a condition does not hold: reason and message.
type Why = (&'static str, String);

fn conditions(records: &[Record], facts: &Facts<'_>, phase: &str, before: Option<&PodStatus>) -> Vec<PodCondition> {
    let ready = containers_ready(records, phase);
    let initialized = is_initialized(records);
    let whole = ready.clone().and_then(|()| gates(facts.pod));
    let not = |holds: bool, reason, message: &str| {
        if holds {
            Ok(())
        } else {
            Err((reason, message.to_owned()))
        }
    };
    [
        (
            "PodReadyToStartContainers",
            not(facts.place.is_some() && !facts.over, "", ""),
        ),
        (
            "Initialized",
            not(
                initialized,
                "ContainersNotInitialized",
                "init containers have not completed",
            ),
        ),
        ("Ready", whole),
        ("ContainersReady", ready),
        ("PodScheduled", Ok(())),
    ]
    .into_iter()
    .map(|(kind, outcome)| condition(kind, outcome, facts, before))
    .collect()
}

fn condition(kind: &str, outcome: Result<(), Why>, facts: &Facts<'_>, before: Option<&PodStatus>) -> PodCondition {
    let holds = if outcome.is_ok() { "True" } else { "False" };
    let mut old = before.into_iter().flat_map(|status| status.conditions.iter().flatten());
    let old = old.find(|old| old.type_ == kind && old.status == holds);
    let since = old.and_then(|old| old.last_transition_time.clone());
    let why = outcome.err().filter(|(reason, _)| !reason.is_empty());
    PodCondition {
        type_: kind.to_owned(),
        status: holds.to_owned(),
        reason: why.as_ref().map(|(reason, _)| (*reason).to_owned()),
        message: why.map(|(_, message)| message),
        last_transition_time: Some(since.unwrap_or(Time(facts.now))),
        observed_generation: facts.pod.metadata.generation,
        ..PodCondition::default()
    }
}

fn containers_ready(records: &[Record], phase: &str) -> Result<(), Why> {
    if phase == "Succeeded" {
        return Err(("PodCompleted", String::new()));
    }
    let lasting = records.iter().filter(|record| record.role != Role::Init);
    let not: Vec<_> = lasting
        .filter(|record| !record.is_ready())
        .map(|record| record.name.as_str())
        .collect();
    if not.is_empty() {
        return Ok(());
    }
    let reason = if phase == "Failed" {
        "PodFailed"
    } else {
        "ContainersNotReady"
    };
    Err((reason, format!("containers with unready status: [{}]", not.join(" "))))
}

/// Conditions that others set, and the Pod wants before it counts as ready.
fn gates(pod: &Pod) -> Result<(), Why> {
    let gates = pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
    let set = |kind: &str| {
        let mut all = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        all.any(|condition| condition.type_ == kind && condition.status == "True")
    };
    match gates.map(|gate| &gate.condition_type).find(|kind| !set(kind)) {
        Some(kind) => Err(("ReadinessGatesNotReady", format!("readiness gate {kind:?} is not True"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
