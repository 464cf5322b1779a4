//! What a router is told by its certificate's subscription.

use super::*;

/// Kind and name of all that a router is told until it holds `enough`.
async fn told(hub: &TestHub, router: &mut crate::testing::TestRouter, enough: &str) -> Vec<String> {
    let all = settle(hub, router, &[enough]).await;
    let resources = all.into_iter().flat_map(|received| received.upserted);
    let names = resources.filter_map(|resource| resource.reference());
    let mut names: Vec<_> = names
        .map(|name| format!("{} {}", name.kind().as_str_name(), name.name))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Shard a of east and west with caller pod-p, shard b of mars with caller pod-q in mars.
pub(super) async fn two_shards(hub: &TestHub) -> Vec<TestAgent> {
    use kube::api::{ApiResource, DynamicObject};
    hub.member("mars", true);
    let agents = vec![hub.join("east").await, hub.join("west").await, hub.join("mars").await];
    for (agent, callers) in agents.iter().zip([&["p"][..], &[], &["q"]]) {
        report(agent, callers).await;
    }
    let kind = ApiResource::erase::<portolan_crds::ShardingConfig>(&());
    for (name, home, clusters) in [
        ("a", "east", json!([{"name": "west", "namespaces": ["ns-w"]}])),
        ("b", "mars", json!([{"name": "mars", "namespaces": ["ns-m"]}])),
    ] {
        let spec = json!({
            "selector": {"matchLabels": {"app": "op"}}, "callerClusters": [home], "clusters": clusters,
        });
        let object = DynamicObject::new(name, &kind).within("ops");
        let mut object = object.data(json!({"spec": spec}));
        object.metadata.uid = Some(format!("object-{name}"));
        object.metadata.generation = Some(1);
        hub.index.write(|facts| facts.apply_shard(&object));
    }
    hub.until("everything is compiled", |hub| {
        let worlds = hub.worlds.borrow();
        let world = &worlds.as_ref()?.world;
        let unknown = world.unknown.iter();
        let told = unknown
            .filter(|(kind, _)| !matches!(kind, v1::ResourceKind::Credential | v1::ResourceKind::Nodes))
            .count()
            == 0;
        let whole = world.callers.len() == 2 && told && world.credentials.count() == 6;
        whole.then_some(())
    })
    .await;
    agents
}

pub(super) fn subscription(scopes: &[&str]) -> Subscription {
    Subscription::from_scopes(scopes.iter().copied()).unwrap()
}

#[tokio::test]
async fn a_router_of_one_shard_is_told_of_that_alone() {
    let hub = TestHub::start().await;
    let agents = two_shards(&hub).await;
    let of_a = subscription(&["shard:ops/a"]);
    let mut router = hub.subscriber(&of_a, &[]).await.unwrap();
    let mut names = vec!["CALLER_VIEW east/p".to_owned(), "SHARD ops/a".to_owned()];
    names.push("OWNERSHIP west/ops/a".to_owned());
    for cluster in ["east", "west"] {
        names.extend(["TARGET", "MEMBER_IDENTITY", "COVERAGE"].map(|kind| format!("{kind} {cluster}")));
        names.push(format!("CREDENTIAL {cluster}/{GATEWAY_ACCOUNT}"));
    }
    let mut names: Vec<_> = names.into_iter().map(|name| format!("RESOURCE_KIND_{name}")).collect();
    names.sort();
    assert_eq!(told(&hub, &mut router, "ops/a").await, names);

    // What happens elsewhere is not heard of; a release by all is proved all the same.
    report(&agents[2], &["q", "r"]).await;
    hub.until("the other shard's caller is compiled", |hub| {
        let worlds = hub.worlds.borrow();
        let world = &worlds.as_ref()?.world;
        let seen = hub.acks.read(|routers| routers["part"].acked_run) == world.state.run;
        let more = world.callers.values().any(|callers| callers.len() == 2);
        (seen && more).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_router_of_one_caller_gets_no_token_that_may_act_as_others() {
    let hub = TestHub::start().await;
    let _agents = two_shards(&hub).await;
    let of_q = subscription(&["caller:mars/ops/pod-q"]);
    let mut router = hub.subscriber(&of_q, &[]).await.unwrap();
    let names = [
        "RESOURCE_KIND_CALLER_VIEW mars/q",
        "RESOURCE_KIND_COVERAGE mars",
        "RESOURCE_KIND_MEMBER_IDENTITY mars",
        "RESOURCE_KIND_OWNERSHIP mars/ops/b",
        "RESOURCE_KIND_SHARD ops/b",
        "RESOURCE_KIND_TARGET mars",
    ];
    assert_eq!(told(&hub, &mut router, "ops/b").await, names);
}

#[tokio::test]
async fn a_router_may_ask_for_less_and_never_for_more() {
    let hub = TestHub::start().await;
    let _agents = two_shards(&hub).await;
    let both = subscription(&["shard:ops/a", "shard:ops/b"]);
    let mut router = hub.subscriber(&both, &["shard:ops/b"]).await.unwrap();
    let names = told(&hub, &mut router, "ops/b").await;
    assert!(
        !names.iter().any(|name| name.contains("ops/a") || name.contains("west")),
        "{names:?}"
    );
    for asked in [
        &["everything"][..],
        &["shard:ops/a", "shard:ops/c"],
        &["caller:mars/ops/pod-q"],
    ] {
        let status = hub.subscriber(&both, asked).await.err().unwrap();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert!(
            status.message().contains("shard:ops/a,shard:ops/b"),
            "{}",
            status.message()
        );
    }
    let status = hub.subscriber(&both, &["all"]).await.err().unwrap();
    assert_eq!(status.code(), Code::InvalidArgument);
}
