//! Writes of former owners of a namespace are refused, by every API server, before the hub is told so.

use std::time::{Duration, Instant};

use http::{Method, Request};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use portolan_testbed::eventually;
use portolan_tests::balancer::Balancer;
use portolan_wire::v1 as wire;
use serde_json::{Value, json};

use crate::DAY;
use crate::scene::{Scene, config};

const EPOCH: &str = "ctrlmesh.kusionstack.io/epoch";
const SHARD: &str = "ctrlmesh.kusionstack.io/shard";

#[tokio::test]
async fn what_is_ordered_is_closed_for_every_other_epoch() {
    let scene = Scene::start(config(&[("", "configmaps")]), DAY).await.unwrap();
    for name in ["moves", "other"] {
        scene.namespace(name).await.unwrap();
    }
    let agent = scene.joined_agent().await.unwrap();
    eventually("the right is told", || async {
        let extras = |told: &crate::hub::Told| told.allowed.clone().unwrap_or_default().extras;
        scene.hub.told.read(|told| extras(told) == [EPOCH, SHARD])
    })
    .await;
    closed(&scene, "moves", 4).await;
    eventually("so is the annotation", || async {
        scene.hub.told.read(|told| told.namespaces["moves"].epoch == Some(4))
    })
    .await;
    writes_of_one_epoch_are_admitted(&scene).await;
    the_annotation_is_the_agents(&scene).await;
    it_only_grows(&scene).await;
    without_a_policy_nothing_is_closed(&scene).await;
    what_is_made_anew_is_closed_anew(&scene).await;
    agent.drain.now().await.into_result().unwrap();
}

#[tokio::test]
async fn nothing_is_closed_before_every_api_server_has_refused() {
    let scene = Scene::start(config(&[("", "configmaps")]), DAY).await.unwrap();
    scene.namespace("moves").await.unwrap();
    let second = scene.member().another_apiserver("second").await.unwrap();
    let first = scene.member().direct_url().replace("https://", "");
    let balancer = Balancer::start(vec![first, second.address().to_string()])
        .await
        .unwrap();
    scene.reach_by(&format!("https://{}", balancer.address)).await.unwrap();
    // Its watches stand on the first one.
    balancer.first_alone(true);
    let agent = scene.joined_agent().await.unwrap();
    eventually("the inventory is told", || async {
        scene.hub.told.read(|told| told.namespaces.contains_key("moves"))
    })
    .await;

    // One is seen as soon as the balancer lets it be; until then and while it stands still it may admit what it has.
    second.freeze().await.unwrap();
    balancer.first_alone(false);
    order(&scene, "moves", 4);
    stays_open(&scene, 4).await;
    second.thaw().unwrap();
    closed(&scene, "moves", 4).await;

    // By now it is known that they can be told apart: how often the first one alone answers does not matter.
    second.freeze().await.unwrap();
    balancer.first_alone(true);
    order(&scene, "moves", 5);
    stays_open(&scene, 5).await;
    let message = state(&scene, "moves", 5).message;
    assert!(message.starts_with("1 of 2 API servers"), "{message}");
    second.thaw().unwrap();
    balancer.first_alone(false);
    closed(&scene, "moves", 5).await;
    agent.drain.now().await.into_result().unwrap();
}

