//! What a router says is of its part of the world, and bounded.

use crate::acks::{Answered, Reported};

use super::subscriptions::{subscription, two_shards};
use super::*;

fn open_breaker(cluster: &str) -> v1::BreakerState {
    v1::BreakerState {
        cluster: cluster.into(),
        traffic_class: "unary".into(),
        state: "open".into(),
        ..v1::BreakerState::default()
    }
}

#[tokio::test]
async fn breakers_are_of_members_that_the_router_is_told_of() {
    let hub = TestHub::start().await;
    let _agents = two_shards(&hub).await;
    let of_a = subscription(&["shard:ops/a"]);
    let part = hub.subscriber(&of_a, &[]).await.unwrap();
    let gateway = hub.router("gateway", Vec::new()).await;
    for router in [&part, &gateway] {
        let breakers = ["east", "mars", "invented"].map(open_breaker).into();
        let report = v1::BreakerReport {
            breakers,
            ..v1::BreakerReport::default()
        };
        router.say(RouterSaid::Breakers(report)).await;
    }
    let kept = |hub: &TestHub, router: &str| {
        hub.acks.read(|routers| {
            let breakers = routers.get(router)?.reported.breakers.iter();
            let clusters: Vec<_> = breakers.map(|breaker| breaker.cluster.clone()).collect();
            (!clusters.is_empty()).then_some(clusters)
        })
    };
    assert_eq!(
        hub.until("the part's are known", |hub| kept(hub, "part")).await,
        ["east"]
    );
    let all = hub.until("the gateway's are known", |hub| kept(hub, "gateway")).await;
    assert_eq!(all, ["east", "mars"]);
}

#[tokio::test]
async fn access_is_asked_about_members_that_the_router_may_act_in() {
    let hub = TestHub::start().await;
    let _agents = two_shards(&hub).await;
    for (scope, cluster, allowed) in [
        ("shard:ops/a", "east", true),
        ("shard:ops/a", "mars", false),
        ("caller:mars/ops/pod-q", "mars", false),
        // Whether it is there is not told to who may not use it, and ada may use all.
        ("everything", "invented", true),
    ] {
        let mut router = hub.subscriber(&subscription(&[scope]), &[]).await.unwrap();
        let review = v1::AccessReview {
            user: "ada".into(),
            cluster: cluster.into(),
            ..v1::AccessReview::default()
        };
        router.say(RouterSaid::AccessReview(review)).await;
        let decision = loop {
            if let RouterTold::AccessDecision(decision) = router.hear().await.unwrap() {
                break decision;
            }
        };
        assert_eq!(decision.allowed, allowed, "{scope} {cluster}: {}", decision.reason);
    }
}

#[tokio::test]
async fn a_router_that_catches_up_is_told_all_before_the_answer() {
    let hub = TestHub::start().await;
    let _agents = two_shards(&hub).await;
    let mut router = hub.router("gateway", Vec::new()).await;
    let first = router.transaction().await;
    shard(&hub, "c", 1, json!([{"name": "east", "namespaces": ["ns-c"]}]));
    hub.until("it is in force", |hub| {
        let worlds = hub.worlds.borrow();
        let accepted = &worlds.as_ref()?.world.state.accepted;
        accepted.keys().any(|name| name.to_string() == "ops/c").then_some(())
    })
    .await;
    router.say(RouterSaid::CatchUp(v1::CatchUp { id: 7 })).await;
    router.ack(first.nonce).await;
    let mut told = Vec::new();
    let answered = loop {
        match router.hear().await.unwrap() {
            RouterTold::Resource(resource) => told.extend(name_of(&resource)),
            RouterTold::CaughtUp(caught_up) => break caught_up.id,
            _ => {}
        }
    };
    assert_eq!(answered, 7);
    assert!(told.iter().any(|name| name == "ops/c"), "{told:?}");
}

