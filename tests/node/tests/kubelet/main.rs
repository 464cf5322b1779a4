//! Pods on a node, on a real control plane: what their programs see and what API users see of them.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

mod controllers;
mod lifecycle;
mod logs;
mod network;
mod nodes;
mod probes;
mod volumes;
mod world;
