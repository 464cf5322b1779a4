//! Reads the workspace's own source for the guard rails in `tests/`: who may import whom (the tables in `arrows/`), files
//! that nothing compiles, licences, banned and unused dependencies.
//!
//! It depends on nothing and starts no control plane, so that `make lint` runs it in a second. It reads Rust only as far
//! as these questions need ([`lex`], [`scan`]); what a macro makes of its arguments it does not know.
#![warn(missing_docs)]

pub mod arrows;
pub mod lex;
pub mod licence;
pub mod manifest;
pub mod markdown;
pub mod scan;
pub mod table;
pub mod tree;
