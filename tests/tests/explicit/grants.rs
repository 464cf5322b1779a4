//! Who may use the explicit view: callers whose shard says so, and people whom the hub's RBAC, and then the member, let.

use portolan_testbed::eventually;
use portolan_tests::kubectl::Kubectl;
use portolan_tests::programs::argument;
use portolan_tests::world::{HUB, World};

use crate::world;

#[tokio::test]
async fn an_unknown_cluster_is_named() {
    let world = world().await;
    let door = world
        .explicit_door("east")
        .await
        .unwrap()
        .with_prefix("/clusters/nowhere");
    for path in ["/api/v1/namespaces", "/version", "/api/v1/namespaces/x/pods/p/exec"] {
        let answer = door.get(path, &[]).await.unwrap();
        answer.expect_status(404, &["\"nowhere\"", "does not exist"]).unwrap();
        assert!(answer.header("retry-after").is_empty());
    }
    let kubectl = Kubectl::new(&world.fleet.explicit_kubeconfig()).with(&format!(
        "--server={}/clusters/nowhere",
        world.fleet.router_url().unwrap()
    ));
    let refusal = kubectl.refused(&["get", "--raw", "/version"]).await.unwrap();
    assert!(refusal.contains("\"nowhere\" does not exist"), "{refusal}");
    // kubectl reads no Status in answer to its discovery, but it shows warnings.
    let refusal = kubectl.refused(&["get", "configmaps"]).await.unwrap();
    assert!(
        refusal.contains("Warning: member cluster \"nowhere\" does not exist"),
        "{refusal}"
    );
}

#[tokio::test]
async fn a_caller_needs_its_shards_grant() {
    let world = world().await;
    let alpha = world.merged_door("alpha").await.unwrap();
    let path = "/api/v1/namespaces";
    let all = alpha.with_prefix("/clusters/east").get(path, &[]).await.unwrap();
    assert_eq!(all.status, 200, "{:?}", all.body);
    let all = all.json();
    let names: Vec<&str> = all["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect();
    assert!(
        names.contains(&"kube-system") && names.contains(&"team-b"),
        "unfiltered: {names:?}"
    );

    let elsewhere = alpha.with_prefix("/clusters/west").get(path, &[]).await.unwrap();
    elsewhere
        .expect_status(403, &["member cluster west", "operators/alpha"])
        .unwrap();
    let beta = world.merged_door("beta").await.unwrap().with_prefix("/clusters/east");
    let denied = beta.get(path, &[]).await.unwrap();
    denied
        .expect_status(403, &["operators/beta", "spec.explicitView"])
        .unwrap();
}

/// A kubeconfig on the explicit view, made by the command that administrators use.
async fn person(world: &World, name: &str) -> Kubectl {
    let file = world.fleet.dir().join(format!("{name}.kubeconfig"));
    let mut command = vec!["kubeconfig".to_owned(), name.to_owned()];
    for (flag, value) in [
        (
            "--hub-kubeconfig",
            argument(world.cluster(HUB).direct_kubeconfig_path()),
        ),
        ("--router", world.fleet.router_url().unwrap()),
        ("--cluster", "east".to_owned()),
        ("--cluster", "west".to_owned()),
        ("--output", argument(&file)),
    ] {
        command.extend([flag.to_owned(), value]);
    }
    let said = world.fleet.run(&command).await.unwrap();
    assert!(said.contains("contexts east, west"), "{said}");
    Kubectl::new(&file)
}

/// Raw, because kubectl tells nothing of a Status that answers its discovery: "unknown", it says.
const GET: [&str; 3] = ["get", "--raw", "/api/v1/namespaces/ada/configmaps"];

/// Waits until her GET is refused with words that say `why`; returns them.
async fn refused_for(ada: &Kubectl, why: &str) -> String {
    eventually(why, || async {
        let refusal = ada.refused(&GET).await?;
        anyhow::ensure!(refusal.contains(why), "{refusal}");
        Ok(refusal)
    })
    .await
}

#[tokio::test]
async fn a_person_needs_the_hub_and_the_member() {
    let world = world().await;
    world.namespace("east", "ada").await.unwrap();
    let ada = person(world, "ada").await;
    let west = ada.with("--context=west");
    let refusal = ada.refused(&GET).await.unwrap();
    assert!(refusal.contains("Forbidden") && refusal.contains("ada"), "{refusal}");

    // The members let the router act as her, and the hub does not let her come.
    for member in ["east", "west"] {
        let member = argument(world.cluster(member).direct_kubeconfig_path());
        let allow = ["allow", "--member-kubeconfig", &member, "--user", "ada"];
        world.fleet.run(&allow.map(ToOwned::to_owned)).await.unwrap();
    }
    for kubectl in [&ada, &west] {
        let refusal = refused_for(kubectl, "memberclusters").await;
        assert!(refusal.contains("proxy") && refusal.contains("ada"), "{refusal}");
    }
    // The hub lets her into east only; what she may do there is east's own RBAC's to say.
    let hub = world.direct(HUB);
    let kind = "--resource=memberclusters.ctrlmesh.kusionstack.io";
    let role = [
        "create",
        "clusterrole",
        "ada",
        "--verb=proxy",
        kind,
        "--resource-name=east",
    ];
    hub.ok(&role).await.unwrap();
    let binding = ["create", "clusterrolebinding", "ada", "--clusterrole=ada", "--user=ada"];
    hub.ok(&binding).await.unwrap();
    refused_for(&ada, "User \"ada\" cannot list resource").await;
    refused_for(&west, "memberclusters").await;
    let binding = [
        "create",
        "rolebinding",
        "ada",
        "-n",
        "ada",
        "--clusterrole=edit",
        "--user=ada",
    ];
    world.direct("east").ok(&binding).await.unwrap();
    let seen = eventually("east's RBAC lets her", || ada.ok(&GET)).await;
    assert!(seen.contains("\"kube-root-ca.crt\""), "{seen}");
    let elsewhere = ["get", "--raw", "/api/v1/namespaces/default/configmaps"];
    let outside = ada.refused(&elsewhere).await.unwrap();
    assert!(outside.contains("User \"ada\" cannot list resource"), "{outside}");
}

#[tokio::test]
async fn people_have_no_merged_view() {
    let world = world().await;
    let door = world.explicit_door("east").await.unwrap().with_prefix("");
    let answer = door.get("/api/v1/namespaces/team-a/pods", &[]).await.unwrap();
    answer.expect_status(403, &["portolan:dev", "/clusters/"]).unwrap();
}
