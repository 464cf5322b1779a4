//! Limits finer than the namespace: shard `limited` owns ConfigMaps with the label `app=foo`, and all of everything else,
//! in namespace `me-1`. What a client selects can only narrow that.

use http::Method;
use portolan_testbed::{eventually, patience};
use portolan_tests::door::{Door, json as json_request, request};
use serde_json::{Value, json};

use crate::world;

const CONFIGMAPS: &str = "/api/v1/namespaces/me-1/configmaps";
const MERGE: [(&str, &str); 1] = [("content-type", "application/merge-patch+json")];

fn object(name: &str, app: Option<&str>) -> Value {
    let labels = app.map_or(json!({}), |app| json!({"app": app}));
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {"a": "1"}})
}

/// Creates objects past the router; names are of one test, so that tests do not meet.
async fn arrange(objects: &[(&str, Option<&str>)]) -> Door {
    let world = world().await;
    let direct = world.direct_door("east").await.unwrap();
    for (name, app) in objects {
        assert_eq!(direct.post(CONFIGMAPS, &object(name, *app)).await.unwrap().status, 201);
    }
    world.merged_door("limited").await.unwrap()
}

fn names(answer: &Value) -> Vec<String> {
    let items = answer["items"]
        .as_array()
        .unwrap_or_else(|| panic!("no list: {answer}"));
    items
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn lists_are_narrowed_and_cannot_be_widened() {
    let door = arrange(&[("l-foo", Some("foo")), ("l-bar", Some("bar")), ("l-none", None)]).await;
    let all = names(&door.get(CONFIGMAPS, &[]).await.unwrap().json());
    assert!(all.contains(&"l-foo".to_owned()), "{all:?}");
    for (selector, expected) in [
        ("app%20in%20(foo,bar)", true),
        ("app", true),
        ("app%3Dfoo", true),
        ("app!%3Dbar", true),
        ("", true),
        ("app%3Dbar", false),
        ("app%3D%3Dbar", false),
        ("!app", false),
        ("app%20notin%20(foo)", false),
        ("app%3Dbar&labelSelector=app%3Dfoo", false),
        ("app%3Dfoo&labelSelector=app%3Dbar", true),
        ("app%3Dfoo,app%3Dbar", false),
    ] {
        let path = format!("{CONFIGMAPS}?labelSelector={selector}");
        let seen = names(&door.get(&path, &[]).await.unwrap().json());
        assert_eq!(seen.contains(&"l-foo".to_owned()), expected, "{selector}: {seen:?}");
        assert!(
            !seen.iter().any(|name| name == "l-bar" || name == "l-none"),
            "{selector}: {seen:?}"
        );
    }
    for path in [
        "?LabelSelector=app%3Dbar",
        "?fieldSelector=metadata.name%3Dl-bar",
        "?label%53elector=app%3Dbar",
    ] {
        let seen = names(&door.get(&format!("{CONFIGMAPS}{path}"), &[]).await.unwrap().json());
        assert!(!seen.contains(&"l-bar".to_owned()), "{path}: {seen:?}");
    }
    let bad = door
        .get(&format!("{CONFIGMAPS}?labelSelector=a%20b"), &[])
        .await
        .unwrap();
    bad.expect_status(400, &["labelSelector"]).unwrap();
    let secrets = door
        .get("/api/v1/namespaces/me-1/secrets?labelSelector=app%3Dbar", &[])
        .await
        .unwrap();
    assert_eq!(secrets.status, 200);
}

#[tokio::test]
async fn watches_see_what_is_the_shards() {
    let door = arrange(&[]).await;
    let line = door.open().await.unwrap();
    let path = format!("{CONFIGMAPS}?watch=true&timeoutSeconds=600&labelSelector=watched,app%20in%20(foo,bar)");
    let answer = line.send(request(Method::GET, &path, &[], &[]).unwrap()).await.unwrap();
    let direct = world().await.direct_door("east").await.unwrap();
    for (name, app) in [("w-bar", "bar"), ("w-foo", "foo")] {
        let mut object = object(name, Some(app));
        object["metadata"]["labels"]["watched"] = json!("1");
        assert_eq!(direct.post(CONFIGMAPS, &object).await.unwrap().status, 201);
    }
    let mut body = answer.into_body();
    let frame = tokio::time::timeout(patience(), http_body_util::BodyExt::frame(&mut body)).await;
    let first = frame.unwrap().unwrap().unwrap().into_data().unwrap();
    let event: Value = serde_json::from_slice(&first).unwrap();
    assert_eq!(event["object"]["metadata"]["name"], "w-foo", "{event}");
}

#[tokio::test]
async fn single_objects_are_guarded() {
    let door = arrange(&[("g-foo", Some("foo")), ("g-bar", Some("bar"))]).await;
    let foreign = format!("{CONFIGMAPS}/g-bar");
    let own = format!("{CONFIGMAPS}/g-foo");
    let refused = ["configmaps me-1/g-bar", "operators/limited", "app=foo"];
    door.get(&foreign, &[])
        .await
        .unwrap()
        .expect_status(403, &refused)
        .unwrap();
    for (method, body) in [(Method::PUT, object("g-bar", Some("foo"))), (Method::DELETE, json!({}))] {
        let answer = door.ask(json_request(method, &foreign, &body).unwrap()).await.unwrap();
        answer.expect_status(403, &refused).unwrap();
    }
    let claim = br#"{"metadata":{"labels":{"app":"foo"}}}"#;
    let answer = door
        .ask(request(Method::PATCH, &foreign, &MERGE, claim).unwrap())
        .await
        .unwrap();
    answer.expect_status(403, &refused).unwrap();
    assert_eq!(door.get(&own, &[]).await.unwrap().status, 200);
    let change = br#"{"data":{"a":"2"}}"#;
    let answer = door
        .ask(request(Method::PATCH, &own, &MERGE, change).unwrap())
        .await
        .unwrap();
    assert_eq!(answer.json()["data"]["a"], "2", "{:?}", answer.body);
    let missing = door.get(&format!("{CONFIGMAPS}/g-none"), &[]).await.unwrap();
    missing.expect_status(404, &["\"g-none\" not found"]).unwrap();
    let kept = world()
        .await
        .direct_door("east")
        .await
        .unwrap()
        .get(&foreign, &[])
        .await
        .unwrap()
        .json();
    assert_eq!(kept["metadata"]["labels"]["app"], "bar");
}

#[tokio::test]
async fn nothing_is_made_that_leaves_the_shard() {
    let door = arrange(&[("n-foo", Some("foo"))]).await;
    for app in [None, Some("bar")] {
        let answer = door.post(CONFIGMAPS, &object("n-new", app)).await.unwrap();
        answer.expect_status(403, &["operators/limited", "app=foo"]).unwrap();
    }
    assert_eq!(
        door.post(CONFIGMAPS, &object("n-new", Some("foo")))
            .await
            .unwrap()
            .status,
        201
    );
    let own = format!("{CONFIGMAPS}/n-foo");
    for what in departures(&own) {
        let line = format!("{} {:?}", what.method(), String::from_utf8_lossy(what.body()));
        let answer = door.ask(what).await.unwrap();
        assert_eq!(answer.status, 403, "{line}: {:?}", answer.body);
    }
    let kept = world()
        .await
        .direct_door("east")
        .await
        .unwrap()
        .get(&own, &[])
        .await
        .unwrap()
        .json();
    assert_eq!(kept["metadata"]["labels"]["app"], "foo");
    let fine = MANIFEST.replace("bar", "foo");
    let applied = format!("{own}?fieldManager=t&force=true");
    let answer = door
        .call(Method::PATCH, &applied, &APPLY, fine.as_bytes())
        .await
        .unwrap();
    assert_eq!(answer.status, 200, "{:?}", answer.body);
}

const APPLY: [(&str, &str); 1] = [("content-type", "application/apply-patch+yaml")];
const MANIFEST: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: n-foo, labels: {app: bar}}\n";

