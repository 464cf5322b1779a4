//! Where the members agree, the merged view says what each of them says.

use anyhow::ensure;
use portolan_testbed::eventually;
use portolan_tests::kubectl::Kubectl;
use serde_json::{Value, json};

use crate::{AGGREGATED, GROUP, kubectl, world};

/// Lines that are not about this test's own kinds, which the members do not share.
fn shared(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| !line.contains(GROUP) && !line.contains("late.test"))
        .collect()
}

async fn pair(cache: &tempfile::TempDir, direct: &tempfile::TempDir) -> (Kubectl, Kubectl) {
    let direct = direct.path().display();
    let east = world().await.direct("east").with(&format!("--cache-dir={direct}"));
    (kubectl(cache).await, east)
}

#[tokio::test]
async fn kubectl_sees_what_it_sees_at_a_member() {
    let (cache, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (merged, direct) = pair(&cache, &other).await;
    for words in [
        &["api-versions"][..],
        &["api-resources", "-o", "wide"],
        &["explain", "pods.spec.containers"],
        &["explain", "deployments.spec", "--recursive"],
        &["explain", "configmaps", "--output=plaintext-openapiv2"],
    ] {
        let (ours, theirs) = (merged.ok(words).await.unwrap(), direct.ok(words).await.unwrap());
        assert_eq!(shared(&ours), shared(&theirs), "{words:?}");
        assert!(ours.lines().count() > 3, "{words:?}: {ours}");
    }
}

#[tokio::test]
async fn legacy_documents_are_the_members_own() {
    let merged = world().await.merged_door("alpha").await.unwrap();
    let direct = world().await.direct_door("east").await.unwrap();
    for path in [
        "/apis/apps",
        "/apis/policy/v1",
        "/api/v1",
        "/apis/apps/v1",
        "/apis/autoscaling/v2",
        "/apis/batch",
    ] {
        let ours = merged.get(path, &[]).await.unwrap();
        let theirs = direct.get(path, &[]).await.unwrap().json();
        assert_eq!((ours.status, ours.json()), (200, theirs), "{path}");
    }
    let core = merged.get("/api", &[]).await.unwrap().json();
    assert_eq!(core["versions"], serde_json::json!(["v1"]));
    assert_eq!(
        core["serverAddressByClientCIDRs"][0]["serverAddress"],
        merged.address.as_str(),
        "not a member's"
    );
    let groups = merged.get("/apis", &[]).await.unwrap().json();
    let names = |groups: &Value| -> Vec<String> {
        let groups = groups["groups"].as_array().unwrap().iter();
        let names = groups.map(|group| group["name"].as_str().unwrap().to_owned());
        names.filter(|name| name.strip_suffix(".test").is_none()).collect()
    };
    assert_eq!(
        names(&groups),
        names(&direct.get("/apis", &[]).await.unwrap().json()),
        "in the primary's order"
    );
}

#[tokio::test]
async fn the_core_group_is_the_members_own() {
    let merged = world().await.merged_door("alpha").await.unwrap();
    let direct = world().await.direct_door("east").await.unwrap();
    let accept = [("accept", AGGREGATED)];
    let ours = merged.get("/api", &accept).await.unwrap();
    let theirs = direct.get("/api", &accept).await.unwrap();
    assert_eq!(ours.json(), theirs.json());
    for header in ["content-type", "vary", "cache-control"] {
        assert_eq!(ours.header(header), theirs.header(header), "{header}");
    }
}

#[tokio::test]
async fn the_etag_is_stable_and_known_documents_are_not_sent_again() {
    let door = world().await.merged_door("alpha").await.unwrap();
    for (path, accept) in [
        ("/apis", AGGREGATED),
        ("/api", AGGREGATED),
        ("/openapi/v2", "*/*"),
        ("/openapi/v3", "*/*"),
    ] {
        // Another test defines a kind, which may come between two looks at the same document.
        eventually(&format!("{path} stays as it is"), || async {
            let first = door.get(path, &[("accept", accept)]).await?;
            let etag = first.header("etag").to_owned();
            ensure!(etag.len() > 10 && first.status == 200, "{etag}");
            let known = [("accept", accept), ("if-none-match", &etag)];
            let again = door.get(path, &known).await?;
            let seen = (again.status, again.body.len(), again.header("etag"));
            ensure!(seen == (304, 0, &*etag), "{seen:?}");
            let unknown = [("accept", accept), ("if-none-match", "\"x\"")];
            let other = door.get(path, &unknown).await?;
            ensure!(other.status == 200 && other.body == first.body, "another body");
            Ok(())
        })
        .await;
    }
}

#[tokio::test]
async fn what_cannot_be_answered_says_so() {
    let door = world().await.merged_door("alpha").await.unwrap();
    let refused = door.get("/apis/apps/v1", &[("accept", "text/html")]).await.unwrap();
    assert_eq!(refused.status, 406);
    let either = [("accept", "application/vnd.kubernetes.protobuf,application/json")];
    assert_eq!(
        door.get("/apis/apps/v1", &either).await.unwrap().header("content-type"),
        "application/json"
    );
    door.get("/apis/none.test", &[])
        .await
        .unwrap()
        .expect_status(404, &["none.test"])
        .unwrap();
    let version = door.get("/version", &[]).await.unwrap();
    assert_eq!((version.status, version.json()["major"].as_str()), (200, Some("1")));
}

/// Byte for byte: whoever takes protobuf alone reads it by a fixed schema.
#[tokio::test]
async fn who_takes_protobuf_alone_gets_the_members_own_documents() {
    let door = world().await.merged_door("alpha").await.unwrap();
    let direct = world().await.direct_door("east").await.unwrap();
    let protobuf = [("accept", "application/vnd.kubernetes.protobuf")];
    for path in [
        "/apis/apps",
        "/apis/rbac.authorization.k8s.io",
        "/apis/apps/v1",
        "/api/v1",
    ] {
        let (ours, theirs) = (
            door.get(path, &protobuf).await.unwrap(),
            direct.get(path, &protobuf).await.unwrap(),
        );
        assert_eq!(ours.header("content-type"), "application/vnd.kubernetes.protobuf");
        assert_eq!(ours.body, theirs.body, "{path}");
    }
}

#[tokio::test]
async fn who_takes_yaml_is_answered_in_yaml() {
    let merged = world().await.merged_door("alpha").await.unwrap();
    let direct = world().await.direct_door("east").await.unwrap();
    let yaml = [("accept", "application/yaml")];
    for path in [
        "/api",
        "/apis",
        "/apis/apps/v1",
        "/api/v1/configmaps",
        "/api/v1/namespaces/da-1/serviceaccounts",
    ] {
        let (ours, theirs) = (
            merged.get(path, &yaml).await.unwrap(),
            direct.get(path, &yaml).await.unwrap(),
        );
        assert_eq!((ours.status, theirs.status), (200, 200), "{path}: {}", ours.message());
        assert_eq!(ours.header("content-type"), theirs.header("content-type"), "{path}");
        let json: Value = serde_yaml_ng::from_slice(&ours.body).unwrap();
        let same: Value = serde_yaml_ng::from_slice(&theirs.body).unwrap();
        assert_eq!(json["kind"], same["kind"], "{path}");
        let plain = merged.get(path, &[]).await.unwrap().json();
        if path.starts_with("/apis/") {
            assert_eq!(json, plain, "{path}");
        }
    }
    let refused = merged
        .get("/api/v1/namespaces/default/configmaps", &yaml)
        .await
        .unwrap();
    let status: Value = serde_yaml_ng::from_slice(&refused.body).unwrap();
    assert_eq!(
        (refused.status >= 400, &status["kind"]),
        (true, &json!("Status")),
        "{status}"
    );
    // What has no end is no document: an API server has no YAML of it either.
    let watch = "/api/v1/configmaps?watch=1&timeoutSeconds=1";
    let (ours, theirs) = (
        merged.get(watch, &yaml).await.unwrap(),
        direct.get(watch, &yaml).await.unwrap(),
    );
    assert_eq!((ours.status, theirs.status), (406, 406));
}

/// A group whose extension API server is away: an empty document would say that there is nothing of it.
#[tokio::test]
async fn a_group_whose_backend_is_away_is_told_as_an_api_server_tells_it() {
    let merged = world().await.merged_door("alpha").await.unwrap();
    let direct = world().await.direct_door("west").await.unwrap();
    let away = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.away.test"},
        "spec": {
            "group": "away.test", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "insecureSkipTLSVerify": true, "service": {"namespace": "da-3", "name": "nobody"},
        },
    });
    let path = "/apis/apiregistration.k8s.io/v1/apiservices";
    assert_eq!(direct.post(path, &away).await.unwrap().status, 201);
    let document = "/apis/away.test/v1";
    eventually("both say that it is away", || async {
        let theirs = direct.get(document, &[]).await?;
        let ours = merged.get(document, &[]).await?;
        ensure!(
            (ours.status, theirs.status) == (503, 503),
            "{} {}",
            ours.status,
            theirs.status
        );
        ours.expect_status(503, &["away.test/v1", "west"])
    })
    .await;
    let gone = direct
        .call(http::Method::DELETE, &format!("{path}/v1.away.test"), &[], b"")
        .await;
    assert_eq!(gone.unwrap().status, 200);
}

