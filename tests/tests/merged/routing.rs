//! Which member answers: the owner of the namespace, home for the caller's own, the primary for what is nobody's.

use http::Method;
use portolan_testbed::eventually;
use portolan_tests::door::{Answer, Door, json as json_request};
use serde_json::{Value, json};

use crate::world;

/// The cluster that a namespace's ConfigMap says it is in.
async fn place(door: &Door, namespace: &str) -> Result<String, Answer> {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/where");
    let answer = door.get(&path, &[]).await.unwrap();
    match answer.json()["data"]["cluster"].as_str() {
        Some(cluster) => Ok(cluster.to_owned()),
        None => Err(answer),
    }
}

#[tokio::test]
async fn a_namespace_is_served_by_its_owner() {
    let world = world().await;
    for (shard, namespace, cluster) in [
        ("alpha", "ma-1", "east"),
        ("alpha", "ma-3", "west"),
        ("beta", "mb-1", "east"),
        ("beta", "mb-2", "west"),
        // The caller's own, which no shard owns: home.
        ("alpha", "operators", "east"),
        ("audit", "operators", "east"),
        ("audit", "md-1", "east"),
    ] {
        let door = world.merged_door(shard).await.unwrap();
        assert_eq!(place(&door, namespace).await.unwrap(), cluster, "{shard} {namespace}");
    }
}

#[tokio::test]
async fn kubectl_works_across_members() {
    let world = world().await;
    let kubectl = world.merged("alpha");
    for (namespace, here, there) in [("ma-1", "east", "west"), ("ma-3", "west", "east")] {
        let ok = async |arguments: &[&str]| kubectl.with(&format!("-n={namespace}")).ok(arguments).await.unwrap();
        ok(&["create", "deployment", "web", "--image=web:1", "--replicas=2"]).await;
        ok(&[
            "wait",
            "--for=jsonpath={.status.replicas}=2",
            "deployment/web",
            "--timeout=240s",
        ])
        .await;
        ok(&["set", "image", "deployment/web", "web=web:2"]).await;
        ok(&["create", "secret", "generic", "s", "--from-literal=a=b"]).await;
        let get = ["get", "deployment,secret", "-o", "name", "-n", namespace];
        let stored = world.direct(here).ok(&get).await.unwrap();
        assert!(
            stored.contains("deployment.apps/web") && stored.contains("secret/s"),
            "{stored}"
        );
        assert_eq!(world.direct(there).ok(&get).await.unwrap(), "");
        // Events are written behind what they tell of.
        eventually("it is described with its Events", || async {
            ok(&["describe", "deployment", "web"])
                .await
                .contains("ScalingReplicaSet")
        })
        .await;
        ok(&["delete", "deployment/web", "secret/s", "--timeout=240s"]).await;
    }
    // The kubeconfig's namespace is the caller's own.
    kubectl.ok(&["create", "secret", "generic", "own"]).await.unwrap();
    let own = ["get", "secret", "own", "-n", "operators"];
    world.direct("east").ok(&own).await.unwrap();
    world.direct("west").refused(&own).await.unwrap();
}

#[tokio::test]
async fn namespace_objects_are_their_owners() {
    let world = world().await;
    let kubectl = world.merged("alpha");
    let uid = ["get", "namespace", "ma-3", "-o", "jsonpath={.metadata.uid}"];
    let seen = kubectl.ok(&uid).await.unwrap();
    assert_eq!(seen, world.direct("west").ok(&uid).await.unwrap());
    assert_ne!(seen, world.direct("east").ok(&uid).await.unwrap());
    kubectl
        .ok(&["annotate", "namespace", "ma-3", "note=west"])
        .await
        .unwrap();
    let note = [
        "get",
        "namespace",
        "ma-3",
        "-o",
        "jsonpath={.metadata.annotations.note}",
    ];
    assert_eq!(world.direct("west").ok(&note).await.unwrap(), "west");
    assert_eq!(world.direct("east").ok(&note).await.unwrap(), "");
    let door = world.merged_door("alpha").await.unwrap();
    let status = door.get("/api/v1/namespaces/ma-3/status", &[]).await.unwrap();
    assert_eq!(status.json()["metadata"]["uid"].as_str(), Some(seen.as_str()));
    let foreign = door.get("/api/v1/namespaces/mb-2", &[]).await.unwrap();
    foreign.expect_status(403, &["mb-2", "operators/beta", "west"]).unwrap();
}

