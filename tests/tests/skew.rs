//! Members of different versions of Kubernetes in one fleet: v1.34, v1.35 and v1.37 beside a hub of the testbed's own.
//!
//! `make skew` builds their API servers, and holds them to be what they are said to be (`PORTOLAN_SKEW=real`). Else those that are
//! built already are taken; in place of others the testbed's own emulates the older, as far as an API server can, and stands for the
//! newer. In v1.34 no mutating policies are switched on, in v1.35 their beta is, unless it is
//! emulated: an API server emulates the version, and not its policies.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::runtime::watcher::Config;
use kube::{Api, ResourceExt as _};
use portolan_crds::MemberCluster;
use portolan_testbed::{Bundle, OtherApiServer, eventually};
use portolan_tests::door::Door;
use portolan_tests::go_client::GoClient;
use portolan_tests::shard::federated;
use portolan_tests::watcher::Watcher;
use portolan_tests::world::{HUB, Plan, Shared, World};
use serde_json::{Value, json};

/// Members with the version of each.
const MEMBERS: [(&str, &str); 3] = [("east", "1.34"), ("west", "1.35"), ("north", "1.37")];
const BETA_POLICIES: [&str; 2] = [
    "--feature-gates=MutatingAdmissionPolicy=true",
    "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
];
const EMULATED: [&str; 2] = ["1.34", "1.35"];

static WORLD: Shared = Shared::const_new();

/// Whether nothing may stand for a version that is not built.
fn is_for_real() -> bool {
    std::env::var_os("PORTOLAN_SKEW").is_some_and(|value| value == "real")
}

/// The folder of the API server of that version, if it is to be had without building it.
fn built(version: &str) -> Option<PathBuf> {
    let (_, bundle) = Bundle::API_SERVERS.iter().find(|(other, _)| *other == version).unwrap();
    bundle.built().unwrap()
}

fn api_server(version: &str) -> OtherApiServer {
    let mut args: Vec<String> = Vec::new();
    let program = built(version).map(|folder| folder.join("bin/kube-apiserver"));
    assert!(
        program.is_some() || !is_for_real(),
        "v{version} is not built: run make skew"
    );
    if program.is_none() && EMULATED.contains(&version) {
        args.push(format!("--emulated-version={version}"));
    }
    if version == "1.35" && program.is_some() {
        args.extend(BETA_POLICIES.map(str::to_owned));
    }
    OtherApiServer { program, args }
}

async fn world() -> &'static World {
    let manifests = [
        federated(
            "all",
            "east",
            &[("east", &["sk-e"]), ("west", &["sk-w"]), ("north", &["sk-n"])],
        ),
        federated(
            "giver",
            "east",
            &[("east", &["sk-1"]), ("west", &["sk-2", "sk-3"]), ("north", &["sk-4"])],
        ),
        federated("taker", "north", &[("north", &["sk-5"])]),
        federated("led", "west", &[("west", &["sk-6"])]),
    ]
    .concat();
    let plan = Plan {
        members: &["east", "west", "north"],
        namespaces: &[
            "east/sk-e",
            "west/sk-w",
            "north/sk-n",
            "east/sk-1",
            "west/sk-2",
            "west/sk-3",
            "north/sk-4",
            "north/sk-5",
            "west/sk-6",
        ],
        manifests: &manifests,
        apiservers: MEMBERS
            .iter()
            .map(|(member, version)| ((*member).to_owned(), api_server(version)))
            .collect(),
        ..Plan::default()
    };
    World::shared(&WORLD, plan).await
}

