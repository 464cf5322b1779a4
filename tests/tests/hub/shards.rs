//! What ShardingConfigs and MemberClusters say of themselves, and what their callers' routers are told meanwhile.

use portolan_testbed::eventually;
use portolan_wire::v1;
use portolan_wire::v1::router_message::Kind;
use serde_json::json;

use crate::scene::{Scene, good_member, shard_spec};

#[tokio::test]
async fn statuses_tell_what_is_so() {
    let scene = Scene::start().await.unwrap();
    let agent = scene.join("east").await;
    agent.report(&["ns-a", "ns-b"], &["operator-0"]).await;
    let mut router = scene.router("gateway", Vec::new()).await;
    scene.shard("good", shard_spec("east", &["ns-a"])).await;
    router
        .follow("the caller's view", |router| router.holds("east/uid-operator-0"))
        .await;
    let looking = async {
        for condition in [
            "Accepted",
            "Joined",
            "Available",
            "CredentialsReady",
            "LabelsSynced",
            "NothingLeftOut",
        ] {
            scene.member_says("east", condition, "True/Ok").await;
        }
        for condition in [
            "Accepted",
            "Distributed",
            "Complete",
            "Disjoint",
            "NamespacesResolved",
            "MembersReachable",
            "OneLeader",
        ] {
            scene.shard_says("good", condition, "True/Ok").await;
        }
        bad_shards_are_told(&scene).await;
        scene.shard_says("good", "Distributed", "True/Ok").await;
    };
    router.during(looking).await;
    drop(router);
    routers_troubles_are_told(&scene).await;
    drop(agent);
    let message = scene.member_says("east", "Available", "Unknown/HeartbeatLost").await;
    assert!(message.contains("routers go on"), "{message}");
    scene.leaks_nothing().await;
}

/// Shards without clusters are held against each other by what their limits say.
async fn beside_by_limits(scene: &Scene) {
    let home = |value: &str, app: &str| {
        json!({
            "selector": {"matchLabels": {"app": "home"}},
            "limits": [{"selector": {"matchLabels": {"a": value, "app": app}}}],
        })
    };
    scene.shard("home-of-others", home("b", "mail")).await;
    scene.shard_says("home-of-others", "Accepted", "False/Overlap").await;
    scene.shard("home", home("b", "web")).await;
    for name in ["home", "home-of-others"] {
        scene.shard_says(name, "Accepted", "True/Ok").await;
        scene.shard_says(name, "Complete", "True/Ok").await;
        scene.shard_says(name, "Disjoint", "True/Ok").await;
    }
    scene.shard("home-again", home("b", "web")).await;
    let message = scene.shard_says("home-again", "Accepted", "False/Overlap").await;
    assert!(
        message.contains("all kinds with a=b,app=web (of ops/home)") && message.contains("set spec.operator"),
        "{message}"
    );
}

