//! A member is away: lists wait for it and say so, or begin without it and say so. None shows its objects as gone.

use std::time::Duration;

use portolan_testbed::eventually;
use portolan_tests::door::Door;
use portolan_tests::world::PodSpec;
use serde_json::json;
use tokio::time::Instant;

use crate::{EACH, MAPS, MEMBERS, door, list, objects, truth, version, world};

/// Five seconds for clocks, two until the last answer is told, and what is cut off full seconds.
const SURELY_YOUNGER: Duration = Duration::from_secs(9);

/// As a replica of `starts` whose Pod is created when west has been away for longer than clocks may differ.
async fn younger_than(killed: Instant) -> Door {
    let world = world().await;
    tokio::time::sleep_until(killed + SURELY_YOUNGER).await;
    let pod = PodSpec {
        namespace: "operators",
        name: "starts-young",
        service_account: "portolan-dev-starts",
        labels: json!({"shard": "starts"}),
    };
    let uid = world.pod("east", pod.clone()).await.unwrap();
    let token = world.token("east", &pod, &uid).await.unwrap();
    world.token_door(Some(&token)).await.unwrap()
}

#[tokio::test]
async fn lists_wait_or_begin_without_it() {
    let alone = MEMBERS.write().await;
    let world = world().await;
    let (holds, starts) = (door().await, world.merged_door("starts").await.unwrap());
    let (held, started) = (list(&holds, "").await, list(&starts, "").await);
    assert_eq!(objects(&started.json()).len(), 2 * (EACH + 1));
    let (held, started) = (version(&held), version(&started));

    world.cluster("west").kill().await.unwrap();
    let killed = Instant::now();
    let blames = json!({"reason": "MemberCluster", "message": "west"});
    for query in ["", "limit=3", "resourceVersion=0", &format!("resourceVersion={held}")] {
        let answer = list(&holds, query).await;
        answer.expect_status(429, &["west"]).unwrap();
        assert!(!answer.header("retry-after").is_empty());
        let causes = &answer.json()["details"]["causes"];
        assert!(causes.as_array().unwrap().contains(&blames), "{causes}");
    }
    // What needs east alone goes on.
    let east = holds.get("/api/v1/namespaces/la-1/configmaps", &[]).await.unwrap();
    assert_eq!((east.status, objects(&east.json()).len()), (200, EACH + 1));

    // Whoever may have seen west's objects is never told less, whether it says so or not.
    let versions = [format!("resourceVersion={started}"), "resourceVersion=7".to_owned()];
    for query in [String::new(), "resourceVersion=0".to_owned()].iter().chain(&versions) {
        list(&starts, query).await.expect_status(429, &["west"]).unwrap();
    }
    begins_without_west(&younger_than(killed).await, &versions).await;

    world.cluster("west").restart().await.unwrap();
    for door in [&holds, &starts] {
        eventually("west is back", || async {
            let answer = list(door, "").await;
            let whole = answer.status == 200 && answer.header("warning").is_empty();
            if whole { Ok(()) } else { Err(answer.body) }
        })
        .await;
    }
    assert_eq!(
        objects(&list(&holds, "").await.json()),
        truth("", "application/json").await
    );
    assert_eq!(
        objects(&starts.get(MAPS, &[]).await.unwrap().json()).len(),
        2 * (EACH + 1)
    );
    drop(alone);
}

/// A caller of whose Pod west has never answered lists without west; not where a version says that it has seen more.
async fn begins_without_west(young: &Door, versions: &[String]) {
    for query in ["", "resourceVersion=0", "limit=500"] {
        let answer = eventually("the hub has told of the Pod", || async {
            let answer = list(young, query).await;
            if answer.status == 200 {
                Ok(answer)
            } else {
                Err(answer.body)
            }
        })
        .await;
        assert!(answer.header("warning").contains("west"), "{:?}", answer.headers);
        let shown = objects(&answer.json());
        assert!(
            shown.len() == EACH + 1 && shown.keys().all(|key| key.starts_with("ls-1/")),
            "{:?}",
            shown.keys()
        );
        version(&answer);
    }
    for query in versions {
        list(young, query).await.expect_status(429, &["west"]).unwrap();
    }
}
