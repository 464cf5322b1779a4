//! Whether a body may name owners at all, in whatever spelling, found without reading it. Pure.
//!
//! Nearly no body does, and to read each would cost more than all else. Wrong in one direction only: a body that is
//! suspected is read.

use super::FIELD;
use crate::value::object::Encoding;

/// Whether an API server might read the field in this body.
pub(super) fn may_be(encoding: Encoding, body: &[u8]) -> bool {
    if memchr::memmem::find(body, FIELD.as_bytes()).is_some() {
        return true;
    }
    match encoding {
        Encoding::Json => escapes_letters(body),
        Encoding::Yaml => yaml_may_spell(body),
        Encoding::Protobuf => true,
    }
}

/// `\u00XY` of a letter. Others are all about us: Go writes `<` so.
fn escapes_letters(json: &[u8]) -> bool {
    memchr::memmem::find_iter(json, b"\\u00").any(|at| matches!(json.get(at + 4), Some(b'4'..=b'7')))
}

/// In YAML double quotes have more escapes, and may be continued on the next line; a tag may say that a word is base64; and
/// the text may be UTF-16.
fn yaml_may_spell(yaml: &[u8]) -> bool {
    let spells = |rest: &[u8]| match rest {
        [b'x', digit, ..] | [b'u', b'0', b'0', digit, ..] | [b'U', b'0', b'0', b'0', b'0', b'0', b'0', digit, ..] => {
            matches!(digit, b'4'..=b'7')
        }
        // The line breaks of ASCII and those of Unicode.
        [b'\n' | b'\r' | 0xC2 | 0xE2, ..] => true,
        _ => false,
    };
    let escapes = memchr::memchr_iter(b'\\', yaml).any(|at| spells(&yaml[at + 1..]));
    let encoded =
        yaml.starts_with(&[0xFE, 0xFF]) || yaml.starts_with(&[0xFF, 0xFE]) || memchr::memchr(0, yaml).is_some();
    escapes || encoded || memchr::memmem::find(yaml, b"%TAG").is_some() || has_binary_tag(yaml)
}

/// `!!binary`, also by its whole name or with escapes in it.
fn has_binary_tag(yaml: &[u8]) -> bool {
    memchr::memchr_iter(b'!', yaml).any(|at| {
        let rest = &yaml[at + 1..];
        let end = rest
            .iter()
            .position(|byte| byte.is_ascii_whitespace() || b",[]{}".contains(byte));
        let tag = &rest[..end.unwrap_or(rest.len())];
        tag.starts_with(b"<") || tag.contains(&b'%') || memchr::memmem::find(tag, b"binary").is_some()
    })
}
