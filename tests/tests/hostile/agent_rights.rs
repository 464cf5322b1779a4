//! A stolen agent: what its token is good for, in a member that is the hub's own cluster too.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use portolan_crds::MemberCluster;
use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::programs::argument;
use portolan_tests::shard::federated;
use portolan_tests::world::{HUB, Plan, Shared, World};
use serde_json::{Value, json};
use tokio::sync::RwLock;

static WORLD: Shared = Shared::const_new();
/// Written by who takes a policy away.
static POLICIES: RwLock<()> = RwLock::const_new(());
const PREFIX: &str = "ctrlmesh.kusionstack.io/";
const SYSTEM: &str = "portolan-system";

/// One cluster, which is the hub and its only member.
async fn world() -> &'static World {
    let manifests = federated("alpha", HUB, &[(HUB, &["victim"])]);
    let plan = Plan {
        members: &[HUB],
        namespaces: &["hub/victim"],
        manifests: &manifests,
        ..Plan::default()
    };
    World::shared(&WORLD, plan).await
}

/// By the agent's own token and nothing more.
async fn thief(world: &World) -> Client {
    let cluster = world.cluster(HUB);
    let token = cluster.issue_token(SYSTEM, "portolan-agent", &[], None).await.unwrap();
    let kubeconfig = Kubeconfig::read_from(cluster.direct_kubeconfig_path()).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    config.auth_info = kube::config::AuthInfo {
        token: Some(token.into()),
        ..kube::config::AuthInfo::default()
    };
    Client::try_from(config).unwrap()
}

#[track_caller]
fn is_refused<T>(what: &str, answer: kube::Result<T>) {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 403 => {}
        Err(error) => panic!("{what}: {error}"),
        Ok(_) => panic!("{what}: was let through"),
    }
}

async fn deployment(world: &World, namespace: &str) {
    let object = json!({
        "metadata": {"name": "victim", "finalizers": ["example.com/keep"]},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "victim"}}, "template": {
            "metadata": {"labels": {"app": "victim"}},
            "spec": {"containers": [{"name": "main", "image": "good"}]}}},
    });
    let api = Api::<Deployment>::namespaced(world.cluster(HUB).client().await.unwrap(), namespace);
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}

#[tokio::test]
async fn it_changes_reserved_labels_and_nothing_else() {
    let world = world().await;
    let _there = POLICIES.read().await;
    let thief = thief(world).await;
    let merge = |value: Value| Patch::Merge(value);
    let params = PatchParams::default();
    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "evil"}]}}}});
    for namespace in ["victim", "kube-system"] {
        deployment(world, namespace).await;
        let api = Api::<Deployment>::namespaced(thief.clone(), namespace);
        let evil = api.patch("victim", &params, &Patch::Strategic(&image)).await;
        is_refused(&format!("an image in {namespace}"), evil);
    }
    let api = Api::<Deployment>::namespaced(thief.clone(), "victim");
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}]);
    for (what, metadata) in [
        ("a finalizer", json!({"finalizers": []})),
        ("an owner", json!({"ownerReferences": owner})),
        ("another label", json!({"labels": {"app": "other"}})),
        (
            "a label of the prefix",
            json!({"labels": {format!("{PREFIX}ledger"): "x"}}),
        ),
        ("an annotation", json!({"annotations": {"a": "b"}})),
        (
            "a label among reserved ones",
            json!({"labels": {format!("{PREFIX}control"): "true", "app": "other"}}),
        ),
    ] {
        is_refused(
            what,
            api.patch("victim", &params, &merge(json!({"metadata": metadata})))
                .await,
        );
    }
    // As the agent itself does it, with the field manager of somebody else.
    let label = |value: Value| merge(json!({"metadata": {"labels": {format!("{PREFIX}control"): value}}}));
    let labelled = api.patch("victim", &params, &label(json!("true"))).await.unwrap();
    assert_eq!(labelled.metadata.labels.unwrap()[&format!("{PREFIX}control")], "true");
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    is_refused(
        "dry",
        api.patch("victim", &dry, &merge(json!({"spec": {"replicas": 9}})))
            .await,
    );
    let system = Api::<Deployment>::namespaced(thief.clone(), "kube-system");
    is_refused(
        "a label in kube-system",
        system.patch("victim", &params, &label(json!("true"))).await,
    );
}

#[tokio::test]
async fn nobody_else_changes_reserved_labels() {
    let world = world().await;
    let _there = POLICIES.read().await;
    let admin = world.cluster(HUB).client().await.unwrap();
    let namespaces = Api::<Namespace>::all(admin);
    eventually("the namespace is labelled", || async {
        let victim = namespaces.get("victim").await.unwrap();
        victim
            .metadata
            .labels
            .unwrap_or_default()
            .contains_key(&format!("{PREFIX}control"))
    })
    .await;
    let label = Patch::Merge(json!({"metadata": {"labels": {format!("{PREFIX}control"): "false"}}}));
    let patched = namespaces.patch("victim", &PatchParams::default(), &label).await;
    is_refused("a reserved label by somebody else", patched);
}

