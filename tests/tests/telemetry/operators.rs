//! The example operators are instrumented: one tree runs from a reconcile through the router to the members.

use std::process::Stdio;

use portolan_testbed::eventually;
use portolan_tests::programs::program;
use portolan_tests::trace::{Span, trees};
use serde_json::json;
use tokio::process::{Child, Command};

use crate::traces::is_leg;
use crate::{Ground, ground};

const CRD: &str = include_str!("../../../examples/greeting-crd.yaml");
const SERVICE: &str = "greeting-operator";
/// Of what is asked in a reconcile.
const PATCH: &str = "patch configmaps";

fn start(ground: &Ground, name: &str) -> Child {
    Command::new(program(name).unwrap())
        .env("KUBECONFIG", ground.world.fleet.merged_kubeconfig("alpha"))
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &ground.jaeger.otlp_grpc_url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// A Greeting in each member, as people change it there.
async fn greet(ground: &Ground, message: &str) {
    for (member, namespace) in [("east", "team-a"), ("west", "team-b")] {
        let greeting = json!({
            "apiVersion": "example.com/v1", "kind": "Greeting",
            "metadata": {"name": "hello", "namespace": namespace}, "spec": {"message": message, "replicas": 0},
        });
        let direct = ground.world.direct(member);
        direct
            .ok_with(&["apply", "-f", "-"], &greeting.to_string())
            .await
            .unwrap();
    }
}

/// The path of spans from a reconcile to the leg at a member, as (service, kind).
fn path<'a>(tree: &'a Span, member: &str) -> Option<Vec<&'a Span>> {
    if is_leg(tree) && tree.tag("cluster") == Some(member) {
        return Some(vec![tree]);
    }
    let below = tree.children.iter().find_map(|child| path(child, member))?;
    Some([vec![tree], below].concat())
}

/// A reconcile whose requests reached this member.
async fn reconcile(ground: &Ground, named: &str, member: &str) -> Span {
    eventually(&format!("a tree from {named} to {member}"), || async {
        let answer = ground.jaeger.find(SERVICE, named).await?;
        let mut all = trees(&answer).into_iter();
        let wanted = |tree: &Span| tree.name == named && tree.named(PATCH).is_some() && path(tree, member).is_some();
        all.find(wanted)
            .ok_or_else(|| anyhow::anyhow!("no tree: {} traces", answer["data"].as_array().map_or(0, Vec::len)))
    })
    .await
}

async fn one_tree_runs_through(program: &str, named: &str) {
    let ground = ground().await.write().await;
    for member in ["east", "west"] {
        ground
            .world
            .direct(member)
            .ok_with(&["apply", "-f", "-"], CRD)
            .await
            .unwrap();
    }
    let merged = ground.world.merged("alpha");
    eventually("Greetings are listed", || {
        merged.ok(&["get", "greetings.example.com", "-A"])
    })
    .await;
    let operator = start(&ground, program);
    greet(&ground, program).await;
    for member in ["east", "west"] {
        let tree = reconcile(&ground, named, member).await;
        let path = path(&tree, member).unwrap();
        let told: Vec<(&str, Option<&str>)> = path
            .iter()
            .map(|span| (&*span.service, span.tag("span.kind")))
            .collect();
        assert_eq!(
            told[1..],
            [
                (SERVICE, Some("client")),
                ("portolan-router", Some("server")),
                ("portolan-router", Some("client")),
            ],
            "{}",
            tree.render(&["span.kind", "peer.service"])
        );
        assert_eq!(path[0].service, SERVICE);
        // What a graph of services draws its last edges from: members' own spans are in traces of their own.
        assert_eq!(path[3].tag("peer.service"), Some(member));
    }
    let edges = ground.jaeger.dependencies().await.unwrap();
    let edge = (SERVICE.to_owned(), "portolan-router".to_owned());
    assert!(edges.contains(&edge), "{edges:?}");
    drop(operator);
}

#[tokio::test]
async fn one_tree_runs_from_a_reconcile_in_rust() {
    one_tree_runs_through("greeting-operator", "reconciling object").await;
}

#[tokio::test]
async fn one_tree_runs_from_a_reconcile_in_go() {
    one_tree_runs_through("greeting-operator-go", "reconcile Greeting").await;
}
