//! A node: a small stand-in for the kubelet that runs the Pods bound to it as processes of this machine. Test code: for
//! suites and the demo, on control planes of `portolan-testbed`.
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