#[tokio::test]
async fn enforce_refuses_what_is_outside_and_names_the_owner() {
    let world = world().await;
    let door = world.merged_door("alpha").await.unwrap();
    let foreign = ["namespace mb-1", "operators/alpha", "shard operators/beta", "east"];
    let unowned = ["namespace default", "operators/alpha", "no shard owns it"];
    for (path, words) in [
        ("/api/v1/namespaces/mb-1/configmaps/where", &foreign[..]),
        ("/api/v1/namespaces/mb-1/configmaps", &foreign),
        ("/api/v1/namespaces/mb-1/configmaps?watch=true", &foreign),
        ("/api/v1/watch/namespaces/mb-1/configmaps", &foreign),
        ("/apis/apps/v1/namespaces/mb-1/deployments/x/scale", &foreign),
        ("/api/v1/namespaces/default/configmaps/where", &unowned),
    ] {
        let answer = door.get(path, &[]).await.unwrap();
        answer.expect_status(403, words).unwrap();
    }
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "intruder"}});
    for (method, path) in [
        (Method::POST, "/api/v1/namespaces/mb-1/configmaps"),
        (Method::PUT, "/api/v1/namespaces/mb-1/configmaps/where"),
        (Method::PATCH, "/api/v1/namespaces/mb-1/configmaps/where"),
        (Method::DELETE, "/api/v1/namespaces/mb-1/configmaps/where"),
        (Method::DELETE, "/api/v1/namespaces/mb-1/configmaps"),
    ] {
        let answer = door.ask(json_request(method, path, &object).unwrap()).await.unwrap();
        answer.expect_status(403, &foreign).unwrap();
    }
    let there = world
        .direct("east")
        .ok(&["get", "configmaps", "-n", "mb-1", "-o", "name"])
        .await
        .unwrap();
    assert!(
        there.contains("configmap/where") && !there.contains("intruder"),
        "{there}"
    );
    let refusal = world
        .merged("alpha")
        .refused(&["get", "pods", "-n", "mb-1"])
        .await
        .unwrap();
    assert!(
        refusal.contains("Forbidden") && refusal.contains("belongs to shard operators/beta"),
        "{refusal}"
    );
}

#[tokio::test]
async fn audit_lets_through_and_warns() {
    let world = world().await;
    let door = world.merged_door("audit").await.unwrap();
    for (namespace, cluster, word) in [
        ("ma-3", "west", "operators/alpha"),
        ("mb-1", "east", "operators/beta"),
        ("default", "east", "no shard owns it"),
    ] {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps/where");
        let answer = door.get(&path, &[]).await.unwrap();
        assert_eq!(answer.json()["data"]["cluster"], cluster, "{:?}", answer.body);
        let warning = answer.header("warning");
        let says = [namespace, "operators/audit", word]
            .iter()
            .all(|part| warning.contains(part));
        assert!(warning.starts_with("299 ") && says, "{warning}");
    }
    let inside = door.get("/api/v1/namespaces/md-1/configmaps/where", &[]).await.unwrap();
    assert_eq!(inside.header("warning"), "");
    let shown = world
        .merged("audit")
        .run(&["get", "configmap", "where", "-n", "ma-3"], "")
        .await
        .unwrap();
    assert!(
        shown.ok && shown.stderr.contains("Warning: namespace ma-3 is outside"),
        "{}",
        shown.stderr
    );
    let metrics = world.fleet.process("router").unwrap().admin;
    let metrics = portolan_tests::programs::admin_get(&metrics, "/metrics").await.unwrap();
    let counted = metrics.lines().find(|line| line.contains("outside-audited"));
    assert!(counted.is_some_and(|line| !line.ends_with(" 0")), "{metrics}");
}

#[tokio::test]
async fn what_several_members_have_is_one_list_and_what_they_would_do_together_is_refused() {
    let world = world().await;
    let door = world.merged_door("alpha").await.unwrap();
    for (path, namespaces) in [
        (
            "/api/v1/configmaps?fieldSelector=metadata.name%3Dwhere",
            &["ma-1", "ma-3"][..],
        ),
        ("/api/v1/namespaces", &["ma-1", "ma-3"]),
        ("/apis/apps/v1/deployments?labelSelector=a%3Db", &[]),
    ] {
        let answer = door.get(path, &[]).await.unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.message());
        let list = answer.json();
        let mut seen: Vec<&str> = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| {
                item["metadata"]["namespace"]
                    .as_str()
                    .or(item["metadata"]["name"].as_str())
                    .unwrap()
            })
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, namespaces, "{path}");
    }
    let shown = world.merged("alpha").ok(&["get", "configmaps", "-A"]).await.unwrap();
    assert!(shown.contains("ma-1") && shown.contains("ma-3"), "{shown}");
    let request = portolan_tests::door::request(http::Method::DELETE, "/api/v1/configmaps", &[], &[]).unwrap();
    let answer = door.ask(request).await.unwrap();
    answer
        .expect_status(405, &["deletecollection", "needs a namespace"])
        .unwrap();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ambiguous"}});
    let answer = door.post("/api/v1/namespaces", &namespace).await.unwrap();
    answer
        .expect_status(403, &["east those named ma-1", "west those named"])
        .unwrap();
}

