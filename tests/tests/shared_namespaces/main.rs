//! Several programs that are sharded work in the same namespaces: what one of them hands over is nothing to the others.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "also in functions that only tests call"
)]

mod anew;
mod example;
mod handovers;
mod hostile;
mod limits;
mod names;
mod scene;
mod separate;