/// Longer than the API server that answers takes to be asked twenty times.
async fn stays_open(scene: &Scene, epoch: u64) {
    let began = Instant::now();
    eventually("it is annotated", || async {
        let told = scene.hub.told.read(|told| told.namespaces["moves"].epoch);
        told == Some(epoch)
    })
    .await;
    while began.elapsed() < Duration::from_secs(12) {
        let state = state(scene, "moves", epoch);
        assert!(
            !state.closed,
            "{:?} after the order: {}",
            began.elapsed(),
            state.message
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn order(scene: &Scene, namespace: &str, epoch: u64) {
    scene.hub.configure(|config| {
        config.fences = vec![wire::FenceOrder {
            namespace: namespace.to_owned(),
            epoch,
            open: Vec::new(),
        }];
    });
}

fn state(scene: &Scene, namespace: &str, epoch: u64) -> wire::FenceState {
    let told = |told: &crate::hub::Told| {
        let mut fences = told.fences.iter();
        let state = fences.find(|state| state.namespace == namespace && state.epoch == epoch);
        state.cloned().unwrap_or_default()
    };
    scene.hub.told.read(told)
}

async fn closed(scene: &Scene, namespace: &str, epoch: u64) {
    order(scene, namespace, epoch);
    eventually("it is closed", || async {
        let state = state(scene, namespace, epoch);
        if state.closed { Ok(()) } else { Err(state.message) }
    })
    .await;
}

/// The status code of a request of an administrator in that epoch.
async fn asked(scene: &Scene, epoch: u64, method: Method, path: &str, body: Value) -> u16 {
    let request = Request::builder()
        .method(method.clone())
        .uri(path)
        .header(
            "content-type",
            if method == Method::PATCH {
                "application/merge-patch+json"
            } else {
                "application/json"
            },
        )
        .header("impersonate-user", "writer")
        .header("impersonate-group", "system:masters")
        .header("impersonate-extra-ctrlmesh.kusionstack.io%2fshard", "ops/blue")
        .header("impersonate-extra-ctrlmesh.kusionstack.io%2fepoch", epoch.to_string())
        .body(body.to_string().into_bytes())
        .unwrap();
    match scene.client.request_text(request).await {
        Err(kube::Error::Api(status)) => {
            let by_fence = status.message.contains("portolan-fence");
            assert!(status.code != 403 || by_fence, "{method} {path}: {}", status.message);
            status.code
        }
        answer => {
            answer.unwrap();
            200
        }
    }
}

async fn writes_of_one_epoch_are_admitted(scene: &Scene) {
    let objects = "/api/v1/namespaces/moves/configmaps";
    let one = format!("{objects}/one");
    let made = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}});
    let change = json!({"data": {"a": "b"}});
    let namespace = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(asked(scene, 4, Method::POST, objects, made.clone()).await, 200);
    for (method, path, body) in [
        (Method::POST, objects, &made),
        (Method::PATCH, &one, &change),
        (Method::DELETE, &one, &json!({})),
        (Method::DELETE, objects, &json!({})),
        (Method::PATCH, "/api/v1/namespaces/moves", &namespace),
        (
            Method::POST,
            "/api/v1/namespaces/moves/pods/none/exec?command=ls",
            &json!({}),
        ),
    ] {
        for epoch in [3, 5] {
            assert_eq!(
                asked(scene, epoch, method.clone(), path, body.clone()).await,
                403,
                "{method} {path}"
            );
        }
    }
    assert_eq!(asked(scene, 4, Method::PATCH, &one, change.clone()).await, 200);
    assert_eq!(
        asked(scene, 4, Method::PATCH, "/api/v1/namespaces/moves", namespace).await,
        200
    );
    let reads = asked(scene, 3, Method::GET, &one, json!({})).await;
    assert_eq!(reads, 200, "reads are nobody's");
    let bare = "/api/v1/namespaces/other/configmaps";
    assert_eq!(
        asked(scene, 4, Method::POST, bare, made).await,
        403,
        "it has no annotation"
    );
    let said_nothing = ["-n", "moves", "label", "configmap", "one", "x=y"];
    scene.kubectl(&said_nothing).await.unwrap();
    let anew = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "anew"}});
    assert_eq!(asked(scene, 3, Method::POST, "/api/v1/namespaces", anew).await, 200);
    assert_eq!(asked(scene, 4, Method::DELETE, &one, json!({})).await, 200);
}

async fn the_annotation_is_the_agents(scene: &Scene) {
    let set = format!("{EPOCH}=9");
    for arguments in [
        vec!["annotate", "namespace", "moves", "--overwrite", &set],
        vec!["annotate", "namespace", "other", &set],
        vec!["annotate", "namespace", "moves", "ctrlmesh.kusionstack.io/epoch-"],
    ] {
        let refused = scene.kubectl(&arguments).await.unwrap_err().to_string();
        assert!(refused.contains("is reserved for portolan-agent"), "{refused}");
    }
    scene.kubectl(&["annotate", "namespace", "moves", "a=b"]).await.unwrap();
}

