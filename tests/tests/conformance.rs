//! Kubernetes' own end-to-end specs, those that need no kubelet, past the router and through its views: `make conformance`.
//!
//! What passes against a member directly is what must pass through each view, but for what `tests/conformance/known.txt` names
//! with a reason. `VIEWS` and `SPECS` choose some of both.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "also in functions that only tests call, which print the table and are told what to run by `make`"
)]

#[path = "conformance/judge.rs"]
mod judge;
#[path = "conformance/specs.rs"]
mod specs;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use portolan_tests::names::Names;
use portolan_tests::programs::{argument, program};
use portolan_tests::world::{Plan, World};
use serde_json::json;

use judge::{Known, Table};
use specs::{Runner, Target};

/// `<member>.<this>` is the explicit view of a member.
const EXPLICIT_HOST: &str = "fleet.test";
const SHARD: &str = "everything";
/// Where the specs run that the others are compared with.
const DIRECT: &str = "direct";
/// The router's views, in the order in which they are tried: `dev-up` is the explicit view by path, as `dev up` leaves it; for
/// `explicit` the member is reached by a name, and lets the router act as whom specs impersonate.
const VIEWS: [&str; 4] = ["dev-up", "explicit", "merged", "merged-two"];
/// Whom specs impersonate, as flags of `portolanctl allow`.
const IMPERSONATED: [&str; 7] = [
    "--user=jane-doe",
    "--user=noxu",
    "--user=foo",
    "--group=system:authenticated",
    "--group=developers",
    "--uid=uniq-id",
    "--extra=known-languages",
];

/// What the member that specs run in shall be, as an entry of `clusters[]`: everything that is there, and what is made.
fn entry(member: &str) -> serde_json::Value {
    if member == "east" {
        let system = ["kube-system", "kube-public", "kube-node-lease"];
        json!({"name": member, "default": true, "namespaces": system, "namespaceSelector": {}})
    } else {
        json!({"name": member, "namespaceSelector": {}})
    }
}

fn manifest() -> String {
    let shard = json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "ShardingConfig",
        "metadata": {"name": SHARD, "namespace": "operators"},
        "spec": {
            "selector": {"matchLabels": {"shard": SHARD}},
            "callerClusters": ["east"], "primaryCluster": "east", "explicitView": "Allow",
            "clusters": [entry("east")],
        },
    });
    shard.to_string()
}

/// Lets the router act as those whom specs impersonate, as a person would.
async fn allow(world: &World) {
    for member in ["east", "west"] {
        let kubeconfig = argument(world.cluster(member).kubeconfig_path());
        let mut arguments = vec!["allow", "--member-kubeconfig", &kubeconfig];
        arguments.extend(IMPERSONATED);
        let arguments: Vec<_> = arguments.into_iter().map(str::to_owned).collect();
        world.fleet.run(&arguments).await.unwrap();
    }
}

/// The words of a variable, or all of `usual`.
fn chosen(variable: &str, usual: &[&'static str]) -> Vec<&'static str> {
    let given = std::env::var(format!("PORTOLAN_CONFORMANCE_{variable}")).unwrap_or_default();
    let given: BTreeSet<&str> = given.split([',', ' ']).filter(|word| !word.is_empty()).collect();
    assert!(
        given.iter().all(|word| usual.contains(word)),
        "{variable}: of {usual:?}, not {given:?}"
    );
    let chosen = usual.iter().filter(|word| given.is_empty() || given.contains(**word));
    chosen.copied().collect()
}

async fn world() -> World {
    let manifests = manifest();
    let plan = Plan {
        members: &["east", "west"],
        manifests: &manifests,
        env: &[("PORTOLAN_EXPLICIT_HOST", EXPLICIT_HOST)],
        pods: true,
        ..Plan::default()
    };
    World::start(plan).await.unwrap()
}

/// Makes the fleet as the view needs it, and tells how it is reached.
async fn target(world: &World, names: &Names, view: &'static str) -> Target {
    let explicit = world.fleet.explicit_kubeconfig();
    let mut target = Target {
        view,
        kubeconfig: explicit,
        context: None,
        proxy: None,
    };
    match view {
        "dev-up" => target.context = Some("east".to_owned()),
        "explicit" => {
            allow(world).await;
            target.context = Some(format!("east.{EXPLICIT_HOST}"));
            target.proxy = Some(names.proxy.clone());
        }
        _ => {
            allow(world).await;
            target.kubeconfig = world.fleet.merged_kubeconfig(SHARD);
            let clusters = match view {
                "merged" => json!([entry("east")]),
                _ => json!([entry("east"), entry("west")]),
            };
            world.own(SHARD, clusters).await.unwrap();
            members_are_asked(world, view != "merged").await;
        }
    }
    target
}

/// Waits until the shard's router has the members that it is to have: a ConfigMap that only west has is in lists, or is not.
async fn members_are_asked(world: &World, with_west: bool) {
    let mark = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mark", "namespace": "only-west"}});
    world.namespace("west", "only-west").await.unwrap();
    let west = world.direct("west");
    west.ok_with(&["apply", "-f", "-"], &mark.to_string()).await.unwrap();
    let path = "/api/v1/configmaps?fieldSelector=metadata.name%3Dmark";
    let door = world.listed_door(SHARD, path).await.unwrap();
    portolan_testbed::eventually("the members of the shard are asked", || async {
        let items = door.get(path, &[]).await.ok()?.json()["items"].as_array()?.len();
        (items == usize::from(with_west)).then_some(())
    })
    .await;
}

fn checked_in(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance").join(file);
    std::fs::read_to_string(path).unwrap()
}

#[tokio::test]
#[ignore = "needs Kubernetes' own specs: make conformance"]
async fn kubernetes_own_specs_pass_through_every_view() {
    let known = Known::parse(&checked_in("known.txt"), &VIEWS).unwrap();
    let wanted = std::env::var("PORTOLAN_CONFORMANCE_SPECS").unwrap_or_default();
    let specs = specs::named(&checked_in("specs.txt"), &wanted);
    assert!(!specs.is_empty(), "no spec has {wanted:?} in its name");
    let world = world().await;
    let router = world.fleet.router_url().unwrap();
    let router = router.strip_prefix("https://").unwrap().parse().unwrap();
    let names = Names::lead_to(router).await.unwrap();
    let runner = Runner {
        program: program("portolan-e2e").unwrap(),
        folder: folder(),
    };
    let direct = Target {
        view: DIRECT,
        kubeconfig: world.cluster("east").direct_kubeconfig_path().to_owned(),
        context: None,
        proxy: None,
    };
    let direct = runner.run(&direct, &specs).await.unwrap();
    let passing: Vec<String> = direct.passed().map(str::to_owned).collect();
    assert!(
        !passing.is_empty(),
        "no spec passes at a member itself: {}",
        runner.folder.display()
    );
    let mut table = Table::new(specs, direct);
    for view in chosen("VIEWS", &VIEWS) {
        let target = target(&world, &names, view).await;
        table.add(view, runner.run(&target, &passing).await.unwrap());
    }
    println!("{table}");
    for line in table.mended(&known) {
        println!("known.txt names it, and it passes: {line}");
    }
    let faults = table.faults(&known);
    assert!(
        faults.is_empty(),
        "what they logged is in {}\n{}",
        runner.folder.display(),
        faults.join("\n")
    );
}

/// Where the specs' logs are kept, beside the programs.
fn folder() -> PathBuf {
    program("portolan-e2e").unwrap().with_file_name("conformance")
}
