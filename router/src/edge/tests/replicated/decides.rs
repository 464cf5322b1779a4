//! Objects in which people say which member decides about them.

use portolan_crds::labels::DECIDES;

use super::*;

/// The definition, about which this member decides.
fn of(decides: Option<&str>, word: &str) -> Value {
    let mut definition = definition(word);
    definition["metadata"]["annotations"] = decides.map_or(Value::Null, |cluster| json!({DECIDES: cluster}));
    definition
}

/// Of the methods and paths that were told, each with the annotation that it has.
fn told(log: &Log) -> Vec<(String, Value)> {
    let told = log.lock();
    let told = told.iter().map(|one| {
        let decides = &one[1]["metadata"]["annotations"][DECIDES];
        (one[0].as_str().unwrap().to_owned(), decides.clone())
    });
    told.collect()
}

/// As a shard of another operator has it, whose primary is west.
#[tokio::test]
async fn who_decides_is_written_and_read_and_the_primary_follows() {
    let (primaries, others) = (Log::default(), Log::default());
    let east = member(&primaries, |_| (200, of(Some("west"), "copy")));
    let west = member(&others, |_| (200, of(Some("west"), "first")));
    let (operators, _backends) = operators(east, west).await;
    let answer = patch(&operators, DEFINITION, MERGE, "{}").await;
    assert_eq!((answer.status(), warning(&answer)), (StatusCode::OK, String::new()));
    assert_eq!(told(&others), [(format!("PATCH {DEFINITION}"), Value::Null)]);
    let applied = format!("PATCH {DEFINITION}?fieldManager=portolan-replica-west");
    assert_eq!(told(&primaries), [(applied, json!("west"))]);
    assert_eq!(words(&primaries.lock()), ["first"]);
    let read = operators.ask("a", "GET", DEFINITION).await;
    assert_eq!(super::json(read).await["spec"]["word"], "first");
    others.lock().clear();
    let answer = operators.ask("a", "DELETE", DEFINITION).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(told(&others)[0].0, format!("DELETE {DEFINITION}"));
}

/// Who may not read the primary's applies nothing there by default, where a copy says who decides.
#[tokio::test]
async fn an_apply_by_who_may_not_read_the_primarys_goes_where_a_copy_says() {
    let (primaries, others) = (Log::default(), Log::default());
    let east = member(&primaries, |question| match question.method {
        Method::GET => (403, json!({})),
        _ => (200, of(Some("west"), "copy")),
    });
    let west = member(&others, |_| (200, of(Some("west"), "first")));
    let (operators, _backends) = operators(east, west).await;
    let answer = patch(&operators, DEFINITION, APPLY, APPLIED).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(told(&others), [(format!("PATCH {DEFINITION}"), Value::Null)]);
    let copied = |one: &(String, Value)| one.0.contains("fieldManager=portolan-replica-west");
    assert!(told(&primaries).iter().all(copied), "{:?}", told(&primaries));
}

/// A member that cannot be asked might be the one that decides.
#[tokio::test]
async fn an_apply_by_who_may_not_read_the_primarys_waits_for_who_cannot_be_asked() {
    let (primaries, others) = (Log::default(), Log::default());
    let hides = |code: u16| {
        move |question: &Question| match question.method {
            Method::GET => (code, json!({})),
            _ => (200, of(None, "applied")),
        }
    };
    let east = member(&primaries, hides(403));
    let west = member(&others, hides(500));
    let (operators, _backends) = operators(east, west).await;
    let answer = patch(&operators, DEFINITION, APPLY, APPLIED).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        (told(&primaries), told(&others)),
        (Vec::new(), Vec::new()),
        "nothing was sent"
    );
}

#[tokio::test]
async fn what_none_of_its_members_decides_about_is_not_written() {
    let log = Log::default();
    let east = member(&log, |_| (200, of(Some("north"), "copy")));
    let west = member(&log, |_| (200, of(Some("north"), "copy")));
    let (operators, _backends) = operators(east, west).await;
    for method in ["PUT", "DELETE"] {
        let answer = operators.ask("a", method, DEFINITION).await;
        assert_eq!(answer.status(), StatusCode::CONFLICT, "{method}");
        let said = super::json(answer).await;
        let said = said["message"].as_str().unwrap_or_default();
        assert!(said.contains("member cluster north decides"), "{method}: {said}");
    }
    assert_eq!(told(&log), [], "nothing was sent");
    assert_eq!(operators.ask("a", "GET", DEFINITION).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn what_another_member_decides_about_is_not_made_beside_it() {
    for decides in ["west", "north"] {
        let log = Log::default();
        let east = member(&log, |_| missing());
        let west = member(&log, move |_| (200, of(Some(decides), "first")));
        let (operators, _backends) = operators(east, west).await;
        let mut request = operators.request("a", "POST", DEFINITIONS, r#"{"metadata":{"name":"cs.a.b"}}"#);
        let content_type = "application/json".parse().unwrap();
        request.headers_mut().insert(CONTENT_TYPE, content_type);
        let answer = operators.connect().await.send_request(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::CONFLICT);
        let said = super::json(answer).await;
        assert_eq!(said["reason"], "AlreadyExists", "{said}");
        assert_eq!(told(&log), [], "nothing was sent");
    }
}
