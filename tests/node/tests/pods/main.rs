//! Pods on a node, on a real control plane: what their programs see and what API users see of them.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

mod lifecycle;
mod network;
mod volumes;
mod world;