/// The API groups that a list of them names.
fn groups(list: &Value) -> BTreeSet<String> {
    let groups = list["groups"].as_array().unwrap();
    groups
        .iter()
        .map(|group| group["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn members_are_of_their_versions_and_discovery_has_what_each_serves() {
    let world = world().await;
    let merged = world.listed_door("all", "/api/v1/configmaps").await.unwrap();
    let union = groups(&merged.get("/apis", &[]).await.unwrap().json());
    for (member, version) in MEMBERS {
        let direct = world.direct_door(member).await.unwrap();
        let told = direct.get("/version", &[]).await.unwrap().json();
        let minor = format!(
            "{}.{}",
            told["major"].as_str().unwrap(),
            told["minor"].as_str().unwrap()
        );
        let is_own = built(version).is_some();
        assert!(minor == version || !is_own, "{member} is {minor}");
        let served = groups(&direct.get("/apis", &[]).await.unwrap().json());
        assert!(served.is_subset(&union), "{member}: {:?}", served.difference(&union));
    }
    let all = world
        .merged("all")
        .ok(&["api-resources", "--verbs=list"])
        .await
        .unwrap();
    assert!(all.contains("configmaps") && all.contains("deployments"), "{all}");
}

/// By the best means that each has: policies of v1, of the beta, or none.
#[tokio::test]
async fn labels_come_at_admission_where_the_member_can() {
    let world = world().await;
    let members: Api<MemberCluster> = Api::all(world.cluster(HUB).client().await.unwrap());
    let says = async |member: &str, status: &str, words: &str| {
        eventually("labels come as the member can", || async {
            let member = members.get(member).await.map_err(|error| error.to_string())?;
            let conditions = member.status.unwrap_or_default().conditions;
            let labels = conditions
                .into_iter()
                .find(|condition| condition.type_ == "LabelsSynced");
            match labels {
                Some(labels) if labels.status == status && labels.message.contains(words) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    };
    let with_beta = built("1.35").map(|_| "west");
    for member in with_beta.into_iter().chain(["north"]) {
        says(member, "True", "").await;
    }
    let without = with_beta.is_none().then_some("west");
    for member in without.into_iter().chain(["east"]) {
        says(member, "False", "routers choose by namespace").await;
    }
    if let Some(member) = with_beta {
        let beta = "/apis/admissionregistration.k8s.io/v1beta1/mutatingadmissionpolicies";
        let beta = world.direct(member).ok(&["get", "--raw", beta]).await.unwrap();
        assert!(beta.contains("portolan-labels"), "{beta}");
    }
}

#[tokio::test]
async fn lists_and_watches_hold_what_all_members_hold() {
    let world = world().await;
    let places = [("east", "sk-e"), ("west", "sk-w"), ("north", "sk-n")];
    let path = "/api/v1/configmaps";
    let door = world.listed_door("all", path).await.unwrap();
    let client = world.client(world.fleet.merged_kubeconfig("all"), None).await.unwrap();
    let [listing, streaming] = [Config::default(), Config::default().streaming_lists()]
        .map(|config| Watcher::start(Api::<ConfigMap>::all(client.clone()), config));
    for (member, namespace) in places {
        let direct = world.direct_door(member).await.unwrap();
        for name in ["kept", "gone"] {
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
            let made = direct
                .post(&format!("/api/v1/namespaces/{namespace}/configmaps"), &object)
                .await
                .unwrap();
            assert_eq!(made.status, 201);
        }
        let own = format!("/api/v1/namespaces/{namespace}/configmaps");
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "by-the-view"}});
        assert_eq!(door.post(&own, &object).await.unwrap().status, 201);
        assert_eq!(
            door.call(Method::DELETE, &format!("{own}/gone"), &[], &[])
                .await
                .unwrap()
                .status,
            200
        );
    }
    let truth = world.truth(("/api/v1", "configmaps"), &places).await.unwrap();
    let wanted: BTreeMap<_, _> = truth.into_iter().map(|(key, (_, version))| (key, version)).collect();
    for watcher in [&listing, &streaming] {
        eventually("a watcher holds what members hold", || async {
            let seen = watcher.seen();
            let held: BTreeMap<_, _> = seen.held.iter().filter(|(key, _)| key.starts_with("sk-")).collect();
            if held == wanted.iter().collect() {
                Ok(())
            } else {
                Err(format!("{:?} {:?}", held, seen.errors))
            }
        })
        .await;
    }
    // Where the router chooses by namespace, a page may have less than it may have.
    let maps: Api<ConfigMap> = Api::all(client);
    let (mut paged, mut page) = (BTreeSet::new(), ListParams::default().limit(2));
    loop {
        let list = maps.list(&page).await.unwrap();
        assert!(list.items.len() <= 2);
        paged.extend(
            list.items
                .iter()
                .map(|map| format!("{}/{}", map.namespace().unwrap(), map.name_any())),
        );
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = ListParams::default().limit(2).continue_token(&token),
            None => break,
        }
    }
    let missing: Vec<_> = wanted.keys().filter(|key| !paged.contains(*key)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[tokio::test]
async fn namespaces_move_between_members_of_any_version() {
    let world = world().await;
    let path = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps/where");
    let places = [("east", "sk-1"), ("west", "sk-2"), ("north", "sk-4")];
    for (member, namespace) in places {
        let direct = world.direct_door(member).await.unwrap();
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "where"}});
        direct
            .post(&format!("/api/v1/namespaces/{namespace}/configmaps"), &object)
            .await
            .unwrap();
    }
    let (giver, taker) = (
        world.merged_door("giver").await.unwrap(),
        world.merged_door("taker").await.unwrap(),
    );
    // Who does not have it is told so in one of several ways.
    let serves = async |door: &Door, namespace: &str, wanted: bool| {
        eventually("it is served, or not", || async {
            let answer = door
                .get(&path(namespace), &[])
                .await
                .map_err(|error| error.to_string())?;
            let is_served = answer.status == 200;
            if is_served == wanted && [200, 403, 404].contains(&answer.status) {
                Ok(())
            } else {
                Err(format!("{namespace}: {}", answer.message()))
            }
        })
        .await;
    };
    for (_, namespace) in places {
        serves(&giver, namespace, true).await;
        serves(&taker, namespace, false).await;
    }
    world
        .own("giver", json!([{"name": "west", "namespaces": ["sk-3"]}]))
        .await
        .unwrap();
    let wanted = json!([
        {"name": "east", "namespaces": ["sk-1"]}, {"name": "west", "namespaces": ["sk-2"]},
        {"name": "north", "namespaces": ["sk-4", "sk-5"]},
    ]);
    world.own("taker", wanted).await.unwrap();
    for (_, namespace) in places {
        serves(&taker, namespace, true).await;
        serves(&giver, namespace, false).await;
    }
}

#[tokio::test]
async fn leaders_are_elected_where_the_beta_is_and_one_follows_the_other() {
    let kubeconfig = world().await.fleet.merged_kubeconfig("led");
    let candidate = |identity: &str| {
        let flags = [
            "elect",
            "--namespace",
            "operators",
            "--resource",
            "coordination.k8s.io/v1/leases",
            "--client",
            "typed",
            identity,
            "greeting-operator",
        ];
        GoClient::start(&kubeconfig, &flags).unwrap()
    };
    let mut first = candidate("one");
    first.wait_type("leads").await.unwrap();
    let mut second = candidate("two");
    drop(first);
    second.wait_type("leads").await.unwrap();
}
