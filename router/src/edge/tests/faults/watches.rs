//! Faults of watches that one member answers: of the explicit view, where nothing is merged.

use super::*;

const WATCH: &str = "/clusters/east/api/v1/namespaces/east/pods?watch=true";

/// Sends so many events, then a bookmark, and stays.
fn events(count: usize) -> Script {
    script(move |_, mut respond| async move {
        let mut body = respond.send_response(head(200), false).unwrap();
        let events: String = (0..count).map(event).collect();
        let all = format!("{events}{BOOKMARK}");
        body.send_data(all.into(), false).unwrap();
        until_reset(&mut body).await;
    })
}

fn event(number: usize) -> String {
    format!("{{\"type\":\"ADDED\",\"object\":{{\"number\":{number}}}}}\n")
}

const BOOKMARK: &str = "{\"type\":\"BOOKMARK\",\"object\":{}}\n";

fn watch_faults(fault: &Value) -> Value {
    json!({ "watchFault": [fault] })
}

/// What comes of a watch until it ends, breaks, or is still for so long; and how it ended, if it did.
async fn read(answer: Response<Incoming>, still: Duration) -> (String, Option<bool>) {
    let mut body = answer.into_body();
    let mut all = Vec::new();
    let ended = loop {
        match tokio::time::timeout(still, body.frame()).await {
            Err(_) => break None,
            Ok(None) => break Some(true),
            Ok(Some(Err(_))) => break Some(false),
            Ok(Some(Ok(frame))) => all.extend_from_slice(&frame.into_data().unwrap()),
        }
    };
    (String::from_utf8(all).unwrap(), ended)
}

#[tokio::test]
async fn a_watch_is_cut_as_a_connection_that_breaks_at_its_event_or_byte() {
    let (_backend, operators) = operators(events(5)).await;
    let three: String = (0..3).map(event).collect();
    for (after, seen) in [
        (json!({"events": 3}), three.clone()),
        (json!({"bytes": 70}), three[..70].to_owned()),
        (json!({}), String::new()),
        (json!({"events": 1, "bytes": 3}), event(0)),
    ] {
        operators.order(&watch_faults(&json!({"name": "cut", "action": "Drop", "after": after})));
        let answer = operators.get(WATCH).await;
        assert_eq!((answer.status(), marks(&answer)), (StatusCode::OK, Some("ops/fj/cut")));
        assert_eq!(read(answer, PATIENCE).await, (seen, Some(false)), "{after}");
    }
    assert_eq!(operators.router.injected.count(Kind::Drop), 4);
    let other = operators.ask("b", "GET", WATCH).await;
    assert_eq!(marks(&other), None);
    let (seen, ended) = read(other, Duration::from_millis(300)).await;
    assert_eq!((seen.lines().count(), ended), (6, None), "who is not selected");
}

#[tokio::test]
async fn an_expired_watch_says_so_within_the_stream_and_ends_cleanly() {
    let (_backend, operators) = operators(events(5)).await;
    operators.order(&watch_faults(
        &json!({"name": "old", "action": "Expire", "after": {"events": 2}}),
    ));
    let (seen, ended) = read(operators.get(WATCH).await, PATIENCE).await;
    assert_eq!(ended, Some(true));
    let lines: Vec<Value> = seen.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3, "{seen}");
    assert_eq!(lines[2]["type"], "ERROR");
    assert_status(&lines[2]["object"], 410, "Expired");
    assert_eq!(lines[2]["object"]["details"]["causes"][0]["reason"], "Policy");
}

#[tokio::test]
async fn a_stalled_watch_goes_on_when_its_order_is_taken_back() {
    let (_backend, operators) = operators(events(4)).await;
    operators.order(&watch_faults(
        &json!({"name": "still", "action": "Stall", "after": {"events": 1}}),
    ));
    let mut answer = operators.get(WATCH).await;
    let first = answer.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first, event(0));
    let next = tokio::time::timeout(Duration::from_millis(200), answer.body_mut().frame()).await;
    assert!(next.is_err(), "nothing comes: {next:?}");
    operators.stop();
    let (seen, _) = read(answer, Duration::from_millis(300)).await;
    assert_eq!(
        seen,
        (1..4).map(event).collect::<String>() + BOOKMARK,
        "nothing is lost"
    );
    assert_eq!(operators.router.injected.count(Kind::Stall), 1);
}

#[tokio::test]
async fn a_stall_lasts_as_long_as_it_says_and_never_longer_than_the_watch() {
    let (_backend, operators) = operators(events(2)).await;
    let fault = json!({"name": "still", "action": "Stall", "duration": "150ms"});
    operators.order(&watch_faults(&fault));
    let before = Instant::now();
    let mut answer = operators.get(WATCH).await;
    answer.body_mut().frame().await.unwrap().unwrap();
    assert!(before.elapsed() >= Duration::from_millis(150));
    operators.order(&watch_faults(&json!({"name": "still", "action": "Stall"})));
    let answer = operators.get(&format!("{WATCH}&timeoutSeconds=1")).await;
    assert_eq!(read(answer, PATIENCE).await, (String::new(), Some(true)));
}

#[tokio::test]
async fn delayed_events_keep_their_order() {
    let (_backend, operators) = operators(events(50)).await;
    operators.order(&watch_faults(
        &json!({"name": "late", "action": "Delay", "duration": "150ms"}),
    ));
    let before = Instant::now();
    let (seen, ended) = read(operators.get(WATCH).await, Duration::from_millis(400)).await;
    assert!(before.elapsed() >= Duration::from_millis(150));
    assert_eq!(seen, (0..50).map(event).collect::<String>() + BOOKMARK);
    assert_eq!(ended, None);
    assert_eq!(operators.router.injected.count(Kind::WatchDelay), 1);
}

#[tokio::test]
async fn a_bookmark_comes_again() {
    let (_backend, operators) = operators(events(1)).await;
    operators.order(&watch_faults(&json!({"name": "again", "action": "RepeatBookmark"})));
    let (seen, _) = read(operators.get(WATCH).await, Duration::from_millis(300)).await;
    assert_eq!(seen, event(0) + BOOKMARK + BOOKMARK);
}

/// A Leg is a part of a merged watch: what one member answers has none.
#[tokio::test]
async fn a_fault_of_legs_is_not_for_what_is_not_merged() {
    let (_backend, operators) = operators(events(1)).await;
    operators.order(&watch_faults(&json!({"name": "leg", "action": "Drop", "part": "Leg"})));
    let answer = operators.get(WATCH).await;
    assert_eq!(marks(&answer), None);
    assert_eq!(
        read(answer, Duration::from_millis(200)).await,
        (event(0) + BOOKMARK, None)
    );
}

/// What is drawn for lists and reads is no watch fault.
#[tokio::test]
async fn other_requests_have_no_watch_faults() {
    let (_backend, operators) = operators(mirror()).await;
    operators.order(&watch_faults(&json!({"name": "cut", "action": "Drop"})));
    let answer = operators.get(ONE).await;
    assert_eq!((answer.status(), marks(&answer)), (StatusCode::OK, None));
}
