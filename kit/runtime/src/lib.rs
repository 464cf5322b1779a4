//! What every Portolan program needs to run, and nothing about what it does: tracked tasks with a drain,
//! backoff, telemetry, the admin server, readiness, metrics, TLS material that reloads, a small PKI.
//!
//! Not here: anything that knows Kubernetes, the CRDs, the wire protocol or one of the programs.
//! Callers: hub, router, agent, portolanctl, the client of `kit/wire` and the end-to-end tests.
//!
//! The life of a program, in the order of its `main` and `app`:
//!
//! ```no_run
//! # use std::time::Duration;
//! # use portolan_runtime::admin::{AdminPages, AdminServer};
//! # use portolan_runtime::metrics::Registry;
//! # use portolan_runtime::{Readiness, Tasks, TelemetryArgs, telemetry, tls};
//! # async fn traffic(tasks: Tasks) -> anyhow::Result<()> { tasks.cancelled().await; Ok(()) }
//! # #[tokio::main]
//! # async fn main() -> anyhow::Result<()> {
//! tls::install_crypto_provider();
//! let telemetry = telemetry::init("portolan-router", &TelemetryArgs::default())?;
//! let (tasks, readiness, registry) = (Tasks::new(), Readiness::new(), Registry::new("router"));
//!
//! // Bind everything, then serve. The admin server is on the root set: it is seen to be unready to the end.
//! let admin = AdminServer::bind("127.0.0.1:0".parse()?).await?;
//! admin.serve(&tasks, AdminPages::new(readiness.clone(), registry.clone(), telemetry.clone()));
//! let listener = readiness.task("listener");
//! let serving = tasks.child();
//! serving.spawn_critical("listener", traffic(serving.clone()));
//! listener.ready();
//!
//! // Not ready, then drain, then the rest, then the last spans.
//! let cause = tasks.until_stopped().await;
//! tracing::info!(?cause, "stopping");
//! readiness.begin_shutdown();
//! serving.shutdown(Duration::from_secs(20)).await;
//! let report = tasks.shutdown(Duration::from_secs(5)).await;
//! telemetry.shutdown().await;
//! Ok(report.into_result()?)
//! # }
//! ```

mod accept;
pub mod admin;
pub mod backoff;
mod chain;
pub mod duration;
pub mod files;
pub mod metrics;
pub mod pki;
pub mod readiness;
pub mod secret;
pub mod tasks;
pub mod telemetry;
pub mod tls;

pub use backoff::Backoff;
pub use chain::Chain;
pub use readiness::{Readiness, ReadyHandle};
pub use secret::Secret;
pub use tasks::Tasks;
pub use telemetry::{Telemetry, TelemetryArgs};
