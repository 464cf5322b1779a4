//! West is cut off, swallowed, frozen, killed: its requests fail as the design says, east's do not notice, and west comes
//! back by itself.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Method;
use portolan_testbed::{Fault, eventually};
use portolan_tests::door::{Answer, Door, json};
use portolan_tests::world::AUDIENCE;
use serde_json::{Value, json};

use crate::pulse::Pulse;
use crate::watcher::{Watcher, make};
use crate::{EAST, Ground, WEST, alone, until, with_west};

const WEST_MAPS: &str = "/api/v1/namespaces/team-b/configmaps";
const WEST_WATCH: &str = "/api/v1/namespaces/team-b/configmaps?watch=true&resourceVersion=0";

/// Requests on east that go on while something happens to west.
pub(crate) struct Neighbour {
    pulse: Pulse,
    watch: Watcher,
}

impl Neighbour {
    pub(crate) async fn start(door: &Door) -> Self {
        Self {
            watch: Watcher::start(door, "team-a").await.unwrap(),
            pulse: Pulse::start(door.clone(), EAST),
        }
    }

    /// Nothing failed, nothing was slow, and the watch still sees what happens.
    pub(crate) async fn assert_untouched(mut self, ground: &Ground, marker: &str) {
        make(&ground.world, "east", "team-a", marker).await;
        self.watch.sees(marker).await;
        self.pulse.assert_untouched().await;
    }
}

/// A Status that names west; `Retry-After` only for collections, see `Fault::retry_after_seconds`.
fn assert_blames_west(answer: &Answer, code: u16, retry: bool) {
    answer.expect_status(code, &["west"]).unwrap();
    let body = answer.json();
    let cause = json!({"reason": "MemberCluster", "message": "west"});
    assert!(
        body["details"]["causes"]
            .as_array()
            .is_some_and(|causes| causes.contains(&cause)),
        "{body}"
    );
    assert_eq!(!answer.header("retry-after").is_empty(), retry, "{body}");
    assert_eq!(body["details"]["retryAfterSeconds"] != Value::Null, retry, "{body}");
}

/// Asks for west's ConfigMap until the breaker is open, and looks at everything that tells so.
async fn until_open(ground: &Ground, door: &Door) {
    eventually("west's breaker is open", || async {
        let _ = door.get(WEST, &[]).await;
        ground.breaker_of_west().await == "open"
    })
    .await;
    eventually("an open breaker answers at once", || async {
        let answer = door.get(WEST, &[]).await.unwrap();
        (answer.message().contains("breaker")).then(|| assert_blames_west(&answer, 503, false))
    })
    .await;
    let members = ground.members().await;
    let told = eventually("the hub knows of the open breaker", || async {
        // Half-open for the moment of a probe: both are told.
        let _ = door.get(WEST, &[]).await;
        let status = members.get("west").await.unwrap().status.unwrap();
        let mut unary = status.breakers.into_iter();
        unary.find(|breaker| breaker.traffic_class == portolan_crds::TrafficClass::Unary)
    })
    .await;
    assert_eq!(told.router, "gateway");
    assert!(!told.reason.is_empty() && told.since.is_some(), "{told:?}");
    until(&members, "west", "Available", "False", &[]).await;
    let line = ground.told_of("west").await;
    assert!(line.contains("Unary Open") || line.contains("Unary HalfOpen"), "{line}");
    assert!(ground.told_of("east").await.trim_end().ends_with("closed"));
}

/// A first watch or list is told 429, so that clients keep what they have and come back.
async fn assert_collections_wait(door: &Door) {
    for path in [WEST_MAPS, WEST_WATCH] {
        let what = format!("{path} is told to wait");
        let answer = eventually(&what, || async {
            let answer = door.get(path, &[]).await.unwrap();
            (answer.status == 429).then_some(answer)
        })
        .await;
        assert_blames_west(&answer, 429, true);
    }
}

#[tokio::test]
async fn reset() {
    let (_mine, ground) = with_west().await;
    let door = ground.world.merged_door("alpha").await.unwrap();
    let neighbour = Neighbour::start(&door).await;
    let mut of_west = Watcher::start(&door, "team-b").await.unwrap();
    of_west.sees("where").await;

    ground.world.cluster("west").fault(Fault::Reset).await.unwrap();
    let answer = door.get(WEST, &[]).await.unwrap();
    assert_blames_west(&answer, 503, false);
    let write = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "never"}});
    assert_blames_west(&door.post(WEST_MAPS, &write).await.unwrap(), 503, false);
    until_open(&ground, &door).await;
    assert_collections_wait(&door).await;

    ground.world.cluster("west").fault(Fault::None).await.unwrap();
    ground.until_west_is_back().await;
    // The same stream: what watches west waits for it, and does not list anew.
    make(&ground.world, "west", "team-b", "after-reset").await;
    of_west.sees("after-reset").await;
    neighbour.assert_untouched(&ground, "reset").await;
}

