//! The handover in small scopes, every state of it; and each flaw by the law that it breaks.
#![allow(
    clippy::print_stdout,
    clippy::panic,
    reason = "how large a scope is; what was missed"
)]

use portolan_model::{ADMITTED, COMMITTED, ENDS, Flaw, Handover, ONE_OWNER, REFUSED, Scope};
use stateright::{Checker, HasDiscoveries, Model};

/// One move, everything twice.
const ONE_MOVE: Scope = Scope {
    routers: 2,
    servers: 2,
    servers_later: 0,
    writes: 2,
    moves: 1,
    fence_may_go: false,
    another: false,
    faults: 2,
};

/// A move and the next one: what is late of the first meets the second.
const TWO_MOVES: Scope = Scope { moves: 2, ..ONE_MOVE };

/// The least of two moves that something late can come in.
const TWO_MOVES_AND_ONE_FAULT: Scope = Scope {
    writes: 1,
    faults: 1,
    ..TWO_MOVES
};

/// An API server comes in between.
const GROWING: Scope = Scope {
    servers: 1,
    servers_later: 1,
    ..ONE_MOVE
};

/// The agent may be gone, and the Namespace made anew.
const WITHOUT_A_FENCE: Scope = Scope {
    fence_may_go: true,
    ..ONE_MOVE
};

/// The least of that in which something late can come.
const LEAST_WITHOUT_A_FENCE: Scope = Scope {
    routers: 1,
    servers: 1,
    writes: 1,
    ..WITHOUT_A_FENCE
};

/// Another operator has the namespace, and hands it over, too.
const BESIDE_ANOTHER: Scope = Scope {
    writes: 1,
    faults: 1,
    another: true,
    ..ONE_MOVE
};

/// Searches all states, or until a law does not hold.
fn search(model: Handover) -> impl Checker<Handover> {
    let checker = model.checker().threads(2);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!("{model:?}: {} states", checker.unique_state_count());
    checker
}

fn all_laws_hold(scope: Scope) {
    search(Handover { scope, flaw: None }).assert_properties();
}

#[test]
fn a_move_keeps_all_laws() {
    all_laws_hold(ONE_MOVE);
}

#[test]
fn a_move_after_a_move_keeps_all_laws() {
    all_laws_hold(TWO_MOVES);
}

#[test]
fn more_of_everything_but_moves_keeps_all_laws() {
    all_laws_hold(Scope {
        writes: 3,
        faults: 3,
        ..ONE_MOVE
    });
}

#[test]
fn an_api_server_may_come_in_between() {
    all_laws_hold(GROWING);
}

#[test]
fn an_agent_may_be_gone_and_the_namespace_made_anew() {
    all_laws_hold(WITHOUT_A_FENCE);
}

#[test]
fn what_was_not_fenced_once_may_move_again() {
    all_laws_hold(Scope {
        moves: 2,
        writes: 1,
        faults: 1,
        ..WITHOUT_A_FENCE
    });
}

#[test]
fn handovers_of_two_operators_keep_all_laws() {
    all_laws_hold(BESIDE_ANOTHER);
}

#[test]
fn a_move_after_a_move_beside_another_operator_keeps_all_laws() {
    all_laws_hold(Scope {
        moves: 2,
        routers: 1,
        ..BESIDE_ANOTHER
    });
}

#[test]
fn an_api_server_may_come_in_between_two_operators() {
    all_laws_hold(Scope {
        servers: 1,
        servers_later: 1,
        ..BESIDE_ANOTHER
    });
}

#[test]
fn a_third_router_and_a_third_api_server_change_nothing() {
    all_laws_hold(Scope {
        routers: 3,
        servers: 3,
        ..ONE_MOVE
    });
}

/// `make model`.
#[test]
#[ignore = "takes minutes and gigabytes"]
fn larger_scopes_keep_all_laws() {
    let larger = [
        Scope {
            faults: 3,
            writes: 3,
            ..TWO_MOVES
        },
        Scope { moves: 3, ..TWO_MOVES },
        Scope {
            moves: 2,
            writes: 1,
            ..WITHOUT_A_FENCE
        },
        Scope {
            moves: 2,
            ..BESIDE_ANOTHER
        },
        Scope {
            writes: 2,
            faults: 2,
            ..BESIDE_ANOTHER
        },
        Scope {
            routers: 3,
            servers: 3,
            writes: 3,
            faults: 3,
            ..ONE_MOVE
        },
    ];
    larger.into_iter().for_each(all_laws_hold);
}

