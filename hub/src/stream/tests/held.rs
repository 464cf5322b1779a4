//! What routers tell of locks that callers may hold.

use super::subscriptions::subscription;
use super::*;

fn caller(uid: &str, app: &str) -> AgentSaid {
    let fact = v1::CallerFact {
        namespace: "ops".into(),
        pod: format!("pod-{uid}"),
        uid: uid.to_owned(),
        service_account: "op".into(),
        labels: [("app".to_owned(), app.to_owned())].into(),
        phase: "Running".into(),
        ..v1::CallerFact::default()
    };
    AgentSaid::Callers(v1::CallerDelta {
        upserted: vec![fact],
        ..v1::CallerDelta::default()
    })
}

/// Of shard a's leader lock.
fn held(uid: &str, gone: bool, reset: bool) -> RouterSaid {
    let held = v1::HeldLock {
        home_cluster: "east".into(),
        pod_uid: uid.to_owned(),
        cluster: "east".into(),
        resource: "leases".into(),
        name: "op---a".into(),
        of_election: true,
        shard_uid: "object-a".into(),
        lasts_seconds: 120,
        gone,
    };
    RouterSaid::HeldLocks(v1::HeldLocks {
        reset,
        more: false,
        held: vec![held],
    })
}

/// Which shard the caller is of, and whether its writes are closed.
fn standing(hub: &TestHub, uid: &str) -> Option<(String, bool)> {
    let worlds = hub.worlds.borrow();
    let view = worlds.as_ref()?.world.view_of(&Ref::View {
        home: "east".into(),
        pod_uid: uid.into(),
    })?;
    Some((view.shards.join(","), view.writes_closed.is_some()))
}

async fn until(hub: &TestHub, uid: &str, shard: &str, closed: bool) {
    let what = format!("{uid} is of {shard}, and its writes are closed: {closed}");
    hub.until(&what, |hub| {
        let is = standing(hub, uid)? == (shard.to_owned(), closed);
        is.then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_router_is_heard_of_callers_that_are_in_another_shard_by_now() {
    let hub = TestHub::start().await;
    shard(&hub, "a", 1, json!([{"name": "east", "namespaces": ["ns-a"]}]));
    shard(&hub, "b", 1, json!([{"name": "east", "namespaces": ["ns-b"]}]));
    let agent = hub.join("east").await;
    report(&agent, &["p"]).await;
    until(&hub, "p", "ops/a", false).await;
    let router = hub.subscriber(&subscription(&["shard:ops/a"]), &[]).await.unwrap();
    router.say(held("p", false, true)).await;
    hub.until("that is heard", |hub| {
        let all = hub.acks.renewals(std::time::Duration::from_mins(3));
        (!all.held.is_empty()).then_some(())
    })
    .await;
    agent.say(caller("p", "op-of-b")).await;
    until(&hub, "p", "ops/b", true).await;
    // It is told of it no more, and what it takes back is its own word.
    router.say(held("p", true, false)).await;
    until(&hub, "p", "ops/b", false).await;
    // As after a restart of the hub: q was moved while there was none.
    agent.say(caller("q", "op-of-b")).await;
    until(&hub, "q", "ops/b", false).await;
    router.say(held("q", false, true)).await;
    until(&hub, "q", "ops/b", true).await;
}

#[tokio::test]
async fn a_router_of_one_caller_says_nothing_of_others_and_not_too_much() {
    let hub = TestHub::start().await;
    shard(&hub, "a", 1, json!([{"name": "east", "namespaces": ["ns-a"]}]));
    shard(&hub, "b", 1, json!([{"name": "east", "namespaces": ["ns-b"]}]));
    let agent = hub.join("east").await;
    report(&agent, &["p"]).await;
    agent.say(caller("q", "op-of-b")).await;
    until(&hub, "q", "ops/b", false).await;
    let of_p = subscription(&["caller:east/ops/pod-p"]);
    let router = hub.subscriber(&of_p, &[]).await.unwrap();
    let mut said = held("q", false, true);
    if let RouterSaid::HeldLocks(said) = &mut said {
        let first = said.held[0].clone();
        said.held.extend((0..40).map(|index| v1::HeldLock {
            name: format!("lock-{index}"),
            pod_uid: format!("nobody-{index}"),
            ..first.clone()
        }));
    }
    router.say(held("q", false, true)).await;
    router.say(said).await;
    hub.until("it is cut off", |hub| {
        hub.acks.read(|routers| routers["part"].left.map(drop))
    })
    .await;
    assert_eq!(standing(&hub, "q"), Some(("ops/b".to_owned(), false)));
}
