//! What people type: kubectl through the router does what kubectl does.

use std::process::Stdio;

use anyhow::Context as _;
use portolan_testbed::eventually;
use portolan_tests::kubectl::Kubectl;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::world;

#[tokio::test]
async fn reading_prints_the_same() {
    let world = world().await;
    let direct = world.direct("east");
    // Not by context but as people write it first.
    let server = format!("--server={}/clusters/east", world.fleet.router_url().unwrap());
    let routed = Kubectl::new(&world.fleet.explicit_kubeconfig()).with(&server);
    for command in [
        &["version"][..],
        &["api-versions"],
        &["api-resources", "--sort-by=name", "-o", "wide"],
        &["explain", "deployments.spec.strategy"],
        &["explain", "pods", "--recursive"],
        &["get", "namespace", "kube-system", "-o", "yaml"],
        &["get", "clusterroles"],
        &["get", "apiservices", "-o", "name"],
        &["get", "--raw", "/readyz?verbose"],
        &["get", "--raw", "/apis/apps/v1"],
        &["describe", "clusterrole", "edit"],
        &["describe", "service", "kubernetes", "-n", "default"],
        &["auth", "can-i", "create", "deployments.apps", "-n", "team-a"],
        &[
            "create",
            "deployment",
            "x",
            "--image=x",
            "--dry-run=server",
            "-o",
            "jsonpath={.spec}",
        ],
    ] {
        let (wanted, got) = tokio::join!(direct.ok(command), routed.ok(command));
        let (wanted, got) = (wanted.unwrap(), got.unwrap());
        let age = |text: &str| text.lines().filter(|line| !line.contains("AGE")).count();
        if command[1..] == ["clusterroles"] {
            // Ages may turn between the two.
            assert_eq!(age(&got), age(&wanted));
        } else {
            assert_eq!(got, wanted, "{command:?}");
        }
    }
    let who = routed.ok(&["auth", "whoami", "-o", "json"]).await.unwrap();
    let who: Value = serde_json::from_str(&who).unwrap();
    assert_eq!(who["status"]["userInfo"]["username"], "portolan:dev");
    assert_eq!(
        who["status"]["userInfo"]["groups"],
        serde_json::json!(["system:authenticated"])
    );
    let token = ["create", "token", "default", "-n", "team-a"];
    assert_eq!(routed.ok(&token).await.unwrap().split('.').count(), 3);
}

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: 'web:1'}]}
";

