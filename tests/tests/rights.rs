//! The rights that `deploy/` gives against what the programs ask: by the audit logs of real API servers. A rule that nobody
//! uses is a rule too much, and a request that is refused a rule too few.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

use std::collections::BTreeSet;
use std::path::Path;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Api;
use kube::api::{Patch, PatchParams};
use portolan_crds::ShardingConfig;
use portolan_testbed::{Fault, eventually};
use portolan_tests::door::Door;
use portolan_tests::shard::federated;
use portolan_tests::world::{HUB, Plan, World};
use serde::Deserialize as _;
use serde_json::{Value, json};

/// Of the three programs alone, and of watches from their beginning on.
const AUDIT: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users:
  - system:serviceaccount:portolan-system:portolan-hub
  - system:serviceaccount:portolan-system:portolan-agent
  - system:serviceaccount:portolan-routers:portolan-router
";

/// Rights that a short run does not use, and when they are: program, verb, resource (`*`: of any), why.
const SELDOM: [(&str, &str, &str, &str); 29] = [
    (
        "agent",
        "patch",
        "*",
        "one code labels all kinds, and this run has old objects of some",
    ),
    (
        "agent",
        "create",
        "tokenreviews",
        "a router in the member enrols by its Pod's token",
    ),
    ("agent", "get", "/version", "once a minute"),
    ("agent", "delete", "secrets", "a router was forgotten"),
    (
        "router",
        "create",
        "subjectaccessreviews",
        "a caller impersonates somebody, or a person uses the explicit view",
    ),
    (
        "router",
        "create",
        "tokenreviews",
        "a caller's token is reviewed where its Pod runs",
    ),
    (
        "agent",
        "impersonate",
        "userextras/ctrlmesh.kusionstack.io/epoch",
        "asked within the request that impersonates, which no audit log tells: agent/fence and merged use it",
    ),
    (
        "agent",
        "impersonate",
        "serviceaccounts",
        "asked within the request that impersonates, which no audit log tells: agent/fence and merged use it",
    ),
    (
        "router-fence",
        "impersonate",
        "userextras/ctrlmesh.kusionstack.io/shard",
        "asked within the request that impersonates, which no audit log tells: agent/fence and merged use it",
    ),
    (
        "router-fence",
        "impersonate",
        "userextras/ctrlmesh.kusionstack.io/epoch",
        "asked within the request that impersonates, which no audit log tells: agent/fence and merged use it",
    ),
    (
        "hub",
        "patch",
        "validatingwebhookconfigurations",
        "the API server was not told its CA yet: here the install has told it",
    ),
    ("hub", "delete", "configmaps", "a member's part of the ledger shrinks"),
    (
        "hub",
        "create",
        "subjectaccessreviews",
        "a person uses the explicit view",
    ),
    (
        "hub",
        "update",
        "certificatesigningrequests/approval",
        "a person asks for a certificate of its own name",
    ),
    ("hub", "approve", "signers", "what the API server asks of who approves"),
    ("hub", "sign", "signers", "what the API server asks of who signs"),
    ("hub", "update", "routers", "a router renews its certificate"),
    ("hub", "delete", "routers", "a router enrols by another's name"),
    ("hub", "get", "pods", "a router enrols that runs in the hub's namespace"),
    (
        "hub",
        "create",
        "tokenreviews",
        "a router of the hub's own cluster enrols by its Pod's token",
    ),
    (
        "hub",
        "get",
        "deployments",
        "another replica leads by other settings: node_upgrades uses it",
    ),
    ("hub", "get", "replicasets", "the same"),
    (
        "hub",
        "patch",
        "shardingconfigs",
        "the finalizer of a shard that came without one",
    ),
    ("hub", "get", "shardingconfigs", "the same"),
    ("hub", "create", "shardingconfigs", "a root's child is made"),
    (
        "hub",
        "update",
        "shardingconfigs",
        "others have written fields of their own into a child",
    ),
    ("hub", "delete", "shardingconfigs", "a root has a child less"),
    (
        "hub",
        "shard",
        "memberclusters",
        "the webhook asks whether the hub may write a child",
    ),
    ("hub", "patch", "events", "a breaker or a rule opens again"),
];

/// What is tried although nobody has to allow it: the hub makes its namespace where it may.
const TRIED: [&str; 1] = ["hub: create /api/v1/namespaces"];

const MAPS: &str = "/api/v1/namespaces/old/configmaps";

/// Kinds that are labelled in this run.
const LABELLED: [&str; 2] = ["configmaps", "namespaces"];

/// Of which statuses are written.
const POLICIES: &str = "
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: CircuitBreaker
metadata: {name: calm, namespace: default}
spec: {selector: {}}
---
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: FaultInjection
metadata: {name: shake, namespace: default}
spec: {selector: {}, disabled: true}
";

/// One right, or one use of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    program: String,
    verb: String,
    group: String,
    /// With its subresource; a path for what is no resource.
    resource: String,
    /// The only object that it is for; of a use: the object.
    name: Option<String>,
}

