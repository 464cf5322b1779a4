//! Two replicas of the hub, one of them frozen for any time: every state; and each flaw by the law that it breaks.
#![allow(
    clippy::print_stdout,
    clippy::panic,
    reason = "how large a scope is; what was missed"
)]

use portolan_model::{Leaders, LeadersFlaw, ONE_LEADS};
use stateright::{Checker, HasDiscoveries, Model};

const SCOPE: Leaders = Leaders {
    takeovers: 2,
    moves: 2,
    restarts: 1,
    flaw: None,
};

#[test]
fn a_leader_that_wakes_behind_the_next_one_breaks_nothing() {
    let checker = SCOPE.checker().threads(2).spawn_bfs().join();
    println!("{SCOPE:?}: {} states", checker.unique_state_count());
    checker.assert_properties();
}

const FLAWS: [LeadersFlaw; 6] = [
    LeadersFlaw::TermIgnored,
    LeadersFlaw::TermForgotten,
    LeadersFlaw::TellsUnconfirmed,
    LeadersFlaw::ReadsBeforeItRaises,
    LeadersFlaw::WritesBlindly,
    LeadersFlaw::AcksOfAnother,
];

#[test]
fn each_flaw_of_leaders_has_a_counterexample() {
    for flaw in FLAWS {
        let model = Leaders {
            flaw: Some(flaw),
            ..SCOPE
        };
        let checker = model.checker().threads(2);
        let checker = checker
            .finish_when(HasDiscoveries::AllOf([ONE_LEADS].into()))
            .spawn_bfs()
            .join();
        let Some(path) = checker.discovery(ONE_LEADS) else {
            panic!("{flaw:?} and yet one owner: {} states", checker.unique_state_count());
        };
        println!("{flaw:?}: {:?}", path.into_actions());
    }
}
