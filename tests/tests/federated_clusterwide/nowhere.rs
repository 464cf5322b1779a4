//! Namespaces that are nowhere, or just gone: as on one API server.

use http::Method;
use portolan_testbed::{Fault, eventually};
use portolan_tests::door::{Door, json as json_request, request};
use portolan_tests::watch::Watch;
use serde_json::{Value, json};

use crate::{MEMBERS, delete, door, world};

const NAMESPACES: &str = "/api/v1/namespaces";

fn maps(namespace: &str) -> String {
    format!("{NAMESPACES}/{namespace}/configmaps")
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

/// A Namespace that west takes.
fn crew(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"crew": "chosen"}}})
}

async fn status(door: &Door, method: Method, path: &str, body: &Value) -> (u16, String) {
    let answer = door.ask(json_request(method, path, body).unwrap()).await.unwrap();
    (answer.status, answer.message())
}

#[tokio::test]
async fn what_is_in_a_namespace_that_is_nowhere_is_absent() {
    let _calm = MEMBERS.read().await;
    let door = door("wide").await;
    for (accept, kind) in [
        ("application/json", "ConfigMapList"),
        ("application/json;as=Table;g=meta.k8s.io;v=v1", "Table"),
    ] {
        let list = door.get(&maps("cn-nowhere"), &[("accept", accept)]).await.unwrap();
        let (code, list) = (list.status, list.json());
        assert_eq!((code, &list["kind"]), (200, &json!(kind)), "{list}");
        let shown = list["items"].as_array().or(list["rows"].as_array());
        assert!(shown.is_none_or(Vec::is_empty), "{list}");
    }
    let one = format!("{}/a", maps("cn-nowhere"));
    let absent = (404, "configmaps \"a\" not found".to_owned());
    let no_namespace = (404, "namespaces \"cn-nowhere\" not found".to_owned());
    assert_eq!(status(&door, Method::GET, &one, &json!({})).await, absent);
    assert_eq!(status(&door, Method::PUT, &one, &map("a")).await, absent);
    assert_eq!(status(&door, Method::DELETE, &one, &json!({})).await, absent);
    assert_eq!(
        status(&door, Method::POST, &maps("cn-nowhere"), &map("a")).await,
        no_namespace
    );
    let headers = [("content-type", "application/apply-patch+yaml")];
    let apply = request(
        Method::PATCH,
        &format!("{one}?fieldManager=t"),
        &headers,
        map("a").to_string().as_bytes(),
    );
    let applied = door.ask(apply.unwrap()).await.unwrap();
    assert_eq!((applied.status, applied.message()), no_namespace);
    let deleted = delete(&door, &maps("cn-nowhere")).await;
    assert_eq!(deleted.status, 200, "{}", deleted.message());
    let kubectl = world().await.merged("wide").with("-n=cn-nowhere");
    kubectl.ok(&["get", "secret", "x", "--ignore-not-found"]).await.unwrap();
    kubectl.ok(&["delete", "pods", "--all"]).await.unwrap();
    // What a member has outside the shard stays refused.
    for namespace in ["default", "cc-e"] {
        let refused = door.get(&maps(namespace), &[]).await.unwrap();
        refused.expect_status(403, &[namespace, "outside shard"]).unwrap();
    }
}

#[tokio::test]
async fn a_watch_of_a_namespace_that_is_nowhere_sees_it_come() {
    let _calm = MEMBERS.read().await;
    let (ours, theirs) = (door("chosen").await, door("wide").await);
    let path = maps("cn-comes");
    let list = ours.get(&path, &[]).await.unwrap().json();
    let cursor = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut watch = Watch::open(&ours, &format!("{path}?resourceVersion={cursor}"))
        .await
        .unwrap();
    let mut other = Watch::open(&theirs, &path).await.unwrap();
    let made = ours.post(NAMESPACES, &crew("cn-comes")).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.message());
    // Of a busy hub its router hears a moment later.
    eventually("the namespace takes objects", || async {
        let made = ours.post(&path, &map("a")).await?;
        anyhow::ensure!(made.status == 201, "{}", made.message());
        anyhow::Ok(())
    })
    .await;
    assert_eq!(watch.sees("cn-comes/a").await.unwrap(), "ADDED");
    // Who listed before it came goes on from there, too.
    let mut late = Watch::open(&ours, &format!("{path}?resourceVersion={cursor}"))
        .await
        .unwrap();
    assert_eq!(late.sees("cn-comes/a").await.unwrap(), "ADDED");
    let end = other.until("its end", |event| event["type"] == "ERROR").await.unwrap();
    assert_eq!(end["object"]["code"], 410, "{end}");
    let refused = theirs.get(&path, &[]).await.unwrap();
    refused
        .expect_status(403, &["cn-comes", "operators/chosen", "west"])
        .unwrap();
    assert_eq!(delete(&ours, &format!("{NAMESPACES}/cn-comes")).await.status, 200);
}

