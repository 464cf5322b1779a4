//! Writes of kinds that every member has alike, between writers who do not know of each other.

use http::header::CONTENT_TYPE;
use http::{Method, Response, StatusCode};
use hyper::body::Incoming;
use portolan_wire::v1;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::*;
use crate::edge::operators::Operators;

mod decides;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/cs.a.b";

type Log = Arc<Mutex<Vec<Value>>>;

fn definition(word: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "cs.a.b", "uid": "u", "resourceVersion": "4"},
        "spec": {"word": word},
        "status": {"conditions": [{"type": "Established", "status": "True"}]},
    })
}

/// Has the definition; each time it is read there is the next of these words in it, the last one for ever. An apply makes it.
fn primary(words: &'static [&'static str]) -> Script {
    let reads = Arc::new(AtomicUsize::new(0));
    script(move |request, mut respond| {
        let reads = reads.clone();
        async move {
            let is_read = request.method() == Method::GET;
            let accept = request.headers().get("accept").and_then(|accept| accept.to_str().ok());
            let of_metadata = accept.is_some_and(|accept| accept.contains("PartialObjectMetadata"));
            let content_type = request.headers().get(CONTENT_TYPE);
            let makes = content_type.is_some_and(|content_type| content_type.as_bytes() == APPLY.as_bytes());
            let index = if is_read && !of_metadata {
                reads.fetch_add(1, Ordering::SeqCst)
            } else {
                0
            };
            let word = words.get(index).or(words.last()).unwrap();
            read_all(request.into_body()).await;
            let mut out = respond
                .send_response(head(if makes { 201 } else { 200 }), false)
                .unwrap();
            out.send_data(definition(word).to_string().into(), true).unwrap();
        }
    })
}

/// Takes what it is told to apply, or refuses it with this code.
fn follower(code: u16, log: &Log) -> Script {
    let log = log.clone();
    script(move |request, mut respond| {
        let log = log.clone();
        async move {
            let patched = request.method() == Method::PATCH;
            let asked = request.uri().path_and_query().unwrap().to_string();
            let body = read_all(request.into_body()).await;
            let (code, answer) = if patched {
                let body: Value = serde_json::from_slice(&body).unwrap();
                log.lock().push(json!([
                    asked,
                    body["spec"]["word"],
                    body["metadata"]["uid"],
                    body.get("status")
                ]));
                (code, json!({"metadata": {}, "message": "\"word\" is another's"}))
            } else {
                (200, definition("any"))
            };
            let mut out = respond.send_response(head(code), false).unwrap();
            out.send_data(answer.to_string().into(), true).unwrap();
        }
    })
}