#[tokio::test]
async fn a_question_where_nothing_is_new_is_no_work_for_anybody() {
    let hub = TestHub::start().await;
    let mut router = hub.router("gateway", Vec::new()).await;
    let first = router.transaction().await;
    router.ack(first.nonce).await;
    let mut changes = hub.acks.changes();
    let mut woken = 0;
    for id in 1..=10 {
        router.say(RouterSaid::CatchUp(v1::CatchUp { id })).await;
        while !matches!(router.hear().await.unwrap(), RouterTold::CaughtUp(_)) {}
        // What came before the first answer was the acknowledgement.
        woken += usize::from(changes.has_changed().unwrap() && id > 1);
        changes.mark_unchanged();
    }
    assert_eq!(woken, 0);
}

#[tokio::test]
async fn a_router_is_told_when_it_is_not_alone_any_more() {
    let hub = TestHub::start().await;
    let mut router = hub.router("gateway", Vec::new()).await;
    let mut alone = async || loop {
        if let RouterTold::Alone(alone) = router.hear().await.unwrap() {
            break alone.for_seconds > 0;
        }
    };
    assert!(alone().await, "the first of a ledger");
    let _other = hub.router("other", Vec::new()).await;
    assert!(!alone().await);
}

fn answered(cluster: &str, until_unix_seconds: i64) -> RouterSaid {
    RouterSaid::Breakers(v1::BreakerReport {
        answered: vec![v1::MemberAnswered {
            cluster: cluster.into(),
            until_unix_seconds,
        }],
        ..v1::BreakerReport::default()
    })
}

#[tokio::test]
async fn a_router_is_told_when_members_answered_any_router_last() {
    let hub = TestHub::start().await;
    let _agents = two_shards(&hub).await;
    let mut asker = hub.router("gateway", Vec::new()).await;
    let first = asker.transaction().await;
    asker.ack(first.nonce).await;
    let mut last_answer = async |cluster: &str| {
        let clusters = vec![cluster.to_owned(), "invented".to_owned()];
        asker
            .say(RouterSaid::LastAnswersQuery(v1::LastAnswersQuery { id: 7, clusters }))
            .await;
        loop {
            if let RouterTold::LastAnswers(last) = asker.hear().await.unwrap() {
                assert_eq!(last.id, 7);
                let answered = last.answered.into_iter();
                break answered
                    .map(|one| (one.cluster, one.until_unix_seconds))
                    .collect::<Vec<_>>();
            }
        }
    };
    assert_eq!(last_answer("east").await, [], "this one has not said");
    let asker_says = hub.acks.clone();
    let epoch = asker_says.read(|routers| routers["gateway"].epoch);
    let reported = Reported {
        answered: Answered::east(100),
        ..Reported::default()
    };
    asker_says.reported("gateway", epoch, reported);
    assert_eq!(last_answer("east").await, [("east".to_owned(), 100)]);
    let mut other = hub.router("other", Vec::new()).await;
    let transaction = other.transaction().await;
    other.ack(transaction.nonce).await;
    hub.until("the other holds east", |hub| {
        hub.acks
            .read(|routers| routers.get("other").filter(|other| !other.held.is_empty()).map(drop))
    })
    .await;
    assert_eq!(last_answer("east").await, [], "the other has not said");
    other.say(answered("east", 103)).await;
    hub.until("the other has said", |hub| {
        hub.acks
            .read(|routers| (!routers.get("other")?.reported.answered.is_empty()).then_some(()))
    })
    .await;
    assert_eq!(last_answer("east").await, [("east".to_owned(), 103)]);
    drop(other);
    hub.until("the other is gone", |hub| {
        hub.acks.read(|routers| routers.get("other")?.left.map(drop))
    })
    .await;
    assert_eq!(last_answer("east").await, [], "it may go on without the hub");
}

#[tokio::test]
async fn routers_are_let_go_while_another_may_be_the_hub() {
    let hub = TestHub::start().await;
    let mut router = hub.router("gateway", Vec::new()).await;
    // Enrolled before: another key is news, of which a world is compiled.
    let gateway = hub.channel(Some(&Identity::Router("gateway".to_owned())));
    let published = hub.worlds.send_replace(None);
    let ended = loop {
        if let Err(status) = router.hear().await {
            break status;
        }
    };
    assert_eq!(ended.code(), Code::Unavailable);
    let hello = || v1::RouterHello {
        protocol: portolan_wire::protocol::PROTOCOL,
        capabilities: vec![OPERATORS.to_owned()],
        ..Default::default()
    };
    // What was compiled for the key may come this late.
    let status = loop {
        hub.worlds.send_replace(None);
        if let Err(status) = hub.router_over(gateway.clone(), hello()).await {
            break status;
        }
    };
    assert_eq!(status.code(), Code::Unavailable);
    hub.worlds.send_replace(published);
    hub.router_over(gateway, hello()).await.unwrap();
}

