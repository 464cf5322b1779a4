//! Writes of kinds that every member has alike, between writers who do not know of each other.

use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::*;
use crate::edge::operators::Operators;

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

/// Has the definition; each time it is read there is the next of these words in it, the last one for ever.
fn primary(words: &'static [&'static str]) -> Script {
    let reads = Arc::new(AtomicUsize::new(0));
    script(move |request, mut respond| {
        let reads = reads.clone();
        async move {
            let is_read = request.method() == Method::GET;
            let accept = request.headers().get("accept").and_then(|accept| accept.to_str().ok());
            let of_metadata = accept.is_some_and(|accept| accept.contains("PartialObjectMetadata"));
            let index = if is_read && !of_metadata {
                reads.fetch_add(1, Ordering::SeqCst)
            } else {
                0
            };
            let word = words.get(index).or(words.last()).unwrap();
            read_all(request.into_body()).await;
            let mut out = respond.send_response(head(200), false).unwrap();
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
                log.lock()
                    .push(json!([asked, body["spec"]["word"], body.get("status")]));
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
    json!([format!("{DEFINITION}?fieldManager=portolan-replica"), word, null])
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
