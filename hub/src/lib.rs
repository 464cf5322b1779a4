//! The hub: registers member clusters, compiles ShardingConfigs, feeds routers and agents, and reports.
//!
//! How a change travels: `watch` and agent sessions (`stream`) write facts into `index`; `distribute` runs `compile`
//! (pure) whenever facts or acknowledgements changed, stores what it decided (`ledger`), and publishes one `World`; each router session (`stream`) sends
//! what its router does not hold; acknowledgements go back to `distribute`, which may then free what was released;
//! `children` writes the ShardingConfigs that roots generate; `status` renders facts, world and acknowledgements into the objects' statuses. `enroll` gives identities out;
//! `lead` says whether this replica does all that, or another one, to which `splice` passes connections on;
//! `webhook` answers the API server's questions about who writes ShardingConfigs, and which policies can be served; `shares`
//! divides limits that routers have together; `separation` has a ledger of before switch to owners of each operator.

mod access;
mod acks;
mod admin;
mod ages;
mod app;
mod args;
mod authors;
mod bootstrap;
mod ca;
mod children;
mod compile;
mod distribute;
mod enroll;
mod facts;
mod finalize;
mod index;
mod jwks;
mod lead;
mod ledger;
mod metrics;
mod own_tokens;
mod pace;
mod peer;
mod people;
mod pins;
mod policy_review;
mod proof;
mod rotation;
mod routers;
mod separation;
mod server;
mod settings;
mod shares;
mod splice;
mod standing;
mod status;
mod stream;
#[cfg(test)]
mod testing;
mod vouched;
mod watch;
mod webhook;
mod writer;

pub use app::build;
pub use args::{Args, Config};
