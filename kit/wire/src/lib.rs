//! The protocol between hub, routers and agents: messages and gRPC services generated from `proto/`, checked in under
//! `src/gen/` and proved fresh by `tests/drift.rs`.
//!
//! No rules and no IO live here. The identities that speak it are client certificates of the hub CA, see [`identity`].

/// Revision of the protocol that [`v1::RouterHello`] and [`v1::AgentHello`] announce.
pub const PROTOCOL: u32 = 1;

pub mod identity;

/// Messages and services of `portolan.wire.v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::disallowed_types
)]
pub mod v1 {
    include!("gen/portolan.wire.v1.rs");
}