#[tokio::test]
async fn it_writes_no_policy_and_reads_no_secret() {
    let world = world().await;
    let _there = POLICIES.read().await;
    let thief = thief(world).await;
    for kind in [
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ] {
        let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        let plural = kind
            .to_lowercase()
            .replace("policy", "policies")
            .replace("policiesbinding", "policybindings");
        let resource = ApiResource::from_gvk_with_plural(&gvk, &plural);
        let api = Api::<DynamicObject>::all_with(thief.clone(), &resource);
        let object = DynamicObject::new("evil", &resource).data(json!({"spec": {}}));
        is_refused(kind, api.create(&PostParams::default(), &object).await);
        for name in ["portolan-labels", "portolan-reserved-labels", "portolan-agent-writes"] {
            let patch = Patch::Merge(json!({"spec": {}}));
            is_refused(name, api.patch(name, &PatchParams::default(), &patch).await);
            is_refused(name, api.delete(name, &kube::api::DeleteParams::default()).await);
        }
    }
    let routers = Api::<Secret>::namespaced(thief.clone(), "portolan-routers");
    for (what, object) in [
        (
            "a token that never ends",
            json!({"type": "kubernetes.io/service-account-token", "metadata": {
                "name": "evil", "annotations": {"kubernetes.io/service-account.name": "portolan-router"}}}),
        ),
        (
            "a Secret with something in it",
            json!({"metadata": {"name": "evil"}, "stringData": {"a": "b"}}),
        ),
    ] {
        let secret = serde_json::from_value(object).unwrap();
        is_refused(what, routers.create(&PostParams::default(), &secret).await);
    }
    let secrets = Api::<Secret>::namespaced(thief.clone(), SYSTEM);
    is_refused("the CA", secrets.get("portolan-ca").await);
    is_refused("Secrets", secrets.list(&ListParams::default()).await);
    is_refused(
        "Secrets of all",
        Api::<Secret>::all(thief).list(&ListParams::default()).await,
    );
}

#[tokio::test]
async fn the_agent_of_the_hubs_own_cluster_is_not_the_hub() {
    let world = world().await;
    let _there = POLICIES.read().await;
    let thief = thief(world).await;
    let secrets = Api::<Secret>::namespaced(thief.clone(), SYSTEM);
    for (name, type_) in [
        ("portolan-bootstrap-0a0a0a", "ctrlmesh.kusionstack.io/bootstrap-token"),
        ("portolan-ca", "kubernetes.io/tls"),
        ("portolan-agent-identity", "Opaque"),
    ] {
        let forged = json!({"metadata": {"name": name}, "type": type_, "stringData": {
            "kind": "router", "name": "evil", "tls.crt": "", "tls.key": ""}});
        let forged: Secret = serde_json::from_value(forged).unwrap();
        is_refused(name, secrets.create(&PostParams::default(), &forged).await);
        let apply = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
        let params = PatchParams::apply("evil").force();
        is_refused(name, secrets.patch(name, &params, &Patch::Apply(&apply)).await);
    }
    let maps = Api::<ConfigMap>::namespaced(thief.clone(), SYSTEM);
    for change in [
        json!({"data": {"hub": "{}"}}),
        json!({"metadata": {"labels": {format!("{PREFIX}ledger"): null}}}),
        json!({"metadata": {"labels": {format!("{PREFIX}control"): "true"}}}),
    ] {
        let pins = maps
            .patch("portolan-pins", &PatchParams::default(), &Patch::Merge(change))
            .await;
        is_refused("the pins", pins);
    }
    let member = Api::<MemberCluster>::all(thief);
    let accept = Patch::Merge(json!({"spec": {"cordoned": true}}));
    is_refused(
        "a MemberCluster",
        member.patch(HUB, &PatchParams::default(), &accept).await,
    );
}

/// Also the last of this file's tests by what it does to the world: nothing is labelled at admission for a while.
#[tokio::test]
async fn a_policy_that_is_missing_is_told_and_join_brings_it_back() {
    let world = world().await;
    let _alone = POLICIES.write().await;
    let admin = world.cluster(HUB).client().await.unwrap();
    let members = Api::<MemberCluster>::all(admin);
    let until = async |status: &str, words: &str| {
        eventually("LabelsSynced says so", || async {
            let conditions = members.get(HUB).await.unwrap().status.unwrap_or_default().conditions;
            let found = conditions.into_iter().find(|one| one.type_ == "LabelsSynced");
            let found = found.filter(|one| one.status == status && one.message.contains(words));
            found.map(drop).ok_or("not yet")
        })
        .await;
    };
    until("True", "").await;
    let binding = ["delete", "validatingadmissionpolicybinding", "portolan-agent-writes"];
    world.direct(HUB).ok(&binding).await.unwrap();
    until("False", "portolan-agent-writes is missing: run portolanctl join again").await;
    let kubeconfig = argument(world.cluster(HUB).direct_kubeconfig_path());
    let address = world.fleet.record().unwrap()["hubAddress"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let join = [
        "join",
        HUB,
        "--hub-kubeconfig",
        &kubeconfig,
        "--member-kubeconfig",
        &kubeconfig,
        "--hub-address",
        &address,
    ];
    ctl::ok(&join).await.unwrap();
    until("True", "").await;
    // Until it holds again, which is some time after it is there.
    let maps = Api::<ConfigMap>::namespaced(thief(world).await, SYSTEM);
    eventually("the agent's writes are held", || async {
        let change = Patch::Merge(json!({"data": {"hub": "{}"}}));
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        match maps.patch("portolan-pins", &params, &change).await {
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    })
    .await;
}
