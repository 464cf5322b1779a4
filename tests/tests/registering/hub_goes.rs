//! `portolanctl uninstall`, and what is taken out of a member whose hub is gone.

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt as _;
use nix::sys::signal::Signal;

use super::*;

#[tokio::test]
async fn a_hub_goes_and_leaves_what_people_wrote_and_nothing_that_holds_it() {
    let ground = Ground::start(&["east"]).await;
    let endpoint = url(ground.cluster("east"));
    let flags = ["--endpoint", &endpoint, "--allow-user", "jane"];
    let (registered, agent) = tokio::join!(ground.run("register", "east", &flags), ground.agent("east"));
    says(&registered, true, &["member cluster east serves"]);
    shard(&ground).await;
    let kubeconfig = argument(ground.cluster("hub").kubeconfig_path());
    let uninstall = ["uninstall", "--hub-kubeconfig", &kubeconfig];
    let led = ctl::refused(&uninstall).await.unwrap();
    assert!(led.contains("a hub that runs elsewhere leads"), "{led}");
    assert_eq!(finalizers(&ground).await.len(), 1, "nothing is taken off");
    let released = [&uninstall[..], &["--delete-shards"]].concat();
    let released = ctl::refused(&released).await.unwrap();
    assert!(released.contains("what they had is released"), "{released}");
    let shards = Api::<ShardingConfig>::all(ground.cluster("hub").client().await.unwrap());
    assert_eq!(shards.list(&ListParams::default()).await.unwrap().items.len(), 0);

    shard(&ground).await;
    drop(agent);
    ground.hub.signal(Signal::SIGKILL).unwrap();
    let told = ctl::ok(&uninstall).await.unwrap();
    for word in [
        "finalizers are off 1 ShardingConfigs",
        "RBAC and the webhook are gone",
        "kept: CustomResourceDefinitions",
        "kept: what is in member east",
    ] {
        assert!(told.contains(word), "{word}: {told}");
    }
    assert_eq!(finalizers(&ground).await, Vec::<String>::new());
    assert_eq!(named::<ClusterRole>(&ground, "hub").await, Vec::<String>::new());
    let kinds = named_with::<CustomResourceDefinition>(&ground, "hub", "ctrlmesh.kusionstack.io").await;
    assert_eq!(kinds.len(), 5, "{kinds:?}");

    let kubeconfig = argument(ground.cluster("east").kubeconfig_path());
    let alone = ["unregister", "--member-alone", "--kubeconfig", &kubeconfig];
    let told = ctl::ok(&alone).await.unwrap();
    assert!(told.contains("RBAC and admission policies are gone"), "{told}");
    assert_eq!(named::<ClusterRole>(&ground, "east").await, Vec::<String>::new());
    assert_eq!(
        named::<ValidatingAdmissionPolicy>(&ground, "east").await,
        Vec::<String>::new()
    );
}

/// Makes the only ShardingConfig, and waits until the hub holds it.
async fn shard(ground: &Ground) {
    let hub = ground.cluster("hub").client().await.unwrap();
    let spec = json!({
        "selector": {"matchLabels": {"app": "a"}},
        "callerClusters": ["east"],
        "clusters": [{"name": "east", "namespaces": ["shop"]}],
    });
    put_shard(&hub, "a", spec).await.unwrap();
    eventually("the hub holds the shard", || async {
        let held = finalizers(ground).await;
        if held.is_empty() { Err("no finalizer") } else { Ok(()) }
    })
    .await;
}

/// Of the only ShardingConfig.
async fn finalizers(ground: &Ground) -> Vec<String> {
    let shards = Api::<ShardingConfig>::namespaced(ground.cluster("hub").client().await.unwrap(), "ops");
    shards.get("a").await.unwrap().finalizers().to_vec()
}

/// Names that are Portolan's.
async fn named<K>(ground: &Ground, cluster: &str) -> Vec<String>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    named_with::<K>(ground, cluster, "portolan").await
}

async fn named_with<K>(ground: &Ground, cluster: &str, word: &str) -> Vec<String>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let all = Api::<K>::all(ground.cluster(cluster).client().await.unwrap());
    let listed = all.list(&ListParams::default()).await.unwrap();
    let names = listed.items.iter().map(kube::ResourceExt::name_any);
    names.filter(|name| name.contains(word)).collect()
}