async fn bad_shards_are_told(scene: &Scene) {
    let nowhere = json!({
        "selector": {"matchLabels": {"app": "x"}}, "callerClusters": ["mars"], "clusters": [{"name": "mars"}],
    });
    let home =
        json!({"selector": {"matchLabels": {"app": "home"}}, "limits": [{"selector": {"matchLabels": {"a": "b"}}}]});
    scene.shard("home", home).await;
    scene.shard_says("home", "Accepted", "True/Ok").await;
    scene.shard_says("home", "Disjoint", "True/Ok").await;
    beside_by_limits(scene).await;
    let mut webhook = shard_spec("east", &["ns-z"]);
    webhook["selector"] = json!({"matchLabels": {"app": "nobody"}});
    webhook["webhook"] = json!({"certDir": "/tmp/webhook-certs", "port": 9443});
    for (name, spec, wanted, text) in [
        (
            "nowhere",
            nowhere,
            "False/UnknownCluster",
            "spec.clusters[0].name: no MemberCluster is named \"mars\"",
        ),
        (
            "overlapping",
            shard_spec("east", &["ns-a", "ns-b"]),
            "False/Overlap",
            "east/ns-a (of ops/good)",
        ),
    ] {
        scene.shard(name, spec).await;
        let message = scene.shard_says(name, "Accepted", wanted).await;
        assert!(
            message.contains(text) && message.contains("nothing is in force"),
            "{message}"
        );
    }
    scene.shard_says("overlapping", "Disjoint", "False/Overlap").await;
    // What is not served of a spec does not keep the rest of it from being in force.
    scene.shard("webhook", webhook.clone()).await;
    let message = scene
        .shard_says("webhook", "WebhookServed", "False/NotImplemented")
        .await;
    assert!(message.contains("spec.webhook"), "{message}");
    scene.shard_says("webhook", "Accepted", "True/Ok").await;
    webhook.as_object_mut().unwrap().remove("webhook");
    scene.shard("webhook", webhook).await;
    scene.shard_lacks("webhook", "WebhookServed").await;
    // A bad edit of the good one.
    let mut edit = shard_spec("east", &["ns-a", "ns-b"]);
    edit["clusters"][0]["name"] = json!("mars");
    scene.shard("good", edit).await;
    let message = scene.shard_says("good", "Accepted", "False/UnknownCluster").await;
    assert!(message.contains("the last accepted spec stays in force"), "{message}");
    scene.shard("good", shard_spec("east", &["ns-a", "ns-missing"])).await;
    scene.shard_says("good", "Accepted", "True/Ok").await;
    let message = scene
        .shard_says("good", "NamespacesResolved", "False/NamespaceMissing")
        .await;
    assert!(message.contains("east/ns-missing"), "{message}");
}

async fn routers_troubles_are_told(scene: &Scene) {
    let mut router = scene.router("gateway", Vec::new()).await;
    let breaker = v1::BreakerState {
        cluster: "east".to_owned(),
        traffic_class: "unary".to_owned(),
        state: "open".to_owned(),
        reason: "certificate of another CA".to_owned(),
        since_unix_seconds: 1_700_000_000,
    };
    router
        .say(Kind::Breakers(v1::BreakerReport {
            breakers: vec![breaker],
            ..v1::BreakerReport::default()
        }))
        .await;
    let agent = scene.agent("east").await;
    agent.report(&["ns-a", "ns-b"], &["operator-0"]).await;
    router.during(a_held_member_is_told(scene)).await;
    router.say(Kind::Breakers(v1::BreakerReport::default())).await;
    let over = async {
        scene.member_says("east", "Available", "True/Ok").await;
        scene.shard_says("good", "MembersReachable", "True/Ok").await;
        eventually("the metric is gone", || async {
            !scene.metrics().await.contains("held_members{")
        })
        .await;
    };
    router.during(over).await;
    let mut tunnel = good_member("east");
    tunnel["access"] = json!("Tunnel");
    scene.member("east", tunnel).await;
    let message = scene.member_says("east", "Accepted", "False/NotImplemented").await;
    assert!(message.contains("spec.access"), "{message}");
    scene.member("east", good_member("east")).await;
    scene.member_says("east", "Accepted", "True/Ok").await;
}

/// What a router cannot reach is told of the member, where the shard's owner looks, and as a figure.
async fn a_held_member_is_told(scene: &Scene) {
    let message = scene.member_says("east", "Available", "False/Unreachable").await;
    for text in ["gateway", "certificate of another CA", "spec.caBundle"] {
        assert!(message.contains(text), "{message}");
    }
    let message = scene.shard_says("good", "MembersReachable", "False/Unreachable").await;
    for text in ["east (router gateway: certificate of another CA)", "429"] {
        assert!(message.contains(text), "{message}");
    }
    let metric = "portolan_hub_held_members{cluster=\"east\"} 1";
    eventually("the metric names the member", || async {
        scene.metrics().await.contains(metric)
    })
    .await;
}

