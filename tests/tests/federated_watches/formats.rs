//! Every format that clients ask watches in, over both members.

use crate::stream::Watch;
use crate::{MEMBERS, door, make, position};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const AS_METADATA: &str = "as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

#[tokio::test]
async fn json() {
    let _calm = MEMBERS.read().await;
    let door = door("steady").await;
    let mut watch = Watch::json(&door, &format!("resourceVersion={}", position(&door).await)).await;
    assert_eq!(watch.headers["content-type"], "application/json");
    make("steady", "east", "one").await;
    assert_eq!(watch.sees("one").await, "ADDED");
    let first = watch.bookmark().await;
    make("steady", "west", "two").await;
    assert_eq!(watch.sees("two").await, "ADDED");
    let second = watch.bookmark().await;
    for cursor in [&first, &second] {
        assert!(
            cursor.len() >= 24 && cursor.bytes().all(|byte| byte.is_ascii_digit()),
            "{cursor}"
        );
    }
    assert!((second.len(), &second) > (first.len(), &first));
    // From in between: what came after, once, and nothing else.
    let mut resumed = Watch::json(&door, &format!("resourceVersion={first}")).await;
    assert_eq!(resumed.sees("two").await, "ADDED");
    assert_eq!(resumed.seen, ["ADDED steady-w/two"]);
    make("steady", "east", "three").await;
    resumed.sees("three").await;
    assert_eq!(resumed.count("ADDED"), 2, "{:?}", resumed.seen);
}

#[tokio::test]
async fn protobuf_tables_and_metadata() {
    let _calm = MEMBERS.read().await;
    let door = door("formats").await;
    let query = format!("allowWatchBookmarks=true&resourceVersion={}", position(&door).await);
    let mut protobuf = Watch::open(&door, &query, &format!("{PROTOBUF};stream=watch,{PROTOBUF}")).await;
    let mut metadata = Watch::open(
        &door,
        &query,
        &format!("{PROTOBUF};{AS_METADATA},application/json;{AS_METADATA}"),
    )
    .await;
    let mut metadata_json = Watch::open(&door, &query, &format!("application/json;{AS_METADATA}")).await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let mut table = Watch::open(&door, &query, table).await;
    for watch in [&protobuf, &metadata] {
        let kind = watch.headers["content-type"].to_str().unwrap();
        assert!(kind.starts_with(PROTOBUF), "{kind}");
    }
    for (member, name) in [("east", "easts-own"), ("west", "wests-own")] {
        make("formats", member, name).await;
        for watch in [&mut protobuf, &mut metadata] {
            let event = watch.frame().await;
            assert!(
                holds(&event, "ADDED") && holds(&event, name) && holds(&event, "k8s\0"),
                "{event:?}"
            );
            let bookmark = watch.frame().await;
            assert!(holds(&bookmark, "BOOKMARK"), "{bookmark:?}");
        }
        metadata_json.sees(name).await;
        let row = table.next().await.unwrap();
        assert_eq!(
            (&row["type"], &row["object"]["kind"]),
            (&"ADDED".into(), &"Table".into()),
            "{row}"
        );
        assert_eq!(row["object"]["rows"][0]["object"]["metadata"]["name"], name, "{row}");
        assert!(
            row["object"]["rows"][0]["cells"]
                .as_array()
                .unwrap()
                .contains(&member.into()),
            "{row}"
        );
        table.bookmark().await;
    }
}

#[tokio::test]
async fn watch_lists() {
    let _calm = MEMBERS.read().await;
    let door = door("lists").await;
    make("lists", "east", "before-e").await;
    make("lists", "west", "before-w").await;
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=";
    let mut watch = Watch::json(&door, query).await;
    let mut initial = Vec::new();
    let marker = loop {
        let event = watch.next().await.unwrap();
        match event["type"].as_str().unwrap() {
            "ADDED" => initial.push(event["object"]["metadata"]["name"].as_str().unwrap().to_owned()),
            "BOOKMARK" => break event,
            other => panic!("{other} before the marker: {event}"),
        }
    };
    assert_eq!(
        marker["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true",
        "{marker}"
    );
    for name in ["before-e", "before-w"] {
        assert!(initial.iter().any(|seen| seen == name), "{initial:?}");
    }
    let version = marker["object"]["metadata"]["resourceVersion"].as_str().unwrap();
    assert!(version.len() >= 24, "{version}");
    make("lists", "west", "after").await;
    assert_eq!(watch.sees("after").await, "ADDED");
    let later = watch.next().await.unwrap();
    assert_eq!(
        later["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        serde_json::Value::Null
    );
    // As operators ask on their own namespace, and kubectl on one name.
    let one = "fieldSelector=metadata.name%3Dbefore-w&resourceVersion=0";
    assert_eq!(Watch::json(&door, one).await.sees("before-w").await, "ADDED");
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
