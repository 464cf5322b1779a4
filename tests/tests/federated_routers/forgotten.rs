//! A router in a Pod of a member, known by the Pod's token: it is forgotten when it ends, and known again when it is started anew.

use kube::Api;
use portolan_crds::Router;
use portolan_testbed::eventually;
use portolan_tests::daemon::{Daemon, Launch};
use portolan_tests::programs::argument;
use portolan_tests::world::{AUDIENCE, HUB, PodSpec};
use serde_json::json;

use super::{hub_of, start};

const NAMESPACE: &str = "portolan-routers";
const NAME: &str = "east.gateway-0";

#[tokio::test]
async fn a_router_of_a_pod_is_forgotten_when_it_ends_and_known_again_when_it_is_started_anew() {
    let world = start().await;
    let mut hub = world.fleet.take_over("hub").await.unwrap();
    hub.ready().await;
    assert_eq!(hub.stop().await.unwrap(), 0);
    hub.start_with(&[("--routers-of", "east")]).await.unwrap();
    let pod = PodSpec {
        namespace: NAMESPACE,
        name: "gateway-0",
        service_account: "portolan-router",
        labels: json!({}),
    };
    let uid = world.pod("east", pod.clone()).await.unwrap();
    let token = world.cluster("east");
    let token = token.issue_token(NAMESPACE, "portolan-router", &[AUDIENCE], Some(("gateway-0", &uid)));
    let dir = world.fleet.dir();
    let token_file = dir.join("gateway-0.token");
    std::fs::write(&token_file, token.await.unwrap()).unwrap();
    let state = dir.join("gateway-0-state");
    let arguments = [
        "--bind",
        "127.0.0.1:0",
        &format!("--hub={}", hub_of(&world)),
        &format!("--hub-ca={}", argument(&dir.join("hub-ca.crt"))),
        "--cluster=east",
        &format!("--token-file={}", argument(&token_file)),
        &format!("--state-dir={}", argument(&state)),
        "--forget-at-end",
    ];
    let mut router = Daemon::start(Launch {
        name: "gateway-0".to_owned(),
        program: "portolan-router".to_owned(),
        arguments: arguments.map(str::to_owned).to_vec(),
        env: Vec::new(),
        dir: dir.to_path_buf(),
    })
    .await
    .unwrap();
    let client = world.cluster(HUB).client().await.unwrap();
    let objects = Api::<Router>::namespaced(client, "portolan-system");
    let mut before = None;
    for _ in 0..2 {
        router.ready().await;
        let object = objects.get(NAME).await.unwrap();
        assert_ne!(object.metadata.uid, before, "another one");
        before = object.metadata.uid;
        assert_eq!(router.stop().await.unwrap(), 0);
        eventually("the hub has forgotten it", || async {
            objects.get_opt(NAME).await.unwrap().is_none().then_some(())
        })
        .await;
        assert!(!state.join("identity.pem").exists() && !state.join("state.bin").exists());
        // The Pod's container is started anew.
        router.start_again().await.unwrap();
    }
    router.ready().await;
}