/// Two members have a namespace of the same name: one serves it, the other is named.
#[tokio::test]
async fn shadowed_namespaces_are_named() {
    let scene = Scene::start().await.unwrap();
    let (east, west) = (scene.join("east").await, scene.join("west").await);
    east.report(&["ns-a", "ns-b"], &[]).await;
    west.report(&["ns-a", "ns-c"], &[]).await;
    let spec = json!({
        "selector": {"matchLabels": {"app": "x"}}, "callerClusters": ["east"],
        "clusters": [{"name": "east"}, {"name": "west"}],
    });
    scene.shard("twins", spec).await;
    let message = scene.shard_says("twins", "NamespacesResolved", "False/Shadowed").await;
    assert!(message.contains("west/ns-a") && !message.contains("east/"), "{message}");
    let metric = "portolan_hub_shadowed_namespaces 1";
    eventually("the metric counts it", || async {
        scene.metrics().await.contains(metric)
    })
    .await;

    west.report(&["ns-c"], &[]).await;
    scene.shard_says("twins", "NamespacesResolved", "True/Ok").await;
}

/// One edit of each shard, and a live namespace has moved: the old owner's routers first, then the new owner.
#[tokio::test]
async fn a_handover_needs_two_edits_and_no_more() {
    let scene = Scene::start().await.unwrap();
    let agent = scene.join("east").await;
    agent.report(&["ns-a", "ns-b"], &["operator-0"]).await;
    let mut router = scene.router("gateway", Vec::new()).await;
    scene.shard("old", shard_spec("east", &["ns-a", "ns-b"])).await;
    router
        .follow("the caller's view", |router| router.holds("east/uid-operator-0"))
        .await;
    let mut claim = shard_spec("east", &["ns-b"]);
    claim["selector"] = json!({"matchLabels": {"app": "another"}});
    let looking = async {
        scene.shard_says("old", "Distributed", "True/Ok").await;
        // The claim first: refused as long as the owner goes on wanting it.
        scene.shard("new", claim).await;
        let message = scene.shard_says("new", "Accepted", "False/Overlap").await;
        assert!(message.contains("east/ns-b (of ops/old)"), "{message}");
        scene.shard("old", shard_spec("east", &["ns-a"])).await;
        scene.shard_says("new", "Accepted", "True/Ok").await;
        let message = scene.shard_says("new", "Complete", "False/HandoverPending").await;
        assert!(message.contains("east/ns-b (of ops/old)"), "{message}");
        scene.shard_says("new", "Complete", "True/Ok").await;
        let status = scene.shard_status("new").await;
        assert_eq!(status["clusters"][0]["namespaces"], json!(["ns-b"]));
        // Two namespaces entered the old shard, one left it, and entered the new one.
        assert_eq!(status["viewRevision"], json!(4));
    };
    router.during(looking).await;
}

/// A router that does not answer may still let the one write what the other is to have.
#[tokio::test]
async fn what_limits_let_go_of_waits_for_a_router_that_does_not_answer() {
    let scene = Scene::start().await.unwrap();
    let mut router = scene.router("gateway", Vec::new()).await;
    let mut frozen = scene.router("frozen", Vec::new()).await;
    let limited = |values: &[&str]| {
        let values = json!([{"key": "a", "operator": "In", "values": values}]);
        json!({
            "selector": {"matchLabels": {"app": "home"}},
            "enforcement": "Enforce",
            "limits": [{"selector": {"matchExpressions": values}}],
        })
    };
    let begin = async {
        for (name, values) in [("one", &["x", "y"][..]), ("other", &["z"])] {
            scene.shard(name, limited(values)).await;
            scene.shard_says(name, "Complete", "True/Ok").await;
        }
    };
    router.during(frozen.during(begin)).await;
    let edits = async {
        scene.shard("one", limited(&["x"])).await;
        scene.shard_says("one", "Complete", "True/Ok").await;
        scene.shard("other", limited(&["y", "z"])).await;
        scene.shard_says("other", "Complete", "False/HandoverPending").await
    };
    let message = router.during(edits).await;
    assert!(message.contains("all kinds with a=y (of ops/one)"), "{message}");
    let end = scene.shard_says("other", "Complete", "True/Ok");
    router.during(frozen.during(end)).await;
    scene.leaks_nothing().await;
}
