//! The cursor codec and continue tokens: what is read is what would be written, and nothing else is read.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use portolan_merge::cursor::{Cursor, Format, SHORTEST, Universe, View, is_cursor};
use portolan_merge::token::{Binding, Token};
use xxhash_rust::xxh3::xxh3_64;

/// The set of members that seeds are made for.
pub(crate) fn universe(members: usize) -> Universe {
    Universe::new("team/shard", (0..members).map(|member| format!("uid-{member}")))
}

/// The same members, as the format with view revisions has them.
pub(crate) fn viewed(members: usize) -> Universe {
    universe(members).identified("shard-uid", "hub", 7, Format::Two)
}

pub(crate) fn binding(user: &str) -> Binding {
    Binding::new(["team/shard", user, "/api/v1/pods", "", ""])
}

/// A `resourceVersion` of a client, and one whose check digits were made to fit.
pub fn cursor(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mended = mend(text);
    for members in [0, 1, 2, 3, 5] {
        for universe in [universe(members), viewed(members)] {
            for text in [Some(text), mended.as_deref()].into_iter().flatten() {
                read(text, &universe);
            }
        }
    }
}

fn read(text: &str, universe: &Universe) {
    let Ok((cursor, view)) = Cursor::read(text, universe) else {
        assert!(Cursor::decode(text, universe).is_err());
        return;
    };
    assert!(is_cursor(text), "no member takes it for its own");
    assert_eq!(cursor.slots().len(), universe.len());
    assert_eq!(Cursor::decode(text, universe).is_ok(), view == View::Same);
    let again = cursor.encode().unwrap();
    if view == View::Same && text.as_bytes()[0] == again.as_bytes()[0] {
        assert_eq!(again, text, "one cursor, one text");
    }
    let members = (0..universe.len()).map(|member| format!("uid-{member}"));
    let other = Universe::new("other/shard", members).identified("other-uid", "hub", 7, Format::Two);
    assert!(Cursor::read(text, &other).is_err(), "a cursor of another shard");
}

/// The text with the check digits that belong to it.
fn mend(text: &str) -> Option<String> {
    let body = text.get(..text.len().checked_sub(9)?)?;
    if body.len() + 9 < SHORTEST || !body.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let sum = body
        .bytes()
        .fold(0, |sum: u64, byte| (sum * 10 + u64::from(byte - b'0')) % 999_999_937);
    Some(format!("{body}{sum:09}"))
}

/// A `continue` of a client, and one whose checksum was made to fit.
pub fn token(data: &[u8]) {
    let universe = universe(3);
    let signed = URL_SAFE_NO_PAD.encode([data, &xxh3_64(data).to_le_bytes()].concat());
    for text in [std::str::from_utf8(data).ok(), Some(&signed)].into_iter().flatten() {
        let Ok(token) = Token::decode(text, &universe, &binding("user")) else {
            continue;
        };
        assert!(token.slot < universe.len());
        let again = token.encode(&universe, &binding("user"));
        assert_eq!(Token::decode(&again.unwrap(), &universe, &binding("user")), Ok(token));
        assert!(
            Token::decode(text, &universe, &binding("someone")).is_err(),
            "a token of another caller"
        );
    }
}
