//! What is to be written to the client, in order: frames that stood together in a member's chunk go out as one slice of it.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;

/// Chunks for the response body. The caller drains it after each round.
#[derive(Debug, Default)]
pub struct Output {
    chunks: VecDeque<Bytes>,
    /// The piece put in last, which may still grow: a chunk and how much of it.
    run: Option<(Bytes, Range<usize>)>,
    bytes: usize,
}

impl Output {
    /// Takes the next chunk to write to the client.
    pub fn pop(&mut self) -> Option<Bytes> {
        if self.chunks.is_empty() {
            self.seal();
        }
        let chunk = self.chunks.pop_front()?;
        self.bytes -= chunk.len();
        Some(chunk)
    }

    /// Bytes that wait to be written.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether no bytes wait to be written.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(super) fn push(&mut self, chunk: Bytes) {
        self.seal();
        self.bytes += chunk.len();
        self.chunks.push_back(chunk);
    }

    /// A part of a chunk; grows the piece before it if that ends where this begins.
    pub(super) fn forward(&mut self, chunk: &Bytes, part: Range<usize>) {
        self.bytes += part.len();
        if let Some((last, run)) = &mut self.run
            && run.end == part.start
            && last.as_ptr() == chunk.as_ptr()
        {
            run.end = part.end;
            return;
        }
        self.seal();
        self.run = Some((chunk.clone(), part));
    }

    fn seal(&mut self) {
        if let Some((chunk, run)) = self.run.take() {
            self.chunks.push_back(chunk.slice(run));
        }
    }
}
