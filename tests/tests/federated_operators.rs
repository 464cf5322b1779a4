//! The example operators on the merged view of two members, as they are: what they promise of one cluster (`operators`)
//! they keep in both, each object in the member that its Greeting is in, and a second replica takes over from a killed one.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

use std::process::Stdio;

use anyhow::{Context as _, ensure};
use portolan_testbed::eventually;
use portolan_tests::kubectl::Kubectl;
use portolan_tests::programs::program;
use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, Shared, World};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

static WORLD: Shared = Shared::const_new();
static SERVED: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();

const CRD: &str = include_str!("../../examples/greeting-crd.yaml");

/// One operator and the shard that is its own.
struct Operator {
    shard: &'static str,
    program: &'static str,
    /// Where its namespaces are.
    owns: [(&'static str, &'static str); 2],
}

const RS: Operator = Operator {
    shard: "rs",
    program: "greeting-operator",
    owns: [("east", "rs-e"), ("west", "rs-w")],
};
const GO: Operator = Operator {
    shard: "go",
    program: "greeting-operator-go",
    owns: [("east", "go-e"), ("west", "go-w")],
};

async fn world() -> &'static World {
    let manifests: String = [RS, GO]
        .iter()
        .map(|operator| {
            let [(east, in_east), (west, in_west)] = operator.owns;
            federated(operator.shard, "east", &[(east, &[in_east]), (west, &[in_west])])
        })
        .collect();
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &["east/rs-e", "west/rs-w", "east/go-e", "west/go-w"],
        manifests: &manifests,
        pods: true,
        ..Plan::default()
    };
    let world = World::shared(&WORLD, plan).await;
    SERVED.get_or_init(|| serve(world)).await;
    world
}

/// The Greeting kind in both members, known to the router.
async fn serve(world: &World) {
    for member in ["east", "west"] {
        world.direct(member).ok_with(&["apply", "-f", "-"], CRD).await.unwrap();
    }
    for operator in [RS, GO] {
        // By kubectl, which asks discovery too: a router's copy of it may be two seconds old.
        let kubectl = world.merged(operator.shard);
        eventually("Greetings are listed", || {
            kubectl.ok(&["get", "greetings.example.com", "-A"])
        })
        .await;
    }
}