/// They lie in a namespace that is no shard's, in the member whose components tell them.
#[tokio::test]
async fn a_description_of_what_has_no_namespace_shows_its_events() {
    let cache = tempfile::tempdir().unwrap();
    let direct = world().await.direct_door("west").await.unwrap();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "harbour"}});
    let made = direct.post("/api/v1/nodes", &node).await.unwrap();
    let uid = made.json()["metadata"]["uid"].clone();
    let event = |name: &str, reason: &str, object: Value| {
        json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
            "involvedObject": object, "reason": reason, "message": "m", "type": "Normal",
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
        })
    };
    let of_node = json!({"apiVersion": "v1", "kind": "Node", "name": "harbour", "uid": uid});
    let foreign = json!({"apiVersion": "v1", "kind": "Pod", "name": "harbour", "namespace": "default"});
    for event in [
        event("told", "HarbourTold", of_node),
        event("foreign", "ForeignTold", foreign),
    ] {
        let answer = direct.post("/api/v1/namespaces/default/events", &event).await.unwrap();
        assert_eq!(answer.status, 201, "{}", answer.message());
    }
    let kubectl = kubectl(&cache).await;
    let told = kubectl.ok(&["describe", "node", "harbour"]).await.unwrap();
    assert!(told.contains("HarbourTold") && !told.contains("ForeignTold"), "{told}");
    let gone = direct
        .call(http::Method::DELETE, "/api/v1/nodes/harbour", &[], b"")
        .await;
    assert_eq!(gone.unwrap().status, 200);
}
