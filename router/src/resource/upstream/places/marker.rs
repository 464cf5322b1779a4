//! The annotation that ends the initial events of a watch, looked for in its bytes. Pure. Caller: `places`.
//!
//! Users can write the same text into an object. Who does has its place early, and again with the next bytes.

use memchr::memmem;
use portolan_merge::object_meta::INITIAL_EVENTS_END;

/// Longest part of the annotation that may be at the end of what came, and is not all of it.
const PART: usize = INITIAL_EVENTS_END.len() - 1;

/// A look through bytes that come in pieces.
#[derive(Debug, Default)]
pub(super) struct Marker {
    /// The last bytes that came, [`PART`] at most.
    last: Vec<u8>,
}

impl Marker {
    /// Whether the marker ends within these bytes, which are the next. The same text in JSON, protobuf and CBOR.
    pub(super) fn is_in(&mut self, data: &[u8]) -> bool {
        let marker = INITIAL_EVENTS_END.as_bytes();
        self.last.extend_from_slice(&data[..data.len().min(PART)]);
        let found = memmem::find(&self.last, marker).is_some() || memmem::find(data, marker).is_some();
        if data.len() >= PART {
            self.last.clear();
            self.last.extend_from_slice(&data[data.len() - PART..]);
        } else {
            self.last.drain(..self.last.len().saturating_sub(PART));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_found_however_it_is_cut() {
        let text = format!(r#"{{"annotations":{{"{INITIAL_EVENTS_END}":"true"}}}}"#);
        for size in 1..=text.len() {
            let mut marker = Marker::default();
            let found: Vec<bool> = text.as_bytes().chunks(size).map(|part| marker.is_in(part)).collect();
            assert!(found.contains(&true), "in pieces of {size}");
            let before = text.find(INITIAL_EVENTS_END).unwrap() + PART;
            assert!(!found[..before / size].contains(&true), "in pieces of {size}");
        }
        let mut marker = Marker::default();
        let other = INITIAL_EVENTS_END.replace("-end", "-fin");
        assert!(!other.as_bytes().iter().any(|byte| marker.is_in(&[*byte])));
    }
}
