//! The protocol between hub, routers and agents: messages and gRPC services generated from `proto/`, checked in under
//! `src/gen/` and proved fresh by `tests/drift.rs`.
//!
//! The identities that speak it are client certificates of the hub CA, see [`identity`]; which revision of it they speak is
//! settled in [`protocol`]; [`client`] gets and keeps a certificate and dials the hub. Nothing else here does IO, and no
//! rules live here.
#![warn(missing_docs)]

pub mod client;
mod convert;
pub mod identity;
mod ownership;
pub mod protocol;
mod resource;
pub mod subscription;

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
