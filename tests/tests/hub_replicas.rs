//! Several replicas of the hub: one leads, the others pass connections on to it and take its place. Routers and agents know one
//! address, and operators notice nothing.
//!
//! The short form, in `make test`, kills the leader a few times; `PORTOLAN_REPLICA_KILLS=20`, by `make replica-kills`, that often.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "also in functions that only tests call; what was measured is told"
)]

#[path = "hub_replicas/first.rs"]
mod first;
#[path = "hub_replicas/ground.rs"]
mod ground;
#[path = "hub_replicas/killed.rs"]
mod killed;
