//! Agents that say something else all the time.

use super::*;

#[test]
fn a_report_that_toggles_does_not_keep_the_compiler_busy() {
    let index = Index::default();
    index.write(|facts| facts.apply_member(&member("west", good())));
    index.write(|facts| facts.agent_connected("west", 1, &v1::AgentHello::default()));
    let mut router = None;
    index.write(|facts| {
        router = Some(gateway(facts));
        Change::Compile
    });
    let (compiles, start) = (index.compile_changes(), std::time::Instant::now());
    let before = *compiles.borrow();
    // Ten seconds of fifty changes each; every second it is looked for what is owed.
    for step in 0..500_u32 {
        let now = start + std::time::Duration::from_millis(20) * step;
        let token = v1::MemberToken {
            router: router.clone(),
            token: format!("token-{}", step % 2),
            expires_unix_seconds: 1,
        };
        index.report_at("west", 1, Report::Token(token), now).unwrap();
        if step % 50 == 49 {
            index.settle(now);
        }
    }
    let cost = *compiles.borrow() - before;
    assert!((10..=35).contains(&cost), "{cost}");
    assert_eq!(
        index.read(|facts| facts.agents["west"].tokens["gateway"].token.expose().clone()),
        "token-1",
        "what was said last is known"
    );
}
