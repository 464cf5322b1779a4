//! Sessions over the real port: who may open which, what is sent, what an answer changes.

use portolan_crds::labels::GATEWAY_ACCOUNT;
use portolan_runtime::Secret;
use portolan_wire::identity::Identity;
use portolan_wire::protocol::OPERATORS;
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;
use portolan_wire::v1::agent_message::Kind as AgentSaid;
use portolan_wire::v1::agent_update::Kind as AgentTold;
use portolan_wire::v1::enrollment_client::EnrollmentClient;
use portolan_wire::v1::router_message::Kind as RouterSaid;
use portolan_wire::v1::router_update::Kind as RouterTold;
use serde_json::json;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::compile::Ref;
use crate::testing::{Received, Signer, TestAgent, TestHub, hello_of, key_and_csr, router_ref};

mod agents;
mod bounds;
mod copies;
mod ending;
mod held;
mod one_owner;
mod policies;
mod subscriptions;

use subscriptions::two_shards;

fn shard(hub: &TestHub, name: &str, generation: i64, clusters: serde_json::Value) {
    use kube::api::{ApiResource, DynamicObject};
    let kind = ApiResource::erase::<portolan_crds::ShardingConfig>(&());
    // A Pod in two shards would be served by neither.
    let app = if name == "b" { "op-of-b" } else { "op" };
    let spec = json!({
        "selector": {"matchLabels": {"app": app}}, "callerClusters": ["east"], "clusters": clusters,
    });
    let mut object = DynamicObject::new(name, &kind)
        .within("ops")
        .data(json!({"spec": spec}));
    object.metadata.uid = Some(format!("object-{name}"));
    object.metadata.generation = Some(generation);
    hub.index.write(|facts| facts.apply_shard(&object));
}

async fn report(agent: &TestAgent, callers: &[&str]) {
    let upserted = callers.iter().map(|uid| v1::CallerFact {
        namespace: "ops".into(),
        pod: format!("pod-{uid}"),
        uid: (*uid).to_owned(),
        service_account: "op".into(),
        labels: [("app".to_owned(), "op".to_owned())].into(),
        phase: "Running".into(),
        created_unix_seconds: None,
        ..v1::CallerFact::default()
    });
    agent
        .say(AgentSaid::Callers(v1::CallerDelta {
            reset: true,
            upserted: upserted.collect(),
            removed: vec![],
            ..v1::CallerDelta::default()
        }))
        .await;
    agent
        .say(AgentSaid::Namespaces(v1::NamespaceDelta {
            reset: true,
            ..Default::default()
        }))
        .await;
    agent
        .say(AgentSaid::Coverage(v1::CoverageDelta {
            reset: true,
            ..Default::default()
        }))
        .await;
    agent.say(AgentSaid::Allowed(v1::Allowed::default())).await;
    for router in ["gateway", "part"] {
        agent
            .say(AgentSaid::MemberToken(v1::MemberToken {
                token: format!("of-{router}"),
                expires_unix_seconds: i64::MAX,
                router: Some(router_ref(router)),
            }))
            .await;
    }
}

/// Takes transactions until the hub has nothing more to say for the world that `enough` describes.
async fn settle(hub: &TestHub, router: &mut crate::testing::TestRouter, holds: &[&str]) -> Vec<Received> {
    let mut all = Vec::new();
    loop {
        let received = router.transaction().await;
        router.ack(received.nonce).await;
        all.push(received);
        let last = all.len();
        let wanted: Vec<_> = holds.iter().map(|name| (*name).to_owned()).collect();
        let held = hub.acks.read(|routers| {
            let held = routers.values().flat_map(|router| router.held.keys());
            held.map(|name| name.to_wire().name).collect::<Vec<_>>()
        });
        // The ack may not have been heard yet: what was sent counts.
        let mut held: std::collections::BTreeSet<_> = held.into_iter().collect();
        held.extend(all[last - 1].upserted.iter().filter_map(name_of));
        if wanted.iter().all(|name| held.contains(name)) {
            return all;
        }
    }
}

fn name_of(resource: &v1::Resource) -> Option<String> {
    Some(resource.reference()?.name)
}

