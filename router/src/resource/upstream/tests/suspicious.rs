//! The word of a member's agent.

use super::*;
use crate::resource::breaker::{Outcome, Probe, State};

#[tokio::test]
async fn the_agents_word_has_it_looked_at_and_half_as_many_failures_open_it() {
    let backend = Backend::start(100, plain()).await;
    let connector = connector();
    let all = first(&connector, [backend.target("east")]);
    let east = all.get("east").unwrap().clone();
    let fails = |times: usize| {
        let breaker = east.breaker(TrafficClass::Unary);
        for _ in 0..times {
            breaker.admit(None, Probe::Telling).unwrap().record(Outcome::Failure);
        }
        breaker.report().state
    };
    assert_eq!((fails(3), east.is_doubted()), (State::Closed, false));
    east.breaker(TrafficClass::Unary)
        .admit(None, Probe::Telling)
        .unwrap()
        .record(Outcome::Success);

    let mut doubted = backend.target("east");
    doubted.breaker.suspicious = true;
    let looks = connector.looks();
    let all = connector.follow(&all, &snapshot([doubted.clone()]).targets);
    assert!(
        looks.has_changed().unwrap() && east.is_doubted(),
        "it is to be looked at"
    );
    assert_eq!(
        east.breaker(TrafficClass::Unary).report().state,
        State::Closed,
        "it opens nothing alone"
    );
    east.heard();
    let all = connector.follow(&all, &snapshot([doubted]).targets);
    assert!(!east.is_doubted(), "the same word again");
    assert_eq!((fails(2), fails(1)), (State::Closed, State::Open));
    let all = connector.follow(&all, &snapshot([backend.target("east")]).targets);
    assert!(Arc::ptr_eq(all.get("east").unwrap(), &east), "the same transport");
}
