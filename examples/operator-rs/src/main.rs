//! A small operator in kube-rs: a `Greeting` becomes a ConfigMap that says it, and a status that says so.
//!
//! It runs one informer per namespace, keeps a leader-election Lease, and contains no line that knows of Portolan: the
//! only thing that makes it span clusters is the kubeconfig it is started with. `make demo` runs it.

mod greeting;
mod leader;

use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use kube::runtime::Controller;
use kube::runtime::watcher;
use kube::{Api, Client, CustomResourceExt as _};
use tracing::{info, warn};

use crate::greeting::Greeting;

/// Reconciles Greetings into ConfigMaps.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Namespaces to watch, one informer each.
    #[arg(
        long = "namespace",
        env = "WATCH_NAMESPACES",
        value_delimiter = ',',
        required_unless_present = "crd"
    )]
    namespaces: Vec<String>,
    /// Name of the leader-election Lease, in the namespace of the kubeconfig's context.
    #[arg(long, env = "LEASE_NAME", default_value = "greeting-operator")]
    lease: String,
    /// This replica, as written into the Lease.
    #[arg(long, env = "POD_NAME", default_value = "greeting-operator-0")]
    identity: String,
    /// Print the CustomResourceDefinition and exit.
    #[arg(long)]
    crd: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if args.crd {
        #[allow(clippy::print_stdout, reason = "the manifest is the output of --crd")]
        {
            println!("{}", serde_json::to_string_pretty(&Greeting::crd())?);
        }
        return Ok(());
    }
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()))
        .init();
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .ok()
        .context("a crypto provider is set already")?;

    let config = kube::Config::infer()
        .await
        .context("no kubeconfig and not in a cluster")?;
    let home = config.default_namespace.clone();
    let client = Client::try_from(config)?;
    let lease = leader::Election {
        namespace: home,
        name: args.lease,
        identity: args.identity,
    };
    lease.acquire(&client).await;
    info!(lease = lease.name, "leading");
    tokio::select! {
        () = run(&client, &args.namespaces) => Ok(()),
        error = lease.hold(&client) => Err(error.context("lost the lease")),
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

/// One controller per namespace, until the process ends.
async fn run(client: &Client, namespaces: &[String]) {
    let mut controllers = FuturesUnordered::new();
    for namespace in namespaces {
        let greetings: Api<Greeting> = Api::namespaced(client.clone(), namespace);
        let children: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(client.clone(), namespace);
        let context = Arc::new(greeting::Context { client: client.clone() });
        info!(namespace, "watching");
        let controller = Controller::new(greetings, watcher::Config::default())
            .owns(children, watcher::Config::default())
            .run(greeting::reconcile, greeting::on_error, context)
            .for_each(move |outcome| {
                match outcome {
                    Ok((object, _)) => info!(namespace, name = object.name, "reconciled"),
                    Err(error) => warn!(namespace, %error, "reconcile failed"),
                }
                std::future::ready(())
            });
        controllers.push(controller);
    }
    while controllers.next().await.is_some() {}
}