impl Operator {
    /// A replica with nothing but a kubeconfig; killed when dropped.
    async fn start(&self) -> Child {
        let kubeconfig = world().await.fleet.merged_kubeconfig(self.shard);
        Command::new(program(self.program).unwrap())
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    /// Who holds its Lease, which is the primary's and has the shard in its name.
    async fn leader(&self) -> anyhow::Result<String> {
        let lease = format!("greeting-operator---{}", self.shard);
        let lease = read(&world().await.direct("east"), "operators", &["lease", &lease]).await?;
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        ensure!(!holder.is_empty(), "nobody leads: {lease}");
        Ok(holder.to_owned())
    }

    /// Through the router, as people do it.
    async fn greet(&self, message: &str) {
        for (_, namespace) in self.owns {
            let greeting = json!({
                "apiVersion": "example.com/v1", "kind": "Greeting",
                "metadata": {"name": "hello", "namespace": namespace}, "spec": {"message": message, "replicas": 2},
            });
            let merged = world().await.merged(self.shard);
            merged
                .ok_with(&["apply", "-f", "-"], &greeting.to_string())
                .await
                .unwrap();
        }
    }
}

/// What a member itself has.
async fn read(kubectl: &Kubectl, namespace: &str, what: &[&str]) -> anyhow::Result<Value> {
    let arguments = [&["get", "-o", "json", "-n", namespace], what].concat();
    serde_json::from_str(&kubectl.ok(&arguments).await?).context("kubectl prints JSON")
}

/// Waits until a member's Greeting is said, and all of it is there; returns the Greeting.
async fn said(member: &str, namespace: &str, message: &str) -> Value {
    let kubectl = world().await.direct(member);
    let what = format!("{message:?} is said in {namespace} of {member}");
    eventually(&what, || async {
        let greeting = read(&kubectl, namespace, &["greeting", "hello"]).await?;
        let (generation, status) = (&greeting["metadata"]["generation"], &greeting["status"]);
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        ensure!(
            status["observedGeneration"] == *generation
                && status["readyReplicas"] == 2
                && conditions.len() == 2
                && conditions.iter().all(|condition| condition["status"] == "True"),
            "{greeting}"
        );
        ensure!(
            greeting["metadata"]["finalizers"]
                .as_array()
                .is_some_and(|all| all.len() == 1),
            "no finalizer: {greeting}"
        );
        let child = read(&kubectl, namespace, &["configmap", "hello"]).await?;
        ensure!(child["data"]["message"] == message, "{child}");
        for child in [child, read(&kubectl, namespace, &["deployment", "hello"]).await?] {
            let owner = &child["metadata"]["ownerReferences"][0];
            ensure!(
                owner["uid"] == greeting["metadata"]["uid"] && owner["controller"] == true,
                "{owner}"
            );
        }
        Ok(greeting)
    })
    .await
}

/// Waits until the Events of a Greeting are these, in its own member.
async fn told(member: &str, namespace: &str, uid: &Value, wanted: &[&str]) {
    let kubectl = world().await.direct(member);
    eventually(&format!("Events of {namespace} are {wanted:?}"), || async {
        let events = read(&kubectl, namespace, &["events.v1.events.k8s.io"]).await?;
        let events = events["items"].as_array().cloned().unwrap_or_default();
        let of_it = events.iter().filter(|event| event["regarding"]["uid"] == *uid);
        let mut reasons: Vec<&str> = of_it.filter_map(|event| event["reason"].as_str()).collect();
        reasons.sort_unstable();
        reasons.dedup();
        ensure!(reasons == wanted, "{events:?}");
        Ok(())
    })
    .await;
}

async fn keeps_its_promises(operator: &Operator) {
    let world = world().await;
    let mut first = operator.start().await;
    let leader = eventually("the first replica leads", || operator.leader()).await;
    let mut second = operator.start().await;
    operator.greet("good morning").await;
    let mut greetings = Vec::new();
    for (member, namespace) in operator.owns {
        let greeting = said(member, namespace, "good morning").await;
        told(member, namespace, &greeting["metadata"]["uid"], &["Greeted"]).await;
        greetings.push(greeting);
    }
    assert_eq!(operator.leader().await.unwrap(), leader, "the second replica waits");
    assert!(second.try_wait().unwrap().is_none(), "the second replica has ended");

    first.kill().await.unwrap();
    operator.greet("good night").await;
    for ((member, namespace), before) in operator.owns.into_iter().zip(&greetings) {
        let greeting = said(member, namespace, "good night").await;
        assert_eq!(greeting["metadata"]["uid"], before["metadata"]["uid"]);
    }
    assert_ne!(operator.leader().await.unwrap(), leader, "the second replica leads");
    // The Lease is nobody's but the primary's.
    let elsewhere = ["get", "leases", "-n", "operators", "-o", "name"];
    let elsewhere = world.direct("west").run(&elsewhere, "").await.unwrap();
    assert!(!elsewhere.stdout.contains("greeting-operator"), "{}", elsewhere.stdout);

    for ((member, namespace), greeting) in operator.owns.into_iter().zip(&greetings) {
        let merged = world.merged(operator.shard);
        let delete = ["delete", "greeting", "hello", "-n", namespace, "--timeout=240s"];
        merged.ok(&delete).await.unwrap();
        told(
            member,
            namespace,
            &greeting["metadata"]["uid"],
            &["Farewell", "Greeted"],
        )
        .await;
        let kubectl = world.direct(member);
        eventually("the children are collected", || async {
            let of_it = ["configmaps,deployments", "-l", "app.kubernetes.io/instance=hello"];
            let left = read(&kubectl, namespace, &of_it).await?;
            ensure!(left["items"].as_array().is_some_and(Vec::is_empty), "{left}");
            Ok(())
        })
        .await;
    }
}

#[tokio::test]
async fn kube_rs_keeps_its_promises_in_both_members() {
    keeps_its_promises(&RS).await;
}

#[tokio::test]
async fn controller_runtime_keeps_its_promises_in_both_members() {
    keeps_its_promises(&GO).await;
}