#[tokio::test]
async fn a_watch_ends_when_its_namespace_is_somewhere_and_no_shards() {
    let _calm = MEMBERS.read().await;
    let (door, west) = (door("wide").await, world().await.direct("west"));
    let mut watch = Watch::open(&door, &maps("cn-nobodys")).await.unwrap();
    west.ok(&["create", "namespace", "cn-nobodys"]).await.unwrap();
    let end = watch.until("its end", |event| event["type"] == "ERROR").await.unwrap();
    assert_eq!(end["object"]["code"], 410, "{end}");
    let refused = door.get(&maps("cn-nobodys"), &[]).await.unwrap();
    refused.expect_status(403, &["cn-nobodys", "outside shard"]).unwrap();
    west.ok(&["delete", "namespace", "cn-nobodys", "--wait=false"])
        .await
        .unwrap();
}

#[tokio::test]
async fn a_namespace_that_was_deleted_is_made_again_at_once() {
    let _calm = MEMBERS.read().await;
    let (ours, theirs) = (door("chosen").await, door("wide").await);
    let (itself, path) = (format!("{NAMESPACES}/cn-again"), maps("cn-again"));
    for round in 0..5 {
        let made = ours.post(NAMESPACES, &crew("cn-again")).await.unwrap();
        assert_eq!(made.status, 201, "{round}: {}", made.message());
        // It is the caller's at once, and so is what was in it before gone.
        eventually("it takes objects", || async {
            let written = ours.post(&path, &map("a")).await?;
            anyhow::ensure!(written.status == 201, "{round}: {}", written.message());
            anyhow::Ok(())
        })
        .await;
        assert_eq!(delete(&ours, &itself).await.status, 200);
        eventually("it is gone", || async {
            ours.get(&itself, &[]).await.unwrap().status == 404
        })
        .await;
    }
    let one = format!("{path}/a");
    assert_eq!(ours.get(&one, &[]).await.unwrap().status, 404);
    assert_eq!(ours.get(&path, &[]).await.unwrap().json()["items"], json!([]));
    assert_eq!(ours.post(&path, &map("a")).await.unwrap().status, 404);
    // It is nobody else's business that it was there.
    eventually("it is gone for others, too", || async {
        theirs.get(&one, &[]).await.unwrap().status == 404
    })
    .await;
    assert_eq!(theirs.get(&path, &[]).await.unwrap().json()["items"], json!([]));
}

#[tokio::test]
async fn what_a_member_that_is_away_had_not_is_not_there_and_nothing_is_made_in_it() {
    let _mine = MEMBERS.write().await;
    let door = door("wide").await;
    let west = world().await.cluster("west");
    west.fault(Fault::Reset).await.unwrap();
    let path = maps("cn-away");
    eventually("the hub knows that west is away", || async {
        let refused = door.post(&path, &map("a")).await.unwrap();
        refused.expect_status(503, &["cn-away", "west"]).is_ok()
    })
    .await;
    let absent = door.get(&format!("{path}/a"), &[]).await.unwrap();
    absent.expect_status(404, &["configmaps \"a\" not found"]).unwrap();
    let list = door.get(&path, &[]).await.unwrap();
    assert_eq!((list.status, &list.json()["items"]), (200, &json!([])));
    // Nor is anybody told that it may what cannot be found out.
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"namespace": "cw-w", "verb": "get", "resource": "pods"}},
    });
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let answer = door.post(reviews, &review).await.unwrap();
    let status = answer.json()["status"].clone();
    assert_eq!(
        (answer.status, &status["allowed"]),
        (201, &json!(false)),
        "{}",
        answer.message()
    );
    let why = status["evaluationError"].as_str().unwrap();
    assert!(why.contains("west"), "{why}");
    west.fault(Fault::None).await.unwrap();
    eventually("it is back", || async {
        door.post(&path, &map("a")).await.unwrap().status == 404
    })
    .await;
}
