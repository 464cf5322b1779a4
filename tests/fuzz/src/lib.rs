//! Fuzz targets as plain functions: what must hold for any bytes that a client or a member may send.
//!
//! Each takes arbitrary bytes and panics where a law is broken. `fuzz_targets/` hands them to libFuzzer (`make fuzz`),
//! `tests/corpus.rs` runs them over the checked-in corpus and over mutations of it, so that `make test` covers them, and
//! a target built without libFuzzer replays the files it is given. Nothing of the product calls this.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a broken law is a panic here")]

mod cursors;
mod input;
mod lists;
pub mod seeds;
mod watches;

pub use cursors::{cursor, token};
pub use lists::{json_list, protobuf_list};
pub use watches::{watch_envelopes, watch_frames};

/// A target's entry point.
pub type Target = fn(&[u8]);

/// All targets by name, which is also the folder of their corpus.
pub const TARGETS: [(&str, Target); 6] = [
    ("cursor", cursor),
    ("token", token),
    ("json_list", json_list),
    ("protobuf_list", protobuf_list),
    ("watch_frames", watch_frames),
    ("watch_envelopes", watch_envelopes),
];

/// The main function of a target.
#[macro_export]
macro_rules! target {
    ($name:ident) => {
        #[cfg(feature = "libfuzzer")]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::$name(data));

        #[cfg(not(feature = "libfuzzer"))]
        fn main() {
            $crate::replay($crate::$name);
        }
    };
}

/// Runs a target over the files named on the command line: how a crash is looked at without libFuzzer.
pub fn replay(target: Target) {
    for path in std::env::args_os().skip(1) {
        target(&std::fs::read(&path).unwrap());
    }
}
