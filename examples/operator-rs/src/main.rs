//! The greeting operator in kube-rs: a Greeting becomes a ConfigMap, a Deployment that reads it, and an entry in its
//! namespace's guestbook. It watches all namespaces of the one cluster its kubeconfig names.

mod children;
mod greeting;
mod leader;
mod reconcile;
mod status;
mod traces;

use std::hash::{BuildHasher as _, RandomState};
use std::io::IsTerminal as _;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser;
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::ClientBuilder;
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::{Controller, controller, watcher};
use kube::{Api, Client};
use tokio::signal::unix::{SignalKind, signal};
use tracing::level_filters::LevelFilter;
use tracing::{debug, info, warn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use crate::greeting::{Greeting, NAME};
use crate::traces::{Traced, Traces};

/// Ready once the program is asked to end.
type Stop = Shared<BoxFuture<'static, ()>>;

/// Reconciles Greetings of all namespaces.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Name of the leader-election Lease, in the namespace of the kubeconfig's context or of the Pod
    #[arg(long, env = "LEASE_NAME", default_value = NAME)]
    lease: String,
    /// This replica, as written into the Lease [default: a name nobody else has]
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
    /// Image of the Pods that say a Greeting; it has a shell
    #[arg(long, env = "GREETER_IMAGE", default_value = children::IMAGE)]
    image: String,
    /// Collector for traces by OTLP over gRPC, for example http://localhost:4317
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .ok()
        .context("a crypto provider is set already")?;
    let traces = Traces::start(args.otlp_endpoint.as_deref()).context("--otlp-endpoint")?;
    log(&traces);
    let outcome = work(args).await;
    traces.stop().await;
    outcome
}

fn log(traces: &Traces) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let spans = traces.tracer().map(|tracer| {
        tracing_opentelemetry::layer()
            .with_tracer(tracer)
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_filter(LevelFilter::INFO)
    });
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(spans)
        .init();
}

async fn work(args: Args) -> anyhow::Result<()> {
    let stop = stop_signal()?;
    let config = kube::Config::infer()
        .await
        .context("no kubeconfig and not in a cluster")?;
    let home = config.default_namespace.clone();
    let client = ClientBuilder::try_from(config)?.with_layer(&Traced).build();
    let identity = args.identity.unwrap_or_else(unique_identity);
    let mut election = leader::Election::new(client.clone(), &home, args.lease, identity.clone());
    info!(identity, namespace = home, "waiting for the lease");
    tokio::select! {
        () = election.acquire() => info!("leading"),
        () = stop.clone() => return Ok(()),
    }
    tokio::select! {
        () = run(client, identity, args.image, stop) => info!("stopped"),
        error = election.hold() => return Err(error.context("lost the lease")),
    }
    election.release().await;
    Ok(())
}

/// Runs the controller until it is asked to stop and what it had begun is done.
async fn run(client: Client, identity: String, image: String, stop: Stop) {
    let reporter = Reporter {
        controller: NAME.to_owned(),
        instance: Some(identity),
    };
    let context = reconcile::Context {
        recorder: Recorder::new(client.clone(), reporter),
        client: client.clone(),
        image,
        failures: reconcile::Failures::default(),
    };
    // The ConfigMaps and Deployments of others are many; ours have a label.
    let ours = watcher::Config::default().labels(children::OURS);
    Controller::new(Api::<Greeting>::all(client.clone()), watcher::Config::default())
        .owns(Api::<ConfigMap>::all(client.clone()), ours.clone())
        .owns(Api::<Deployment>::all(client), ours)
        .graceful_shutdown_on(stop)
        .run(reconcile::reconcile, reconcile::on_error, Arc::new(context))
        .for_each(|outcome| {
            match outcome {
                Ok((object, _)) => info!(namespace = object.namespace, name = object.name, "reconciled"),
                // A child's event may come after its Greeting is gone.
                Err(controller::Error::ObjectNotFound(gone)) => debug!(%gone, "nothing to reconcile"),
                Err(error) => warn!(%error, "reconcile failed"),
            }
            std::future::ready(())
        })
        .await;
}

fn stop_signal() -> anyhow::Result<Stop> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be caught")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be caught")?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    Ok(stop.boxed().shared())
}

/// For runs outside a Pod: the hasher's keys are random.
fn unique_identity() -> String {
    format!("{NAME}_{:016x}", RandomState::new().hash_one(std::process::id()))
}
