//! Objects that cannot be served: a condition that names object, field and fix, while what was good goes on.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::api::{DeleteParams, PostParams};
use portolan_crds::ShardingConfig;
use portolan_testbed::eventually;
use portolan_tests::shard::federated;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::pulse::Pulse;
use crate::{EAST, Ground, WEST, alone, patch, served, until};

/// The two things that every test here begins and ends with.
async fn pulses(ground: &Ground) -> Pulse {
    let door = ground.world.merged_door("alpha").await.unwrap();
    served(&door.get(WEST, &[]).await.unwrap()).unwrap();
    Pulse::start(door, EAST)
}

async fn spec_of(ground: &Ground, member: &str) -> Value {
    serde_json::to_value(ground.members().await.get(member).await.unwrap().spec).unwrap()
}

/// An edit with which no router can get through: requests are refused with the reason, the condition says what to look
/// at, and mending it is enough.
async fn unusable(ground: &Ground, edit: &Value, reason: &str) {
    let good = spec_of(ground, "west").await;
    let east = pulses(ground).await;
    ground.patch_member("west", edit).await;
    let door = ground.world.merged_door("alpha").await.unwrap();
    eventually("west's requests are refused", || async {
        door.get(WEST, &[]).await.unwrap().expect_status(503, &["west", reason])
    })
    .await;
    eventually("its breaker is open", || async {
        let _ = door.get(WEST, &[]).await;
        ground.breaker_of_west().await == "open"
    })
    .await;
    let words = ["Unreachable", "spec.endpoints", "spec.caBundle"];
    until(&ground.members().await, "west", "Available", "False", &words).await;
    let mended = json!({"endpoints": good["endpoints"], "caBundle": good["caBundle"]});
    ground.patch_member("west", &mended).await;
    ground.until_west_is_back().await;
    east.assert_untouched().await;
}

#[tokio::test]
async fn member_with_a_wrong_ca() {
    let ground = alone().await;
    let wrong = STANDARD.encode(ground.world.cluster("hub").ca_pem());
    unusable(&ground, &json!({"caBundle": wrong}), "certificate").await;
}

#[tokio::test]
async fn member_with_an_unreachable_url() {
    let ground = alone().await;
    unusable(
        &ground,
        &json!({"endpoints": [{"url": "https://127.0.0.1:1"}]}),
        "127.0.0.1:1",
    )
    .await;
}

/// What cannot even be used is not tried: the spec before stays in force, also over a restart of the hub.
#[tokio::test]
async fn member_with_an_invalid_bundle() {
    let mut ground = alone().await;
    let ground = &mut *ground;
    let good = spec_of(ground, "west").await["caBundle"].clone();
    let door = ground.world.merged_door("alpha").await.unwrap();
    let (east, west) = (pulses(ground).await, Pulse::start(door, WEST));
    ground
        .patch_member("west", &json!({"caBundle": STANDARD.encode("no certificate")}))
        .await;
    let words = ["Invalid", "spec.caBundle", "PEM"];
    until(&ground.members().await, "west", "Accepted", "False", &words).await;
    ground.hub.stop().await.unwrap();
    ground.hub.start_again().await.unwrap();
    ground.hub.ready().await;
    until(&ground.members().await, "west", "Available", "True", &[]).await;
    until(&ground.members().await, "west", "Accepted", "False", &words).await;
    west.assert_untouched().await;
    ground.patch_member("west", &json!({"caBundle": good})).await;
    until(&ground.members().await, "west", "Accepted", "True", &[]).await;
    ground.until_west_is_back().await;
    east.assert_untouched().await;
}

fn shard(yaml: &str) -> ShardingConfig {
    let first = serde_yaml_ng::Deserializer::from_str(yaml).next().unwrap();
    ShardingConfig::deserialize(first).unwrap()
}

