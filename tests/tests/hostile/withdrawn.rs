//! A member that the hub's administrator takes back: nothing of it is delivered from then on, and its shard lives on
//! without it, in so many words.

use std::time::Instant;

use kube::api::{Api, Patch, PatchParams};
use portolan_crds::{MemberCluster, ShardingConfig};
use portolan_testbed::eventually;
use portolan_tests::watch::Watch;
use portolan_tests::world::{HUB, World};
use serde_json::json;

use crate::namespaces::make;
use crate::world;

const MAPS: &str = "/api/v1/configmaps";
const GONE: &str = "/api/v1/namespaces/h-gone/configmaps";

async fn accept(world: &World, accept: bool) {
    let members = Api::<MemberCluster>::all(world.cluster(HUB).client().await.unwrap());
    let patch = Patch::Merge(json!({"spec": {"accept": accept}}));
    members.patch("gone", &PatchParams::default(), &patch).await.unwrap();
}

async fn resolved(world: &World) -> String {
    let shards = Api::<ShardingConfig>::namespaced(world.cluster(HUB).client().await.unwrap(), "operators");
    let status = shards.get("delta").await.unwrap().status.unwrap_or_default();
    let mut conditions = status.conditions.into_iter();
    let resolved = conditions.find(|condition| condition.type_ == "NamespacesResolved");
    resolved.map(|condition| condition.message).unwrap_or_default()
}

#[tokio::test]
async fn a_withdrawn_member_is_cut_off_and_its_shard_goes_on() {
    let (world, _) = world().await;
    let (direct, door) = (
        world.direct_door("gone").await.unwrap(),
        world.listed_door("delta", MAPS).await.unwrap(),
    );
    make(&direct, "h-gone", "before").await;
    make(&world.direct_door("east").await.unwrap(), "h-delta", "stays").await;
    let explicit = world.explicit_door("gone").await.unwrap();
    let mut merged = Watch::open(&door, MAPS).await.unwrap();
    let mut within = Watch::open(&door, GONE).await.unwrap();
    let mut raw = Watch::open(&explicit, GONE).await.unwrap();
    for watch in [&mut merged, &mut within, &mut raw] {
        assert_eq!(watch.sees("h-gone/before").await.unwrap(), "ADDED");
    }

    accept(world, false).await;
    let withdrawn = Instant::now();
    assert_eq!(merged.sees("h-gone/before").await.unwrap(), "DELETED");
    while within.next().await.unwrap().is_some() {}
    while raw.next().await.unwrap().is_some() {}
    let took = withdrawn.elapsed();
    println!("a withdrawn member: its watches were cut after {} ms", took.as_millis());
    make(&direct, "h-gone", "after").await;
    let east = world.direct_door("east").await.unwrap();
    make(&east, "h-delta", "goes-on").await;
    merged.sees("h-delta/goes-on").await.unwrap();
    assert!(
        !merged.seen.iter().any(|seen| seen.contains("h-gone/after")),
        "{:?}",
        merged.seen
    );

    let list = door.get(MAPS, &[]).await.unwrap();
    assert_eq!(list.status, 200, "{}", list.message());
    assert!(
        list.header("warning").contains("of member cluster gone") && list.header("warning").contains("withdrawn"),
        "{}",
        list.header("warning")
    );
    let body = String::from_utf8_lossy(&list.body);
    assert!(body.contains("h-delta") && !body.contains("h-gone"), "{body}");
    let one = door.get(GONE, &[]).await.unwrap();
    one.expect_status(403, &["member cluster gone was withdrawn"]).unwrap();
    eventually("the shard says so", || async {
        resolved(world).await.contains("gone was withdrawn").then_some(())
    })
    .await;

    accept(world, true).await;
    assert_eq!(merged.sees("h-gone/after").await.unwrap(), "ADDED");
}
