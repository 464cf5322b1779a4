//! That an agent finds its API server not ready.

use super::*;

fn beat(api_ready: bool) -> Report {
    let beat = v1::Heartbeat {
        api_ready,
        ..v1::Heartbeat::default()
    };
    Report::Heartbeat(beat, Timestamp::UNIX_EPOCH)
}

#[test]
fn routers_are_told_when_it_says_otherwise_and_its_silence_says_nothing() {
    let mut facts = Facts::default();
    facts.apply_member(&member("east", good()));
    facts.agent_connected("east", 1, &v1::AgentHello::default());
    let mut told = |report| {
        let change = folded(&mut facts, 1, report);
        (change, facts.agents["east"].is_unready())
    };
    assert_eq!(told(beat(true)), (Change::Status, false));
    assert_eq!(told(beat(false)), (Change::Compile, true));
    assert_eq!(told(beat(false)), (Change::Figures, true));
    assert_eq!(told(Report::Disconnected), (Change::Compile, false));
}
