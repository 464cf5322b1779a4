//! The program in every member cluster. It dials out to the hub and never listens but for its admin pages.
//!
//! - `join` gets an identity by a bootstrap token, keeps it in a Secret and renews it.
//! - `stream` holds the connection: takes the configuration (`settings`), answers `review`s, sends `report`s.
//! - `namespaces`, `nodes`, `callers`, `allowed`, `health`, `mint` each watch or ask the member's API server for one subject and
//!   keep what they know in `facts` or a watch; they go on without a hub. `prove` shows the hub the member's signing key.
//! - `label` says which labels an object shall have; `kinds` which kinds; `sweep` writes them and repairs drift;
//!   `admission` looks at the policies that label new objects and reserve the keys; `uninstall` takes it all back.
//! - `lead` says which of the replicas works: nothing else runs in the others.
//! - `fence` closes namespaces against writes of their former owners.
//!
//! Excluded from labels: the namespaces of `portolan_crds::labels::SYSTEM_NAMESPACES`, the kinds of `kinds::EXCLUDED`,
//! and, unless they are named, those of `kinds::ONLY_BY_NAME`. What the agent may do in its member is listed in
//! `deploy/member/rbac.yaml`.

pub mod app;
pub mod args;
pub mod uninstall;

mod admin;
mod admission;
mod allowed;
mod bounds;
mod callers;
mod explain;
mod facts;
mod fence;
mod health;
mod join;
mod kinds;
mod label;
mod lead;
mod member;
mod metrics;
mod mint;
mod namespaces;
mod nodes;
mod prove;
mod report;
mod review;
mod settings;
mod stream;
mod sweep;
mod terms;
#[cfg(test)]
mod testing;
