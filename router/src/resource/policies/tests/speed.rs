//! What a request costs by its rules, of admission alone; `make bench-policies` counts the whole of it. `cargo test --release -p portolan-router speed -- --ignored --nocapture`. One at a time
//! under `valgrind --tool=callgrind --toggle-collect='*one_request*'` it tells instructions.

use super::*;

const REQUESTS: u32 = 2_000;

/// So many limits, each a row, as `limit` makes them. An object has at most 256.
fn world(rules: usize, limit: impl Fn(usize) -> Value) -> World {
    let mut world = World::new(&[]);
    let names: Vec<String> = (0..rules.div_ceil(250))
        .map(|index| format!("CircuitBreaker/ops/of-{index}"))
        .collect();
    let policies = names.iter().enumerate().map(|(index, name)| {
        let of = index * 250..rules.min((index + 1) * 250);
        let limits: Vec<_> = of.map(&limit).collect();
        Body::Policy(v1::Policy {
            name: name.clone(),
            uid: name.clone(),
            ..policy("", &spec(&limits))
        })
    });
    let policies: Vec<_> = policies.collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(world.told(policies.into_iter().chain([caller("1", &names)])), []);
    world
}

#[inline(never)]
fn one_request(policies: &Policies, view: &CallerView) -> bool {
    ask(policies, view, 2, "get").is_ok()
}

fn measure(what: &str, world: &World) {
    let view = world.view("1");
    one_request(&world.policies, &view);
    let before = std::time::Instant::now();
    let passed = (0..REQUESTS).filter(|_| one_request(&world.policies, &view)).count();
    println!("{what}: {:?} each, {passed} passed", before.elapsed() / REQUESTS);
}

fn row(groups: &str, resources: &str, verbs: &str, namespaces: &str) -> Value {
    json!([{"apiGroups": [groups], "resources": [resources], "verbs": [verbs], "namespaces": [namespaces]}])
}

fn other(index: usize, rows: Value) -> Value {
    with(
        limit(&format!("rule-{index}"), "LimiterOnly", 4_000_000_000, 1),
        "resourceRules",
        rows,
    )
}

#[test]
#[ignore = "measures"]
fn speed_with_no_rules() {
    measure("no rules", &world(0, |_| Value::Null));
}

#[test]
#[ignore = "measures"]
fn speed_with_a_thousand_rules_of_other_namespaces() {
    let rule = |index| other(index, row("", "pods", "get", &format!("ns-{index}")));
    measure("a thousand of other namespaces", &world(1_000, rule));
}

#[test]
#[ignore = "measures"]
fn speed_with_a_thousand_wide_rules() {
    let rule = |index| other(index, row("*", "*", "delete", "*"));
    measure("a thousand for all but the verb", &world(1_000, rule));
}

#[test]
#[ignore = "measures"]
fn speed_with_ten_rules_of_a_thousand_that_count() {
    let rule = |index| {
        let namespace = if index % 100 == 0 {
            "*".to_owned()
        } else {
            format!("ns-{index}")
        };
        other(index, row("*", "pods", "*", &namespace))
    };
    measure("ten of a thousand count", &world(1_000, rule));
}

#[test]
#[ignore = "measures"]
fn speed_with_a_thousand_rules_that_count() {
    let rule = |index| other(index, row("*", "*", "*", "*"));
    measure("a thousand count", &world(1_000, rule));
}
