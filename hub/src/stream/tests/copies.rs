//! What routers tell of copies of replicated kinds.

use super::subscriptions::subscription;
use super::*;

#[tokio::test]
async fn a_router_is_believed_of_the_copies_of_its_own_shards_alone() {
    let hub = TestHub::start().await;
    let _agents = two_shards(&hub).await;
    let router = hub.subscriber(&subscription(&["shard:ops/a"]), &[]).await.unwrap();
    let fault = |shard: &str, cluster: &str| v1::ReplicaFault {
        shard: shard.to_owned(),
        kind: "customresourcedefinitions.apiextensions.k8s.io".to_owned(),
        name: "cs.a.b".to_owned(),
        cluster: cluster.to_owned(),
        reason: "away".to_owned(),
        message: "it is away".to_owned(),
    };
    let mut statuses = hub.acks.status_changes();
    hub.until("the router is here", |hub| {
        hub.acks.read(|routers| routers.get("part").map(drop))
    })
    .await;
    statuses.mark_unchanged();
    let report = v1::ReplicaReport {
        faults: vec![fault("ops/b", "mars"), fault("ops/a", "mars"), fault("ops/a", "west")],
        left_out: Vec::new(),
    };
    router.say(RouterSaid::Replicas(report.clone())).await;
    let told = async |what: &str, clusters: &[&str]| {
        hub.until(what, |hub| {
            let copies = hub.acks.read(|routers| routers["part"].copies.clone());
            let told = copies.iter().flat_map(|(shard, copies)| {
                assert_eq!(shard.to_string(), "ops/a");
                copies.behind.iter().map(|copy| copy.cluster.as_str())
            });
            told.eq(clusters.iter().copied()).then_some(())
        })
        .await;
    };
    told("its own is known", &["west"]).await;
    assert!(statuses.has_changed().unwrap(), "it is news to who writes statuses");
    statuses.mark_unchanged();
    router.say(RouterSaid::Replicas(report)).await;
    router.say(RouterSaid::Replicas(v1::ReplicaReport::default())).await;
    told("none is behind", &[]).await;
    assert!(statuses.has_changed().unwrap());
}