/// A patch through the view, its warning, and what the other member was told.
async fn patched(words: &'static [&'static str], code: u16) -> (StatusCode, String, Vec<Value>) {
    let log = Log::default();
    let east = Backend::start(100, primary(words)).await;
    let west = Backend::start(100, follower(code, &log)).await;
    let operators = Operators::bounded(&[("east", &east), ("west", &west)], Bounds::default()).await;
    let mut request = operators.request("a", "PATCH", DEFINITION, r#"{"spec":{"word":"first"}}"#);
    let merge = "application/merge-patch+json".parse().unwrap();
    request.headers_mut().insert(CONTENT_TYPE, merge);
    let answer = operators.connect().await.send_request(request).await.unwrap();
    let warning = answer
        .headers()
        .get(WARNING)
        .map(|value| value.to_str().unwrap().to_owned());
    let told = log.lock().clone();
    (answer.status(), warning.unwrap_or_default(), told)
}

fn applied(word: &str) -> Value {
    json!([
        format!("{DEFINITION}?fieldManager=portolan-replica-east"),
        word,
        "u",
        null
    ])
}

#[tokio::test]
async fn the_last_write_at_the_primary_is_the_last_everywhere() {
    let (status, warning, told) = patched(&["first"], 200).await;
    assert_eq!((status, &*warning), (StatusCode::OK, ""));
    assert_eq!(told, [applied("first")]);
    // Somebody else writes there while the other member is told of the first.
    let (status, warning, told) = patched(&["first", "second"], 200).await;
    assert_eq!((status, &*warning), (StatusCode::OK, ""));
    assert_eq!(told, [applied("first"), applied("second")]);
}

#[tokio::test]
async fn what_the_other_member_refuses_is_told_and_the_answer_stays_the_primarys() {
    for code in [403, 409, 503] {
        let (status, warning, told) = patched(&["first"], code).await;
        assert_eq!(status, StatusCode::OK, "{code}");
        assert_eq!(told, [applied("first")], "{code}");
        for word in ["cs.a.b", "member cluster west", "is another's"] {
            assert!(warning.contains(word), "{code}: {warning}");
        }
    }
}

/// What a member was asked.
struct Question {
    method: Method,
    /// Path and query.
    target: String,
    body: Value,
    /// How often it was asked the same before.
    before: usize,
    of_metadata: bool,
}

/// Answers each question, and remembers what it was told to change.
fn member(log: &Log, answer: impl Fn(&Question) -> (u16, Value) + Send + Sync + 'static) -> Script {
    let (log, answer) = (log.clone(), Arc::new(answer));
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    script(move |request, mut respond| {
        let (log, answer, asked) = (log.clone(), answer.clone(), asked.clone());
        async move {
            let method = request.method().clone();
            let target = request.uri().path_and_query().unwrap().to_string();
            let accept = request.headers().get("accept").and_then(|accept| accept.to_str().ok());
            let of_metadata = accept.is_some_and(|accept| accept.contains("PartialObjectMetadata"));
            let body = read_all(request.into_body()).await;
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let same = format!("{method} {of_metadata} {target}");
            let before = {
                let mut asked = asked.lock();
                asked.push(same.clone());
                asked.iter().filter(|one| **one == same).count() - 1
            };
            if method != Method::GET {
                log.lock().push(json!([format!("{method} {target}"), body]));
            }
            let question = Question {
                method,
                target,
                body,
                before,
                of_metadata,
            };
            let (code, answer) = answer(&question);
            let mut out = respond.send_response(head(code), false).unwrap();
            out.send_data(answer.to_string().into(), true).unwrap();
        }
    })
}

fn missing() -> (u16, Value) {
    (404, json!({"kind": "Status", "code": 404, "message": "not found"}))
}

async fn operators(east: Script, west: Script) -> (Operators, [Backend; 2]) {
    let backends = [Backend::start(100, east).await, Backend::start(100, west).await];
    let members = [("east", &backends[0]), ("west", &backends[1])];
    (Operators::bounded(&members, Bounds::default()).await, backends)
}

async fn patch(operators: &Operators, target: &str, kind: &str, body: &'static str) -> Response<Incoming> {
    let mut request = operators.request("a", "PATCH", target, body);
    request.headers_mut().insert(CONTENT_TYPE, kind.parse().unwrap());
    operators.connect().await.send_request(request).await.unwrap()
}

const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const APPLIED: &str =
    r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"cs.a.b"}}"#;

fn warning(answer: &Response<Incoming>) -> String {
    let warnings = answer.headers().get_all(WARNING).iter();
    warnings
        .map(|value| value.to_str().unwrap().to_owned())
        .collect::<Vec<_>>()
        .join("; ")
}

