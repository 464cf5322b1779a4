//! Reviews are answered by the member that they are about.

use base64::Engine as _;
use portolan_tests::door::Door;
use portolan_tests::kubectl::Kubectl;
use serde_json::{Value, json};

use crate::world;

const ACCESS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const SELF: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const RULES: &str = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// What is answered to the spec of a review.
async fn review(door: &Door, path: &str, spec: Value) -> Value {
    let (group, kind) = match path {
        ACCESS => ("authorization", "SubjectAccessReview"),
        SELF => ("authorization", "SelfSubjectAccessReview"),
        RULES => ("authorization", "SelfSubjectRulesReview"),
        _ => ("authentication", "TokenReview"),
    };
    let body = json!({"apiVersion": format!("{group}.k8s.io/v1"), "kind": kind, "spec": spec});
    let answer = door.post(path, &body).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.message());
    answer.json()["status"].clone()
}

fn pods(namespace: &str) -> Value {
    json!({"namespace": namespace, "verb": "list", "version": "v1", "resource": "pods"})
}

async fn may(door: &Door, attributes: Value) -> Value {
    review(door, ACCESS, json!({"user": "jane", "resourceAttributes": attributes})).await
}

/// Jane may read in `namespace`, or everywhere, of a member.
async fn allow(kubectl: &Kubectl, namespace: Option<&str>) {
    let kind = if namespace.is_some() {
        "rolebinding"
    } else {
        "clusterrolebinding"
    };
    let mut bound = vec!["create", kind, "jane", "--clusterrole=view", "--user=jane"];
    bound.extend(namespace.into_iter().flat_map(|namespace| ["-n", namespace]));
    kubectl.ok(&bound).await.unwrap();
}

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "one story, of which each step needs the one before"
)]
async fn who_is_asked_about_is_known_where_that_is() {
    let world = world().await;
    let door = world.merged_door("alpha").await.unwrap();
    let (east, west) = (world.direct("east"), world.direct("west"));
    // East's own namespace of that name says nothing.
    allow(&west, Some("ma-3")).await;
    assert_eq!(may(&door, pods("ma-3")).await["allowed"], true);
    assert_eq!(may(&door, pods("ma-1")).await["allowed"], false);
    let local = "/apis/authorization.k8s.io/v1/namespaces/ma-3/localsubjectaccessreviews";
    let body = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "LocalSubjectAccessReview",
        "metadata": {"namespace": "ma-3"}, "spec": {"user": "jane", "resourceAttributes": pods("ma-3")},
    });
    let answer = door.post(local, &body).await.unwrap();
    assert_eq!(
        (answer.status, &answer.json()["status"]["allowed"]),
        (201, &json!(true))
    );
    let outside = may(&door, pods("mb-1")).await;
    assert_eq!(outside["allowed"], false);
    let reason = outside["reason"].as_str().unwrap();
    assert!(reason.contains("outside shard operators/alpha"), "{reason}");
    // A yes for all namespaces is one of all members.
    allow(&west, None).await;
    assert_eq!(may(&door, pods("")).await["allowed"], false, "east says no");
    allow(&east, None).await;
    assert_eq!(may(&door, pods("")).await["allowed"], true);
    // What has no namespace is asked about where it is.
    west.ok(&["create", "clusterrole", "reviewed", "--verb=get", "--resource=pods"])
        .await
        .unwrap();
    let bind = [
        "create",
        "clusterrole",
        "reviewer",
        "--verb=get",
        "--resource=clusterroles",
        "--resource-name=reviewed",
    ];
    west.ok(&bind).await.unwrap();
    let bind = [
        "create",
        "clusterrolebinding",
        "reviewer",
        "--clusterrole=reviewer",
        "--user=john",
    ];
    west.ok(&bind).await.unwrap();
    let role = json!({
        "user": "john",
        "resourceAttributes": {
            "verb": "get", "group": "rbac.authorization.k8s.io", "resource": "clusterroles", "name": "reviewed",
        },
    });
    assert_eq!(review(&door, ACCESS, role).await["allowed"], true);
    let own = review(&door, SELF, json!({"resourceAttributes": pods("mb-1")})).await;
    assert_eq!(own["allowed"], false, "{own}");
    let own = review(&door, SELF, json!({"resourceAttributes": pods("ma-3")})).await;
    assert_eq!(own["allowed"], true, "{own}");
    let rules = review(&door, RULES, json!({"namespace": "mb-1"})).await;
    assert_eq!(
        (&rules["incomplete"], &rules["resourceRules"]),
        (&json!(true), &json!([]))
    );
    let rules = review(&door, RULES, json!({"namespace": "ma-3"})).await;
    assert!(!rules["resourceRules"].as_array().unwrap().is_empty(), "{rules}");
    let can_i = world.merged("alpha").with("-n=mb-1");
    can_i.refused(&["auth", "can-i", "list", "pods"]).await.unwrap();
}

#[tokio::test]
async fn a_token_is_known_to_the_member_that_signed_it_and_so_is_whose_it_is() {
    let world = world().await;
    let door = world.merged_door("alpha").await.unwrap();
    let west = world.direct("west");
    let rights = [
        "create",
        "clusterrole",
        "scraper",
        "--verb=get",
        "--non-resource-url=/metrics",
    ];
    west.ok(&rights).await.unwrap();
    let bound = [
        "create",
        "clusterrolebinding",
        "scraper",
        "--clusterrole=scraper",
        "--serviceaccount=ma-3:default",
    ];
    west.ok(&bound).await.unwrap();
    let token = west.ok(&["create", "token", "default", "-n", "ma-3"]).await.unwrap();
    let claims = token.split('.').nth(1).unwrap();
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    let uid = &claims["kubernetes.io"]["serviceaccount"]["uid"];
    let user = "system:serviceaccount:ma-3:default";
    let metrics = json!({
        "user": user, "uid": uid, "groups": ["system:authenticated"],
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    });
    // As far as home knows.
    assert_eq!(review(&door, ACCESS, metrics.clone()).await["allowed"], false);
    let known = review(&door, TOKENS, json!({"token": token.trim()})).await;
    assert_eq!(
        (&known["authenticated"], &known["user"]["username"]),
        (&json!(true), &json!(user)),
        "{known}"
    );
    assert_eq!(review(&door, ACCESS, metrics).await["allowed"], true);
    let garbage = review(&door, TOKENS, json!({"token": "garbage"})).await;
    assert_ne!(garbage["authenticated"], true, "{garbage}");
}
