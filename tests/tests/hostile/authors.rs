//! Whoever may write ShardingConfigs, or make Pods, and wants more than that; and whoever had a right once.

use std::process::Stdio;
use std::time::{Duration, Instant};

use portolan_testbed::{eventually, patience};
use portolan_tests::door::Door;
use portolan_tests::kubectl::Kubectl;
use portolan_tests::programs::argument;
use portolan_tests::shard::federated;
use portolan_tests::watch::Watch;
use portolan_tests::world::{HUB, Plan, PodSpec, Shared, World};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::sync::{OnceCell, RwLock};

static WORLD: Shared = Shared::const_new();
/// Written by who stops the hub.
pub(crate) static HUB_RUNS: RwLock<()> = RwLock::const_new(());
static RIGHTS: OnceCell<()> = OnceCell::const_new();

/// Who may write ShardingConfigs in every namespace, and shard east.
const ADA: &str = "--as=ada";
/// How long a right counts at most once it is taken away.
const REVOKED_WITHIN: Duration = Duration::from_mins(1);

/// Members east and west; alpha has both, callers of gamma are Pods of one ServiceAccount.
pub(crate) async fn world() -> &'static World {
    let manifests = federated("alpha", "east", &[("east", &["h-east"]), ("west", &["h-west"])])
        + &federated("gamma", "east", &[("east", &["h-gamma"])]).replace(
            "  callerClusters",
            "  serviceAccounts: [greeter, portolan-dev-gamma]\n  callerClusters",
        );
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &["east/h-east", "east/h-gamma", "east/h-pods", "west/h-west"],
        manifests: &manifests,
        pods: true,
        ..Plan::default()
    };
    let world = World::shared(&WORLD, plan).await;
    RIGHTS.get_or_init(|| grant(world)).await;
    world
}

async fn grant(world: &World) {
    let hub = world.direct(HUB);
    let write = [
        "--verb=create,get,list,update,patch,delete",
        "--resource=shardingconfigs.ctrlmesh.kusionstack.io",
    ];
    let shard = ["--verb=shard", "--resource=memberclusters.ctrlmesh.kusionstack.io"];
    for (name, rule) in [
        ("authors-write", &write[..]),
        ("authors-east", &[&shard[..], &["--resource-name=east"]].concat()),
        ("authors-all", &shard[..]),
    ] {
        hub.ok(&[&["create", "clusterrole", name][..], rule].concat())
            .await
            .unwrap();
    }
    for (role, user) in [
        ("authors-write", "ada"),
        ("authors-write", "root"),
        ("authors-east", "ada"),
        ("authors-all", "root"),
    ] {
        let binding = format!("{role}-{user}");
        let (role, user) = (format!("--clusterrole={role}"), format!("--user={user}"));
        hub.ok(&["create", "clusterrolebinding", &binding, &role, &user])
            .await
            .unwrap();
    }
}

fn config(name: &str, owns: &[(&str, &[&str])]) -> String {
    federated(name, "east", owns)
}

const APPLY: [&str; 3] = ["apply", "-f", "-"];

#[tokio::test]
async fn a_member_is_named_by_who_may_shard_it() {
    let world = world().await;
    let _up = HUB_RUNS.read().await;
    let ada = world.direct(HUB).with(ADA);
    let apply = async |kubectl: &Kubectl, yaml: &str| kubectl.run(&APPLY, yaml).await.unwrap();
    let own = config("own", &[("east", &["h-own"])]);
    let both = config("own", &[("east", &["h-own"]), ("west", &["h-own"])]);

    let refused = apply(&ada, &both).await;
    for part in [
        "Forbidden",
        "spec.clusters[1].name",
        "\"ada\"",
        "\"west\"",
        "resourceNames: [west]",
        "verbs: [shard]",
    ] {
        assert!(
            !refused.ok && refused.stderr.contains(part),
            "{part}: {}",
            refused.stderr
        );
    }
    assert!(apply(&ada, &own).await.ok, "east is hers");
    let refused = apply(&ada, &both).await;
    assert!(
        !refused.ok && refused.stderr.contains("\"west\""),
        "by an update neither: {}",
        refused.stderr
    );
    let names = [
        "get",
        "shardingconfig",
        "own",
        "-n",
        "operators",
        "-o",
        "jsonpath={.spec.clusters[*].name}",
    ];
    assert_eq!(ada.ok(&names).await.unwrap(), "east", "nothing half applied");

    // The hub's finalizer and status are written past it.
    let look = ["get", "shardingconfig", "own", "-n", "operators", "-o"];
    let look = [
        &look[..],
        &["jsonpath={.metadata.finalizers[0]} {.status.conditions[?(@.type==\"Accepted\")].status}"],
    ]
    .concat();
    eventually("the hub writes what is its own", || async {
        let said = ada.ok(&look).await.unwrap();
        (said == "ctrlmesh.kusionstack.io/shard True").then_some(()).ok_or(said)
    })
    .await;
    ada.ok(&["delete", "shardingconfig", "own", "-n", "operators", "--wait=false"])
        .await
        .unwrap();
}