#[tokio::test]
async fn streams_are_for_those_whose_certificate_says_so() {
    let hub = TestHub::start().await;
    let good = v1::RouterHello {
        protocol: portolan_wire::protocol::PROTOCOL,
        capabilities: vec![OPERATORS.to_owned()],
        ..Default::default()
    };
    for identity in [
        Identity::Agent("east".into()),
        Identity::Person {
            user: "ada".into(),
            groups: vec!["portolan:routers-not".into()],
        },
    ] {
        let status = hub.router_as(&identity, good.clone()).await.err().unwrap();
        assert_eq!(status.code(), Code::PermissionDenied, "{identity}");
    }
    let router = async |protocol, oldest_protocol| {
        let hello = v1::RouterHello {
            protocol,
            oldest_protocol,
            capabilities: vec![OPERATORS.to_owned()],
            ..Default::default()
        };
        hub.router_as(&Identity::Router("r".into()), hello).await
    };
    let status = router(1, 0).await.err().unwrap();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let told = status.message();
    assert!(told.contains("hub's protocol is 2 and the client's 1"), "{told}");
    assert!(router(3, 2).await.is_ok(), "a release to come speaks ours too");

    let _east = hub.join("east").await;
    let cases = [
        ("west", hello_of("west"), "has not joined"),
        ("mars", hello_of("mars"), "does not exist"),
        (
            "east",
            v1::AgentHello {
                cluster_uid: "uid-mars".into(),
                ..hello_of("east")
            },
            "is pinned to",
        ),
    ];
    for (cluster, hello, text) in cases {
        let status = hub.agent(cluster, hello).await.err().unwrap();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert!(status.message().contains(text), "{}", status.message());
    }
    hub.member("east", false);
    let status = hub.agent("east", hello_of("east")).await.err().unwrap();
    assert!(status.message().contains("spec.accept"), "{}", status.message());
}

#[tokio::test]
async fn what_agents_report_reaches_routers_and_only_differences_do() {
    let hub = TestHub::start().await;
    shard(&hub, "shard", 1, json!([{"name": "east", "namespaces": ["ns-a"]}]));
    hub.until("it is in force", |hub| {
        let worlds = hub.worlds.borrow();
        (!worlds.as_ref()?.world.state.accepted.is_empty()).then_some(())
    })
    .await;
    let mut agent = hub.join("east").await;
    let AgentTold::Welcome(welcome) = agent.hear().await.unwrap() else {
        panic!("the revision first")
    };
    assert_eq!(welcome.protocol, portolan_wire::protocol::PROTOCOL);
    assert_eq!(welcome.capabilities, ["report-pages", "namespaces"]);
    let AgentTold::KeyChallenge(_) = agent.hear().await.unwrap() else {
        panic!("then a nonce")
    };
    let AgentTold::Config(config) = agent.hear().await.unwrap() else {
        panic!("then the config")
    };
    assert_eq!(config.bucketing.map(|bucketing| bucketing.buckets), Some(32));
    let selectors: Vec<_> = config.caller_selectors.iter().map(|one| &*one.selector).collect();
    assert_eq!(selectors, ["app=op"]);
    report(&agent, &["p"]).await;

    let mut router = hub.router("gateway", Vec::new()).await;
    let all = settle(&hub, &mut router, &["east", "east/p"]).await;
    assert!(all.iter().all(|received| received.removed.is_empty()));
    hub.until("the acks are known", |hub| {
        hub.acks
            .read(|routers| (routers["gateway"].held.len() == 7 && routers["gateway"].acked_run > 0).then_some(()))
    })
    .await;

    // Back with all that it holds: one empty commit says that it is up to date.
    let held = hub.acks.read(|routers| routers["gateway"].held.clone());
    let known = held.iter().map(|(name, version)| v1::KnownResource {
        r#ref: Some(name.to_wire()),
        version: version.clone(),
    });
    let known: Vec<_> = known.collect();
    drop(router);
    let mut router = hub.router("gateway", known).await;
    let first = router.transaction().await;
    assert!(first.upserted.is_empty() && first.removed.is_empty());
    router.ack(first.nonce).await;

    // The Pod goes: its view goes, and nothing else is said.
    agent
        .say(AgentSaid::Callers(v1::CallerDelta {
            removed: vec!["p".into()],
            ..Default::default()
        }))
        .await;
    let second = router.transaction().await;
    assert_eq!(
        second.removed.iter().map(|name| name.name.as_str()).collect::<Vec<_>>(),
        ["east/p"]
    );
    assert!(second.upserted.is_empty());
}

