//! One leg's bytes → whole frames, in any cut. A frame that lies in one chunk is not copied, one that spans several is
//! gathered in a buffer that goes with it: an idle leg holds none.

use std::ops::Range;

use bytes::Bytes;

use super::budget::Budget;
use super::{LARGEST_FRAME, WatchFault, WatchFormat};

const LENGTH: usize = 4;
/// Of an unfinished frame, 256 KiB are every leg's own: next to no object is larger. What is beyond it all legs share.
const OWN_BYTES: usize = 256 * 1024;

/// Where the bytes of a frame are, its delimiter included.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FrameBytes {
    /// In the chunk that was given, at this range.
    Within(Range<usize>),
    /// In a buffer of their own, gathered from several chunks.
    Gathered(Bytes),
}

/// Cuts one leg's bytes into frames; holds what is left of its last chunk.
#[derive(Debug, Default)]
pub(super) struct FrameDecoder {
    partial: Vec<u8>,
    /// What all legs share for large frames; `None`: a leg may hold one of [`LARGEST_FRAME`].
    budget: Option<Budget>,
    /// Bytes taken of the budget.
    taken: usize,
}

impl FrameDecoder {
    pub(super) fn new(budget: Option<Budget>) -> Self {
        Self {
            partial: Vec::new(),
            budget,
            taken: 0,
        }
    }

    /// Forgets the frame that has begun.
    pub(super) fn reset(&mut self) {
        self.take();
    }

    /// The next whole frame; `at` moves on. At `None` all of the chunk is used up.
    pub(super) fn next(
        &mut self,
        format: WatchFormat,
        chunk: &Bytes,
        at: &mut usize,
    ) -> Result<Option<FrameBytes>, WatchFault> {
        if format == WatchFormat::Protobuf {
            self.header(chunk, at);
        }
        let rest = &chunk[*at..];
        let Some(length) = self.missing(format, rest)? else {
            self.gather(rest)?;
            *at = chunk.len();
            return Ok(None);
        };
        if self.partial.len() + length > LARGEST_FRAME {
            return Err(WatchFault::TooLarge);
        }
        let from = *at;
        *at += length;
        if self.partial.is_empty() {
            return Ok(Some(FrameBytes::Within(from..*at)));
        }
        self.gather(&rest[..length])?;
        Ok(Some(FrameBytes::Gathered(self.take().into())))
    }

    fn gather(&mut self, part: &[u8]) -> Result<(), WatchFault> {
        let size = self.partial.len() + part.len();
        let more = size.saturating_sub(OWN_BYTES + self.taken);
        if size > LARGEST_FRAME || self.budget.as_ref().is_some_and(|budget| !budget.take(more)) {
            return Err(WatchFault::TooLarge);
        }
        self.taken += more;
        self.partial.extend_from_slice(part);
        Ok(())
    }

    fn take(&mut self) -> Vec<u8> {
        let taken = std::mem::take(&mut self.taken);
        if let Some(budget) = &self.budget {
            budget.give(taken);
        }
        std::mem::take(&mut self.partial)
    }

    /// How much of `rest` ends the frame; `None` if it does not end there.
    fn missing(&self, format: WatchFormat, rest: &[u8]) -> Result<Option<usize>, WatchFault> {
        if format != WatchFormat::Protobuf {
            // Encoders of Go escape line ends in strings; nobody indents a stream.
            return Ok(memchr::memchr(b'\n', rest).map(|end| end + 1));
        }
        let head = if self.partial.is_empty() { rest } else { &self.partial };
        let Some(head) = head.first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes(*head)).unwrap_or(usize::MAX);
        if length > LARGEST_FRAME {
            return Err(WatchFault::TooLarge);
        }
        let missing = LENGTH + length - self.partial.len();
        Ok((missing <= rest.len()).then_some(missing))
    }

    /// Completes a length that was cut, so that it can be read.
    fn header(&mut self, chunk: &[u8], at: &mut usize) {
        if !self.partial.is_empty() && self.partial.len() < LENGTH {
            let end = chunk.len().min(*at + LENGTH - self.partial.len());
            self.partial.extend_from_slice(&chunk[*at..end]);
            *at = end;
        }
    }
}