#[tokio::test]
async fn objects_live_from_create_to_delete() {
    let world = world().await;
    world.namespace("east", "life").await.unwrap();
    let kubectl = world.explicit("east").with("--namespace=life");
    let ok = async |arguments: &[&str]| kubectl.ok(arguments).await.unwrap();
    ok(&["create", "configmap", "plain", "--from-literal=a=1"]).await;
    let apply = ["apply", "-f", "-"];
    assert!(kubectl.ok_with(&apply, DEPLOYMENT).await.unwrap().contains("created"));
    assert!(kubectl.ok_with(&apply, DEPLOYMENT).await.unwrap().contains("unchanged"));
    let more = DEPLOYMENT.replace("replicas: 1", "replicas: 2");
    let difference = kubectl.run(&["diff", "-f", "-"], &more).await.unwrap();
    assert!(difference.stdout.contains("+  replicas: 2"), "{}", difference.stderr);
    assert!(kubectl.ok_with(&apply, &more).await.unwrap().contains("configured"));
    for (kind, patch) in [
        (
            "strategic",
            r#"{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"web:2"}]}}}}"#,
        ),
        ("merge", r#"{"metadata":{"annotations":{"merged":"yes"}}}"#),
        ("json", r#"[{"op":"add","path":"/metadata/labels/json","value":"yes"}]"#),
    ] {
        ok(&["patch", "deployment", "web", "--type", kind, "-p", patch]).await;
    }
    ok(&["label", "deployment", "web", "labelled=yes"]).await;
    ok(&["annotate", "deployment", "web", "annotated=yes"]).await;
    ok(&["set", "image", "deployment/web", "web=web:3"]).await;
    ok(&["scale", "deployment", "web", "--replicas=3"]).await;
    ok(&[
        "wait",
        "--for=condition=Progressing",
        "deployment/web",
        "--timeout=240s",
    ])
    .await;
    let columns = "-o=jsonpath={.spec.replicas} {.metadata.labels.json} {.metadata.labels.labelled} \
                   {.metadata.annotations.merged} {.spec.template.spec.containers[0].image}";
    let stored = world.direct("east").with("--namespace=life");
    let stored = stored.ok(&["get", "deployment", "web", columns]).await.unwrap();
    assert_eq!(stored, "3 yes yes yes web:3");
    // Events are written behind what they tell of.
    for tells in [&["describe", "deployment", "web"][..], &["events"]] {
        eventually(&format!("{tells:?} shows its Events"), || async {
            ok(tells).await.contains("ScalingReplicaSet")
        })
        .await;
    }
    assert!(ok(&["rollout", "history", "deployment/web"]).await.contains("REVISION"));
    ok(&["delete", "deployment", "web", "--cascade=foreground", "--timeout=240s"]).await;
    ok(&["wait", "--for=delete", "deployment/web", "--timeout=240s"]).await;
    ok(&["delete", "configmaps", "--all"]).await;
    let gone = kubectl.refused(&["get", "configmap", "plain"]).await.unwrap();
    assert!(
        gone.contains("Error from server (NotFound): configmaps \"plain\" not found"),
        "{gone}"
    );
}

#[tokio::test]
async fn server_side_apply_keeps_its_owners() {
    let world = world().await;
    world.namespace("west", "owners").await.unwrap();
    let kubectl = world.explicit("west").with("--namespace=owners");
    let object = "{apiVersion: v1, kind: ConfigMap, metadata: {name: shared}, data: {owner: first}}";
    let apply = |manager: &'static str| ["apply", "--server-side", manager, "-f", "-"];
    kubectl.ok_with(&apply("--field-manager=one"), object).await.unwrap();
    let other = object.replace("first", "second");
    let conflict = kubectl.run(&apply("--field-manager=two"), &other).await.unwrap();
    assert!(
        !conflict.ok && conflict.stderr.contains("conflict with \"one\""),
        "{}",
        conflict.stderr
    );
    let force = [
        "apply",
        "--server-side",
        "--field-manager=two",
        "--force-conflicts",
        "-f",
        "-",
    ];
    kubectl.ok_with(&force, &other).await.unwrap();
    let owners = "-o=jsonpath={.data.owner} {.metadata.managedFields[*].manager}";
    let shown = kubectl
        .ok(&["get", "configmap", "shared", "--show-managed-fields", owners])
        .await
        .unwrap();
    assert!(
        shown.starts_with("second ") && shown.contains("two") && !shown.contains("one"),
        "{shown}"
    );
    // An apply from a file that kubectl read before: replace with a stale resourceVersion is the member's 409.
    let stale = kubectl.ok(&["get", "configmap", "shared", "-o", "json"]).await.unwrap();
    kubectl
        .ok(&["label", "configmap", "shared", "newer=yes"])
        .await
        .unwrap();
    let refused = kubectl.run(&["replace", "-f", "-"], &stale).await.unwrap();
    assert!(refused.stderr.contains("(Conflict)"), "{}", refused.stderr);
}

#[tokio::test]
async fn watching_prints_changes_as_they_come() {
    let world = world().await;
    world.namespace("east", "watched").await.unwrap();
    let kubectl = world.explicit("east").with("--namespace=watched");
    let mut child = kubectl
        .command(&[
            "get",
            "configmaps",
            "--watch",
            "--output-watch-events",
            "-l",
            "seen",
            "--no-headers",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || {
        let line = tokio::time::timeout(portolan_testbed::patience(), lines.next_line()).await;
        line.context("no line in time")??.context("the watch ended")
    };
    kubectl.ok(&["create", "configmap", "one"]).await.unwrap();
    kubectl.ok(&["label", "configmap", "one", "seen=1"]).await.unwrap();
    let added: String = next().await.unwrap();
    assert!(added.starts_with("ADDED") && added.contains("one"), "{added}");
    kubectl
        .ok(&["label", "--overwrite", "configmap", "one", "seen=2"])
        .await
        .unwrap();
    assert!(next().await.unwrap().starts_with("MODIFIED"));
    kubectl.ok(&["delete", "configmap", "one"]).await.unwrap();
    assert!(next().await.unwrap().starts_with("DELETED"));
    child.kill().await.unwrap();
    eventually("the object is gone", || kubectl.refused(&["get", "configmap", "one"])).await;
}
