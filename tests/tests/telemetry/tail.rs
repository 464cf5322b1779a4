//! Errors and slow requests that were not sampled are kept as one span each, as many as the budget allows.

use portolan_testbed::{Fault, eventually};
use portolan_tests::trace::roots;

use crate::traces::{PARENT, assert_tags, new_trace, traceparent};
use crate::{Ground, WEST, ground};

const NOT_SAMPLED: (&str, &str) = ("--trace-sample-ratio", "0");
/// Nothing takes so long.
const NEVER_SLOW: (&str, &str) = ("--trace-slow", "1h");

impl Ground {
    async fn restart_with(&mut self, flags: &[(&str, &str)]) {
        self.router.stop().await.unwrap();
        self.router.start_with(flags).await.unwrap();
        self.until_router_is_back().await;
        let door = self.world.merged_door("alpha").await.unwrap();
        eventually("west answers", || async {
            door.get(WEST, &[]).await.is_ok_and(|answer| answer.status == 200)
        })
        .await;
    }

    async fn ask_in(&self, trace: &str) -> u16 {
        let door = self.world.merged_door("alpha").await.unwrap();
        let asked = [("traceparent", &*traceparent(trace, true))];
        door.get(WEST, &asked).await.unwrap().status
    }

    /// Of a metric whose line begins so; 0 if there is none yet.
    async fn counted(&self, line: &str) -> u64 {
        let page = portolan_tests::programs::admin_get(self.router.admin(), "/metrics")
            .await
            .unwrap();
        let value = page.lines().find_map(|text| text.strip_prefix(line));
        value.map_or(0, |value| value.trim().parse().unwrap())
    }
}

#[tokio::test]
async fn an_error_is_kept_as_one_span() {
    let mut ground = ground().await.write().await;
    ground.restart_with(&[NOT_SAMPLED, NEVER_SLOW]).await;
    let (good, bad) = (new_trace(), new_trace());
    assert_eq!(ground.ask_in(&good).await, 200);
    ground.world.cluster("west").fault(Fault::Reset).await.unwrap();
    assert_eq!(ground.ask_in(&bad).await, 503);
    ground.world.cluster("west").fault(Fault::None).await.unwrap();
    let answer = eventually("the error is in Jaeger", || ground.jaeger.trace(&bad)).await;
    let spans = answer["data"][0]["spans"].as_array().unwrap();
    // What the member recorded of what reached it is in traces of its own.
    assert_eq!(spans.len(), 1, "{answer}");
    assert_eq!(spans[0]["references"][0]["spanID"], PARENT, "{answer}");
    let kept = &roots(&answer)[0];
    assert_eq!((&*kept.service, &*kept.name), ("portolan-router", "get configmaps"));
    let wanted = [
        ("kept", "error"),
        ("span.kind", "server"),
        ("http.response.status_code", "503"),
        ("reason", "unavailable"),
        ("url.path", WEST),
        ("clusters", "west"),
        ("shard", "operators/alpha"),
        ("otel.status_code", "ERROR"),
    ];
    assert_tags(kept, &wanted);
    assert!(
        kept.tag("otel.status_description")
            .is_some_and(|why| why.contains("west")),
        "{:?}",
        kept.tags
    );
    assert!(ground.jaeger.trace(&good).await.is_err(), "a good one was recorded");
    let log = std::fs::read_to_string(ground.router.log_file()).unwrap();
    assert!(
        log.contains(&format!("\"trace\":\"{bad}\"")),
        "the access line does not name the trace"
    );
    ground.restart_with(&[]).await;
}

#[tokio::test]
async fn a_slow_request_is_kept_within_the_budget() {
    let mut ground = ground().await.write().await;
    // One at once, and another after a minute and more.
    let flags = [NOT_SAMPLED, ("--trace-slow", "1ms"), ("--trace-tail-rate", "0.02")];
    ground.router.stop().await.unwrap();
    ground.router.start_with(&flags).await.unwrap();
    ground.until_router_is_back().await;
    let traces: Vec<String> = (0..20).map(|_| new_trace()).collect();
    for trace in &traces {
        assert_eq!(ground.ask_in(trace).await, 200);
    }
    let over = r#"portolan_router_requests_tail_over_budget_total{why="slow"}"#;
    let kept = r#"portolan_router_requests_tail_kept_total{why="slow"}"#;
    let (over, kept) = (ground.counted(over).await, ground.counted(kept).await);
    assert!(over >= 15, "{over} over the budget");
    assert!((1..=2).contains(&kept), "{kept} kept");
    // It exports what it has when it ends.
    ground.router.stop().await.unwrap();
    let mut found = Vec::new();
    for trace in &traces {
        if let Ok(answer) = ground.jaeger.trace(trace).await {
            found.push(roots(&answer)[0].tag("kept") == Some("slow"));
        }
    }
    assert!(found.len() <= 2 && found.iter().all(|slow| *slow), "{found:?}");
    ground.router.start_again().await.unwrap();
    ground.until_router_is_back().await;
}

#[tokio::test]
async fn a_budget_that_is_none_is_refused_in_words() {
    let mut ground = ground().await.write().await;
    ground.router.stop().await.unwrap();
    let refused = ground.router.start_with(&[("--trace-tail-rate", "NaN")]).await;
    let refused = format!("{:#}", refused.unwrap_err());
    assert!(
        refused.contains("--trace-tail-rate NaN is no number of spans a second"),
        "{refused}"
    );
    assert_ne!(ground.router.ended().await.unwrap(), 0);
    ground.router.start_again().await.unwrap();
    ground.until_router_is_back().await;
}
