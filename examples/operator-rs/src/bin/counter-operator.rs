//! A second small operator, for where two work in the same namespaces: a Counter says how many ConfigMaps its namespace has.
//!
//! It writes nothing but the status of Counters, and shares with the greeting operator only the way in which it is elected.

#[path = "../leader.rs"]
mod leader;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{Controller, watcher};
use kube::{Api, Client, CustomResource, ResourceExt as _};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

/// The operator of this kind: its field manager and its Lease.
const NAME: &str = "counter-operator";
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Nothing to say: what is counted is in its namespace. `examples/counter-crd.yaml` is what the API server knows of it.
#[derive(Clone, Debug, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "example.com",
    version = "v1",
    kind = "Counter",
    namespaced,
    status = "CounterStatus",
    schema = "disabled"
)]
struct CounterSpec {}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CounterStatus {
    /// ConfigMaps of the namespace.
    #[serde(default)]
    config_maps: usize,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .ok()
        .context("a crypto provider is set already")?;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be caught")?;
    let config = kube::Config::infer()
        .await
        .context("no kubeconfig and not in a cluster")?;
    let home = config.default_namespace.clone();
    let client = Client::try_from(config)?;
    let identity = format!("{NAME}_{}", std::process::id());
    let mut election = leader::Election::new(client.clone(), &home, NAME.to_owned(), identity);
    tokio::select! {
        () = election.acquire() => info!("leading"),
        _ = terminate.recv() => return Ok(()),
    }
    tokio::select! {
        () = run(client) => info!("stopped"),
        _ = terminate.recv() => info!("stopped"),
        error = election.hold() => return Err(error.context("lost the lease")),
    }
    election.release().await;
    Ok(())
}

async fn run(client: Client) {
    let counters = Controller::new(Api::<Counter>::all(client.clone()), watcher::Config::default());
    let known = counters.store();
    let beside = move |map: ConfigMap| {
        let all = known.state().into_iter();
        let there = all.filter(move |counter| counter.namespace() == map.namespace());
        there.map(|counter| ObjectRef::from_obj(&*counter)).collect::<Vec<_>>()
    };
    counters
        .watches(
            Api::<ConfigMap>::all(client.clone()),
            watcher::Config::default(),
            beside,
        )
        .run(count, |_, _, _| Action::requeue(RETRY_AFTER), Arc::new(client))
        .for_each(|outcome| {
            if let Err(error) = outcome {
                warn!(%error, "not counted");
            }
            std::future::ready(())
        })
        .await;
}

async fn count(counter: Arc<Counter>, client: Arc<Client>) -> kube::Result<Action> {
    let client = Client::clone(&client);
    let namespace = counter.namespace().unwrap_or_default();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let status = CounterStatus {
        config_maps: maps.list_metadata(&ListParams::default()).await?.items.len(),
    };
    if counter.status.as_ref() != Some(&status) {
        let counters: Api<Counter> = Api::namespaced(client, &namespace);
        let patch = Patch::Apply(json!({
            "apiVersion": "example.com/v1", "kind": "Counter", "metadata": {"name": counter.name_any()}, "status": status,
        }));
        let params = PatchParams::apply(NAME).force();
        counters.patch_status(&counter.name_any(), &params, &patch).await?;
    }
    Ok(Action::await_change())
}