/// Every way to take `n-foo` out of the shard.
fn departures(own: &str) -> Vec<http::Request<Vec<u8>>> {
    let json = [("content-type", "application/json-patch+json")];
    let strategic = [("content-type", "application/strategic-merge-patch+json")];
    let patch = |headers: &[(&str, &str)], body: &str| request(Method::PATCH, own, headers, body.as_bytes()).unwrap();
    let applied = format!("{own}?fieldManager=t&force=true");
    vec![
        json_request(Method::PUT, own, &object("n-foo", Some("bar"))).unwrap(),
        json_request(Method::PUT, own, &object("n-foo", None)).unwrap(),
        patch(&MERGE, r#"{"metadata":{"labels":{"app":"bar"}}}"#),
        patch(&MERGE, r#"{"metadata":{"labels":{"app":null}}}"#),
        patch(&MERGE, r#"{"metadata":{"labels":null}}"#),
        patch(&strategic, r#"{"metadata":{"labels":{"$patch":"replace"}}}"#),
        patch(&json, r#"[{"op":"remove","path":"/metadata/labels/app"}]"#),
        patch(&json, r#"[{"op":"replace","path":"/metadata/labels","value":{}}]"#),
        request(Method::PATCH, &applied, &APPLY, MANIFEST.as_bytes()).unwrap(),
    ]
}

#[tokio::test]
async fn deleting_a_collection_takes_only_the_shards() {
    let door = arrange(&[("d-foo", Some("foo")), ("d-bar", Some("bar"))]).await;
    let path = format!("{CONFIGMAPS}?fieldSelector=metadata.name!%3Dwhere&labelSelector=app");
    // Only this test's: the name is what the client narrows by.
    for name in ["d-foo", "d-bar"] {
        let path = path.replace("metadata.name!%3Dwhere", &format!("metadata.name%3D{name}"));
        let answer = door
            .ask(request(Method::DELETE, &path, &[], &[]).unwrap())
            .await
            .unwrap();
        assert_eq!(answer.status, 200, "{:?}", answer.body);
    }
    let direct = world().await.direct_door("east").await.unwrap();
    let left = eventually("the shard's is gone", || async {
        let left = names(&direct.get(CONFIGMAPS, &[]).await.unwrap().json());
        (!left.contains(&"d-foo".to_owned())).then_some(left)
    })
    .await;
    assert!(left.contains(&"d-bar".to_owned()), "{left:?}");
}