impl Right {
    fn is_used_by(&self, used: &Self) -> bool {
        let same = |right: &Self| {
            (&right.program, &right.verb, &right.group, &right.resource)
                == (&used.program, &used.verb, &used.group, &used.resource)
        };
        same(self) && (self.name.is_none() || self.name == used.name)
    }

    fn is_seldom(&self) -> bool {
        SELDOM.iter().any(|(program, verb, resource, _)| {
            let any = *resource == "*" && !LABELLED.contains(&self.resource.as_str());
            self.program == *program && self.verb == *verb && (any || self.resource == *resource)
        })
    }
}

fn repository(path: &str) -> String {
    let root =
        option_env!("PORTOLAN_REPOSITORY").map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), Into::into);
    std::fs::read_to_string(root.join(path)).unwrap()
}

/// What the roles of a manifest give, one by one.
fn given(manifest: &str) -> Vec<Right> {
    let text = repository(manifest);
    let documents = serde_yaml_ng::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap());
    let roles =
        documents.filter(|object| ["Role", "ClusterRole"].contains(&object["kind"].as_str().unwrap_or_default()));
    let mut rights = Vec::new();
    for role in roles {
        let program = role["metadata"]["name"]
            .as_str()
            .unwrap()
            .trim_start_matches("portolan-")
            .to_owned();
        // What all people may read is asked for by people.
        if program == "ca" {
            continue;
        }
        let rules: Vec<PolicyRule> = serde_json::from_value(role["rules"].clone()).unwrap();
        for rule in rules {
            rights.extend(each(&program, &rule));
        }
    }
    rights
}

fn each(program: &str, rule: &PolicyRule) -> Vec<Right> {
    let groups = rule.api_groups.clone().unwrap_or_else(|| vec![String::new()]);
    let resources = rule.resources.iter().chain(&rule.non_resource_urls).flatten();
    let names: Vec<_> = match &rule.resource_names {
        Some(names) => names.iter().cloned().map(Some).collect(),
        None => vec![None],
    };
    let mut rights = Vec::new();
    for resource in resources {
        for (group, verb) in groups
            .iter()
            .flat_map(|group| rule.verbs.iter().map(move |verb| (group, verb)))
        {
            rights.extend(names.iter().map(|name| Right {
                program: program.to_owned(),
                verb: verb.clone(),
                group: group.clone(),
                resource: resource.clone(),
                name: name.clone(),
            }));
        }
    }
    rights
}

/// What the programs have asked so far, and what of it was forbidden.
fn asked(world: &World) -> (BTreeSet<Right>, BTreeSet<String>) {
    let (mut used, mut forbidden) = (BTreeSet::new(), BTreeSet::new());
    for cluster in [HUB, "east"] {
        let log = std::fs::read_to_string(world.cluster(cluster).dir().join("audit.log")).unwrap_or_default();
        // The last line may be under way.
        for event in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let user = event["user"]["username"].as_str().unwrap_or_default();
            let Some((_, program)) = user
                .split_once(":portolan-system:portolan-")
                .or_else(|| user.split_once(":portolan-routers:portolan-"))
            else {
                continue;
            };
            let (verb, object) = (event["verb"].as_str().unwrap_or_default(), &event["objectRef"]);
            let word = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
            let path = event["requestURI"].as_str().unwrap_or_default();
            let resource = match (object["resource"].as_str(), object["subresource"].as_str()) {
                (Some(resource), Some(sub)) => format!("{resource}/{sub}"),
                (Some(resource), None) => resource.to_owned(),
                _ => path.split('?').next().unwrap_or_default().to_owned(),
            };
            if event["annotations"]["authorization.k8s.io/decision"] == "forbid" {
                let path = path.split('?').next().unwrap_or_default();
                forbidden.insert(format!("{program}: {verb} {path}"));
            }
            used.insert(Right {
                program: program.to_owned(),
                verb: verb.to_owned(),
                group: word("apiGroup"),
                resource,
                name: Some(word("name")).filter(|name| !name.is_empty()),
            });
        }
    }
    (used, forbidden)
}

#[tokio::test]
async fn every_right_is_used_and_none_is_missing() {
    let policy = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(policy.path(), AUDIT).unwrap();
    let shard = federated("alpha", "east", &[("east", &["old"])]);
    let manifests = format!("{shard}{POLICIES}");
    let world = World::start(Plan {
        members: &["east"],
        namespaces: &["east/old"],
        manifests: &manifests,
        apiserver_args: vec![
            format!("--audit-policy-file={}", policy.path().display()),
            "--audit-log-path={folder}/audit.log".to_owned(),
        ],
        ..Plan::default()
    })
    .await
    .unwrap();
    // A request of a caller, one that finds no way to the member, and objects that come and go.
    let door = world.listed_door("alpha", MAPS).await.unwrap();
    world.cluster("east").fault(Fault::Reset).await.unwrap();
    assert_ne!(door.get(MAPS, &[]).await.unwrap().status, 200);
    world.cluster("east").fault(Fault::None).await.unwrap();
    let east = world.cluster("east").client().await.unwrap();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}});
    Api::<ConfigMap>::namespaced(east, "old")
        .patch("new", &PatchParams::apply("test"), &Patch::Apply(map))
        .await
        .unwrap();

    let rights: Vec<_> = ["deploy/hub/rbac.yaml", "deploy/member/rbac.yaml"]
        .into_iter()
        .flat_map(given)
        .collect();
    assert!(rights.len() > 50, "{}", rights.len());
    let unused = || {
        let (used, _) = asked(&world);
        let unused = rights
            .iter()
            .filter(|right| !right.is_seldom() && !used.iter().any(|used| right.is_used_by(used)));
        unused.map(|right| format!("{right:?}")).collect::<Vec<_>>()
    };
    eventually("every right is used", || async {
        let unused = unused();
        if unused.is_empty() {
            Ok(())
        } else {
            Err(unused.join("\n"))
        }
    })
    .await;
    let (_, mut forbidden) = asked(&world);
    forbidden.retain(|request| !TRIED.contains(&request.as_str()));
    assert!(forbidden.is_empty(), "{forbidden:#?}");
}

