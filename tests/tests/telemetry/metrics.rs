//! `/metrics` of every program: readable, told apart by closed sets of labels, and counting what happened.

use std::collections::{BTreeMap, BTreeSet};

use portolan_testbed::eventually;
use portolan_tests::programs::admin_get;

use crate::{Ground, PROGRAMS, WEST, ground};

/// One line of the text: name, labels, value.
#[derive(Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Reads the OpenMetrics text, strictly enough to notice what Prometheus would not take.
fn parse(text: &str) -> Vec<Sample> {
    assert!(
        text.ends_with("# EOF\n"),
        "no end: {}",
        &text[text.len().saturating_sub(100)..]
    );
    let mut typed = BTreeSet::new();
    let mut samples = Vec::new();
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.split(' ');
            if words.next() == Some("TYPE") {
                assert!(typed.insert(words.next().unwrap().to_owned()), "typed twice: {line}");
            }
            continue;
        }
        let sample = line.split(" # {").next().unwrap();
        let (series, value) = sample.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        assert!(
            typed.iter().any(|family| name.starts_with(family.as_str())),
            "untyped: {line}"
        );
        let labels = labels.strip_suffix('}').unwrap_or_else(|| panic!("{line}"));
        let pairs = labels.split("\",").filter(|pair| !pair.is_empty());
        let pair = |pair: &str| {
            let (key, value) = pair.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            (key.to_owned(), value.trim_end_matches('"').to_owned())
        };
        samples.push(Sample {
            name: name.to_owned(),
            labels: pairs.map(pair).collect(),
            value: value.parse().unwrap_or_else(|_| panic!("{line}")),
        });
    }
    samples
}

async fn scrape(ground: &Ground, program: &str) -> Vec<Sample> {
    parse(&admin_get(&ground.admin(program), "/metrics").await.unwrap())
}

/// The sum of a series, over all whose labels contain these.
fn sum(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let fits = |sample: &&Sample| {
        sample.name == name
            && labels
                .iter()
                .all(|(key, value)| sample.labels.get(*key).is_some_and(|it| it == value))
    };
    let found: Vec<f64> = samples.iter().filter(fits).map(|sample| sample.value).collect();
    (!found.is_empty()).then(|| found.iter().sum())
}

#[tokio::test]
async fn count_what_happened() {
    let ground = ground().await.read().await;
    let finished = "portolan_router_requests_finished_total";
    let before = scrape(&ground, "router").await;
    let count = |samples: &[Sample], labels: &[(&str, &str)]| sum(samples, finished, labels).unwrap_or(0.0);
    let door = ground.world.merged_door("alpha").await.unwrap();
    for _ in 0..3 {
        assert_eq!(door.get(WEST, &[]).await.unwrap().status, 200);
    }
    let secret = "/api/v1/namespaces/default/secrets/x";
    assert_eq!(door.get(secret, &[]).await.unwrap().status, 403);
    let nobody = ground.world.token_door(Some("not.a.token")).await.unwrap();
    assert_eq!(nobody.get(WEST, &[]).await.unwrap().status, 401);
    let router = eventually("the router has counted them", || async {
        let now = scrape(&ground, "router").await;
        let more = |labels: &[(&str, &str)]| count(&now, labels) - count(&before, labels);
        let served = more(&[("verb", "get"), ("code", "2xx"), ("ended", "complete")]) >= 3.0;
        let refused = more(&[("code", "4xx"), ("reason", "forbidden")]) >= 1.0;
        (served && refused && more(&[("reason", "unauthenticated")]) >= 1.0).then_some(now)
    })
    .await;
    assert_router_tells(&router);
}

