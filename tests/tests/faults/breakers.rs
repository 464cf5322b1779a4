//! How soon a member's breakers open and close, with the thresholds that members have by default.

use std::time::{Duration, Instant};

use http::Method;
use portolan_testbed::Fault;
use portolan_tests::door::{Door, request};
use portolan_tests::programs::admin_get;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::member::Neighbour;
use crate::{Ground, WEST, until, with_west};

const WEST_MAPS: &str = "/api/v1/namespaces/team-b/configmaps";
const PAUSE: Duration = Duration::from_millis(50);
/// Of the member's recovery.
const BACK_WITHIN: Duration = Duration::from_secs(2);
/// Other suites have the machine as well: five times as long is no fault. What it was is printed. As long as a breaker is open for
/// the first time, so why it closed is asked, too.
const SLACK: u32 = 5;

/// Callers of west that ask again and again, each patient.
struct Callers {
    door: Door,
    asking: JoinSet<()>,
}

impl Callers {
    fn ask(&mut self) {
        for path in [WEST, WEST_MAPS] {
            let door = self.door.clone();
            self.asking.spawn(async move {
                let _ = door.get(path, &[]).await;
            });
        }
    }
}

/// West's breakers: state and the number of transitions by reason, by class.
async fn breakers(ground: &Ground) -> Vec<Value> {
    let told = admin_get(ground.router.admin(), "/breakers").await.unwrap();
    let mut told: Vec<Value> = serde_json::from_str(&told).unwrap();
    told.retain(|breaker| breaker["cluster"] == "west");
    told
}

/// How often breakers for single requests and for lists came into another state for this reason.
async fn turned(ground: &Ground, reason: &str) -> [u64; 2] {
    let breakers = breakers(ground).await;
    ["unary", "list"].map(|class| {
        let of_class = breakers.iter().find(|breaker| breaker["class"] == class).unwrap();
        of_class["transitionsByReason"][reason].as_u64().unwrap_or_default()
    })
}

async fn are_open(ground: &Ground) -> bool {
    let breakers = breakers(ground).await;
    let open = |class: &str| {
        let mut of_class = breakers.iter().filter(|breaker| breaker["class"] == class);
        of_class.next().is_some_and(|breaker| breaker["state"] == "open")
    };
    open("unary") && open("list")
}

/// The thresholds of west; `Null`: those of every member.
async fn thresholds(ground: &Ground, breaker: &Value) {
    ground.patch_member("west", &json!({ "breaker": breaker })).await;
    until(&ground.members().await, "west", "Accepted", "True", &[]).await;
}

/// Asks for one object and for all until west answers both.
async fn is_back(door: &Door, began: Instant) {
    for path in [WEST, WEST_MAPS] {
        loop {
            let answer = door.get(path, &[]).await.unwrap();
            let waited = began.elapsed();
            assert!(
                waited < BACK_WITHIN * SLACK,
                "{path} after {waited:?}: {} {}",
                answer.status,
                answer.message()
            );
            if answer.status == 200 {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Says how long both took.
async fn opens_and_closes(fault: Fault, within: Duration) -> String {
    let (_mine, ground) = with_west().await;
    let theirs = json!({"consecutiveFailures": 3, "openFor": "1s", "maxOpenFor": "2s"});
    thresholds(&ground, &Value::Null).await;
    let door = ground.world.merged_door("alpha").await.unwrap();
    let neighbour = Neighbour::start(&door).await;
    for path in [WEST, WEST_MAPS] {
        crate::served(&door.get(path, &[]).await.unwrap()).unwrap();
    }

    let ready = turned(&ground, "readyz").await;
    ground.world.cluster("west").fault(fault).await.unwrap();
    let began = Instant::now();
    let mut callers = Callers {
        door: door.clone(),
        asking: JoinSet::new(),
    };
    let mut rounds = 0_u32;
    while !are_open(&ground).await {
        assert!(
            began.elapsed() < within * SLACK,
            "after {:?}: {:?}",
            began.elapsed(),
            breakers(&ground).await
        );
        // Some in a second: few enough that it takes long to see many fail.
        if rounds.is_multiple_of(8) && rounds < 40 {
            callers.ask();
        }
        rounds += 1;
        tokio::time::sleep(PAUSE).await;
    }
    let opened = began.elapsed();
    ground.world.cluster("west").fault(Fault::None).await.unwrap();
    let began = Instant::now();
    is_back(&door, began).await;
    let more = |before: [u64; 2], now: [u64; 2]| [now[0] > before[0], now[1] > before[1]];
    let asked = more(ready, turned(&ground, "readyz").await);
    assert_eq!(
        asked,
        [true; 2],
        "its open time was waited out: {:?}",
        breakers(&ground).await
    );
    let took = format!("{fault:?}: open after {opened:?}, back after {:?}", began.elapsed());
    let marker = format!("timed-{fault:?}").to_lowercase();
    neighbour.assert_untouched(&ground, &marker).await;
    drop(callers);
    thresholds(&ground, &theirs).await;
    took
}

#[tokio::test]
async fn a_blackholed_member_is_soon_open_and_soon_back() {
    println!("{}", opens_and_closes(Fault::Blackhole, Duration::from_secs(10)).await);
}

#[tokio::test]
async fn a_member_that_resets_is_soon_open_and_soon_back() {
    println!("{}", opens_and_closes(Fault::Reset, Duration::from_secs(1)).await);
}

/// One request that finds no way tells everybody else, whatever they ask for.
#[tokio::test]
async fn one_request_is_enough_to_look() {
    let (_mine, ground) = with_west().await;
    let theirs = json!({"consecutiveFailures": 3, "openFor": "1s", "maxOpenFor": "2s"});
    thresholds(
        &ground,
        &json!({"consecutiveFailures": 100_000, "minRequests": 1_000_000}),
    )
    .await;
    let door = ground.world.merged_door("alpha").await.unwrap();
    let line = door.open().await.unwrap();
    ground.world.cluster("west").fault(Fault::Reset).await.unwrap();
    let answer = line.ask(request(Method::DELETE, &format!("{WEST_MAPS}/none"), &[], &[]).unwrap());
    assert_eq!(answer.await.unwrap().status, 503);
    portolan_testbed::eventually("all classes are open", || async {
        let breakers = breakers(&ground).await;
        let open = |breaker: &Value| {
            breaker["state"] == "open" && breaker["transitionsByReason"]["unreachable"] != Value::Null
        };
        if breakers.len() == 5 && breakers.iter().all(open) {
            Ok(())
        } else {
            Err(format!("{breakers:?}"))
        }
    })
    .await;
    ground.world.cluster("west").fault(Fault::None).await.unwrap();
    ground.until_west_is_back().await;
    thresholds(&ground, &theirs).await;
}
