//! CircuitBreakers, from a replica's socket to a scripted member's. Each defect of the predecessor that a client would see
//! has a test that says so.

mod precedence;

use std::sync::atomic::AtomicBool;

use http::Response;
use http::header::RETRY_AFTER;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::*;
use crate::edge::operators::Operators;
use crate::value::snapshot::told;

const PODS: &str = "/api/v1/namespaces/east/pods";
const ONE: &str = "/api/v1/namespaces/east/pods/one";
/// Over both members.
const ALL: &str = "/api/v1/pods";
const ELECTION: &str = "/apis/coordination.k8s.io/v1/namespaces/ops/leases/leader";

/// What all resources are, to a rule.
const ANY: [&str; 1] = ["*"];

fn rule(name: &str, trigger: &str, burst: i64, resources: &[&str]) -> Value {
    json!({
        "name": name,
        "triggerPolicy": trigger,
        "resourceRules": [{"apiGroups": ["*"], "resources": resources, "verbs": ["*"], "namespaces": ["*"]}],
        "bucket": {"burst": burst, "interval": "1h", "limit": 1},
    })
}

/// Requests for Pods and Leases: documents are read besides.
type Asked = Arc<AtomicUsize>;

/// Lists, a watch that goes on, or the words of something that is no API server.
fn member(broken: Arc<AtomicBool>, asked: Asked) -> Script {
    script(move |request, mut respond| {
        let broken = broken.load(Ordering::Relaxed);
        let path = request.uri().path();
        let counts = ["/pods", "/leases"].iter().any(|kind| path.contains(kind));
        asked.fetch_add(usize::from(counts), Ordering::Relaxed);
        async move {
            let path = request.uri().path_and_query().unwrap().to_string();
            if broken {
                let unwell = Response::builder().status(503).body(()).unwrap();
                respond.send_response(unwell, true).unwrap();
                return;
            }
            let mut out = respond.send_response(head(200), false).unwrap();
            if path.contains("watch") {
                until_reset(&mut out).await;
            }
            let list =
                json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": []});
            out.send_data(list.to_string().into(), true).unwrap();
        }
    })
}

struct World {
    _members: Vec<Backend>,
    asked: Asked,
    operators: Operators,
    broken: Arc<AtomicBool>,
}

impl World {
    async fn new() -> Self {
        let (broken, asked) = (Arc::<AtomicBool>::default(), Asked::default());
        let members = vec![
            Backend::start(100, member(broken.clone(), asked.clone())).await,
            Backend::start(100, member(Arc::default(), asked.clone())).await,
        ];
        let of = [("east", &members[0]), ("west", &members[1])];
        let operators = Operators::bounded(&of, Bounds::default()).await;
        Self {
            _members: members,
            asked,
            operators,
            broken,
        }
    }

    async fn held(rules: &[Value]) -> Self {
        let world = Self::new().await;
        world.hold(&json!({"selector": {}, "rateLimitings": rules}));
        world
    }

    fn hold(&self, spec: &Value) {
        self.operators.tell([told::circuit_breaker(spec)]);
        self.operators.hold(&[told::CIRCUIT_BREAKER]);
    }

    async fn get(&self, path: &str) -> Response<Incoming> {
        self.operators.get(path).await
    }

