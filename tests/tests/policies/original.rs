//! The original's manifests, applied to a real API server as they are, do what they say.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use http::Method;
use kube::Api;
use portolan_crds::CircuitBreaker;
use portolan_testbed::eventually;
use portolan_tests::door::{Door, request};
use portolan_tests::shard::federated;
use portolan_tests::world::HUB;

use crate::{Ground, ORIGINAL, assert_limited, assert_opened, delete_pod, ground};

const MAP: &str = "/api/v1/namespaces/original-e/configmaps/kube-root-ca.crt";

/// Its caller is the Pod that they select: a replica of an operator.
pub(crate) fn shard() -> String {
    let shard = federated(
        "original",
        "east",
        &[("east", &["original-e"]), ("west", &["original-w"])],
    );
    let labels =
        "      shard: original\n      app: operator\n      statefulset.kubernetes.io/pod-name: operator-demo-0\n";
    shard
        .replace("namespace: operators", &format!("namespace: {ORIGINAL}"))
        .replace("      shard: original\n", labels)
}

fn manifest(file: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../crds/tests/original");
    fs::read_to_string(folder.join(file)).unwrap()
}

impl Ground {
    async fn kubectl(&self, verb: &str, file: &str) -> String {
        let hub = self.world.direct(HUB);
        hub.ok_with(&[verb, "-f", "-"], &manifest(file)).await.unwrap()
    }

    /// Waits until the router has these policies of the original's namespace, and no others.
    async fn until_served(&self, wanted: &[&str]) {
        eventually("the router has them", || async {
            let page = self.router_page("/policies").await;
            let all = page["policies"].as_array().unwrap().iter();
            let names = all.filter_map(|policy| {
                let (kind, rest) = policy["name"].as_str()?.split_once('/')?;
                Some(format!("{kind}/{}", rest.strip_prefix(&format!("{ORIGINAL}/"))?))
            });
            let names: Vec<_> = names.collect();
            (names == wanted).then_some(()).ok_or(names)
        })
        .await;
    }
}

async fn door(ground: &Ground) -> Door {
    let path = "/api/v1/namespaces/original-e/configmaps";
    ground.world.listed_door("original", path).await.unwrap()
}

#[tokio::test]
async fn manifests_of_the_original_apply_as_they_are() {
    let ground = ground().await;
    let door = door(&ground).await;
    a_limiter_that_latches(&ground, &door).await;
    everything_refused_beside_a_narrow_rule(&ground, &door).await;
    what_its_proxy_panicked_on(&ground, &door).await;
    what_is_the_sidecars(&ground).await;
}

/// Three at once, ten in ten minutes, then nothing for ten minutes.
async fn a_limiter_that_latches(ground: &Ground, door: &Door) {
    ground.kubectl("apply", "delete-pods.yaml").await;
    ground.until_served(&["CircuitBreaker/breaker-demo"]).await;
    for _ in 0..3 {
        assert_eq!(delete_pod(door, "original-e").await.status, 404);
    }
    let rule = "CircuitBreaker/operator-demo/breaker-demo/deletePod";
    assert_limited(&delete_pod(door, "original-e").await, rule);
    assert_opened(&delete_pod(door, "original-w").await, rule);
    assert_eq!(door.get(MAP, &[]).await.unwrap().status, 200);
    let words = ["deletePod", "Opened", "LimitExceeded"];
    ground.told("operator-demo/breaker-demo", &words).await;
    ground.kubectl("delete", "delete-pods.yaml").await;
    ground.until_served(&[]).await;
}

/// In the original deletions of Pods passed by the narrow rule.
async fn everything_refused_beside_a_narrow_rule(ground: &Ground, door: &Door) {
    ground.kubectl("apply", "force-opened.yaml").await;
    ground.until_served(&["CircuitBreaker/stop-all"]).await;
    let rule = "CircuitBreaker/operator-demo/stop-all/stop";
    assert_opened(&door.get(MAP, &[]).await.unwrap(), rule);
    assert_opened(&delete_pod(door, "original-e").await, rule);
    ground.kubectl("delete", "force-opened.yaml").await;
    ground.until_served(&[]).await;
}

/// Without a selector faults hit nobody; the latch has no recoverPolicy, which is Manual.
async fn what_its_proxy_panicked_on(ground: &Ground, door: &Door) {
    ground.kubectl("apply", "as-short-as-it-gets.yaml").await;
    ground
        .until_served(&["CircuitBreaker/short", "FaultInjection/short"])
        .await;
    let begun = Instant::now();
    let answer = door.get(MAP, &[]).await.unwrap();
    assert_eq!((answer.status, answer.header("portolan-fault")), (200, ""));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    let line = door.open().await.unwrap();
    let mut answers = Vec::new();
    // Five at once and five a second, so that they end before twenty have been asked.
    for _ in 0..20 {
        let path = "/api/v1/namespaces/original-e/pods/nobody";
        let delete = request(Method::DELETE, path, &[], &[]).unwrap();
        answers.push(line.ask(delete).await.unwrap().status);
    }
    assert_eq!(answers[..5], [404; 5], "{answers:?}");
    assert_eq!(answers.last(), Some(&503), "{answers:?}");
    ground.kubectl("delete", "as-short-as-it-gets.yaml").await;
    ground.until_served(&[]).await;
}

/// Traffic to other servers is the sidecar's: that is said of those objects alone.
async fn what_is_the_sidecars(ground: &Ground) {
    let all = ["rest-rules.yaml", "intercept.yaml", "faults.yaml"];
    for file in all {
        ground.kubectl("apply", file).await;
    }
    ground.until_served(&["FaultInjection/fault-demo"]).await;
    let objects = Api::<CircuitBreaker>::namespaced(ground.world.cluster(HUB).client().await.unwrap(), ORIGINAL);
    for name in ["rest-demo", "intercept-demo"] {
        eventually("it is said that nobody serves it", || async {
            let object = objects.get(name).await.map_err(|error| error.to_string())?;
            let status = object.status.ok_or("no status")?;
            let refused = status.conditions.iter().any(|condition| {
                (&*condition.type_, &*condition.status, &*condition.reason) == ("Accepted", "False", "NotImplemented")
            });
            refused.then_some(()).ok_or(format!("{status:?}"))
        })
        .await;
    }
    for file in all {
        ground.kubectl("delete", file).await;
    }
    ground.until_served(&[]).await;
}
