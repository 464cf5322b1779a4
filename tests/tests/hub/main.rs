//! The hub's program on a real API server, with agents and routers played by the tests: who is let in, what statuses
//! say, what survives a restart. Whole fleets with the real agent and router are tested in the other files.

#![allow(clippy::unwrap_used, clippy::panic)] // clippy does not see that these helpers are tests

mod authors;
mod joins;
mod ledger;
mod policies;
mod restart;
mod roots;
mod scene;
mod shards;
mod webhook;