    async fn code(&self, path: &str) -> u16 {
        self.get(path).await.status().as_u16()
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

/// The cause that names the policy, and whether a `Retry-After` came along.
async fn refused(answer: Response<Incoming>, code: u16, reason: &str) -> (String, bool) {
    let retry = answer.headers().contains_key(RETRY_AFTER);
    assert_eq!(answer.status().as_u16(), code);
    let status = json(answer).await;
    assert_status(&status, code, reason);
    let cause = &status["details"]["causes"][0];
    assert_eq!(cause["reason"], "Policy", "{status}");
    (cause["message"].as_str().unwrap().to_owned(), retry)
}

/// The predecessor answered 417 in plain text, without a time to come again.
#[tokio::test]
async fn who_is_over_a_limit_is_told_so_in_a_status_and_when_to_come_again() {
    let world = World::held(&[rule("all", "LimiterOnly", 2, &ANY)]).await;
    for _ in 0..2 {
        assert_eq!(world.code(ONE).await, 200);
    }
    let answer = world.get(ONE).await;
    assert_eq!(answer.headers()[RETRY_AFTER], "30");
    let (cause, _) = refused(answer, 429, "TooManyRequests").await;
    assert!(cause.starts_with("CircuitBreaker/ops/cb/all: "), "{cause}");
    for (path, kind, name) in [(ONE, "pods", json!("one")), (ALL, "pods", Value::Null)] {
        let details = &json(world.get(path).await).await["details"];
        assert_eq!((&details["kind"], &details["name"]), (&json!(kind), &name), "{path}");
    }
    assert_eq!(world.asked(), 2, "no member hears of it");
    assert_eq!(
        world.operators.ask("b", "GET", ONE).await.status(),
        200,
        "who is not held is served"
    );
}

#[tokio::test]
async fn what_has_opened_says_when_to_come_again_to_who_lists_or_watches() {
    for trigger in ["Normal", "ForceOpened"] {
        let world = World::held(&[rule("all", trigger, 1, &ANY)]).await;
        for _ in 0..2 {
            world.get(ONE).await;
        }
        for (path, code, reason) in [
            (ONE.to_owned(), 503, "ServiceUnavailable"),
            (PODS.to_owned(), 429, "TooManyRequests"),
            (ALL.to_owned(), 429, "TooManyRequests"),
            (format!("{ALL}?watch=true"), 429, "TooManyRequests"),
            (format!("{PODS}?watch=1"), 429, "TooManyRequests"),
        ] {
            let (_, retry) = refused(world.get(&path).await, code, reason).await;
            assert_eq!(retry, code == 429, "{trigger} {path}");
        }
    }
}

#[tokio::test]
async fn a_request_counts_once_however_many_members_it_goes_to() {
    let world = World::held(&[rule("all", "LimiterOnly", 3, &ANY)]).await;
    assert_eq!((world.code(ALL).await, world.code(ALL).await), (200, 200));
    assert_eq!(world.asked(), 4);
    let watch = world.get(&format!("{ALL}?watch=true")).await;
    assert_eq!(watch.status(), 200);
    assert_eq!(world.code(ALL).await, 429);
}

/// The predecessor's wildcard rules stopped the renewals of its own operators' elections.
#[tokio::test]
async fn the_callers_own_election_passes_rules_that_do_not_name_leases() {
    let world = World::held(&[rule("all", "ForceOpened", 1, &ANY)]).await;
    assert_eq!(world.code(ELECTION).await, 200);
    assert_eq!(
        world.code(&ELECTION.replace("leader", "other")).await,
        503,
        "another Lease"
    );
    let (leases, name) = ELECTION.rsplit_once('/').unwrap();
    let of_name = |name: &str| format!("{leases}?watch=true&fieldSelector=metadata.name%3D{name}");
    assert_eq!(world.code(&of_name(name)).await, 200);
    assert_eq!(world.code(&of_name("other")).await, 429);
    world.hold(&json!({"selector": {}, "rateLimitings": [rule("all", "ForceOpened", 1, &["leases"])]}));
    assert_eq!(world.code(ELECTION).await, 503);
}

/// Which Lease is made only its body tells.
#[tokio::test]
async fn of_leases_that_are_made_the_elections_alone_passes_such_rules() {
    let world = World::held(&[rule("all", "ForceOpened", 1, &ANY)]).await;
    let (leases, _) = ELECTION.rsplit_once('/').unwrap();
    let make = async |body: &'static str| {
        let request = world.operators.request("a", "POST", leases, body);
        let mut client = world.operators.connect().await;
        client.send_request(request).await.unwrap()
    };
    assert_eq!(make(r#"{"metadata": {"name": "leader"}}"#).await.status(), 200);
    let before = world.asked();
    let (cause, _) = refused(
        make(r#"{"metadata": {"name": "other"}}"#).await,
        503,
        "ServiceUnavailable",
    )
    .await;
    assert!(cause.starts_with("CircuitBreaker/ops/cb/all: "), "{cause}");
    world
        .operators
        .order(&json!({"httpFault": [{"name": "away", "abort": {"httpStatus": 500}}]}));
    assert_eq!(make(r#"{"metadata": {"name": "leader"}}"#).await.status(), 200);
    assert_eq!(make(r#"{"metadata": {"name": "other"}}"#).await.status(), 500);
    assert_eq!(world.asked(), before + 1);
}

#[tokio::test]
async fn documents_are_judged_and_what_the_router_answers_itself_is_not() {
    let world = World::held(&[rule("all", "ForceOpened", 1, &ANY)]).await;
    assert_eq!(world.code("/apis").await, 503);
    assert_eq!(world.code("/version").await, 503);
    let candidates = "/apis/coordination.k8s.io/v1beta1/namespaces/ops/leasecandidates";
    let request = world.operators.request("a", "POST", candidates, "{}");
    let mut client = world.operators.connect().await;
    let answer = client.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 403, "the plan refuses it");
    assert_eq!(world.code("/livez").await, 200);
    world.hold(&json!({"selector": {}, "rateLimitings": [rule("all", "ForceOpened", 1, &["pods"])]}));
    assert_eq!(world.code("/version").await, 200, "no resource at all");
}

#[tokio::test]
async fn a_rule_of_a_member_meets_what_may_go_there() {
    let mut of_west = rule("all", "ForceOpened", 1, &ANY);
    of_west["resourceRules"][0]["clusters"] = json!(["west"]);
    let world = World::held(&[of_west]).await;
    assert_eq!(world.code(ONE).await, 200);
    assert_eq!(world.code(&ONE.replace("east", "west")).await, 503);
    assert_eq!(world.code(ALL).await, 429);
}

#[tokio::test]
async fn an_ordered_fault_comes_before_limits_and_takes_no_token() {
    let world = World::held(&[rule("all", "LimiterOnly", 1, &ANY)]).await;
    world
        .operators
        .order(&json!({"httpFault": [{"name": "away", "abort": {"httpStatus": 500}}]}));
    world.operators.hold(&[told::CIRCUIT_BREAKER, told::FAULT_INJECTION]);
    for _ in 0..3 {
        assert_eq!(world.code(ONE).await, 500);
    }
    world.operators.hold(&[told::CIRCUIT_BREAKER]);
    assert_eq!((world.code(ONE).await, world.code(ONE).await), (200, 429));
}

fn breaker(clusters: &[&str]) -> Value {
    json!({
        "selector": {},
        "breakers": [{"name": "own", "clusters": clusters, "consecutiveFailures": 2, "openFor": "1h", "maxOpenFor": "1h"}],
    })
}

#[tokio::test]
async fn a_breaker_of_the_caller_stops_it_alone_at_the_member_that_fails_it() {
    let world = World::new().await;
    world.hold(&breaker(&["east"]));
    world.broken.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        assert_eq!(world.code(ONE).await, 503, "of what answers for the member");
    }
    world.broken.store(false, Ordering::Relaxed);
    let asked = world.asked();
    let (cause, retry) = refused(world.get(ONE).await, 503, "ServiceUnavailable").await;
    assert!(cause.starts_with("CircuitBreaker/ops/cb/own: "), "{cause}");
    assert!(!retry);
    let (_, retry) = refused(world.get(ALL).await, 429, "TooManyRequests").await;
    assert!(retry, "who lists is told when to come again");
    assert_eq!(world.asked() - asked, 1, "west is asked");
    assert_eq!(world.operators.ask("b", "GET", ONE).await.status(), 200);
    assert_eq!(world.code(&ONE.replace("east", "west")).await, 200);
    assert_eq!(world.code(ELECTION).await, 200, "its election goes on");
}

/// Informers list anew after a 503, and what a merged watch lacks it would tell nobody: so it is refused as a whole.
#[tokio::test]
async fn a_merged_watch_waits_for_the_callers_own_breaker_of_one_member() {
    let world = World::new().await;
    world.hold(&breaker(&["east"]));
    world.broken.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        assert_eq!(world.code(ONE).await, 503);
    }
    world.broken.store(false, Ordering::Relaxed);
    let watch = format!("{ALL}?watch=true");
    let answer = world.get(&watch).await;
    assert_eq!(answer.headers()[RETRY_AFTER], "30");
    assert_eq!(answer.status(), 429);
    let status = json(answer).await;
    assert_status(&status, 429, "TooManyRequests");
    let (details, cause) = (&status["details"], &status["details"]["causes"][0]);
    assert_eq!((&details["kind"], &cause["reason"]), (&json!("pods"), &json!("Policy")));
    let message = cause["message"].as_str().unwrap();
    assert!(
        message.starts_with("CircuitBreaker/ops/cb/own: ") && message.contains("east"),
        "{message}"
    );
    let other = world.operators.ask("b", "GET", &watch).await;
    assert_eq!(other.status(), 200, "the caller's alone");
    let one = world.get(&format!("{}?watch=true", PODS.replace("east", "west"))).await;
    assert_eq!(one.status(), 200, "the other member's alone");
    world.operators.hold(&[]);
    assert_eq!(world.code(&watch).await, 200, "whom the policy does not hold");
    world.operators.hold(&[told::CIRCUIT_BREAKER]);
    assert_eq!(
        world.code(&watch).await,
        429,
        "nobody gets rid of it by leaving for a moment"
    );
}

#[tokio::test]
async fn edits_while_requests_come_keep_what_other_rules_have_spent() {
    let world = World::held(&[rule("all", "LimiterOnly", 40, &ANY)]).await;
    let mut passed = 0;
    for edit in 0..30 {
        let other = rule("other", "LimiterOnly", 1_000 + edit, &ANY);
        world.hold(&json!({"selector": {}, "rateLimitings": [other, rule("all", "LimiterOnly", 40, &ANY)]}));
        for _ in 0..2 {
            passed += usize::from(world.code(ONE).await == 200);
        }
    }
    assert_eq!(passed, 40);
}

/// GETs of one object, one after another, over one connection: client, router and member in one process.
async fn measure(rules: usize) {
    const REQUESTS: u32 = 2_000;
    let world = World::new().await;
    for of in 0..rules.div_ceil(250) {
        let rules = of * 250..rules.min((of + 1) * 250);
        let rules = rules.map(|index| {
            let mut rule = rule(&format!("rule-{index}"), "LimiterOnly", 1, &["pods"]);
            let wide = index % 2 == 0;
            let verb = if wide { "delete" } else { "*" };
            let namespace = if wide { "*".to_owned() } else { format!("ns-{index}") };
            rule["resourceRules"][0]["verbs"] = json!([verb]);
            rule["resourceRules"][0]["namespaces"] = json!([namespace]);
            rule
        });
        let rules: Vec<_> = rules.collect();
        let mut told = told::circuit_breaker(&json!({"selector": {}, "rateLimitings": rules}));
        let portolan_wire::v1::resource::Body::Policy(policy) = &mut told else {
            unreachable!("it is one")
        };
        policy.name = format!("CircuitBreaker/ops/of-{of}");
        world.operators.tell([told]);
    }
    let names: Vec<String> = (0..rules.div_ceil(250))
        .map(|of| format!("CircuitBreaker/ops/of-{of}"))
        .collect();
    world
        .operators
        .hold(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut client = world.operators.connect().await;
    let before = Instant::now();
    for _ in 0..REQUESTS {
        let request = world.operators.request("a", "GET", ONE, "");
        let answer = client.send_request(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.into_body().collect().await.unwrap();
    }
    println!("{rules} rules: {:?} each", before.elapsed() / REQUESTS);
}

#[tokio::test]
#[ignore = "measures"]
async fn speed_of_a_get_with_no_rules() {
    measure(0).await;
}

#[tokio::test]
#[ignore = "measures"]
async fn speed_of_a_get_with_a_thousand_rules() {
    measure(1_000).await;
}
