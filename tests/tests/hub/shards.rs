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

async fn bad_shards_are_told(scene: &Scene) {
    let nowhere = json!({
        "selector": {"matchLabels": {"app": "x"}}, "callerClusters": ["mars"], "clusters": [{"name": "mars"}],
    });
    let home =
        json!({"selector": {"matchLabels": {"app": "home"}}, "limits": [{"selector": {"matchLabels": {"a": "b"}}}]});
    scene.shard("home", home).await;
    scene.shard_says("home", "Accepted", "True/Ok").await;
    scene.shard_says("home", "Disjoint", "Unknown/NotArbitrated").await;
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