#[tokio::test]
async fn a_silent_agent_takes_nothing_from_routers() {
    let hub = TestHub::start().await;
    let agent = hub.join("east").await;
    drop(agent);
    hub.until("east is known to have joined", |hub| {
        let worlds = hub.worlds.borrow();
        let world = &worlds.as_ref()?.world;
        world.is_unknown(v1::ResourceKind::Credential, "east").then_some(())
    })
    .await;
    let known = |name: Ref| v1::KnownResource {
        r#ref: Some(name.to_wire()),
        version: "of an earlier hub".into(),
    };
    let view = Ref::View {
        home: "east".into(),
        pod_uid: "p".into(),
    };
    let held = [
        Ref::Identity("east".into()),
        Ref::Coverage("east".into()),
        Ref::gateway_credential("east"),
        view,
        Ref::Target("gone".into()),
    ];
    let mut router = hub.router("gateway", held.map(known).to_vec()).await;
    let first = router.transaction().await;
    assert_eq!(
        first.removed.iter().map(|name| name.name.as_str()).collect::<Vec<_>>(),
        ["gone"]
    );
    let told: Vec<_> = first
        .upserted
        .iter()
        .filter_map(|resource| resource.body.as_ref())
        .collect();
    assert!(
        matches!(told.as_slice(), [v1::resource::Body::Target(target)] if target.cluster == "east"),
        "what needs no agent: {told:?}"
    );
}

#[tokio::test]
async fn a_refused_entry_is_told_and_not_repeated() {
    let hub = TestHub::start().await;
    shard(&hub, "shard", 1, json!([{"name": "east", "namespaces": ["ns-a"]}]));
    let agent = hub.join("east").await;
    report(&agent, &["p"]).await;
    let owned = Ref::Ownership {
        cluster: "east".into(),
        shard: "ops/shard".parse().unwrap(),
    };
    hub.until("it is compiled", |hub| {
        let worlds = hub.worlds.borrow();
        worlds.as_ref()?.world.resources.contains_key(&owned).then_some(())
    })
    .await;
    let mut router = hub.router("gateway", Vec::new()).await;
    let received = router.transaction().await;
    let nack = v1::Nack {
        nonce: received.nonce,
        rejected: vec![v1::Rejected {
            r#ref: Some(owned.to_wire()),
            version: String::new(),
            reason: "no such thing".into(),
        }],
    };
    router.say(RouterSaid::Nack(nack)).await;
    hub.until("the refusal is known", |hub| {
        hub.acks
            .read(|routers| (routers["gateway"].rejected.get(&owned)?.1 == "no such thing").then_some(()))
    })
    .await;
    // An edit makes a new version, which is offered.
    shard(
        &hub,
        "shard",
        2,
        json!([{"name": "east", "namespaces": ["ns-a", "ns-b"]}]),
    );
    settle(&hub, &mut router, &["east/ops/shard"]).await;
}

#[tokio::test]
async fn a_namespace_moves_only_after_its_release_was_acknowledged() {
    let hub = TestHub::start().await;
    shard(&hub, "a", 1, json!([{"name": "east", "namespaces": ["ns-a", "ns-b"]}]));
    let agent = hub.join("east").await;
    report(&agent, &["p"]).await;
    let mut router = hub.router("gateway", Vec::new()).await;
    settle(&hub, &mut router, &["east", "east/p"]).await;
    shard(&hub, "a", 2, json!([{"name": "east", "namespaces": ["ns-a"]}]));
    shard(&hub, "b", 1, json!([{"name": "east", "namespaces": ["ns-b"]}]));
    let grant_of = |received: &Received| {
        received.upserted.iter().find_map(|resource| match &resource.body {
            Some(v1::resource::Body::Ownership(owned)) => {
                let grants = owned.namespaces.iter();
                Some(
                    grants
                        .map(|grant| (grant.namespace.clone(), grant.state()))
                        .collect::<Vec<_>>(),
                )
            }
            _ => None,
        })
    };
    let mut released = router.transaction().await;
    while grant_of(&released).is_none_or(|grants| grants[1].1 != v1::GrantState::Releasing) {
        router.ack(released.nonce).await;
        released = router.transaction().await;
    }
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    let owner = |hub: &TestHub| {
        let worlds = hub.worlds.borrow();
        let ledger = &worlds.as_ref()?.world.state.ledger;
        let (_, entry) = ledger.all_of("east", "ns-b").next()?;
        entry.owner.clone().map(|owner| owner.name().to_owned())
    };
    assert_eq!(owner(&hub).as_deref(), Some("a"), "not acknowledged yet");
    router.ack(released.nonce).await;
    let b = |hub: &TestHub| {
        let worlds = hub.worlds.borrow();
        let mut shards = worlds.as_ref()?.world.shards.iter();
        shards
            .find(|(name, _)| name.name() == "b")
            .map(|(_, verdict)| verdict.clone())
    };
    let verdict = b(&hub).unwrap();
    assert_eq!(verdict.refusal, None);
    assert_eq!(verdict.awaited[0].told_in("ops"), "east/ns-b (of ops/a)");
    hub.until("b has it", |hub| (owner(hub).as_deref() == Some("b")).then_some(()))
        .await;
    assert!(b(&hub).unwrap().awaited.is_empty());
}

