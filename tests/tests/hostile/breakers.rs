//! Requests that fail by their sender's own doing: the breaker of the member is everybody's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use portolan_tests::door::{Door, json};
use portolan_tests::world::World;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::world;

const OTHERS: &str = "/api/v1/namespaces/h-beta/configmaps";
const NOTHING: &str = "/api/v1/namespaces/h-beta/configmaps/nothing";

/// What another tenant is told meanwhile, other than what is so.
struct Neighbour {
    stop: Arc<AtomicBool>,
    asking: JoinSet<(usize, Vec<String>)>,
}

impl Neighbour {
    async fn start(world: &World) -> Self {
        let door = world.listed_door("beta", OTHERS).await.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let mut asking = JoinSet::new();
        asking.spawn(async move {
            let (mut asked, mut refused) = (0, Vec::new());
            while !stopped.load(Ordering::Relaxed) {
                // Lists and single requests have a breaker each.
                for (path, status) in [(OTHERS, 200), (NOTHING, 404)] {
                    let answer = door.get(path, &[]).await.unwrap();
                    asked += 1;
                    if answer.status != status {
                        refused.push(format!("{} {}", answer.status, answer.message()));
                    }
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            (asked, refused)
        });
        Self { stop, asking }
    }

    async fn assert_untouched(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let (asked, refused) = self.asking.join_next().await.unwrap().unwrap();
        assert!(asked > 3 && refused.is_empty(), "of {asked}: {refused:?}");
    }
}

/// Alpha's door to its namespace in east.
async fn alpha(world: &World) -> Door {
    world.listed_door("alpha", "/api/v1/configmaps").await.unwrap()
}

#[tokio::test]
async fn escapes_that_are_none_do_not_reach_the_member() {
    let (world, _) = world().await;
    let door = alpha(world).await;
    let neighbour = Neighbour::start(world).await;
    for at in 0..40 {
        let tail = ["%zz", "a%", "a/b%2", "%%41"][at % 4];
        let path = format!("/api/v1/namespaces/h-east/pods/any/proxy/{tail}");
        let answer = door.get(&path, &[]).await.unwrap();
        answer.expect_status(400, &["percent-encoded"]).unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    neighbour.assert_untouched().await;
}

/// Of one who has two shards: of the three that use the member, two see it hang.
#[tokio::test]
async fn a_webhook_that_hangs_is_its_owners_affair() {
    let (world, _) = world().await;
    // Takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "hangs"},
        "webhooks": [{
            "name": "hangs.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Ignore", "timeoutSeconds": 30,
            "clientConfig": {
                "url": format!("https://127.0.0.1:{port}/"),
                "caBundle": STANDARD.encode(world.cluster("east").ca_pem()),
            },
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}],
            "namespaceSelector": {"matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["h-east", "h-delta"]},
            ]},
        }],
    });
    let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let direct = world.direct_door("east").await.unwrap();
    assert_eq!(direct.post(hooks, &webhook).await.unwrap().status, 201);
    let doors = [
        (alpha(world).await, "/api/v1/namespaces/h-east/secrets"),
        (
            world
                .listed_door("delta", "/api/v1/namespaces/h-delta/configmaps")
                .await
                .unwrap(),
            "/api/v1/namespaces/h-delta/secrets",
        ),
    ];
    let neighbour = Neighbour::start(world).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"generateName": "slow-"}});
    let give_up = async |(door, path): &(Door, &str)| {
        let ask = door.post(path, &secret);
        tokio::time::timeout(Duration::from_millis(5_500), ask).await.is_err()
    };
    let all = (0..24).flat_map(|_| &doors).map(give_up);
    let gave_up = futures::future::join_all(all).await;
    assert!(
        gave_up.iter().filter(|up| **up).count() > 24,
        "the webhook hangs: {gave_up:?}"
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    neighbour.assert_untouched().await;
    let gone = json(Method::DELETE, &format!("{hooks}/hangs"), &json!({})).unwrap();
    direct.ask(gone).await.unwrap();
}
