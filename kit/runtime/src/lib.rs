//! What every Portolan program needs to run, and nothing about what it does: tracked tasks with a drain,
//! backoff, telemetry, the admin server, readiness, metrics, TLS material that reloads, a small PKI.
//!
//! Not here: anything that knows Kubernetes, the CRDs, the wire protocol or one of the programs.
//! Callers: hub, router, agent, portolanctl, the client of `kit/wire` and the end-to-end tests.
//!
//! The life of a program, in the order of its `main` and `app`:
//!
//! ```no_run
//! # use std::process::ExitCode;
//! # use std::time::Duration;
//! # use portolan_runtime::admin::{AdminPages, AdminServer};
//! # use portolan_runtime::metrics::Registry;
//! # use portolan_runtime::program::{self, Drain};
//! # use portolan_runtime::{Readiness, Tasks, Telemetry, TelemetryArgs};
//! # async fn traffic() -> anyhow::Result<()> { std::future::pending().await }
//! #[tokio::main]
//! async fn main() -> ExitCode {
//!     program::run("portolan-router", &TelemetryArgs::default(), async |telemetry| {
//!         build(telemetry).await?.when_stopped().await
//!     })
//!     .await
//! }
//!
//! async fn build(telemetry: Telemetry) -> anyhow::Result<Drain> {
//!     let (tasks, readiness, registry) = (Tasks::new(), Readiness::new(), Registry::new("router"));
//!     // Bind everything, then serve. The admin server is on the root set: it is seen to be unready to the end.
//!     let admin = AdminServer::bind("127.0.0.1:0".parse()?).await?;
//!     admin.serve(&tasks, AdminPages::new(readiness.clone(), registry, telemetry));
//!     let listener = readiness.task("listener");
//!     let serving = tasks.child();
//!     serving.spawn_service("listener", traffic());
//!     listener.ready();
//!     // Not ready, then drain, then the rest, then the last spans.
//!     Ok(Drain::new(readiness, tasks, Duration::from_secs(5)).after(serving, Duration::from_secs(20)))
//! }
//! ```
#![warn(missing_docs)]

mod accept;
pub mod admin;
pub mod backoff;
mod chain;
pub mod files;
mod hex;
pub mod http1;
pub mod metrics;
pub mod pki;
pub mod program;
pub mod readiness;
pub mod secret;
pub mod tasks;
pub mod telemetry;
pub mod tls;
mod wakes;

pub use backoff::Backoff;
pub use chain::Chain;
pub use hex::hex;
pub use readiness::{Check, Readiness, ReadyHandle};
pub use secret::Secret;
pub use tasks::Tasks;
pub use telemetry::{Telemetry, TelemetryArgs};
pub use wakes::{Wakes, when_woken};