#[tokio::test]
async fn access_is_decided_by_the_hub() {
    let hub = TestHub::start().await;
    let _agents = two_shards(&hub).await;
    let mut router = hub.router("gateway", Vec::new()).await;
    // Of a member that there is none of, too: an answer must not tell.
    for (id, user, cluster) in [
        (1, "ada", "east"),
        (2, "eve", "east"),
        (3, "ada", "nowhere"),
        (4, "eve", "nowhere"),
    ] {
        let review = v1::AccessReview {
            id,
            user: user.into(),
            groups: vec![],
            cluster: cluster.into(),
        };
        router.say(RouterSaid::AccessReview(review)).await;
        let decision = loop {
            if let RouterTold::AccessDecision(decision) = router.hear().await.unwrap() {
                break decision;
            }
        };
        assert_eq!((decision.id, decision.allowed), (id, user == "ada"));
    }
}

#[tokio::test]
async fn a_second_router_of_a_name_is_refused_while_the_first_is_there() {
    let hub = TestHub::start().await;
    let first = hub.router("gateway", Vec::new()).await;
    let identity = Identity::Router("gateway".to_owned());
    let hello = || v1::RouterHello {
        protocol: portolan_wire::protocol::PROTOCOL,
        capabilities: vec![OPERATORS.to_owned()],
        ..Default::default()
    };
    let status = hub.router_as(&identity, hello()).await.err().unwrap();
    assert_eq!(status.code(), Code::AlreadyExists, "{status:?}");
    drop(first);
    hub.router_as(&identity, hello()).await.unwrap();
}

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "one story, of which each step needs the one before"
)]
async fn what_a_router_cannot_write_down_is_not_acknowledged_and_more_is_told() {
    let hub = TestHub::start().await;
    shard(&hub, "shard", 1, json!([{"name": "east", "namespaces": ["ns-a"]}]));
    let agent = hub.join("east").await;
    report(&agent, &["p", "q"]).await;
    let mut router = hub.router("gateway", Vec::new()).await;
    settle(&hub, &mut router, &["east", "east/p", "east/q", "ops/shard"]).await;
    let view = |uid: &str| Ref::View {
        home: "east".into(),
        pod_uid: uid.into(),
    };
    let standing = |hub: &TestHub| {
        hub.acks.read(|routers| {
            let router = &routers["gateway"];
            let held = ["p", "q"].map(|uid| router.held.contains_key(&view(uid)));
            (router.acked_run, held, router.unsaved)
        })
    };
    hub.until("the acks are known", |hub| {
        (standing(hub).1 == [true, true]).then_some(())
    })
    .await;
    let before = standing(&hub).0;
    let mut last = 0;
    for uid in ["p", "q"] {
        let removed = vec![uid.to_owned()];
        let delta = v1::CallerDelta {
            removed,
            ..Default::default()
        };
        agent.say(AgentSaid::Callers(delta)).await;
        let told = router.transaction().await;
        assert_eq!(
            told.removed[0].name,
            format!("east/{uid}"),
            "the next one comes all the same"
        );
        last = told.nonce;
        let unsaved = v1::Unsaved {
            nonce: last,
            ..Default::default()
        };
        router.say(RouterSaid::Unsaved(unsaved)).await;
        hub.until("that is heard", |hub| standing(hub).2.then_some(())).await;
        assert_eq!(standing(&hub).1, [true, true], "a restart would bring both back");
        assert_eq!(standing(&hub).0, before);
    }
    router.ack(last).await;
    hub.until("all is acknowledged", |hub| (!standing(hub).2).then_some(()))
        .await;
    let (after, held, _) = standing(&hub);
    assert!(after > before && held == [false, false], "{after} {held:?}");
    // And what follows is acknowledged as ever.
    shard(
        &hub,
        "shard",
        2,
        json!([{"name": "east", "namespaces": ["ns-a", "ns-b"]}]),
    );
    let next = router.transaction().await;
    router.ack(next.nonce).await;
    hub.until("that too", |hub| (standing(hub).0 > after).then_some(()))
        .await;
}
