//! Authors who ask for much: what is too much is refused at them, and nobody else waits for the rest.

use std::time::{Duration, Instant};

use kube::api::{Api, ListParams};
use portolan_crds::ShardingConfig;
use portolan_tests::hub_cluster::put_shard_of;
use serde_json::{Value, json};

use crate::scene::{Router, Scene, shard_spec};

const EVIL: &str = "evil";
/// What a person would call slow. Where authors wait for each other it is minutes.
const SLOW: Duration = Duration::from_mins(1);

/// Limits of about so many kilobytes that narrow nothing that anybody has, each as large as a member may be asked by. No two rounds
/// have the same.
fn limits(kilobytes: usize, round: usize) -> Value {
    let values: Vec<_> = (0..kilobytes * 16)
        .map(|index| format!("{round:020}-{index:039}"))
        .collect();
    let limits = values.chunks(900).map(|values| {
        json!({
            "relateResources": [{"apiGroups": [""], "resources": ["secrets"]}],
            "selector": {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": values}]},
        })
    });
    limits.collect()
}

fn heavy(namespace: &str, kilobytes: usize, round: usize) -> Value {
    let mut spec = shard_spec("east", &[namespace]);
    spec["selector"] = json!({"matchLabels": {"app": "evil"}});
    spec["limits"] = limits(kilobytes, round);
    spec
}

fn root(size: u16) -> Value {
    let mut spec = heavy("evil-ns", 60, 0);
    spec["root"] = json!({
        "prefix": "evil", "targetStatefulSet": "evil", "auto": {"shardingSize": size, "everyShardReplicas": 1},
    });
    spec
}

/// How long it takes until the caller of shard calm has these namespaces.
async fn edited(scene: &Scene, router: &mut Router, namespaces: &[&str]) -> Duration {
    let begun = Instant::now();
    scene.shard("calm", shard_spec("east", namespaces)).await;
    router.during(scene.shard_says("calm", "Distributed", "True/Ok")).await;
    router.during(scene.shard_says("calm", "Complete", "True/Ok")).await;
    begun.elapsed()
}

/// A root that would be sixty megabytes of children, and thirty specs of 600 KiB that are written anew all the time.
#[tokio::test]
async fn what_one_author_asks_for_delays_no_other() {
    let scene = Scene::start().await.unwrap();
    let agent = scene.join("east").await;
    agent.report(&["ns-a", "ns-b", "evil-ns"], &["operator-0"]).await;
    let mut router = scene.router("gateway", Vec::new()).await;
    edited(&scene, &mut router, &["ns-a"]).await;
    let client = scene.client().await;

    put_shard_of(&client, (EVIL, "root"), root(1024)).await.unwrap();
    let refused = scene.shard_of_says((EVIL, "root"), "Accepted", "False/TooMuch");
    let refused = router.during(refused).await;
    for part in ["spec.root", "of 1024 children", "limits", "auto.shardingSize"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let api = Api::<ShardingConfig>::namespaced(client.clone(), EVIL);
    assert_eq!(
        api.list_metadata(&ListParams::default()).await.unwrap().items.len(),
        1,
        "no child"
    );
    let took = edited(&scene, &mut router, &["ns-a", "ns-b"]).await;
    assert!(took < SLOW, "beside the root: {took:?}");

    let flood = async |round: usize| {
        for number in 0..30 {
            let name = format!("heavy-{number}");
            let spec = heavy(&format!("evil-{number}"), 600, round);
            put_shard_of(&client, (EVIL, &name), spec).await.unwrap();
        }
    };
    router.during(flood(0)).await;
    let flooding = async {
        for round in 1.. {
            flood(round).await;
        }
    };
    let edits = async {
        for namespaces in [&["ns-a"][..], &["ns-a", "ns-b"]] {
            let took = edited(&scene, &mut router, namespaces).await;
            assert!(took < SLOW, "{namespaces:?} beside the flood: {took:?}");
        }
    };
    tokio::select! {
        () = flooding => {}
        () = edits => {}
    }
    let refused = scene.shard_of_says((EVIL, "heavy-29"), "Accepted", "False/TooMuch");
    let refused = router.during(refused).await;
    for part in ["\"evil\"", "8388608", "heavy-"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    drop(agent);
}
