//! A first start before anything is installed, and a later start in which nothing may be lost.

use std::collections::BTreeSet;

use portolan_testbed::eventually;
use portolan_tests::programs::admin_get;

use crate::scene::{Held, Scene, shard_spec};

#[tokio::test]
async fn a_restart_takes_nothing_from_routers() {
    let mut scene = Scene::bare().await.unwrap();
    let admin = scene.hub.admin().to_owned();
    eventually("readiness names what is missing", || async {
        let error = admin_get(&admin, "/readyz").await.err()?.to_string();
        (error.contains("memberclusters.ctrlmesh.kusionstack.io") && error.contains("portolanctl install"))
            .then_some(())
    })
    .await;
    scene.install().await.unwrap();
    scene.hub.ready().await;
    scene.install().await.unwrap();

    let agent = scene.join("east").await;
    agent.report(&["ns-a", "ns-b"], &["operator-0"]).await;
    let mut spec = shard_spec("east", &["ns-a"]);
    spec["clusters"][0].as_object_mut().unwrap().remove("namespaces");
    scene.shard("shard", spec).await;
    let mut router = scene.router("gateway", Vec::new()).await;
    router
        .follow(
            "the caller's view and the router's token, which may come after it",
            |router| router.holds("east/uid-operator-0") && router.holds("east/portolan-routers/portolan-router"),
        )
        .await;
    let seen = router.transactions;
    router.follow("its commit", |router| router.transactions > seen).await;
    // Acknowledged by a router that goes on following: a later fact may be another transaction.
    router.during(scene.shard_says("shard", "Distributed", "True/Ok")).await;
    let (held, ca) = (router.held.clone(), scene.ca().await.pem().to_owned());
    drop((router, agent));

    scene.hub.stop().await.unwrap();
    // While the hub is away the shard is edited for the worse, by somebody who may switch the question off.
    scene.unasked().await;
    scene.shard("shard", shard_spec("mars", &["ns-a"])).await;
    scene.hub.start_again().await.unwrap();
    scene.hub.ready().await;
    assert_eq!(scene.ca().await.pem(), ca);
    let mut router = scene.router("gateway", held.clone()).await;
    router
        .follow("the first commit", |router| router.transactions > 0)
        .await;
    assert_eq!(router.held, held, "without its agent nothing changes");
    let message = scene.shard_says("shard", "Accepted", "False/UnknownCluster").await;
    assert!(message.contains("stays in force"), "{message}");

    // The agent comes back with the same news: the same hashes, so nothing is sent at all.
    let agent = scene.agent("east").await;
    agent.report(&["ns-a", "ns-b"], &["operator-0"]).await;
    scene.member_says("east", "CredentialsReady", "True/Ok").await;
    assert_eq!(router.transactions, 1);
    agent.report(&["ns-a", "ns-b", "ns-c"], &["operator-0"]).await;
    router
        .follow("a namespace more", |router| router.transactions > 1)
        .await;
    let names = |held: &Held| {
        held.iter()
            .map(|(name, _)| format!("{name:?}"))
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(names(&router.held), names(&held));
    scene.leaks_nothing().await;
}