#[tokio::test]
async fn who_widens_a_shard_must_have_what_it_has() {
    let world = world().await;
    let _up = HUB_RUNS.read().await;
    let ada = world.direct(HUB).with(ADA);
    // Callers may use the explicit view of what a shard has; whoever widens it must have it.
    let explicit = [
        "patch",
        "shardingconfig",
        "alpha",
        "-n",
        "operators",
        "--type=merge",
        "-p",
    ];
    let patch =
        async |kubectl: &Kubectl, patch: &str| kubectl.run(&[&explicit[..], &[patch]].concat(), "").await.unwrap();
    let refused = patch(&ada, r#"{"spec":{"unavailable":"PartialStart"}}"#).await;
    assert!(!refused.ok && refused.stderr.contains("\"west\""), "{}", refused.stderr);
    let labelled = patch(&ada, r#"{"metadata":{"annotations":{"seen":"yes"}}}"#).await;
    assert!(labelled.ok, "what claims nothing passes: {}", labelled.stderr);
    let force = r#"{"metadata":{"annotations":{"ctrlmesh.kusionstack.io/force-release":"west/h-west@1: it burnt"}}}"#;
    let forced = patch(&ada, force).await;
    assert!(!forced.ok && forced.stderr.contains("\"west\""), "{}", forced.stderr);
}

#[tokio::test]
async fn a_selector_asks_for_all_members() {
    let world = world().await;
    let _up = HUB_RUNS.read().await;
    let chosen =
        config("chosen", &[("east", &["h-chosen"])]).replace("- name: east", "- selector: {matchLabels: {no: member}}");
    let refused = world.direct(HUB).with(ADA).run(&APPLY, &chosen).await.unwrap();
    assert!(
        !refused.ok && refused.stderr.contains("spec.clusters[0].selector"),
        "{}",
        refused.stderr
    );
    assert!(refused.stderr.contains("all member clusters"), "{}", refused.stderr);
    world
        .direct(HUB)
        .with("--as=root")
        .ok_with(&APPLY, &chosen)
        .await
        .unwrap();
}

#[tokio::test]
async fn without_the_hub_nobody_writes() {
    let world = world().await;
    let _alone = HUB_RUNS.write().await;
    let dir = argument(world.fleet.dir());
    let hub = async |verb: &str| {
        let command = ["dev", verb, "hub", "--dir", &dir].map(ToOwned::to_owned);
        world.fleet.run(&command).await.unwrap();
    };
    hub("stop").await;
    let late = config("late", &[("east", &["h-late"])]);
    let admin = world.direct(HUB);
    let refused = admin.run(&APPLY, &late).await.unwrap();
    assert!(
        !refused.ok
            && refused
                .stderr
                .contains("failed calling webhook \"authors.ctrlmesh.kusionstack.io\""),
        "{}",
        refused.stderr
    );
    // What claims nothing goes on without it.
    admin
        .ok(&["annotate", "shardingconfig", "alpha", "-n", "operators", "hub=away"])
        .await
        .unwrap();
    hub("restart").await;
    eventually("the hub decides again", || admin.ok_with(&APPLY, &late)).await;
}

#[tokio::test]
async fn a_pod_of_another_account_is_no_caller() {
    let world = world().await;
    let _up = HUB_RUNS.read().await;
    let pod = |name, service_account| PodSpec {
        namespace: "operators",
        name,
        service_account,
        labels: json!({"shard": "gamma"}),
    };
    let (mut doors, path) = (Vec::new(), "/api/v1/namespaces/h-gamma/configmaps");
    for pod in [pod("hers", "greeter"), pod("theirs", "stranger")] {
        let uid = world.pod("east", pod.clone()).await.unwrap();
        let account = format!("operators/{}", pod.service_account);
        let member = argument(world.cluster("east").direct_kubeconfig_path());
        let allow = ["allow", "--member-kubeconfig", &member, &account].map(ToOwned::to_owned);
        world.fleet.run(&allow).await.unwrap();
        let subject = format!("--serviceaccount=operators:{}", pod.service_account);
        let bind = [
            "create",
            "clusterrolebinding",
            pod.service_account,
            "--clusterrole=cluster-admin",
            &subject,
        ];
        world.direct("east").ok(&bind).await.unwrap();
        let token = world.token("east", &pod, &uid).await.unwrap();
        doors.push(world.token_door(Some(&token)).await.unwrap());
    }
    eventually("a Pod of the account is served", || async {
        let answer = doors[0].get(path, &[]).await.map_err(|error| error.to_string())?;
        if answer.status == 200 {
            Ok(())
        } else {
            Err(answer.message())
        }
    })
    .await;
    let look = ["get", "shardingconfig", "gamma", "-n", "operators", "-o"];
    let look = [
        &look[..],
        &["jsonpath={.status.conditions[?(@.type==\"Distributed\")].message}"],
    ]
    .concat();
    eventually("the shard tells whom it keeps out", || async {
        let said = world.direct(HUB).ok(&look).await?;
        anyhow::ensure!(
            said.contains("no callers by spec.serviceAccounts: theirs in east (stranger)"),
            "{said}"
        );
        Ok(())
    })
    .await;
    let answer = doors[1].get(path, &[]).await.unwrap();
    answer.expect_status(403, &["belongs to no shard", "stranger"]).unwrap();
}

/// A person who may use the explicit view of east; returns her kubeconfig's kubectl.
async fn person(world: &World, name: &str) -> Kubectl {
    let file = world.fleet.dir().join(format!("{name}.kubeconfig"));
    let (hub, router) = (
        argument(world.cluster(HUB).direct_kubeconfig_path()),
        world.fleet.router_url().unwrap(),
    );
    let (output, member) = (
        argument(&file),
        argument(world.cluster("east").direct_kubeconfig_path()),
    );
    let made = [
        "kubeconfig",
        name,
        "--hub-kubeconfig",
        &hub,
        "--router",
        &router,
        "--cluster",
        "east",
        "--output",
        &output,
    ];
    world.fleet.run(&made.map(ToOwned::to_owned)).await.unwrap();
    let allow = ["allow", "--member-kubeconfig", &member, "--user", name];
    world.fleet.run(&allow.map(ToOwned::to_owned)).await.unwrap();
    let (subject, kind) = (
        format!("--user={name}"),
        "--resource=memberclusters.ctrlmesh.kusionstack.io",
    );
    let admin = [
        "create",
        "clusterrolebinding",
        name,
        "--clusterrole=cluster-admin",
        &subject,
    ];
    world.direct("east").ok(&admin).await.unwrap();
    let hub = world.direct(HUB);
    hub.ok(&[
        "create",
        "clusterrole",
        name,
        "--verb=proxy",
        kind,
        "--resource-name=east",
    ])
    .await
    .unwrap();
    let role = format!("--clusterrole={name}");
    hub.ok(&["create", "clusterrolebinding", name, &role, &subject])
        .await
        .unwrap();
    Kubectl::new(&file)
}

/// A shell in Pod box, which has said something and goes on for long.
async fn shell(kubectl: &Kubectl) -> Child {
    let exec = ["exec", "-n", "h-pods", "box", "--", "sh", "-c", "echo begun; sleep 300"];
    let mut child = kubectl
        .command(&exec)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let line = tokio::time::timeout(patience(), lines.next_line()).await;
    assert_eq!(line.unwrap().unwrap().unwrap(), "begun");
    child
}

/// A Pod that runs in east.
async fn pod_to_enter(world: &World) {
    let run = ["run", "box", "-n", "h-pods", "--image=x", "--restart=Never"];
    world.direct("east").ok(&run).await.unwrap();
    let ready = [
        "wait",
        "--for=condition=Ready",
        "pod/box",
        "-n",
        "h-pods",
        "--timeout=240s",
    ];
    world.direct("east").ok(&ready).await.unwrap();
}

#[tokio::test]
async fn what_runs_by_a_right_ends_with_it() {
    let world = world().await;
    let _up = HUB_RUNS.read().await;
    let eve = person(world, "eve").await;
    pod_to_enter(world).await;
    eventually("she may use east", || eve.ok(&["get", "pods", "-n", "h-pods"])).await;

    let door = Door::of_kubeconfig(&world.fleet.dir().join("eve.kubeconfig"), None)
        .await
        .unwrap();
    let mut watch = Watch::open(&door, "/api/v1/namespaces/h-pods/pods").await.unwrap();
    watch
        .until("its first event", |event| event["type"] == "ADDED")
        .await
        .unwrap();
    let mut shell = shell(&eve).await;
    // Of another person, for whom nothing changes.
    let mut dev = self::shell(&world.explicit("east")).await;

    world
        .direct(HUB)
        .ok(&["delete", "clusterrolebinding", "eve"])
        .await
        .unwrap();
    let taken = Instant::now();
    let last = async {
        while let Some(event) = watch.next().await.unwrap() {
            if event["type"] == "ERROR" {
                return event;
            }
        }
        panic!("the watch ended without a word");
    };
    let within = patience().max(2 * REVOKED_WITHIN);
    let (event, ended) = tokio::join!(
        tokio::time::timeout(within, last),
        tokio::time::timeout(within, shell.wait())
    );
    let event = event.expect("her watch ends");
    assert_eq!(
        (&event["object"]["code"], &event["object"]["reason"]),
        (&json!(403), &json!("Forbidden")),
        "{event}"
    );
    assert!(!ended.expect("her exec ends").unwrap().success());
    let took = taken.elapsed();
    println!(
        "a watch and an exec ended {:.1} s after the right was taken away",
        took.as_secs_f64()
    );
    assert!(took < REVOKED_WITHIN, "{took:?}");
    assert!(watch.next().await.unwrap().is_none(), "and its stream with it");
    assert!(dev.try_wait().unwrap().is_none(), "another's goes on");
    dev.kill().await.unwrap();
}
