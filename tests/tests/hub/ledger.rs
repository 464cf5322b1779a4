//! The ledger on a real API server: a hub that dies in the midst of a handover, a second hub, a ledger that is lost.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams};
use portolan_crds::labels::{LABEL_LEDGER, SYSTEM_NAMESPACE};
use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::daemon::Daemon;
use portolan_tests::replicas::metric;
use serde_json::json;

use crate::scene::{Scene, shard_spec};

/// How long a hub that starts waits for routers of an earlier one.
const RETURN_GRACE: Duration = Duration::from_mins(1);

/// A row of `ledger show`: the owner of ns-b of east, at which view revision it entered, and its state.
async fn row(scene: &Scene) -> Option<(String, u64, String)> {
    let shown = ctl::ok(&["ledger", "show", "--hub-kubeconfig", &scene.kubeconfig()]).await;
    let shown = shown.unwrap();
    let row = shown
        .lines()
        .find(|line| line.starts_with("east ") && line.contains(" ns-b "))?;
    let cells: Vec<_> = row.split_whitespace().collect();
    Some((cells[3].to_owned(), cells[4].parse().unwrap(), cells[5].to_owned()))
}

/// What is looked for lasts for seconds at least, as a release dwells. What waits for routers of an earlier life of the hub takes a
/// minute more.
async fn until<T>(what: &str, probe: impl AsyncFn() -> Option<T>) -> T {
    let look = async {
        loop {
            match probe().await {
                Some(found) => return found,
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let found = tokio::time::timeout(portolan_testbed::patience() + RETURN_GRACE, look).await;
    found.unwrap_or_else(|_| panic!("never: {what}"))
}

async fn until_row(scene: &Scene, owner: &str, state: &str) -> u64 {
    let is_so = async || match row(scene).await {
        Some((found, since, now)) if found == owner && now == state => Some(since),
        _ => None,
    };
    until(&format!("{owner} {state}"), is_so).await
}

/// Killed between release and grant, and again as soon as the grant is written: nobody loses or doubles the namespace, and
/// view revisions only grow.
#[tokio::test]
async fn a_hub_that_dies_in_a_handover_goes_on_with_it() {
    let mut scene = Scene::start().await.unwrap();
    let agent = scene.join("east").await;
    agent.report(&["ns-a", "ns-b"], &["operator-0"]).await;
    let mut router = scene.router("gateway", Vec::new()).await;
    scene.shard("old", shard_spec("east", &["ns-a", "ns-b"])).await;
    router
        .follow("the caller's view", |router| router.holds("east/uid-operator-0"))
        .await;
    let entered = router.during(until_row(&scene, "ops/old", "granted")).await;
    let mut claim = shard_spec("east", &["ns-b"]);
    claim["selector"] = json!({"matchLabels": {"app": "another"}});
    router.during(scene.shard_says("old", "Distributed", "True/Ok")).await;
    scene.shard("old", shard_spec("east", &["ns-a"])).await;
    scene.shard("new", claim).await;
    router.during(until_row(&scene, "ops/old", "releasing")).await;
    let (held, identity) = (router.held.clone(), router.identity.clone());
    drop((router, agent));
    scene.hub.kill().await.unwrap();
    assert_eq!(
        row(&scene).await,
        Some(("ops/old".to_owned(), entered, "releasing".to_owned()))
    );

    scene.hub.start_again().await.unwrap();
    scene.hub.ready().await;
    // The agent is silent, and the router knows: the release stays promised.
    let mut router = scene.router_of(identity, held).await;
    let granted = router.during(until_row(&scene, "ops/new", "granted")).await;
    assert!(granted > entered, "{granted} after {entered}");
    let (held, identity) = (router.held.clone(), router.identity.clone());
    drop(router);
    scene.hub.kill().await.unwrap();

    scene.hub.start_again().await.unwrap();
    scene.hub.ready().await;
    assert_eq!(
        row(&scene).await,
        Some(("ops/new".to_owned(), granted, "granted".to_owned()))
    );
    let mut router = scene.router_of(identity, held).await;
    router.during(scene.shard_says("new", "Complete", "True/Ok")).await;
    assert_eq!(
        scene.shard_status("new").await["clusters"][0]["namespaces"],
        json!(["ns-b"])
    );
    assert_eq!(
        scene.shard_status("old").await["clusters"][0]["namespaces"],
        json!(["ns-a"])
    );
}

#[tokio::test]
async fn of_two_hubs_one_leads_until_it_ends() {
    let mut scene = Scene::start().await.unwrap();
    let second = scene.another_hub().await.unwrap();
    second.ready().await;
    let leads = async |hub: &Daemon| metric(hub, "portolan_hub_leader").await;
    assert_eq!((leads(&scene.hub).await, leads(&second).await), (Some(1), Some(0)));
    assert_eq!(scene.hub.stop().await.unwrap(), 0);
    eventually("the other one leads", || async {
        (leads(&second).await == Some(1)).then_some(())
    })
    .await;
    scene.hub.start_again().await.unwrap();
    scene.hub.ready().await;
    assert_eq!((leads(&scene.hub).await, leads(&second).await), (Some(0), Some(1)));
}

#[tokio::test]
async fn a_ledger_that_is_lost_is_adopted_and_not_guessed() {
    let mut scene = Scene::start().await.unwrap();
    let agent = scene.join("east").await;
    agent.report(&["ns-a", "ns-b"], &["operator-0"]).await;
    scene.shard("shard", shard_spec("east", &["ns-a", "ns-b"])).await;
    scene.shard_says("shard", "Complete", "True/Ok").await;
    drop(agent);
    let kubeconfig = scene.kubeconfig();
    let dry = ["ledger", "adopt", "--hub-kubeconfig", kubeconfig.as_str()];
    let wet = ["ledger", "adopt", "--hub-kubeconfig", kubeconfig.as_str(), "--yes"];
    let refused = ctl::refused(&dry).await.unwrap();
    assert!(refused.contains("nothing to adopt"), "{refused}");

    scene.hub.stop().await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(scene.client().await, SYSTEM_NAMESPACE);
    let ledger = ListParams::default().labels(LABEL_LEDGER);
    maps.delete_collection(&DeleteParams::default(), &ledger).await.unwrap();
    scene.hub.start_again().await.unwrap();
    assert_ne!(scene.hub.ended().await.unwrap(), 0);
    let log = scene.hub.log().unwrap();
    assert!(
        log.contains("ops/shard") && log.contains("portolanctl ledger adopt"),
        "{log}"
    );

    let told = ctl::ok(&dry).await.unwrap();
    assert!(told.contains("Nothing was written"), "{told}");
    assert!(maps.list(&ledger).await.unwrap().items.is_empty());
    let told = ctl::ok(&wet).await.unwrap();
    let granted = told
        .lines()
        .any(|line| line.split_whitespace().eq(["east", "ops/shard", "2"]));
    assert!(granted, "{told}");
    scene.hub.start_again().await.unwrap();
    scene.hub.ready().await;
    assert_eq!(row(&scene).await.unwrap().0, "ops/shard");
    let show = ["ledger", "show", "--hub-kubeconfig", kubeconfig.as_str()];
    let heard = async || {
        let shown = ctl::ok(&show).await.ok()?;
        (!shown.contains("adopted")).then_some(())
    };
    until("every router was heard", heard).await;
}
