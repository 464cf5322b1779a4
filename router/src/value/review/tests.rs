//! What is read of reviews in each encoding, and what is answered in it.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE};

use super::*;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn message(fields: &[(u64, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, content) in fields {
        wire::put(&mut out, *number, content);
    }
    out
}

fn head(content_type: &str, accept: &str) -> HeaderMap {
    let mut head = HeaderMap::new();
    head.insert(CONTENT_TYPE, HeaderValue::try_from(content_type).unwrap());
    head.insert(ACCEPT, HeaderValue::try_from(accept).unwrap());
    head
}

fn is(found: Option<About>, expected: Option<About>) {
    assert!(found == expected, "another question");
}

fn pods() -> About {
    About::Resource(Attributes {
        verb: "get".to_owned(),
        version: "v1".to_owned(),
        resource: "pods".to_owned(),
        namespace: "ns-c".to_owned(),
        name: "p".to_owned(),
        ..Attributes::default()
    })
}

/// `get` of Pod `p` in `ns-c`, for a user with a UID.
fn asked_in_protobuf() -> Vec<u8> {
    let wanted = message(&[(1, b"ns-c"), (2, b"get"), (4, b"v1"), (5, b"pods"), (7, b"p")]);
    let spec = message(&[(1, &wanted), (3, b"u"), (6, b"uid")]);
    seal(
        ("authorization.k8s.io/v1", "SubjectAccessReview"),
        &message(&[(1, b""), (2, &spec)]),
    )
}

#[test]
fn a_question_is_read_in_json_yaml_and_protobuf() {
    let json = br#"{"spec":{"user":"u","resourceAttributes":{"namespace":"ns-c","verb":"get","version":"v1","resource":"pods","name":"p"}}}"#;
    let yaml = b"spec:\n  resourceAttributes: {namespace: ns-c, verb: get, version: v1, resource: pods, name: p}\n";
    let kind = Kind::SubjectAccess;
    is(kind.read(None, json), Some(pods()));
    is(kind.read(Some("application/json"), json), Some(pods()));
    is(kind.read(Some("application/yaml"), yaml), Some(pods()));
    is(kind.read(Some(PROTOBUF), &asked_in_protobuf()), Some(pods()));
    is(kind.read(Some("application/cbor"), json), None);
    is(kind.read(None, b"{}"), None);
    is(kind.read(None, br#"{"spec":{"resourceAttributes":null}}"#), None);
    is(kind.read(Some(PROTOBUF), b"k8s\0\x12"), None);
}

#[test]
fn paths_rules_and_tokens_are_read_too() {
    let path = br#"{"spec":{"uid":"u1","nonResourceAttributes":{"path":"/metrics","verb":"get"}}}"#;
    is(
        Kind::SubjectAccess.read(None, path),
        Some(About::NonResource("u1".to_owned())),
    );
    let spec = message(&[(2, &message(&[(1, b"/metrics")])), (6, b"u1")]);
    let sealed = seal(("", ""), &message(&[(2, &spec)]));
    is(
        Kind::SubjectAccess.read(Some(PROTOBUF), &sealed),
        Some(About::NonResource("u1".to_owned())),
    );
    let rules = br#"{"spec":{"namespace":"ns-c"}}"#;
    is(
        Kind::SelfSubjectRules.read(None, rules),
        Some(About::Rules("ns-c".to_owned())),
    );
    is(
        Kind::Token.read(None, br#"{"spec":{"token":"t"}}"#),
        Some(About::Token("t".to_owned())),
    );
    let sealed = seal(("", ""), &message(&[(2, &message(&[(1, b"t")]))]));
    is(
        Kind::Token.read(Some(PROTOBUF), &sealed),
        Some(About::Token("t".to_owned())),
    );
}

#[test]
fn a_no_is_the_question_with_a_status() {
    let body = br#"{"kind":"SubjectAccessReview","metadata":{"name":"x"},"spec":{"user":"u"}}"#;
    let because = No::Because("outside".to_owned());
    let unknown = No::Unknown("away".to_owned());
    let (kind, text) = Kind::SubjectAccess.answer(&because, &head("application/json", "*/*"), body);
    let answer: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(kind, "application/json");
    assert_eq!(answer["spec"]["user"], "u");
    assert_eq!(answer["metadata"]["name"], "x");
    assert_eq!(answer["apiVersion"], "authorization.k8s.io/v1");
    assert_eq!(answer["status"], json!({"allowed": false, "reason": "outside"}));
    let status = |kind: Kind, no: &No| {
        let (_, text) = kind.answer(no, &head("application/json", ""), body);
        serde_json::from_slice::<Value>(&text).unwrap()["status"].clone()
    };
    assert_eq!(
        status(Kind::SelfSubjectAccess, &unknown),
        json!({"allowed": false, "evaluationError": "away"})
    );
    assert_eq!(status(Kind::SelfSubjectRules, &because)["incomplete"], true);
    assert_eq!(status(Kind::Token, &unknown)["authenticated"], false);
    let (kind, text) = Kind::SubjectAccess.answer(&because, &head("application/yaml", YAML), b"spec: {user: u}");
    assert_eq!(kind, YAML);
    let yaml = String::from_utf8(text).unwrap();
    assert!(yaml.contains("allowed: false") && yaml.contains("user: u"), "{yaml}");
}

#[test]
fn a_no_in_protobuf_keeps_what_was_asked_and_drops_what_was_answered() {
    let (_, question) = protobuf::open(&asked_in_protobuf())
        .map(|(kind, object)| (kind.to_owned(), object.to_vec()))
        .unwrap();
    let lying = message(&[(3, &[u8::try_from(ALLOWED).unwrap() * 8, 1])]);
    let body = seal(
        ("authorization.k8s.io/v1", "SubjectAccessReview"),
        &[question, lying].concat(),
    );
    let head = head(PROTOBUF, PROTOBUF);
    assert_eq!(allowed(&head, &body), Some(true));
    let no = No::Because("outside".to_owned());
    let (kind, answer) = Kind::SubjectAccess.answer(&no, &head, &body);
    assert_eq!(kind, PROTOBUF);
    assert_eq!(allowed(&head, &answer), Some(false));
    is(Kind::SubjectAccess.read(Some(PROTOBUF), &answer), Some(pods()));
    let (name, object) = protobuf::open(&answer).unwrap();
    assert_eq!(name, "SubjectAccessReview");
    let status = wire::last(object, STATUS).unwrap().unwrap();
    assert_eq!(wire::text(status, REASON), Some("outside"));
    // What was asked in JSON is answered in protobuf as well.
    let mut head = head;
    head.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let (_, answer) = Kind::SubjectAccess.answer(&no, &head, b"{}");
    let mut head = HeaderMap::new();
    head.insert(CONTENT_TYPE, HeaderValue::from_static(PROTOBUF));
    assert_eq!(allowed(&head, &answer), Some(false));
}

#[test]
fn whom_a_token_is_of_is_read_of_a_yes_alone() {
    let said = |text: &str| {
        let mut head = HeaderMap::new();
        head.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        authenticated(&head, text.as_bytes())
    };
    assert_eq!(
        said(r#"{"status":{"authenticated":true,"user":{"uid":"u1"}}}"#).as_deref(),
        Some("u1")
    );
    assert_eq!(said(r#"{"status":{"authenticated":false,"user":{"uid":"u1"}}}"#), None);
    assert_eq!(said(r#"{"status":{"user":{}}}"#), None);
    let status = [vec![8, 1], message(&[(2, &message(&[(1, b"n"), (2, b"u1")]))])].concat();
    let mut head = HeaderMap::new();
    head.insert(CONTENT_TYPE, HeaderValue::from_static(PROTOBUF));
    let body = seal(("", ""), &message(&[(3, &status)]));
    assert_eq!(authenticated(&head, &body).as_deref(), Some("u1"));
}