/// Asks for something as the same account, until the members were told so much.
async fn until_told(operators: &Operators, log: &Log, number: usize) -> Vec<Value> {
    let told = async {
        loop {
            if log.lock().len() >= number {
                return log.lock().clone();
            }
            operators.get("/api/v1/namespaces/east/pods/p").await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let told = tokio::time::timeout(PATIENCE, told).await;
    told.unwrap_or_else(|_| panic!("told {:?}", log.lock()))
}

fn words(told: &[Value]) -> Vec<&str> {
    told.iter()
        .map(|one| one[1]["spec"]["word"].as_str().unwrap())
        .collect()
}

/// Is told to change something only when there is a permit.
fn waiting(log: &Log, permits: &Arc<Semaphore>) -> Script {
    let (log, permits) = (log.clone(), permits.clone());
    script(move |request, mut respond| {
        let (log, permits) = (log.clone(), permits.clone());
        async move {
            let patched = request.method() == Method::PATCH;
            let body = read_all(request.into_body()).await;
            if patched {
                let body: Value = serde_json::from_slice(&body).unwrap();
                log.lock().push(json!(["", body]));
                permits.acquire().await.unwrap().forget();
            }
            // Whoever has gone away does not hear it.
            if let Ok(mut out) = respond.send_response(head(200), false) {
                let _ = out.send_data(definition("any").to_string().into(), true);
            }
        }
    })
}

#[tokio::test]
async fn what_follows_a_write_outlives_its_client() {
    let (log, permits) = (Log::default(), Arc::new(Semaphore::new(0)));
    let (operators, _backends) = operators(primary(&["first", "second"]), waiting(&log, &permits)).await;
    let asked = async {
        while log.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = patch(&operators, DEFINITION, MERGE, "{}") => panic!("the other member has not answered"),
        () = asked => {}
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    permits.add_permits(9);
    let told = async {
        while log.lock().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    // Before anybody could mend it.
    tokio::time::timeout(PATIENCE, told).await.unwrap();
    assert_eq!(words(&log.lock()), ["first", "second"]);
}

#[tokio::test]
async fn the_answer_comes_before_its_client_has_lost_patience() {
    let (log, permits) = (Log::default(), Arc::new(Semaphore::new(0)));
    let (operators, _backends) = operators(primary(&["first"]), waiting(&log, &permits)).await;
    let began = Instant::now();
    let answer = patch(&operators, &format!("{DEFINITION}?timeout=2s"), MERGE, "{}").await;
    assert!(began.elapsed() < Duration::from_millis(2900), "{:?}", began.elapsed());
    let warning = warning(&answer);
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(warning.contains("member cluster west"), "{warning}");
    permits.add_permits(9);
}

#[tokio::test]
async fn a_write_whose_answer_says_nothing_is_followed_all_the_same() {
    for code in [500, 409] {
        let log = Log::default();
        let (east, west) = (Log::default(), log.clone());
        let east = member(&east, move |asked| match asked.method {
            Method::POST => (code, json!({"message": "etcdserver: request timed out"})),
            _ => (200, definition("made")),
        });
        let west = member(&west, |asked| {
            if asked.of_metadata {
                missing()
            } else {
                (200, definition("made"))
            }
        });
        let (operators, _backends) = operators(east, west).await;
        let mut request = operators.request("a", "POST", DEFINITIONS, r#"{"metadata":{"name":"cs.a.b"}}"#);
        request
            .headers_mut()
            .insert(CONTENT_TYPE, "application/json".parse().unwrap());
        let answer = operators.connect().await.send_request(request).await.unwrap();
        assert_eq!(answer.status().as_u16(), code);
        assert_eq!(log.lock().len(), 0, "not before it is known");
        assert_eq!(words(&until_told(&operators, &log, 1).await), ["made"]);
    }
}

#[tokio::test]
async fn who_may_not_look_at_a_copy_does_not_wait_for_it() {
    let log = Log::default();
    let refuses = member(&log, |asked| match asked.method {
        Method::GET => (403, json!({"message": "may not get"})),
        _ => (200, json!({"metadata": {}})),
    });
    let (operators, _backends) = operators(primary(&["first"]), refuses).await;
    let began = Instant::now();
    let answer = patch(&operators, DEFINITION, MERGE, "{}").await;
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    let warning = warning(&answer);
    assert!(warning.contains("west") && warning.contains("may not get"), "{warning}");
}

#[tokio::test]
async fn a_copy_that_was_leaving_is_made_once_it_has_gone() {
    let leaves = json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}});
    let gone = json!({"message": "uid mismatch: no existing object was found"});
    for (code, answer, word) in [(200, leaves, "being deleted"), (409, gone, "uid mismatch")] {
        let log = Log::default();
        let leaving = member(&log, move |asked| match (&asked.method, asked.before) {
            (&Method::PATCH, 0) => (code, answer.clone()),
            _ => (200, definition("first")),
        });
        let (operators, _backends) = operators(primary(&["first"]), leaving).await;
        let answer = patch(&operators, DEFINITION, MERGE, "{}").await;
        let warning = warning(&answer);
        assert!(warning.contains("west") && warning.contains(word), "{warning}");
        assert_eq!(words(&until_told(&operators, &log, 2).await), ["first", "first"]);
    }
}

#[tokio::test]
async fn nothing_is_applied_anew_while_a_copy_is_leaving() {
    let log = Log::default();
    let (east, west) = (log.clone(), log.clone());
    let east = member(&east, |asked| {
        if asked.method == Method::GET {
            missing()
        } else {
            (201, definition("new"))
        }
    });
    let west = member(&west, |_| {
        let mut leaving = definition("old");
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
        (200, leaving)
    });
    let (operators, _backends) = operators(east, west).await;
    let target = format!("{DEFINITION}?fieldManager=test");
    let answer = patch(&operators, &target, APPLY, APPLIED).await;
    assert_eq!(answer.status(), StatusCode::CONFLICT);
    assert_eq!(*log.lock(), Vec::<Value>::new(), "nothing was sent");
}

#[tokio::test]
async fn a_stored_version_that_could_not_be_taken_out_is_later() {
    fn with(versions: &Value) -> Value {
        let mut definition = definition("first");
        definition["status"]["storedVersions"] = versions.clone();
        definition
    }
    let log = Log::default();
    let east = member(&Log::default(), |asked| {
        let both = asked.method == Method::GET && !asked.of_metadata && asked.before == 0;
        (200, with(&if both { json!(["v1alpha1", "v1"]) } else { json!(["v1"]) }))
    });
    let west = member(&log, |asked| match (&asked.method, asked.before) {
        (&Method::PATCH, 0) if asked.target.contains("/status") => (503, json!({"message": "not now"})),
        (&Method::PATCH, _) if asked.target.contains("/status") => (200, asked.body.clone()),
        _ => (200, with(&json!(["v1alpha1", "v1"]))),
    });
    let (operators, _backends) = operators(east, west).await;
    let target = format!("{DEFINITION}/status");
    let answer = patch(&operators, &target, MERGE, r#"{"status":{"storedVersions":["v1"]}}"#).await;
    let warning = warning(&answer);
    assert!(warning.contains("west") && warning.contains("v1alpha1"), "{warning}");
    let of_status = |told: &[Value]| {
        let of_status = told.iter().filter(|one| one[0].as_str().unwrap().contains("/status"));
        of_status
            .map(|one| one[1]["status"]["storedVersions"].clone())
            .collect::<Vec<_>>()
    };
    let told = async {
        while of_status(&log.lock()).len() < 2 {
            let number = log.lock().len() + 1;
            until_told(&operators, &log, number).await;
        }
    };
    tokio::time::timeout(PATIENCE, told).await.unwrap();
    assert_eq!(of_status(&log.lock()), [json!(["v1"]), json!(["v1"])]);
}

#[tokio::test]
async fn nothing_outside_the_limits_is_deleted_anywhere() {
    fn of(team: &str) -> Value {
        let mut definition = definition("first");
        definition["metadata"]["labels"] = json!({"team": team});
        definition
    }
    let log = Log::default();
    let east = member(&log, |_| (200, of("a")));
    let west = member(&log, |_| (200, of("b")));
    let (operators, _backends) = operators(east, west).await;
    let definitions = v1::ResourceRule {
        api_groups: vec!["apiextensions.k8s.io".to_owned()],
        resources: vec!["customresourcedefinitions".to_owned()],
    };
    operators.limit(&[v1::Limit {
        resources: vec![definitions],
        selector: "team=a".to_owned(),
    }]);
    let answer = operators.ask("a", "DELETE", DEFINITION).await;
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    assert_eq!(*log.lock(), Vec::<Value>::new(), "nothing was sent");
    let answer = patch(&operators, DEFINITION, MERGE, r#"{"spec":{"word":"first"}}"#).await;
    let warning = warning(&answer);
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(
        warning.contains("west") && warning.contains("outside shard"),
        "{warning}"
    );
    assert_eq!(log.lock().len(), 1, "the primary alone: {:?}", log.lock());
}

#[tokio::test]
async fn who_asks_for_a_kind_on_its_way_waits_for_its_definition() {
    const OBJECT: &str = "/apis/a.b/v1/namespaces/west/cs/one";
    let (log, permits) = (Log::default(), Arc::new(Semaphore::new(0)));
    let (operators, _backends) = operators(primary(&["first"]), waiting(&log, &permits)).await;
    let follows = async {
        while log.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let target = format!("{DEFINITION}?fieldManager=test");
    let mut write = pin!(patch(&operators, &target, APPLY, APPLIED));
    tokio::select! {
        _ = &mut write => panic!("the other member has not answered"),
        () = follows => {}
    }
    // Others do not wait, and who has no patience goes on.
    let others = async {
        for _ in 0..3 {
            for path in [
                "/apis/a.b/v1/namespaces/west/ds/one",
                "/api/v1/namespaces/west/pods/p",
                DEFINITION,
            ] {
                assert_eq!(operators.ask("b", "GET", path).await.status(), StatusCode::OK, "{path}");
            }
        }
        let began = Instant::now();
        let hasty = operators.ask("b", "GET", &format!("{OBJECT}?timeout=1s")).await;
        assert_eq!(hasty.status(), StatusCode::OK);
        assert!(began.elapsed() >= Duration::from_millis(500), "{:?}", began.elapsed());
    };
    let mut asked = pin!(operators.ask("b", "GET", OBJECT));
    tokio::select! {
        _ = &mut asked => panic!("its definition is being written"),
        _ = &mut write => panic!("the other member has not answered"),
        () = others => {}
    }
    permits.add_permits(9);
    let (answer, written) = tokio::join!(asked, write);
    assert_eq!(
        (answer.status(), written.status()),
        (StatusCode::OK, StatusCode::CREATED)
    );
}