#[tokio::test]
async fn a_router_is_told_which_members_have_a_namespace() {
    let hub = TestHub::start().await;
    let mut agents = two_shards(&hub).await;
    let namespace = v1::NamespaceFact {
        name: "ns-w".into(),
        uid: "u".into(),
        ..v1::NamespaceFact::default()
    };
    let delta = v1::NamespaceDelta {
        upserted: vec![namespace],
        ..v1::NamespaceDelta::default()
    };
    agents[1].say(AgentSaid::Namespaces(delta)).await;
    hub.until("it is known", |hub| {
        let known = |facts: &crate::facts::Facts| facts.inventory("west").is_some_and(|all| all.contains_key("ns-w"));
        hub.index.read(known).then_some(())
    })
    .await;
    hub.member("new", true);
    let mut router = hub.router("gateway", Vec::new()).await;
    let first = router.transaction().await;
    router.ack(first.nonce).await;
    let mut find = async |namespace: &str| {
        let clusters = ["east", "west", "mars", "invented"].map(str::to_owned).into();
        let query = v1::NamespaceQuery {
            id: 9,
            namespace: namespace.to_owned(),
            clusters,
        };
        router.say(RouterSaid::NamespaceQuery(query)).await;
        loop {
            if let RouterTold::NamespaceFound(found) = router.hear().await.unwrap() {
                assert_eq!(found.id, 9);
                break [found.there, found.away, found.unknown].map(|clusters| clusters.join(" "));
            }
        }
    };
    assert_eq!(find("ns-w").await, ["west", "", "invented"]);
    assert_eq!(find("nowhere").await, ["", "", "invented"]);
    drop(agents.remove(0));
    hub.until("east's agent has left", |hub| {
        let left = |facts: &crate::facts::Facts| facts.agents.get("east").is_some_and(|agent| !agent.connected);
        hub.index.read(left).then_some(())
    })
    .await;
    assert_eq!(find("nowhere").await, ["", "east", "invented"], "it had none");
    assert_eq!(find("ns-w").await, ["west", "east", "invented"]);
}

/// A router that holds more than one message has room for is told what of it is gone, and nothing that it has.
#[tokio::test]
async fn a_router_that_holds_much_says_it_in_pages() {
    let hub = TestHub::start().await;
    let _agents = two_shards(&hub).await;
    let mut first = hub.router("gateway", Vec::new()).await;
    let told = first.transaction().await;
    first.ack(told.nonce).await;
    drop(first);
    let held = told.upserted.iter().map(|resource| v1::KnownResource {
        r#ref: resource.reference(),
        version: resource.version.clone(),
    });
    let held: Vec<_> = held.collect();
    let gone = |number: usize| v1::KnownResource {
        r#ref: Some(v1::ResourceRef {
            kind: v1::ResourceKind::Shard.into(),
            name: format!("ops/gone-{number}"),
        }),
        version: "v".repeat(4_096),
    };
    let gone: Vec<_> = (0..5_000).map(gone).collect();
    let (here, there) = gone.split_at(2_500);
    let page = |known: &[v1::KnownResource]| RouterSaid::Known(v1::KnownPage { known: known.to_vec() });
    let hello = v1::RouterHello {
        protocol: portolan_wire::protocol::PROTOCOL,
        capabilities: [portolan_wire::protocol::CURSOR_FORMAT_2, OPERATORS]
            .map(str::to_owned)
            .into(),
        known: held,
        ..v1::RouterHello::default()
    };
    let gateway = Identity::Router("gateway".to_owned());
    let said = vec![page(here), page(there), RouterSaid::Hello(hello)];
    let mut router = hub.router_saying(hub.channel(Some(&gateway)), said).await.unwrap();
    let told = router.transaction().await;
    assert_eq!((told.upserted.len(), told.removed.len()), (0, 5_000));
    router.ack(told.nonce).await;
}
