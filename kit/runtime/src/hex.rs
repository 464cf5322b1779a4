//! Bytes as text: hashes, fingerprints.

use std::fmt::Write as _;

/// Two lower-case hex digits a byte.
pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}
