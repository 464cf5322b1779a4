//! What the end-to-end tests, the demo and the benchmarks share: a running fleet on the testbed's control planes.
//!
//! The fleet is started by `portolanctl dev up`, the command that users keep, with the programs that `make` built.

pub mod accounts;
pub mod balancer;
pub mod canary;
pub mod ctl;
pub mod daemon;
pub mod door;
pub mod etcd;
pub mod fleet;
pub mod go_client;
pub mod helm;
pub mod hub_cluster;
pub mod kubectl;
pub mod names;
pub mod programs;
pub mod replicas;
pub mod routers;
pub mod shard;
pub mod trace;
pub mod watch;
pub mod watcher;
pub mod world;

pub use fleet::{Fleet, FleetOptions};