/// Each flaw, the scope that shows it, and the law that a search finds broken first.
const FLAWS: [(Flaw, Scope, &str); 30] = [
    (Flaw::NoFence, ONE_MOVE, ADMITTED),
    (Flaw::NoProbe, ONE_MOVE, ADMITTED),
    (Flaw::ProbesOneServer, ONE_MOVE, ADMITTED),
    (Flaw::CountsServersOnce, GROWING, ADMITTED),
    (Flaw::BareWrites, ONE_MOVE, ADMITTED),
    (Flaw::AcksBeforeItStops, ONE_MOVE, ONE_OWNER),
    (Flaw::AcksBeforeDisk, ONE_MOVE, ONE_OWNER),
    (Flaw::WritesBeforeDisk, TWO_MOVES_AND_ONE_FAULT, COMMITTED),
    (Flaw::AcksAnyRelease, TWO_MOVES_AND_ONE_FAULT, ONE_OWNER),
    (Flaw::GrantsOverOpenWrites, ONE_MOVE, COMMITTED),
    (Flaw::BrokenIsAnswered, ONE_MOVE, COMMITTED),
    (Flaw::RestartedIsAnswered, ONE_MOVE, COMMITTED),
    (Flaw::EndsOverOpenWrites, ONE_MOVE, COMMITTED),
    (Flaw::WaitsFromTheAcks, ONE_MOVE, COMMITTED),
    (Flaw::WallClock, ONE_MOVE, COMMITTED),
    (Flaw::AnnotationOfAll, ONE_MOVE, ADMITTED),
    (Flaw::AnnotationFalls, TWO_MOVES_AND_ONE_FAULT, ADMITTED),
    (Flaw::TakesBack, ONE_MOVE, REFUSED),
    (Flaw::GrantsBeforeLedger, ONE_MOVE, ONE_OWNER),
    (Flaw::ForgetsRouters, ONE_MOVE, ONE_OWNER),
    (Flaw::WaitsForAgents, LEAST_WITHOUT_A_FENCE, ENDS),
    (Flaw::ClaimsWhatItGaveUp, LEAST_WITHOUT_A_FENCE, ADMITTED),
    (Flaw::PassesUnannotated, LEAST_WITHOUT_A_FENCE, ADMITTED),
    (Flaw::RetriesBlindly, LEAST_WITHOUT_A_FENCE, ADMITTED),
    (Flaw::EpochsByOperator, BESIDE_ANOTHER, ADMITTED),
    (Flaw::AnswersOfAnother, BESIDE_ANOTHER, ADMITTED),
    (Flaw::AnswersOfAnother, BESIDE_ANOTHER, COMMITTED),
    (Flaw::OpenIsClosed, BESIDE_ANOTHER, ADMITTED),
    (Flaw::ClosesAnothers, BESIDE_ANOTHER, REFUSED),
    (Flaw::ListFalls, BESIDE_ANOTHER, ADMITTED),
];

#[test]
fn each_flaw_has_a_counterexample() {
    for (flaw, scope, law) in FLAWS {
        let flaw = Some(flaw);
        let checker = Handover { scope, flaw }.checker().threads(2);
        let checker = checker
            .finish_when(HasDiscoveries::AllOf([law].into()))
            .spawn_bfs()
            .join();
        let Some(path) = checker.discovery(law) else {
            panic!("{flaw:?} and yet {law}: {} states", checker.unique_state_count());
        };
        println!("{flaw:?}, so not {law:?}: {:?}", path.into_actions());
    }
}

/// A person who forces a grant takes on that a router which is still there goes on taking writes. None of them gets through.
#[test]
fn the_fence_holds_where_routers_were_forgotten() {
    let flaw = Some(Flaw::ForgetsRouters);
    let checker = Handover { scope: ONE_MOVE, flaw }.checker().threads(2);
    let laws = [ADMITTED, COMMITTED, REFUSED, ENDS];
    let checker = checker
        .finish_when(HasDiscoveries::AnyOf(laws.into()))
        .spawn_bfs()
        .join();
    for law in laws {
        checker.assert_no_discovery(law);
    }
    checker.assert_any_discovery(ONE_OWNER);
}
