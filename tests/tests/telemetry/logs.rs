//! Log lines: one JSON object each, or text for people; one access line for every request.

use portolan_testbed::eventually;
use serde_json::Value;

use crate::{PROGRAMS, WEST, ground};

#[tokio::test]
async fn every_line_is_json() {
    let ground = ground().await.read().await;
    for program in PROGRAMS {
        let log = ground.world.fleet.log(program).unwrap();
        assert!(log.lines().count() > 3, "{program}: {log}");
        // The line being written may be half of one.
        let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
        // The router's may be text for people, from the test that asks for it.
        let text = |line: &str| program == "router" && line.starts_with("20");
        for line in whole.lines().filter(|line| !text(line)) {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{program}: {error}: {line}"));
            for field in ["timestamp", "level", "message", "target"] {
                assert!(
                    line[field].as_str().is_some_and(|text| !text.is_empty()),
                    "{program}: no {field} in {line}"
                );
            }
        }
    }
}

#[tokio::test]
async fn every_request_has_one_line() {
    let ground = ground().await.read().await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let door = ground.world.merged_door("alpha").await.unwrap();
    let path = format!("{WEST}?timeoutSeconds=7");
    assert_eq!(door.get(&path, &[("traceparent", &parent)]).await.unwrap().status, 200);
    let line = eventually("the request is logged", || async {
        let log = ground.router.log().unwrap();
        let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let mut mine = lines
            .into_iter()
            .filter(|line| line["target"] == "access" && line["trace"] == trace);
        mine.next()
    })
    .await;
    for (field, value) in [
        ("method", "GET"),
        ("path", WEST),
        ("caller", "system:serviceaccount:operators:portolan-dev-alpha"),
        ("shard", "operators/alpha"),
        ("verb", "get"),
        ("cluster", "west"),
        ("ended", "complete"),
    ] {
        assert_eq!(line[field], value, "{line}");
    }
    assert_eq!(line["status"], 200, "{line}");
    assert!(
        line["milliseconds"].is_u64() && line["bytes"].as_u64().is_some_and(|bytes| bytes > 0),
        "{line}"
    );
}

#[tokio::test]
async fn text_for_people() {
    let mut ground = ground().await.write().await;
    ground.router.stop().await.unwrap();
    let before = ground.router.log().unwrap().len();
    ground.router.start_with(&[("--log-format", "text")]).await.unwrap();
    ground.router.ready().await;
    let log = ground.router.log().unwrap();
    let text = &log[before..];
    assert!(
        text.lines()
            .any(|line| line.contains("INFO") && line.contains("portolan-router starts")),
        "{text}"
    );
    assert!(!text.lines().any(|line| line.starts_with('{')), "{text}");
    ground.router.stop().await.unwrap();
    ground.router.start_again().await.unwrap();
    ground.until_router_is_back().await;
}
