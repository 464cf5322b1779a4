//! The next steps of Pods, as tables: records by short words.

use std::time::Duration;

use jiff::Timestamp;

use super::*;
use crate::record::{Ended, Restart, Running};

/// A record of `role` and `state`: `idle`, `starting`, `up` (running, not started), `started`, or an exit code.
fn record(role: Role, restart: Restart, state: &str) -> Record {
    let running = |started| {
        State::Running(Running {
            id: String::new(),
            since: Timestamp::UNIX_EPOCH,
            started,
            ready: started,
        })
    };
    let ended = |code| {
        State::Ended(Ended {
            id: String::new(),
            code,
            reason: "",
            message: None,
            started: Timestamp::UNIX_EPOCH,
            finished: Timestamp::UNIX_EPOCH,
        })
    };
    Record {
        name: String::new(),
        image: String::new(),
        role,
        restart,
        state: match state {
            "idle" => State::Waiting {
                reason: "",
                message: None,
            },
            "starting" => State::Starting,
            "up" => running(false),
            "started" => running(true),
            code => ended(code.parse().unwrap()),
        },
        last: None,
        restarts: 0,
        has_started: state == "started",
        stopping: false,
        not_before: None,
        pause: Duration::ZERO,
    }
}

fn init(state: &str) -> Record {
    record(Role::Init, Restart::OnFailure, state)
}

fn sidecar(state: &str) -> Record {
    record(Role::Sidecar, Restart::Always, state)
}

fn main(restart: Restart, state: &str) -> Record {
    record(Role::Main, restart, state)
}

fn run(records: &[Record]) -> Plan {
    plan(records, Aim::Run, Instant::now())
}

fn starts(start: &[usize]) -> Plan {
    Plan {
        start: start.to_vec(),
        ..Plan::default()
    }
}

fn stops(stop: &[usize]) -> Plan {
    Plan {
        stop: stop.to_vec(),
        ..Plan::default()
    }
}

fn over() -> Plan {
    Plan {
        over: true,
        ..Plan::default()
    }
}

#[test]
fn init_containers_and_sidecars_start_in_order() {
    let pod = |states: [&str; 4]| {
        [
            init(states[0]),
            sidecar(states[1]),
            init(states[2]),
            main(Restart::Always, states[3]),
        ]
    };
    for (states, planned) in [
        (["idle", "idle", "idle", "idle"], starts(&[0])),
        (["starting", "idle", "idle", "idle"], starts(&[])),
        (["started", "idle", "idle", "idle"], starts(&[])),
        (["0", "idle", "idle", "idle"], starts(&[1])),
        (["0", "up", "idle", "idle"], starts(&[])),
        (["0", "started", "idle", "idle"], starts(&[2])),
        (["0", "started", "started", "idle"], starts(&[])),
        (["0", "started", "0", "idle"], starts(&[3])),
        (["0", "started", "0", "started"], starts(&[])),
        // A failed one is run again, and the next one waits.
        (["3", "idle", "idle", "idle"], starts(&[0])),
        (["0", "1", "idle", "idle"], starts(&[1])),
    ] {
        assert_eq!(run(&pod(states)), planned, "{states:?}");
    }
}

#[test]
fn a_sidecar_that_had_started_holds_up_nobody() {
    let mut ended = sidecar("1");
    ended.has_started = true;
    ended.not_before = Some(Instant::now() + Duration::from_secs(9));
    let planned = run(&[ended.clone(), main(Restart::Always, "idle")]);
    assert_eq!((planned.start, planned.again_at), (vec![1], ended.not_before));
}

#[test]
fn main_containers_start_one_after_the_other() {
    let always = |state| main(Restart::Always, state);
    assert_eq!(run(&[always("idle"), always("idle")]), starts(&[0]));
    assert_eq!(run(&[always("starting"), always("idle")]), starts(&[]));
    assert_eq!(run(&[always("up"), always("idle")]), starts(&[1]));
    let mut failed = always("idle");
    failed.not_before = Some(Instant::now());
    assert_eq!(run(&[failed, always("idle")]), starts(&[0, 1]));
}

#[test]
fn policies_say_what_is_run_again() {
    for (restart, code, planned) in [
        (Restart::Always, "0", starts(&[0])),
        (Restart::Always, "1", starts(&[0])),
        (Restart::OnFailure, "1", starts(&[0])),
        (Restart::OnFailure, "0", over()),
        (Restart::Never, "0", over()),
        (Restart::Never, "1", over()),
    ] {
        assert_eq!(run(&[main(restart, code)]), planned, "{restart:?} {code}");
    }
    // The other one goes on.
    assert_eq!(
        run(&[main(Restart::Never, "1"), main(Restart::Never, "started")]),
        Plan::default()
    );
}

#[test]
fn sidecars_end_last_and_in_reverse() {
    let never = |state| main(Restart::Never, state);
    assert_eq!(run(&[sidecar("started"), sidecar("started"), never("0")]), stops(&[1]));
    assert_eq!(run(&[sidecar("started"), sidecar("143"), never("0")]), stops(&[0]));
    assert_eq!(run(&[sidecar("143"), sidecar("143"), never("0")]), over());
    let end = |records: &[Record]| plan(records, Aim::End, Instant::now());
    assert_eq!(
        end(&[sidecar("started"), never("started"), never("starting")]),
        stops(&[1, 2])
    );
    assert_eq!(end(&[sidecar("started"), never("idle")]), stops(&[0]));
    assert_eq!(end(&[init("idle"), never("idle")]), over());
    let mut told = never("started");
    told.stopping = true;
    assert_eq!(end(&[sidecar("started"), told]), stops(&[]));
}

#[test]
fn an_init_container_that_fails_for_good_ends_the_pod() {
    let failed = record(Role::Init, Restart::Never, "1");
    assert_eq!(
        run(&[sidecar("started"), failed.clone(), main(Restart::Never, "idle")]),
        stops(&[0])
    );
    let records = [failed, main(Restart::Never, "idle")];
    assert_eq!(run(&records), over());
    assert!(!has_succeeded(&records));
}

#[test]
fn success_is_that_of_all_but_sidecars() {
    let records = |code| [init("0"), sidecar("137"), main(Restart::Never, code)];
    assert!(has_succeeded(&records("0")) && !has_succeeded(&records("1")));
    assert!(is_initialized(&[
        init("0"),
        sidecar("started"),
        main(Restart::Always, "idle")
    ]));
    assert!(!is_initialized(&[
        init("0"),
        sidecar("up"),
        main(Restart::Always, "idle")
    ]));
}
