//! Answers that nobody reads: what each of them holds in the router, and that it is bounded.

use std::time::Duration;

use http::Method;
use portolan_tests::door::{Door, Line, request};
use serde_json::json;

use crate::usage::Usage;

const PATH: &str = "/api/v1/namespaces/s-bad/configmaps";
/// Answers at a time, and on each connection.
const MANY: usize = 200;
const EACH: usize = 20;
/// For their heads: most wait for those that are not read.
const OPENING: Duration = Duration::from_secs(5);
/// As many may hold something, also where the machine is too slow to have told of all: a caller's places, and those of its shard.
const HELD: u32 = 16;
/// That one answer may hold: the window of its member's stream, 400 KiB for its client, and the object under way.
const BOUND_KIB: f64 = 3072.0;

/// Fills the namespace with more than any window holds.
pub(crate) async fn fill(door: &Door) {
    for at in 0..6 {
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": format!("large-{at}")},
            "data": {"text": "x".repeat(900 << 10)},
        });
        let made = door.post(PATH, &object).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.message());
    }
}

/// Opens watches, then lists, and reads none of them.
pub(crate) async fn held(door: &Door, router: i32) {
    fill(door).await;
    for (what, query) in [("watches", "?watch=true"), ("lists", "")] {
        let before = Usage::of(router).unwrap();
        let (mut lines, mut answers) = (Vec::<Line>::new(), Vec::new());
        for _ in 0..MANY / EACH {
            lines.push(door.open().await.unwrap());
        }
        let asked = lines
            .iter()
            .flat_map(|line| std::iter::repeat_n(line, EACH))
            .map(|line| {
                let get = request(Method::GET, &format!("{PATH}{query}"), &[], &[]).unwrap();
                tokio::time::timeout(OPENING, line.send(get))
            });
        for answer in futures::future::join_all(asked).await {
            answers.extend(answer.into_iter().flatten());
        }
        let used = settled(router).await.since(&before);
        let opened = u32::try_from(answers.len()).unwrap();
        let each = used.resident_mib * 1024.0 / f64::from(opened.max(HELD));
        println!("  {MANY} {what} that nobody reads, {opened} of them begun: {used}, {each:.0} KiB each");
        assert!(
            answers
                .iter()
                .all(|answer| answer.status() == 200 || answer.status() == 429)
        );
        assert!(opened > 0 && each < BOUND_KIB, "{what}: {each:.0} KiB each");
    }
}

/// Once the router takes no more.
async fn settled(router: i32) -> Usage {
    let mut last = Usage::of(router).unwrap();
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = Usage::of(router).unwrap();
        if now.since(&last).resident_mib < 0.5 {
            return now;
        }
        last = now;
    }
}
