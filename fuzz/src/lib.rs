//! Fuzz targets as plain functions: what must hold for any bytes that a client or a member may send.
//!
//! Each takes arbitrary bytes and panics where a law is broken. `fuzz_targets/` hands them to libFuzzer (`make fuzz`),
//! `tests/corpus.rs` runs them over the checked-in corpus and over mutations of it, so that `make test` covers them, and
//! a target built without libFuzzer replays the files it is given. Nothing of the product calls this.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a broken law is a panic here")]

mod cursors;
mod lists;
pub mod seeds;
mod watches;

pub use cursors::{cursor, token};
pub use lists::{json_list, protobuf_list};
pub use watches::{watch_envelopes, watch_frames};

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use portolan_merge::filter::NamespaceFilter;

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

/// What is to be done with the bytes, told by the last of them so that the corpus can be read.
#[derive(Clone, Copy)]
struct Flags(u8);

impl Flags {
    fn split(data: &[u8]) -> (Self, &[u8]) {
        data.split_last()
            .map_or((Self(0), data), |(last, rest)| (Self(*last), rest))
    }

    fn filtered(self) -> bool {
        self.0 & 1 == 1
    }

    fn second(self) -> bool {
        self.0 & 2 == 2
    }

    fn third(self) -> bool {
        self.0 & 4 == 4
    }

    fn filter(self) -> Option<NamespaceFilter> {
        let names: HashSet<Arc<str>> = ["ns-a", "ns-c"].into_iter().map(Arc::from).collect();
        self.filtered().then(|| NamespaceFilter::only(Arc::new(names)))
    }

    /// How the bytes are cut, beside not at all.
    fn piece(self) -> usize {
        usize::from(self.0 >> 3) + 1
    }
}

/// In pieces of that many bytes, each with memory of its own: slices that reach over a cut would be found.
fn pieces(data: &[u8], length: usize) -> impl Iterator<Item = Bytes> {
    data.chunks(length.max(1)).map(Bytes::copy_from_slice)
}
