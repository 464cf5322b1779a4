//! A node: a small stand-in for the kubelet that runs the Pods bound to it as processes of this machine. Test code: for
//! suites and the demo, on control planes of `portolan-testbed`. Its README says what it does and what it is not.
//!
//! A test runs [`inside`] a network with a bridge, starts control planes on [`Lan::address`] and a [`Node`] on each that shall
//! have Pods. The life of a Pod there:
//!
//! 1. `pods` watches for it, and gives it a worker (`pod`).
//! 2. The worker takes its place: a network (`sandbox`), files (`volumes`, of what `volume` says they hold).
//! 3. `plan` says which containers start or end next, of what is known of each (`record`).
//! 4. Each run of a container (`container`) starts its program (`launch`: `variables`, `root`, `process`), probes it (`probe`,
//!    `action`), ends it, and tells the worker.
//! 5. After each change `status` says what the Pod's status is, and `reporter` writes it.
//! 6. When all has ended and the Pod is to go, `reporter` deletes it for good.
#![warn(missing_docs)]

mod action;
mod container;
mod exec;
mod expand;
mod field;
mod get;
mod image;
mod isolation;
mod lan;
mod launch;
mod log;
mod machine;
mod material;
mod node;
mod plain;
mod plan;
mod pod;
mod pods;
mod probe;
mod process;
mod record;
mod registration;
mod reporter;
mod root;
mod sandbox;
mod server;
mod status;
mod subnet;
mod tools;
mod variables;
mod volume;
mod volumes;

pub use image::{Image, Images};
pub use isolation::Apart;
pub use lan::{Lan, enter, inside};
pub use machine::Pace;
pub use node::{Node, Options};
pub use registration::ISOLATION;
pub use subnet::Subnet;
