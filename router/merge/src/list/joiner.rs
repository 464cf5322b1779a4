//! Gathers what comes out of a merge: small pieces joined, large ones passed on as the slices they are.
//!
//! Every piece that leaves becomes a frame of its own on HTTP/2, so commas and small items must not leave alone. `list`
//! writes here and flushes at the end of each push: nothing waits for a later one.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// From this size on a piece is not copied.
const LARGE: usize = 8 << 10;
/// What was gathered leaves at this size.
const FULL: usize = 32 << 10;

#[derive(Debug, Default)]
pub(super) struct Joiner {
    gathered: BytesMut,
    ready: VecDeque<Bytes>,
}

impl Joiner {
    /// Where small pieces are written.
    pub(super) fn gathered(&mut self) -> &mut BytesMut {
        if self.gathered.len() >= FULL {
            self.seal();
        }
        &mut self.gathered
    }

    pub(super) fn put(&mut self, piece: Bytes) {
        if piece.len() < LARGE {
            self.gathered().extend_from_slice(&piece);
        } else {
            self.seal();
            self.ready.push_back(piece);
        }
    }

    pub(super) fn flush(&mut self, out: &mut VecDeque<Bytes>) {
        self.seal();
        out.append(&mut self.ready);
    }

    fn seal(&mut self) {
        if !self.gathered.is_empty() {
            self.ready.push_back(self.gathered.split().freeze());
        }
    }
}