#[tokio::test]
async fn reviews_and_events_without_namespace_go_to_the_primary() {
    let world = world().await;
    let audit = world.merged_door("audit").await.unwrap();
    let who = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let who = audit
        .post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &who)
        .await
        .unwrap()
        .json();
    let who = &who["status"]["userInfo"];
    assert_eq!(who["username"], "system:serviceaccount:operators:portolan-dev-audit");
    let groups = json!([
        "system:serviceaccounts",
        "system:serviceaccounts:operators",
        "system:authenticated"
    ]);
    assert_eq!(who["groups"], groups);
    assert_eq!(who["extra"], Value::Null, "nothing of the home cluster's Pod");

    let alpha = world.merged_door("alpha").await.unwrap();
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "node.1"}, "reason": "Test", "type": "Normal",
        "involvedObject": {"kind": "Node", "name": "node-1"},
    });
    let answer = alpha.post("/api/v1/namespaces/default/events", &event).await.unwrap();
    assert_eq!(answer.status, 201, "{:?}", answer.body);
    world.direct("east").ok(&["get", "event", "node.1"]).await.unwrap();
}

/// Those of `default` that are of no namespace, and none of its owner's.
#[tokio::test]
async fn events_of_cluster_scoped_objects_are_read_by_every_shard_of_the_primary() {
    let world = world().await;
    let of_a_node = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "node.2"}, "reason": "Test", "type": "Normal",
        "involvedObject": {"kind": "Node", "name": "node-2"},
    });
    let alpha = world.merged_door("alpha").await.unwrap();
    let made = alpha
        .post("/api/v1/namespaces/default/events", &of_a_node)
        .await
        .unwrap();
    assert_eq!(made.status, 201, "{:?}", made.body);
    let of_a_pod = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "pod.1"}, "reason": "Test", "type": "Normal",
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "pod-1"},
    });
    let east = world.direct_door("east").await.unwrap();
    let made = east.post("/api/v1/namespaces/default/events", &of_a_pod).await.unwrap();
    assert_eq!(made.status, 201, "{:?}", made.body);
    for (group, resource) in [("api", "v1"), ("apis/events.k8s.io", "v1")] {
        let path = format!("/{group}/{resource}/namespaces/default/events");
        for shard in ["alpha", "beta"] {
            let door = world.merged_door(shard).await.unwrap();
            let told = door.get(&path, &[]).await.unwrap().json();
            let items = told["items"].as_array().unwrap().iter();
            let names: Vec<_> = items.filter_map(|item| item["metadata"]["name"].as_str()).collect();
            assert!(
                names.contains(&"node.2") && !names.contains(&"pod.1"),
                "{shard}, {path}: {names:?}"
            );
        }
    }
}

#[tokio::test]
async fn health_is_the_routers_own() {
    let world = world().await;
    let nobody = world.token_door(None).await.unwrap();
    for path in ["/healthz", "/livez", "/readyz"] {
        let answer = nobody.get(path, &[]).await.unwrap();
        assert_eq!(
            (answer.status, answer.header("via")),
            (200, ""),
            "{path}: {:?}",
            answer.body
        );
    }
    let version = world.merged("alpha").ok(&["version"]).await.unwrap();
    assert!(version.contains("Server Version: v1."), "{version}");
    let resources = world
        .merged("alpha")
        .ok(&["api-resources", "-o", "name"])
        .await
        .unwrap();
    assert!(resources.contains("deployments.apps"), "{resources}");
}

/// By what programs know the cluster that they run in.
#[tokio::test]
async fn what_programs_know_a_cluster_by_is_read() {
    let world = world().await;
    // Home east, primary west.
    let door = world.merged_door("audit").await.unwrap();
    let west = world.direct_door("west").await.unwrap();
    let system = "/api/v1/namespaces/kube-system";
    let uid = async |door: &Door| door.get(system, &[]).await.unwrap().json()["metadata"]["uid"].clone();
    assert_eq!(uid(&door).await, uid(&west).await);
    let door = world.merged_door("alpha").await.unwrap();
    let east = world.direct_door("east").await.unwrap();
    assert_eq!(uid(&door).await, uid(&east).await);
    for (path, name) in [
        ("/api/v1/namespaces", "kube-system"),
        (
            "/api/v1/namespaces/kube-system/configmaps",
            "extension-apiserver-authentication",
        ),
        ("/api/v1/namespaces/default/services", "kubernetes"),
    ] {
        let one = door.get(&format!("{path}/{name}"), &[]).await.unwrap();
        assert_eq!(one.status, 200, "{path}/{name}: {}", one.message());
        let list = format!("{path}?fieldSelector=metadata.name%3D{name}");
        let list = door.get(&list, &[]).await.unwrap().json();
        let uids: Vec<_> = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| &item["metadata"]["uid"])
            .collect();
        assert_eq!(uids, [&one.json()["metadata"]["uid"]], "{path}");
    }
    let all = door.get(&format!("{system}/configmaps"), &[]).await.unwrap();
    all.expect_status(403, &["kube-system"]).unwrap();
}