/// Applies a ShardingConfig that is never to be accepted.
async fn refused(ground: &Ground, yaml: &str, words: &[&str]) {
    let shards = ground.shards().await;
    let config = shards.create(&PostParams::default(), &shard(yaml)).await.unwrap();
    let name = config.metadata.name.unwrap();
    let said = until(&shards, &name, "Accepted", "False", words).await;
    assert!(said.contains("nothing is in force"), "{said}");
    shards.delete(&name, &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn shards_that_cannot_be_served() {
    let ground = alone().await;
    let east = pulses(&ground).await;
    let ghost = federated("ghost", "east", &[("north", &["team-x"])]);
    refused(
        &ground,
        &ghost,
        &["UnknownCluster", "spec.clusters[0].name", "north", "portolanctl"],
    )
    .await;
    let greedy = federated("greedy", "east", &[("east", &["team-x", "team-a"])]);
    refused(
        &ground,
        &greedy,
        &["Overlap", "east/team-a", "operators/alpha", "spec.clusters"],
    )
    .await;
    let odd = federated("odd", "east", &[("east", &["team-x"])]);
    let contradiction = "\n    matchExpressions: [{key: shard, operator: NotIn, values: [odd]}]";
    let never = odd.replace("shard: odd", &format!("shard: odd{contradiction}"));
    refused(&ground, &never, &["Invalid", "spec.selector", "contradict"]).await;
    // What the schema can tell is not even admitted.
    let unreadable = shard(&odd.replace("shard: odd", "shard: 'no label value!'"));
    let error = ground
        .shards()
        .await
        .create(&PostParams::default(), &unreadable)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("spec.selector.matchLabels"), "{error}");
    let root = |rest: &str| {
        let root = format!("  explicitView: Allow\n  root: {{prefix: early, targetStatefulSet: early, {rest}}}");
        let shard = federated("early", "east", &[("east", &["team-x"])]);
        shard.replace("  explicitView: Allow", &root)
    };
    let nowhere = root("auto: {shardingSize: 1, everyShardReplicas: 1}, canary: {replicas: 1, inShardHash: ['32']}");
    refused(
        &ground,
        &nowhere,
        &["Invalid", "spec.root.canary.inShardHash[0]", "no bucket 32"],
    )
    .await;
    until(&ground.shards().await, "alpha", "Disjoint", "True", &[]).await;
    east.assert_untouched().await;
}

/// The good spec stays in force, also over a restart of the hub and one of the router.
#[tokio::test]
async fn a_bad_edit_of_a_good_shard() {
    let mut ground = alone().await;
    let ground = &mut *ground;
    let door = ground.world.merged_door("alpha").await.unwrap();
    let (east, west) = (pulses(ground).await, Pulse::start(door.clone(), WEST));
    let good =
        serde_json::to_value(ground.shards().await.get("alpha").await.unwrap().spec).unwrap()["clusters"].clone();
    patch(
        &ground.shards().await,
        "alpha",
        &json!({"clusters": [{"name": "north", "namespaces": ["team-a"]}]}),
    )
    .await;
    let words = [
        "UnknownCluster",
        "spec.clusters[0].name",
        "north",
        "last accepted spec stays in force",
    ];
    until(&ground.shards().await, "alpha", "Accepted", "False", &words).await;
    for _ in 0..2 {
        ground.hub.stop().await.unwrap();
        ground.hub.start_again().await.unwrap();
        ground.hub.ready().await;
        until(&ground.members().await, "west", "Available", "True", &[]).await;
        until(&ground.shards().await, "alpha", "Accepted", "False", &words).await;
    }
    east.assert_untouched().await;
    west.assert_untouched().await;
    ground.router.stop().await.unwrap();
    ground.router.start_again().await.unwrap();
    ground.router.ready().await;
    for path in [EAST, WEST] {
        served(&door.get(path, &[]).await.unwrap()).unwrap();
    }
    patch(&ground.shards().await, "alpha", &json!({"clusters": good})).await;
    until(&ground.shards().await, "alpha", "Accepted", "True", &[]).await;
    until(&ground.shards().await, "alpha", "Distributed", "True", &[]).await;
}
