//! `portolanctl dev up | status | down` against clusters that hold things already: what it refuses early, what it leaves
//! in its folder, what `status` says, and that `down` leaves the clusters as they were.
//!
//! One testbed for all; a test holds its lock, because every one compares the clusters before and after.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "dev/inventory.rs"]
mod inventory;
#[path = "dev/lifecycle.rs"]
mod lifecycle;
#[path = "dev/refusals.rs"]
mod refusals;

use std::path::Path;

use portolan_testbed::Testbed;
use portolan_tests::fleet::{Guard, up_timeout};
use portolan_tests::kubectl::Kubectl;
use portolan_tests::programs::argument;
use portolan_tests::world::create_namespace;
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use crate::inventory::{Inventory, take_settled};

const CLUSTERS: [&str; 3] = ["hub", "east", "west"];

static GROUND: OnceCell<Mutex<Ground>> = OnceCell::const_new();

/// The clusters and what they hold without Portolan.
struct Ground {
    testbed: Testbed,
    before: Vec<Inventory>,
}

/// Whoever has it is alone with the clusters.
async fn ground() -> MutexGuard<'static, Ground> {
    let start = || async {
        portolan_runtime::tls::install_crypto_provider();
        let testbed = Testbed::start(&CLUSTERS).await.unwrap();
        for (cluster, namespace) in [("east", "team-a"), ("east", "operators"), ("west", "team-b")] {
            furnish(&testbed, cluster, namespace).await;
        }
        let mut before = Vec::new();
        for cluster in testbed.clusters() {
            before.push(take_settled(&cluster.client().await.unwrap()).await);
        }
        Mutex::new(Ground { testbed, before })
    };
    GROUND.get_or_init(start).await.lock().await
}

/// A namespace with something of every labelled kind that needs no node, some of it with labels of its own.
async fn furnish(testbed: &Testbed, cluster: &str, namespace: &str) {
    let cluster = testbed.cluster(cluster);
    create_namespace(cluster, namespace).await.unwrap();
    let manifests = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "labels": {"app": "shop"}}, "data": {"a": "1"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "password"}, "stringData": {"password": "hunter2"}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "shop"}, "spec": {"ports": [{"port": 80}]}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "shop"}, "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": "shop"}},
            "template": {"metadata": {"labels": {"app": "shop"}}, "spec": {"containers": [{"name": "c", "image": "registry.k8s.io/pause:3.10"}]}},
        }},
    ]});
    let kubectl = Kubectl::new(cluster.direct_kubeconfig_path());
    let flags = ["create", "-n", namespace, "-f", "-"];
    kubectl.ok_with(&flags, &manifests.to_string()).await.unwrap();
    let made = "serviceaccount/default configmap/kube-root-ca.crt";
    let own: Vec<&str> = ["get", "-n", namespace].into_iter().chain(made.split(' ')).collect();
    let pods = ["get", "pods", "-n", namespace, "-l", "app=shop", "-o", "name"];
    portolan_testbed::eventually("controllers have begun with it", || async {
        kubectl.ok(&own).await?;
        anyhow::ensure!(!kubectl.ok(&pods).await?.is_empty(), "there is no Pod");
        Ok(())
    })
    .await;
}

impl Ground {
    /// `dev up` with both members and one manifest, into `dir`; programs end with this process.
    fn up(&self, dir: &Path, manifest: Option<&Path>) -> (Guard, Vec<String>) {
        let guard = Guard::new(dir).unwrap();
        let mut arguments: Vec<String> = ["dev", "up", "--hub"].map(str::to_owned).to_vec();
        arguments.push(argument(self.testbed.cluster("hub").kubeconfig_path()));
        for member in ["east", "west"] {
            let file = argument(self.testbed.cluster(member).kubeconfig_path());
            arguments.extend(["--member".to_owned(), format!("{member}={file}")]);
        }
        if let Some(manifest) = manifest {
            arguments.extend(["-f".to_owned(), argument(manifest)]);
        }
        // As where the API server is elsewhere: by a name, and not at loopback's address alone.
        arguments.extend(["--webhook-host", "localhost", "--dir"].map(str::to_owned));
        arguments.push(argument(dir));
        arguments.extend(up_timeout());
        (guard, arguments)
    }

    /// Panics with every difference if a cluster does not come to hold what it held before.
    async fn assert_as_before(&self) {
        for (cluster, before) in self.testbed.clusters().iter().zip(&self.before) {
            let client = cluster.client().await.unwrap();
            let what = format!("{} holds what it held before", cluster.name());
            portolan_testbed::eventually(&what, || async {
                let now = inventory::take(&client)
                    .await
                    .map_err(|error| vec![error.to_string()])?;
                let differences = now.differences(before);
                if differences.is_empty() {
                    Ok(())
                } else {
                    Err(differences)
                }
            })
            .await;
        }
    }
}

/// The arguments as the shell would pass them.
fn words(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}
