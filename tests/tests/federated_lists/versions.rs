//! Every combination of version, match and limit ends as at an API server that has all the objects.

use portolan_tests::door::Door;
use serde_json::json;

use crate::{MEMBERS, door, list, objects, truth, version, world};

#[tokio::test]
async fn what_an_api_server_refuses_is_refused_in_its_words() {
    let _shared = MEMBERS.read().await;
    let (merged, east) = (door().await, world().await.direct_door("east").await.unwrap());
    for query in [
        "resourceVersion=abc",
        "resourceVersion=-1",
        "resourceVersion=1.5",
        "resourceVersion=18446744073709551616",
        "resourceVersion=abc&limit=3",
        "resourceVersion=abc&resourceVersionMatch=Exact",
        "resourceVersionMatch=Exact",
        "resourceVersionMatch=NotOlderThan",
        "resourceVersionMatch=Sometimes",
        "resourceVersion=0&resourceVersionMatch=Exact",
        "resourceVersion=0&resourceVersionMatch=Sometimes",
        "resourceVersion=7&resourceVersionMatch=Sometimes",
        "sendInitialEvents=true",
        "sendInitialEvents",
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
        "limit=9223372036854775808",
        "limit=-9223372036854775809",
        "limit=abc",
        "limit=",
        "limit=1.5",
    ] {
        let (ours, theirs) = (list(&merged, query).await, list(&east, query).await);
        assert!(theirs.status >= 400, "{query} is no bad query: {:?}", theirs.body);
        assert_eq!((ours.status, ours.json()), (theirs.status, theirs.json()), "{query}");
    }
}

#[tokio::test]
async fn what_an_api_server_takes_is_the_whole() {
    let _shared = MEMBERS.read().await;
    let door = door().await;
    let all = truth("", "application/json").await;
    let cursor = version(&list(&door, "").await);
    for query in [
        "limit=0",
        "limit=-1",
        "limit=9223372036854775807",
        "limit=500&resourceVersion=0",
        "limit=2&resourceVersion=0",
        "resourceVersion=",
        "resourceVersion=0&resourceVersionMatch=NotOlderThan",
        "resourceVersion=1",
        "resourceVersion=18446744073709551615",
        "resourceVersion=1&resourceVersionMatch=NotOlderThan",
        "resourceVersion=111111111111111111111111",
        &format!("resourceVersion={cursor}"),
        &format!("resourceVersion={cursor}&resourceVersionMatch=NotOlderThan"),
        &format!("resourceVersion={cursor}&resourceVersionMatch=Exact"),
        "timeoutSeconds=30&pretty=true",
    ] {
        let answer = list(&door, query).await;
        assert_eq!(answer.status, 200, "{query}: {:?}", answer.body);
        if query.starts_with("limit=9") {
            continue;
        }
        assert_eq!(objects(&answer.json()), all, "{query}");
        version(&answer);
    }
    for query in [
        "resourceVersion=1&resourceVersionMatch=Exact",
        "resourceVersion=111111111111111111111111&resourceVersionMatch=Exact",
        "resourceVersion=1&resourceVersionMatch=Exact&limit=3",
    ] {
        let answer = list(&door, query).await;
        answer.expect_status(410, &["too old"]).unwrap();
        assert_eq!(answer.json()["reason"], "Expired");
    }
}

async fn names(door: &Door, query: &str) -> Vec<String> {
    let path = format!("/apis/apps/v1/deployments?{query}");
    let answer = door.get(&path, &[]).await.unwrap();
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    objects(&answer.json()).into_keys().collect()
}

#[tokio::test]
async fn exactly_is_exactly_on_every_member() {
    let _shared = MEMBERS.read().await;
    let world = world().await;
    let door = door().await;
    let make = async |name: &str| {
        for (member, namespace) in [("east", "la-1"), ("west", "lb-1")] {
            let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
                "replicas": 0, "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}}});
            let direct = world.direct_door(member).await.unwrap();
            let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
            assert_eq!(direct.post(&path, &object).await.unwrap().status, 201);
        }
    };
    make("before").await;
    let before = ["la-1/before", "lb-1/before"];
    portolan_testbed::eventually("both are shown", || async {
        (names(&door, "").await == before).then_some(())
    })
    .await;
    let cursor = version(&door.get("/apis/apps/v1/deployments", &[]).await.unwrap());
    make("later").await;
    let at = format!("resourceVersion={cursor}");
    assert_eq!(names(&door, &format!("{at}&resourceVersionMatch=Exact")).await, before);
    // With a limit and no match: exactly that version, as API servers have it, of the member as well with which the page goes on.
    assert_eq!(names(&door, &format!("{at}&limit=5")).await, before);
    assert_eq!(names(&door, "").await.len(), 4);
}