#[tokio::test]
async fn blackholed() {
    let (_mine, ground) = with_west().await;
    let door = ground.world.merged_door("alpha").await.unwrap();
    let neighbour = Neighbour::start(&door).await;
    crate::served(&door.get(WEST, &[]).await.unwrap()).unwrap();

    ground.world.cluster("west").fault(Fault::Blackhole).await.unwrap();
    let write = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "lost"}});
    let (read, write) = tokio::join!(door.get(WEST, &[]), door.post(WEST_MAPS, &write));
    // Both left on a connection that was open. Whether the write has run nobody knows: not answered in time, or lost with
    // a connection whose pings are not answered, whichever is first.
    for answer in [read.unwrap(), write.unwrap()] {
        let lost = answer.message().contains("may have run");
        assert_blames_west(&answer, if lost { 503 } else { 504 }, false);
    }
    until_open(&ground, &door).await;
    assert_collections_wait(&door).await;

    ground.world.cluster("west").fault(Fault::None).await.unwrap();
    ground.until_west_is_back().await;
    assert_eq!(door.get(&format!("{WEST_MAPS}/lost"), &[]).await.unwrap().status, 404);
    neighbour.assert_untouched(&ground, "blackholed").await;
}

#[tokio::test]
async fn frozen() {
    let (_mine, ground) = with_west().await;
    let door = ground.world.merged_door("alpha").await.unwrap();
    let neighbour = Neighbour::start(&door).await;
    crate::served(&door.get(WEST, &[]).await.unwrap()).unwrap();

    ground.world.cluster("west").freeze().await.unwrap();
    assert_blames_west(&door.get(WEST, &[]).await.unwrap(), 504, false);
    until_open(&ground, &door).await;

    ground.world.cluster("west").thaw().await.unwrap();
    ground.until_west_is_back().await;
    neighbour.assert_untouched(&ground, "frozen").await;
}

#[tokio::test]
async fn killed_and_restarted() {
    let (_mine, ground) = with_west().await;
    let door = ground.world.merged_door("alpha").await.unwrap();
    let neighbour = Neighbour::start(&door).await;
    let mut of_west = Watcher::start(&door, "team-b").await.unwrap();
    of_west.sees("where").await;

    ground.world.cluster("west").kill().await.unwrap();
    assert_blames_west(&door.get(WEST, &[]).await.unwrap(), 503, false);
    until_open(&ground, &door).await;

    ground.world.cluster("west").restart().await.unwrap();
    ground.until_west_is_back().await;
    make(&ground.world, "west", "team-b", "after-kill").await;
    of_west.sees("after-kill").await;
    neighbour.assert_untouched(&ground, "killed").await;
}

/// Its etcd hangs under a live API server: a write is sent once and no more, and its open watch lives on.
#[tokio::test]
async fn grey() {
    let (_mine, ground) = with_west().await;
    let door = ground.world.merged_door("alpha").await.unwrap();
    let neighbour = Neighbour::start(&door).await;
    let mut of_west = Watcher::start(&door, "team-b").await.unwrap();
    of_west.sees("where").await;

    ground.world.cluster("west").freeze_etcd().await.unwrap();
    let write = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "grey-"}});
    let line = door.open().await.unwrap();
    let answer = line.ask(json(Method::POST, WEST_MAPS, &write).unwrap()).await.unwrap();
    assert_blames_west(&answer, 504, false);

    ground.world.cluster("west").thaw_etcd().await.unwrap();
    ground.until_west_is_back().await;
    make(&ground.world, "west", "team-b", "after-grey").await;
    of_west.sees("after-grey").await;
    let direct = ground.world.direct_door("west").await.unwrap();
    let names = direct.get(WEST_MAPS, &[]).await.unwrap().json();
    let names = names["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].clone());
    let grey: Vec<Value> = names
        .filter(|name| name.as_str().is_some_and(|name| name.starts_with("grey-")))
        .collect();
    assert!(grey.len() <= 1, "the write was sent more than once: {grey:?}");
    neighbour.assert_untouched(&ground, "grey").await;
}

/// Another token of the caller's.
async fn unused_token(ground: &Ground) -> String {
    let known = ground.world.fleet.merged_token("alpha").unwrap();
    let claims = URL_SAFE_NO_PAD.decode(known.split('.').nth(1).unwrap()).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    let pod = &claims["kubernetes.io"]["pod"];
    let bound = Some((pod["name"].as_str().unwrap(), pod["uid"].as_str().unwrap()));
    let east = ground.world.cluster("east");
    east.issue_token("operators", "portolan-dev-alpha", &[AUDIENCE], bound)
        .await
        .unwrap()
}

/// Nobody else can say whether a token of east's is still good. What was reviewed a moment ago goes on, then its callers
/// are told whom to look at; people, whose certificates need no review, are not concerned.
#[tokio::test]
async fn the_callers_home_is_away() {
    let ground = alone().await;
    let person = ground.world.explicit_door("west").await.unwrap();
    let east = ground.world.cluster("east");
    // A token that was used before may be due for its next review.
    let token = unused_token(&ground).await;
    let door = ground.world.token_door(Some(&token)).await.unwrap();
    crate::served(&door.get(WEST, &[]).await.unwrap()).unwrap();
    east.fault(Fault::Reset).await.unwrap();
    crate::served(&door.get(WEST, &[]).await.unwrap()).unwrap();
    let answer = eventually("the review of the token is over", || async {
        let answer = door.get(WEST, &[]).await.unwrap();
        (answer.status != 200).then_some(answer)
    })
    .await;
    answer.expect_status(503, &["east"]).unwrap();
    crate::served(&person.get("/api/v1/nodes", &[]).await.unwrap()).unwrap();
    east.fault(Fault::None).await.unwrap();
    for path in [EAST, WEST] {
        eventually("its callers are served again", || async {
            crate::served(&door.get(path, &[]).await?)
        })
        .await;
    }
    until(&ground.members().await, "east", "Available", "True", &[]).await;
}
