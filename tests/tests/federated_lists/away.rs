//! A member is away: lists wait for it and say so, or begin without it and say so. None shows its objects as gone.

use portolan_testbed::eventually;
use serde_json::json;

use crate::{EACH, MAPS, MEMBERS, door, list, objects, truth, version, world};

#[tokio::test]
async fn lists_wait_or_begin_without_it() {
    let alone = MEMBERS.write().await;
    let world = world().await;
    let (holds, starts) = (door().await, world.merged_door("starts").await.unwrap());
    let own = |member: &str| if member == "east" { "ls-1/" } else { "lt-1/" };
    let (held, started) = (list(&holds, "").await, list(&starts, "").await);
    assert_eq!(objects(&started.json()).len(), 2 * (EACH + 1));
    let (held, started) = (version(&held), version(&started));

    world.cluster("west").kill().await.unwrap();
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

    for query in ["", "resourceVersion=0", "limit=500"] {
        let answer = list(&starts, query).await;
        assert_eq!(answer.status, 200, "{query}: {:?}", answer.body);
        assert!(answer.header("warning").contains("west"), "{:?}", answer.headers);
        let shown = objects(&answer.json());
        assert!(
            shown.len() == EACH + 1 && shown.keys().all(|key| key.starts_with(own("east"))),
            "{:?}",
            shown.keys()
        );
        version(&answer);
    }
    // Who has seen west's objects is never told less.
    for query in [format!("resourceVersion={started}"), "resourceVersion=7".to_owned()] {
        list(&starts, &query).await.expect_status(429, &["west"]).unwrap();
    }

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
