//! The agent against a real API server and a scripted hub. It runs by the RBAC of deploy/member and nothing more.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

mod crowds;
mod fence;
mod hub;
mod joins;
mod labels;
mod scene;
mod shared;

use std::time::Duration;

/// Life of certificates where it does not matter.
const DAY: Duration = Duration::from_hours(24);
