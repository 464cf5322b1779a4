//! Real Kubernetes control planes for tests, benchmarks and the demo: no containers, no mocks.
//!
//! A [`Testbed`] runs one etcd, kube-apiserver and kube-controller-manager per cluster, each cluster with its own CA
//! and ServiceAccount key, and a TCP stage in front of every API server that can be told to misbehave ([`Fault`]).
//! A [`Bundle`] of programs is built once, from Go modules, into a cache outside the source tree. Whatever happens to
//! the process that holds a testbed, nothing is left running (the module `process` says how).
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use portolan_testbed::{Fault, Testbed, eventually};
//!
//! let testbed = Testbed::start(&["hub", "east"]).await?;
//! let east = testbed.cluster("east");
//! let client = east.client().await?; // past the stage, for arranging and for looking
//! east.fault(Fault::Blackhole).await?; // for everyone who uses east.kubeconfig_path() or east.url()
//! eventually("east answers", || client.apiserver_version()).await;
//! # Ok(())
//! # }
//! ```
//!
//! Tests of one binary may share a testbed in a `static tokio::sync::OnceCell<Testbed>`: it runs on no test's runtime,
//! and although statics are never dropped, it ends with the process. People use the `portolan-testbed` program,
//! which is this crate in a daemon.
#![warn(missing_docs)]

mod another;
mod cluster;
mod control_plane;
mod eventually;
mod image;
mod jaeger;
mod kubeconfig;
mod lan;
mod namespaces;
mod node;
mod pki;
mod pods;
mod port;
mod private;
mod process;
mod stage;
mod system;
mod testbed;
mod tools;

pub use another::ApiServer;
pub use cluster::{Backup, Cluster};
pub use control_plane::{OtherApiServer, Pods};
pub use eventually::{Outcome, eventually, patience};
pub use image::{Growth, Image, Release, Sizes, Written};
pub use jaeger::Jaeger;
pub use lan::{Lan, enter, inside};
pub use node::missing as node_lacks;
pub use stage::{Fault, Stage};
pub use testbed::{Options, Testbed};
pub use tools::{Bundle, cache_dir, kubectl, tool};
