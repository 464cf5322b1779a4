//! The next steps of Pods, as tables: records by short words.

use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

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

/// What happens next to a container that is live: it starts, or ends with this code.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Starts,
    Ends(i32),
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![Just(Fate::Starts), (0..2).prop_map(Fate::Ends)]
}

fn pod() -> impl Strategy<Value = Vec<Record>> {
    let restart = prop_oneof![Just(Restart::Always), Just(Restart::OnFailure), Just(Restart::Never)];
    let inits = prop::collection::vec(any::<bool>(), 0..4);
    (inits, 1..3_usize, restart).prop_map(|(inits, mains, restart)| {
        let of_init = if restart == Restart::Never {
            Restart::Never
        } else {
            Restart::OnFailure
        };
        let first = inits.into_iter().map(|side| {
            if side {
                sidecar("idle")
            } else {
                record(Role::Init, of_init, "idle")
            }
        });
        first.chain((0..mains).map(|_| main(restart, "idle"))).collect()
    })
}

/// Lets one live container meet its fate.
fn happen(records: &mut [Record], which: prop::sample::Index, fate: Fate) {
    let live: Vec<_> = (0..records.len()).filter(|at| records[*at].is_live()).collect();
    if live.is_empty() {
        return;
    }
    let met = &mut records[live[which.index(live.len())]];
    let state = match fate {
        Fate::Starts => "started".to_owned(),
        Fate::Ends(code) => code.to_string(),
    };
    met.has_started |= state == "started";
    met.state = record(met.role, met.restart, &state).state;
}

/// Does what is planned, and checks that it may be.
fn follow(records: &mut [Record], plan: &Plan) -> Result<(), TestCaseError> {
    for at in &plan.start {
        let (before, starts) = (&records[..*at], &records[*at]);
        prop_assert!(!starts.is_live());
        let lets = |record: &Record| match record.role {
            Role::Init => record.has_succeeded(),
            Role::Sidecar => record.has_started,
            Role::Main => true,
        };
        prop_assert!(before.iter().all(lets), "{starts:?} before its turn");
        records[*at].state = State::Starting;
        records[*at].stopping = false;
    }
    for at in &plan.stop {
        prop_assert!(records[*at].is_live() && !records[*at].stopping);
        let behind = records
            .iter()
            .enumerate()
            .filter(|(other, record)| record.role != Role::Sidecar || other > at);
        let outlived = |record: &Record| !record.is_live();
        if records[*at].role == Role::Sidecar {
            prop_assert!(
                behind.into_iter().all(|(_, record)| outlived(record)),
                "a sidecar ends too early"
            );
        }
        records[*at].stopping = true;
    }
    prop_assert!(!plan.over || records.iter().all(|record| !record.is_live()));
    Ok(())
}

proptest! {
    /// Whatever happens: nothing starts before its turn, sidecars outlive all others, and a Pod that is to end does.
    #[test]
    fn order_holds_and_the_end_comes(
        mut records in pod(),
        events in prop::collection::vec((any::<prop::sample::Index>(), fate()), 0..40),
    ) {
        let mut over = false;
        for (which, fate) in events {
            let aim = if over { Aim::End } else { Aim::Run };
            let planned = plan(&records, aim, Instant::now());
            follow(&mut records, &planned)?;
            over |= planned.over;
            happen(&mut records, which, fate);
        }
        // From here on all that is told to end does, one after the other.
        for _ in 0..=records.len() {
            let planned = plan(&records, Aim::End, Instant::now());
            follow(&mut records, &planned)?;
            over = planned.over;
            if let Some(ends) = records.iter_mut().find(|record| record.is_live() && record.stopping) {
                ends.state = record(ends.role, ends.restart, "143").state;
            }
        }
        prop_assert!(over, "{records:?}");
    }
}
