//! Joining: by token, once, under one name; and what the MemberCluster says of it.

use portolan_wire::v1::enroll_response::Outcome;
use serde_json::json;
use tonic::Code;

use crate::scene::{Scene, csr, facts_of, good_member};

const NEVER: &str = "2099-01-01T00:00:00Z";

#[tokio::test]
async fn who_is_let_in() {
    let scene = Scene::start().await.unwrap();
    waits_for_the_opt_in(&scene).await;
    tokens_are_spent(&scene).await;
    clusters_join_once(&scene).await;
    scene.leaks_nothing().await;
}

async fn waits_for_the_opt_in(scene: &Scene) {
    let mut closed = good_member("shy");
    closed["accept"] = json!(false);
    scene.member("shy", closed).await;
    let message = scene.member_says("shy", "Accepted", "False/NotAccepted").await;
    assert!(message.contains("spec.accept"), "{message}");
    let (token, csr) = (scene.token("agent", "shy", NEVER).await, csr());
    let Outcome::Pending(pending) = scene.enroll(&token, &csr, facts_of("shy")).await.unwrap() else {
        panic!("let in without the opt-in")
    };
    assert!(
        pending.reason.contains("spec.accept of MemberCluster shy"),
        "{}",
        pending.reason
    );
    scene.member("shy", good_member("shy")).await;
    let Outcome::Issued(_) = scene.enroll(&token, &csr, facts_of("shy")).await.unwrap() else {
        panic!("not let in")
    };
    scene.member_says("shy", "Joined", "True/Ok").await;
}

async fn tokens_are_spent(scene: &Scene) {
    scene.member("east", good_member("east")).await;
    let (token, key) = (scene.token("agent", "east", NEVER).await, csr());
    for _ in 0..2 {
        scene.enroll(&token, &key, facts_of("east")).await.unwrap();
    }
    let expired = scene.token("agent", "east", "2020-01-01T00:00:00Z").await;
    for (token, code, text) in [
        (token.as_str(), Code::PermissionDenied, "used with another key"),
        (
            expired.as_str(),
            Code::Unauthenticated,
            "expired at 2020-01-01T00:00:00Z",
        ),
        (
            "nobody.0123456789abcdef",
            Code::Unauthenticated,
            "unknown bootstrap token",
        ),
    ] {
        let status = scene.enroll(token, &csr(), facts_of("east")).await.unwrap_err();
        assert_eq!(status.code(), code, "{}", status.message());
        assert!(status.message().contains(text), "{}", status.message());
        assert!(
            status.message().contains("portolanctl join"),
            "no fix: {}",
            status.message()
        );
    }
}

async fn clusters_join_once(scene: &Scene) {
    scene.member("twin", good_member("twin")).await;
    let token = scene.token("agent", "twin", NEVER).await;
    let status = scene.enroll(&token, &csr(), facts_of("east")).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    let message = scene.member_says("twin", "Joined", "False/DuplicateCluster").await;
    assert!(message.contains("is a member already, as east"), "{message}");

    let token = scene.token("agent", "east", NEVER).await;
    let status = scene.enroll(&token, &csr(), facts_of("mars")).await.unwrap_err();
    assert!(
        status
            .message()
            .contains("is pinned to the cluster with UID uid-of-east"),
        "{}",
        status.message()
    );
}
