//! What specs weigh: the bytes that each lies with in the hub's etcd, and goes by to whoever must know it.

use std::io::{self, Write};

use serde::Serialize;

/// Most bytes of JSON that the specs of one namespace of the hub may have together, those of its roots' children included: what
/// the hub keeps and tells for one author.
pub const AUTHOR_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes of `value` as JSON, as the API server stores it.
pub fn json_bytes(value: &impl Serialize) -> usize {
    let mut counted = Counted(0);
    // Nothing but a key that is no text could fail, and those of specs are.
    let written = serde_json::to_writer(&mut counted, value);
    written.map_or(usize::MAX, |()| counted.0)
}

/// Takes what is written and keeps its length.
struct Counted(usize);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_what_would_be_written() {
        let value = serde_json::json!({"a": [1, "zwei", null], "b": {"c": "\u{1F9ED}\n"}});
        assert_eq!(json_bytes(&value), value.to_string().len());
    }
}