/// The disk is full, as far as the router is concerned: its folder is a file. What is taken from callers meanwhile is in force, and the
/// shard says which router would give it back; once it is on disk, it is not back after a restart without the hub either.
#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "one story, of which each step needs the one before"
)]
async fn a_right_that_is_taken_while_the_disk_is_full_is_never_given_back() {
    let manifests = federated("alpha", "east", &[("east", &["old"])]);
    let world = World::start(Plan {
        members: &["east"],
        namespaces: &["east/old"],
        manifests: &manifests,
        ..Plan::default()
    })
    .await
    .unwrap();
    let mut router = world.fleet.take_over("router").await.unwrap();
    router.ready().await;
    let door = world.listed_door("alpha", MAPS).await.unwrap();
    let explicit = door.with_prefix("/clusters/east");
    assert_eq!(explicit.get(MAPS, &[]).await.unwrap().status, 200);

    let state = world.fleet.dir().join("router-state");
    assert!(state.join("state.bin").exists(), "{}", state.display());
    let aside = state.with_extension("aside");
    std::fs::rename(&state, &aside).unwrap();
    std::fs::write(&state, b"no folder").unwrap();
    let shards: Api<ShardingConfig> = Api::namespaced(world.cluster(HUB).client().await.unwrap(), "operators");
    let deny = Patch::Merge(json!({"spec": {"explicitView": "Deny"}}));
    shards.patch("alpha", &PatchParams::default(), &deny).await.unwrap();
    eventually("it is in force", || async {
        let answer = explicit.get(MAPS, &[]).await.unwrap();
        (answer.status == 403).then_some(()).ok_or(answer.status)
    })
    .await;
    let distributed = async || {
        let shard = shards.get("alpha").await.unwrap();
        let generation = shard.metadata.generation;
        let status = serde_json::to_value(shard.status).unwrap();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let mut found = conditions.into_iter().filter(|one| one["type"] == "Distributed");
        let found = found.find(|one| one["observedGeneration"].as_i64() == generation);
        found.map(|one| {
            (
                one["status"].clone(),
                one["message"].as_str().unwrap_or_default().to_owned(),
            )
        })
    };
    eventually("the shard names the router", async || {
        let found = distributed().await;
        let named = |(status, message): &(Value, String)| *status == "False" && message.contains("router gateway");
        found.as_ref().is_some_and(named).then_some(()).ok_or(found)
    })
    .await;
    let ready = door.with_prefix("").get("/readyz?verbose", &[]).await.unwrap();
    let told = String::from_utf8_lossy(&ready.body).into_owned();
    assert!(ready.status == 200 && told.contains("[!]state-file"), "{told}");
    assert_eq!(door.get(MAPS, &[]).await.unwrap().status, 200, "all else goes on");

    std::fs::remove_file(&state).unwrap();
    std::fs::rename(&aside, &state).unwrap();
    eventually("it is acknowledged", async || {
        let found = distributed().await;
        found
            .as_ref()
            .is_some_and(|(status, _)| *status == "True")
            .then_some(())
            .ok_or(found)
    })
    .await;
    let mut hub = world.fleet.take_over("hub").await.unwrap();
    hub.stop().await.unwrap();
    router.kill().await.unwrap();
    // What the hub has said of people: nobody was asked about any more.
    let _ = std::fs::remove_file(world.fleet.dir().join("router-state/people.json"));
    router.start_again().await.unwrap();
    router.ready().await;
    let door = world.listed_door("alpha", MAPS).await.unwrap();
    let answer = door.with_prefix("/clusters/east").get(MAPS, &[]).await.unwrap();
    assert_eq!(answer.status, 403, "{}", answer.message());
    is_refused_at_once(&world.explicit_door("east").await.unwrap()).await;
}

/// A person whom the hub was never asked about: a `Retry-After` would have kubectl ask for a minute first.
async fn is_refused_at_once(person: &Door) {
    let answer = person.get(MAPS, &[]).await.unwrap();
    let words = ["the hub cannot be asked", "it is away"];
    answer.expect_status(503, &words).unwrap();
    assert_eq!(answer.header("retry-after"), "");
}