impl Drop for FrameDecoder {
    fn drop(&mut self) {
        self.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(format: WatchFormat, chunks: &[&[u8]]) -> Result<Vec<Vec<u8>>, WatchFault> {
        let mut splitter = FrameDecoder::default();
        let mut frames = Vec::new();
        for chunk in chunks {
            let chunk = Bytes::copy_from_slice(chunk);
            let mut at = 0;
            while let Some(cut) = splitter.next(format, &chunk, &mut at)? {
                frames.push(match cut {
                    FrameBytes::Within(range) => chunk[range].to_vec(),
                    FrameBytes::Gathered(frame) => frame.to_vec(),
                });
            }
            assert_eq!(at, chunk.len());
        }
        assert_eq!(splitter.partial, b"", "the streams here end whole");
        assert_eq!(splitter.partial.capacity(), 0, "nothing is kept when idle");
        Ok(frames)
    }

    #[test]
    fn every_cut_gives_the_same_frames() {
        let json: Vec<u8> = b"{\"a\":1}\n{}\n\n{\"b\":\"\\n\"}\n".to_vec();
        let protobuf: Vec<u8> = [&[0, 0, 0, 3][..], b"abc", &[0, 0, 0, 0], &[0, 0, 0, 1], b"\n"].concat();
        for (format, stream) in [(WatchFormat::Json, &json), (WatchFormat::Protobuf, &protobuf)] {
            let whole = split(format, &[stream]).unwrap();
            assert_eq!(whole.concat(), *stream);
            assert!(whole.len() > 2);
            for first in 0..=stream.len() {
                for second in first..=stream.len() {
                    let chunks = [&stream[..first], &stream[first..second], &stream[second..]];
                    assert_eq!(split(format, &chunks).unwrap(), whole, "{first} {second}");
                }
            }
            let bytes: Vec<&[u8]> = stream.chunks(1).collect();
            assert_eq!(split(format, &bytes).unwrap(), whole);
        }
    }

    #[test]
    fn a_claimed_length_allocates_nothing_and_too_much_is_refused() {
        let mut splitter = FrameDecoder::default();
        let mut at = 0;
        let huge = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 1]);
        let refused = splitter.next(WatchFormat::Protobuf, &huge, &mut at);
        assert_eq!(refused, Err(WatchFault::TooLarge));
        let large = Bytes::from_static(&[0, 255, 255, 0, 1]);
        at = 0;
        assert_eq!(splitter.next(WatchFormat::Protobuf, &large, &mut at), Ok(None));
        assert!(splitter.partial.capacity() < 64);

        let mut splitter = FrameDecoder::default();
        let endless = Bytes::from(vec![b' '; 2 * 1024 * 1024]);
        let mut refused = None;
        for _ in 0..9 {
            refused = splitter.next(WatchFormat::Json, &endless, &mut 0).err();
        }
        assert_eq!(refused, Some(WatchFault::TooLarge));
    }

    #[test]
    fn large_frames_share_one_budget_and_give_it_back() {
        let budget = Budget::new(OWN_BYTES);
        let mut legs: Vec<FrameDecoder> = (0..3).map(|_| FrameDecoder::new(Some(budget.clone()))).collect();
        let half = Bytes::from(vec![b' '; OWN_BYTES / 2]);
        let mut push = |leg: usize, bytes: &Bytes| legs[leg].next(WatchFormat::Json, bytes, &mut 0);
        for (leg, halves) in [(0, 3), (1, 3), (2, 2)] {
            for _ in 0..halves {
                assert_eq!(push(leg, &half), Ok(None), "{leg}");
            }
        }
        assert_eq!(budget.used(), OWN_BYTES);
        assert_eq!(push(2, &half), Err(WatchFault::TooLarge), "the others have it all");
        let whole = push(1, &Bytes::from_static(b"\n"));
        assert_eq!(whole, Err(WatchFault::TooLarge), "not even its end");
        legs[1].reset();
        assert_eq!(budget.used(), OWN_BYTES / 2);
        let end = legs[0].next(WatchFormat::Json, &Bytes::from_static(b" \n"), &mut 0);
        assert!(matches!(end, Ok(Some(FrameBytes::Gathered(frame))) if frame.len() == 3 * OWN_BYTES / 2 + 2));
        assert_eq!(budget.used(), 0);
        legs[2].next(WatchFormat::Json, &half, &mut 0).unwrap();
        assert_eq!(budget.used(), OWN_BYTES / 2);
        drop(legs);
        assert_eq!(budget.used(), 0);
    }
}