/// What else there is of requests, and what is state.
fn assert_router_tells(router: &[Sample]) {
    let of_west = [("cluster", "west"), ("class", "unary"), ("code", "2xx")];
    assert!(sum(router, "portolan_router_requests_by_member_total", &of_west).unwrap() >= 3.0);
    assert!(
        sum(
            router,
            "portolan_router_requests_head_duration_seconds_count",
            &[("verb", "get")]
        )
        .unwrap()
            >= 3.0
    );
    let inf = [("verb", "get"), ("le", "+Inf")];
    assert!(sum(router, "portolan_router_requests_head_duration_seconds_bucket", &inf).is_some());
    assert!(sum(router, "portolan_router_identify_requests_total", &[("outcome", "pod")]).unwrap() >= 3.0);
    assert_eq!(sum(router, "portolan_router_hub_connected", &[]), Some(1.0));
    assert_eq!(sum(router, "portolan_router_snapshot_targets", &[]), Some(2.0));
    assert_eq!(sum(router, "portolan_router_snapshot_callers", &[]), Some(1.0));
    for class in ["unary", "watch", "upgrade"] {
        let labels = [("cluster", "west"), ("class", class)];
        assert_eq!(
            sum(router, "portolan_router_breaker_state", &labels),
            Some(0.0),
            "{class}"
        );
    }
    assert!(
        sum(
            router,
            "portolan_router_credential_not_after_seconds",
            &[("cluster", "east")]
        )
        .unwrap()
            > 1.0e9
    );
}

#[tokio::test]
async fn hub_and_agents_tell_of_themselves() {
    let ground = ground().await.read().await;
    let hub = scrape(&ground, "hub").await;
    for (name, labels) in [
        ("portolan_hub_enrollments_total", &[][..]),
        ("portolan_hub_streams", &[]),
        ("portolan_hub_compile_seconds_count", &[]),
        ("portolan_hub_resources", &[]),
        ("portolan_hub_status_writes_total", &[]),
    ] {
        assert!(sum(&hub, name, labels).is_some_and(|sum| sum > 0.0), "{name}: {hub:#?}");
    }
    let agent = scrape(&ground, "agent-west").await;
    assert_eq!(sum(&agent, "portolan_agent_member_api_ready", &[]), Some(1.0));
    assert_eq!(sum(&agent, "portolan_agent_hub_connected", &[]), Some(1.0));
    assert!(sum(&agent, "portolan_agent_labels_objects", &[]).is_some());
}

/// Buckets of what took how long name a trace that shows why, one that is kept.
#[tokio::test]
async fn exemplars_name_traces() {
    let ground = ground().await.read().await;
    let door = ground.world.merged_door("alpha").await.unwrap();
    for name in ["requests_head_duration_seconds", "dispatch_leg_duration_seconds"] {
        let bucket = format!("portolan_router_{name}_bucket{{");
        let trace = eventually("a request is told with its trace", || async {
            assert_eq!(door.get(WEST, &[]).await.unwrap().status, 200);
            let told = admin_get(&ground.admin("router"), "/metrics").await.unwrap();
            let lines = told
                .lines()
                .filter(|line| line.starts_with(&bucket) && line.contains("verb=\"get\""));
            let exemplars = lines.filter_map(|line| line.split_once("# {trace_id=\""));
            let mut traces = exemplars.map(|(_, rest)| rest[..32].to_owned());
            traces.next()
        })
        .await;
        eventually("Jaeger has it", || async { ground.jaeger.trace(&trace).await.is_ok() }).await;
    }
}

/// No label is a name of an object, a person, a path or an id: those grow without end. Members are few and named.
#[tokio::test]
async fn labels_are_closed_sets() {
    let ground = ground().await.read().await;
    let mut keys = BTreeSet::new();
    for program in PROGRAMS {
        let samples = scrape(&ground, program).await;
        assert!(samples.len() > 10, "{program} has {} samples", samples.len());
        for sample in &samples {
            for (key, value) in &sample.labels {
                keys.insert(key.clone());
                let names = [
                    "team-",
                    "operators",
                    "alpha",
                    "portolan-dev",
                    "where",
                    "127.0.0.1",
                    "system:",
                    "/",
                ];
                let open = names.iter().any(|name| value.contains(name)) && !(key == "kind" && value.contains('.'));
                assert!(!open && value.len() <= 40, "{program}: {sample:?}");
                if key == "cluster" {
                    assert!(
                        ["hub", "east", "west"].contains(&value.as_str()),
                        "{program}: {sample:?}"
                    );
                }
            }
        }
    }
    // A new key is to be looked at: is it a closed set?
    let known = [
        "answer", "bound", "class", "cluster", "code", "ended", "endpoint", "kind", "le", "level", "outcome", "pool",
        "program", "queue", "reason", "rule", "source", "state", "verb", "version", "watched",
    ];
    let unknown: Vec<&String> = keys.iter().filter(|key| !known.contains(&key.as_str())).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
