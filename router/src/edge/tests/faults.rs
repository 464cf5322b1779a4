//! Ordered faults, from a replica's socket to a scripted member's.

use serde_json::json;

use super::*;
use crate::edge::operators::Operators;
use crate::resource::injected::Kind;

const PODS: &str = "/api/v1/namespaces/east/pods";

async fn operators(script: Script) -> (Backend, Operators) {
    let backend = Backend::start(100, script).await;
    let operators = Operators::start(&[("east", &backend)]).await;
    (backend, operators)
}

#[tokio::test]
async fn an_abort_is_answered_as_an_api_server_would_and_reaches_no_member() {
    let (backend, operators) = operators(mirror()).await;
    operators.order(&json!({"httpFault": [{"name": "away", "abort": {"httpStatus": 503}}]}));
    let answer = operators.get(&format!("{PODS}/one")).await;
    assert_eq!(answer.headers()["portolan-fault"], "ops/fj/away");
    assert!(!answer.headers().contains_key("retry-after"));
    let seen = json(answer).await;
    assert_status(&seen, 503, "ServiceUnavailable");
    let cause = &seen["details"]["causes"][0];
    assert_eq!(cause["reason"], "Policy", "{seen}");
    assert!(
        cause["message"]
            .as_str()
            .unwrap()
            .starts_with("FaultInjection/ops/fj/away"),
        "{seen}"
    );
    assert_eq!(
        (&seen["details"]["kind"], &seen["details"]["name"]),
        (&json!("pods"), &json!("one"))
    );
    assert_eq!(backend.seen.requests(), 0);
    assert_eq!(operators.router.injected.count(Kind::Abort), 1);
    let other = operators.ask("b", "GET", &format!("{PODS}/one")).await;
    assert_eq!(other.status(), 200, "who is not selected is served");
    assert!(!other.headers().contains_key("portolan-fault"));
    operators.stop();
    assert_eq!(operators.get(&format!("{PODS}/one")).await.status(), 200);
}