async fn it_only_grows(scene: &Scene) {
    order(scene, "moves", 3);
    eventually("it is told why not", || async {
        state(scene, "moves", 3).message.contains("says 4")
    })
    .await;
    let lower = [
        "--as",
        crate::scene::AGENT,
        "--as-group",
        "system:masters",
        "annotate",
        "namespace",
        "moves",
        "--overwrite",
    ];
    let lower = [&lower[..], &["ctrlmesh.kusionstack.io/epoch=3"]].concat();
    let refused = scene.kubectl(&lower).await.unwrap_err().to_string();
    assert!(refused.contains("may raise the annotation"), "{refused}");
    let lower = [&lower[..lower.len() - 1], &["ctrlmesh.kusionstack.io/epoch=9"]].concat();
    let refused = scene.kubectl(&lower).await.unwrap_err().to_string();
    assert!(
        refused.contains("may raise the annotation"),
        "of no Namespace: {refused}"
    );
    closed(scene, "moves", 5).await;
    let made = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}});
    let objects = "/api/v1/namespaces/moves/configmaps";
    // At once: whatever it is told, it has seen.
    assert_eq!(asked(scene, 4, Method::POST, objects, made.clone()).await, 403);
    assert_eq!(asked(scene, 5, Method::POST, objects, made).await, 200);
    let namespaces = Api::<Namespace>::all(scene.client.clone());
    let moves = namespaces.get("moves").await.unwrap();
    assert_eq!(moves.annotations()[EPOCH], format!("5.{}", moves.uid().unwrap()));
}

async fn without_a_policy_nothing_is_closed(scene: &Scene) {
    let gone = ["delete", "validatingadmissionpolicybinding", "portolan-fence"];
    scene.kubectl(&gone).await.unwrap();
    let objects = "/api/v1/namespaces/moves/configmaps";
    let made = |name: usize| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("c{name}")}});
    let mut tries = 0;
    eventually("the API server has noticed", || {
        tries += 1;
        let (scene, body) = (&scene, made(tries));
        async move { asked(scene, 4, Method::POST, objects, body).await == 200 }
    })
    .await;
    order(scene, "moves", 6);
    eventually("it is told what to do", || async {
        state(scene, "moves", 6).message.contains("run portolanctl join again")
    })
    .await;
    assert!(!state(scene, "moves", 6).closed);
    scene.policies(&[]).await.unwrap();
    closed(scene, "moves", 6).await;
}

/// A Namespace that somebody makes with an annotation, as a restore of a backup does, and one that had none.
async fn what_is_made_anew_is_closed_anew(scene: &Scene) {
    let objects = "/api/v1/namespaces/anew-2/configmaps";
    let config_map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}});
    closed(scene, "anew-2", 7).await;
    assert!(state(scene, "anew-2", 7).message.contains("no such Namespace"));
    let namespaces = Api::<Namespace>::all(scene.client.clone());
    let restored = json!({"metadata": {"name": "anew-2", "annotations": {EPOCH: "6.0a1b"}}});
    let restored = serde_json::from_value(restored).unwrap();
    namespaces.create(&PostParams::default(), &restored).await.unwrap();
    assert_eq!(
        asked(scene, 6, Method::POST, objects, config_map.clone()).await,
        403,
        "it opens nothing"
    );
    eventually("it is closed", || async {
        let raised = namespaces.get("anew-2").await.unwrap();
        raised.annotations()[EPOCH].starts_with("7.") && state(scene, "anew-2", 7).message.is_empty()
    })
    .await;
    assert!(state(scene, "anew-2", 7).closed);
    assert_eq!(asked(scene, 6, Method::POST, objects, config_map.clone()).await, 403);
    assert_eq!(asked(scene, 7, Method::POST, objects, config_map).await, 200);
}
