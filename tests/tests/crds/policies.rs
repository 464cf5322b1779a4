//! CircuitBreakers and FaultInjections: their rules and defaults as a real API server reads them, and that it takes what
//! validation has nothing against.

use kube::api::ListParams;
use kube::{Api, Client};
use portolan_crds::{
    CircuitBreaker, CircuitBreakerSpec, FaultInjection, FaultInjectionSpec, Problem, Reason, validate_circuit_breaker,
    validate_fault_injection,
};
use portolan_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use self::cases::{BAD_BREAKERS, BAD_INJECTIONS, BAD_LIMITS, limit};
use self::drawn::{WHOLE_BREAKER, WHOLE_INJECTION, change, draws};
use super::{apply, create, keeps, refusal, run, stored};

mod cases;
mod drawn;

/// Applies ours and those of the original, each twice: the second time changes nothing, so nothing was dropped or rewritten.
pub(super) async fn manifests_apply_unchanged(hub: &Cluster, client: &Client) {
    let breakers = Api::<CircuitBreaker>::namespaced(client.clone(), "operator-demo");
    let injections = Api::<FaultInjection>::namespaced(client.clone(), "operator-demo");
    eventually("the kinds are served", || async {
        injections.list(&ListParams::default()).await?;
        breakers.list(&ListParams::default()).await
    })
    .await;
    for (path, objects) in [
        ("examples/circuit-breaker.yaml", 1),
        ("examples/fault-injection.yaml", 1),
        ("crds/tests/original", 7),
    ] {
        let first = apply(hub, path).await;
        assert_eq!(first.matches(".ctrlmesh.kusionstack.io/").count(), objects, "{first}");
        let again = apply(hub, path).await;
        assert_eq!(again.matches(" unchanged").count(), again.lines().count(), "{again}");
    }
    // What is left out stays so: defaults within lists are the types'.
    let short = breakers.get("short").await.unwrap().spec;
    assert_eq!(short.rate_limitings[0].recover_policy, None);
    let short = injections.get("short").await.unwrap().spec;
    let fault = &short.http_fault[0];
    let percent = fault.delay.as_ref().unwrap().percent.as_deref();
    assert_eq!((percent, fault.r#match.is_none()), (None, true));
    let kept = breakers.get("breaker-demo").await.unwrap().spec;
    assert_eq!(kept.rate_limitings[0].properties["owner"], "team-a");
}

/// Where the types can read it at all, the one function of hub, router and portolanctl refuses it as well.
pub(super) async fn bad_ones_are_refused(client: &Client) {
    let limits = BAD_LIMITS
        .iter()
        .map(|(case, fix)| (json!({"rateLimitings": [limit(case)]}), fix));
    let limit = limit("{}");
    let clash = json!({"rateLimitings": [limit], "breakers": [{"name": "l"}]});
    let twice = json!({"rateLimitings": [limit, limit]});
    let whole = BAD_BREAKERS
        .iter()
        .map(|(yaml, fix)| (serde_yaml_ng::from_str(yaml).unwrap(), fix));
    let two = [
        (clash, &"a breaker has the name of one of rateLimitings"),
        (twice, &"Duplicate value"),
    ];
    for (spec, fix) in limits.chain(whole).chain(two) {
        refusal(client, "CircuitBreaker", &spec, fix).await;
        assert_ne!(problems("CircuitBreaker", &spec), Some(vec![]), "{spec}");
    }
    for (yaml, fix) in BAD_INJECTIONS {
        let spec = serde_yaml_ng::from_str(yaml).unwrap();
        refusal(client, "FaultInjection", &spec, fix).await;
        assert_ne!(problems("FaultInjection", &spec), Some(vec![]), "{spec}");
    }
    let heads: Vec<_> = (0..33)
        .map(|_| json!({"host": {"regex": "a"}, "path": {"regex": "b"}}))
        .collect();
    let spec = json!({"httpFault": [{"abort": {"httpStatus": 500}, "match": {"httpMatch": heads}}]});
    refusal(client, "FaultInjection", &spec, "at most 64 regular expressions").await;
    assert_ne!(problems("FaultInjection", &spec), Some(vec![]));
    let value = json!({"rateLimitings": [limit]});
    let widest = |change: &dyn Fn(&mut Value)| {
        let mut spec = value.clone();
        change(&mut spec);
        spec
    };
    let many = |count: usize| -> Value { (0..count).map(|index| (format!("k{index}"), json!("v"))).collect() };
    for (spec, fix) in [
        (
            widest(&|spec| spec["rateLimitings"][0]["properties"] = many(257)),
            "properties",
        ),
        (
            widest(&|spec| spec["rateLimitings"][0]["properties"] = json!({"k": "v".repeat(4097)})),
            "properties",
        ),
        (
            widest(&|spec| spec["selector"] = json!({"matchLabels": many(65)})),
            "selector.matchLabels",
        ),
    ] {
        refusal(client, "CircuitBreaker", &spec, fix).await;
        assert_ne!(problems("CircuitBreaker", &spec), Some(vec![]), "{fix}");
    }
}

/// `None`: it cannot be read.
fn problems(kind: &str, spec: &Value) -> Option<Vec<Problem>> {
    if kind == "CircuitBreaker" {
        let spec = serde_json::from_value::<CircuitBreakerSpec>(spec.clone()).ok()?;
        return Some(validate_circuit_breaker(&spec));
    }
    let spec = serde_json::from_value::<FaultInjectionSpec>(spec.clone()).ok()?;
    Some(validate_fault_injection(&spec))
}

/// What validation has nothing against, the API server takes: the widest there is, and documents with some places changed.
pub(super) async fn good_ones_are_taken(client: &Client) {
    let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"], "namespaces": ["*"]});
    let limits: Vec<Value> = (0..256)
        .map(|index| {
            let mut limit = limit("cost: {list: 5}");
            limit["name"] = json!(format!("{index:0>253}"));
            limit["resourceRules"] = json!([rule, rule, rule, rule]);
            limit
        })
        .collect();
    let breakers: Vec<Value> = (0..64)
        .map(|index| json!({"name": format!("b{index:0>252}")}))
        .collect();
    taken(
        client,
        "CircuitBreaker",
        &json!({"rateLimitings": limits, "breakers": breakers}),
    )
    .await;
    let faults = |prefix: &str, more: Value| -> Vec<Value> {
        let named = |index| {
            let mut fault = more.clone();
            fault["name"] = json!(format!("{prefix}{index:0>252}"));
            fault
        };
        (0..128).map(named).collect()
    };
    let matched = json!({"resources": [rule, rule, rule, rule]});
    let requests = faults(
        "h",
        json!({"abort": {"httpStatus": 500, "percent": "12.5"}, "match": matched}),
    );
    let watches = faults(
        "w",
        json!({"action": "Delay", "duration": "1.5s", "match": {"resources": [{}, {}, {}, {}]}}),
    );
    let most = json!({"httpFault": requests, "watchFault": watches});
    taken(client, "FaultInjection", &most).await;
    changed_ones_are_judged_alike(client).await;
}

async fn changed_ones_are_judged_alike(client: &Client) {
    let mut draw = draws();
    let mut judged = 0;
    while judged < CHANGED {
        for (kind, whole) in [("CircuitBreaker", WHOLE_BREAKER), ("FaultInjection", WHOLE_INJECTION)] {
            let whole: Value = serde_yaml_ng::from_str(whole).unwrap();
            let mut spec = whole["spec"].clone();
            for _ in 0..=draw(1) {
                change(&mut spec, &mut draw);
            }
            if empty_clusters(&spec) {
                continue;
            }
            if accepted(kind, &spec) {
                taken(client, kind, &spec).await;
                judged += 1;
            } else if let Ok(stored) = stored(client, kind, "candidate", &spec).await {
                let problems = problems(kind, &stored);
                assert!(problems.is_some(), "what is stored can be read: {stored}");
                let problems = problems.unwrap_or_default();
                let unseen: Vec<_> = problems
                    .iter()
                    .filter(|problem| !is_seen_by_us_alone(problem))
                    .collect();
                assert!(unseen.is_empty(), "the API server takes it: {unseen:?} {spec}");
            }
        }
    }
}

async fn taken(client: &Client, kind: &str, spec: &Value) {
    assert!(accepted(kind, spec), "{spec}");
    assert_eq!(create(client, kind, "candidate", spec).await, Ok(()), "{spec}");
}

/// What no schema can say, so that the hub's webhook, or else its status, does: whether a regular expression can be used, a time
/// zone is there, keys of labels are keys, and requirements can hold together.
fn is_seen_by_us_alone(problem: &Problem) -> bool {
    matches!(problem.reason, Reason::NotImplemented | Reason::NotServed)
        || problem.field.ends_with(".timeZone")
        || problem.field.starts_with("spec.selector")
        || problem.message.contains("cannot be used")
}

fn accepted(kind: &str, spec: &Value) -> bool {
    let later = |problem: &Problem| matches!(problem.reason, Reason::NotImplemented | Reason::NotServed);
    problems(kind, spec).is_some_and(|problems| problems.iter().all(later))
}

/// The schema refuses an empty list of clusters, which would mean all of them; the types cannot tell it from an absent one.
fn empty_clusters(spec: &Value) -> bool {
    let breakers = spec["breakers"].as_array().into_iter().flatten();
    let lists = breakers
        .map(|breaker| &breaker["clusters"])
        .chain([&spec["callerClusters"]]);
    lists.into_iter().any(|list| list.as_array().is_some_and(Vec::is_empty))
}

/// Changed documents that are accepted.
const CHANGED: usize = 300;

pub(super) async fn every_field_is_kept(client: &Client) {
    let breakers = Api::<CircuitBreaker>::namespaced(client.clone(), "operator-demo");
    keeps(&breakers, "CircuitBreaker", WHOLE_BREAKER).await;
    let injections = Api::<FaultInjection>::namespaced(client.clone(), "operator-demo");
    keeps(&injections, "FaultInjection", WHOLE_INJECTION).await;
}

pub(super) async fn people_see_the_columns(hub: &Cluster) {
    for (kind, columns) in [
        ("cbk", ["whole", "True", "Ok", "2", "1"]),
        ("fj", ["whole", "False", "Invalid", "False", "3"]),
    ] {
        let table = run(hub, &["get", kind, "-n", "operator-demo"]).await;
        let row = |line: &str| line.split_whitespace().take(columns.len()).eq(columns);
        assert!(table.lines().any(row), "{table}");
    }
    let explained = run(
        hub,
        &["explain", "circuitbreakers.spec.rateLimitings.resourceRules.resources"],
    )
    .await;
    assert!(explained.contains("pods/exec"), "{explained}");
}
