//! The control plane goes, the traffic stays.

use portolan_testbed::eventually;
use portolan_tests::programs::admin_get;
use serde_json::{Value, json};

use crate::pulse::Pulse;
use crate::watcher::{Watcher, make};
use crate::{EAST, Ground, WEST, alone, ground, patch, served, until};

async fn knows_the_hub(ground: &Ground) -> bool {
    let page = admin_get(ground.router.admin(), "/configz").await.unwrap();
    let page: Value = serde_json::from_str(&page).unwrap();
    page["hubConnected"] == true
}

/// Everything a caller and a person can do at once.
async fn assert_serves(ground: &Ground) {
    let merged = ground.world.merged_door("alpha").await.unwrap();
    for path in [EAST, WEST] {
        served(&merged.get(path, &[]).await.unwrap()).unwrap();
    }
    for member in ["east", "west"] {
        let person = ground.world.explicit_door(member).await.unwrap();
        served(&person.get("/api/v1/nodes", &[]).await.unwrap()).unwrap();
    }
    let mut watch = Watcher::start(&merged, "team-b").await.unwrap();
    watch.sees("where").await;
}

#[tokio::test]
async fn hub() {
    let mut ground = alone().await;
    let ground = &mut *ground;
    let door = ground.world.merged_door("alpha").await.unwrap();
    assert_serves(ground).await;
    let (east, west) = (Pulse::start(door.clone(), EAST), Pulse::start(door.clone(), WEST));
    let mut watch = Watcher::start(&door, "team-b").await.unwrap();

    assert_eq!(ground.hub.stop().await.unwrap(), 0);
    eventually("the router notices", || async { !knows_the_hub(ground).await }).await;
    assert_serves(ground).await;
    ground.hub.start_again().await.unwrap();
    eventually("the router is back at the hub", || async {
        knows_the_hub(ground).await
    })
    .await;
    ground.hub.kill().await.unwrap();
    eventually("the router notices again", || async { !knows_the_hub(ground).await }).await;
    make(&ground.world, "west", "team-b", "hub-away").await;
    watch.sees("hub-away").await;
    // Over a stop, a start and a kill of the hub nobody was refused or made to wait.
    east.assert_untouched().await;
    west.assert_untouched().await;

    // A restart without the hub: from the last good state.
    assert_eq!(ground.router.stop().await.unwrap(), 0);
    ground.router.start_again().await.unwrap();
    ground.router.ready().await;
    assert_serves(ground).await;
    assert!(!knows_the_hub(ground).await);

    // The hub comes back and does not hear of the callers: not to know them is not to have none.
    let mut agent = ground.agent_east.lock().await;
    agent.kill().await.unwrap();
    ground.hub.start_again().await.unwrap();
    eventually("the router is back at the hub", || async {
        knows_the_hub(ground).await
    })
    .await;
    let shards = ground.shards().await;
    until(&shards, "alpha", "Distributed", "Unknown", &["WaitingForAgent", "east"]).await;
    assert_serves(ground).await;
    agent.start_again().await.unwrap();
    until(&shards, "alpha", "Distributed", "True", &[]).await;
    drop(agent);
    resumes(ground).await;
}

/// The hub hears the agents, judges, and what it decides reaches the router.
async fn resumes(ground: &Ground) {
    for member in ["east", "west"] {
        until(&ground.members().await, member, "Available", "True", &[]).await;
    }
    ground.world.namespace("west", "team-c").await.unwrap();
    let clusters = |west: &[&str]| json!({"clusters": [{"name": "east", "namespaces": ["team-a"]}, {"name": "west", "namespaces": west}]});
    let door = ground.world.merged_door("alpha").await.unwrap();
    let new = "/api/v1/namespaces/team-c/configmaps";
    eventually("the hub has heard of it, and it is another's", || async {
        door.get(new, &[]).await.unwrap().status == 403
    })
    .await;
    patch(&ground.shards().await, "alpha", &clusters(&["team-b", "team-c"])).await;
    until(&ground.shards().await, "alpha", "Distributed", "True", &[]).await;
    eventually("the new namespace is served", || async {
        served(&door.get(new, &[]).await?)
    })
    .await;
    patch(&ground.shards().await, "alpha", &clusters(&["team-b"])).await;
    // Reads go on until every router that may have served it is known to have let go; writes end now.
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "x-"}});
    eventually("nothing is written there any more", || async {
        let answer = door.post(new, &object).await.unwrap();
        answer.expect_status(403, &["team-c"])
    })
    .await;
}

#[tokio::test]
async fn agent() {
    let ground = ground().await.read().await;
    let mut agent = ground.agent_east.lock().await;
    let door = ground.world.merged_door("alpha").await.unwrap();
    let pulse = Pulse::start(door.clone(), EAST);
    agent.kill().await.unwrap();
    let said = until(
        &ground.members().await,
        "east",
        "Available",
        "Unknown",
        &["HeartbeatLost"],
    )
    .await;
    assert!(
        said.contains("portolan-system") && said.contains("routers go on"),
        "{said}"
    );
    served(&door.get(EAST, &[]).await.unwrap()).unwrap();
    agent.start_again().await.unwrap();
    until(&ground.members().await, "east", "Available", "True", &[]).await;
    pulse.assert_untouched().await;
}
