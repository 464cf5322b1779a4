//! The laws of continue tokens.

use proptest::prelude::*;

use super::*;
use crate::cursor::Slot;

fn universe() -> Universe {
    Universe::new("shard", (0..3).map(|member| format!("uid-{member}")))
}

fn binding() -> Binding {
    Binding::new([
        "shard",
        "system:serviceaccount:team:operator",
        "/api/v1/pods",
        "app=x",
        "",
    ])
}

fn token() -> impl Strategy<Value = Token> {
    (
        prop::collection::vec(1_u64.., 3),
        0_usize..3,
        prop::option::of(".{0,200}"),
        prop::sample::select(vec![Reading::Pinned, Reading::Now, Reading::Anew]),
    )
        .prop_map(|(versions, leg, member, reading)| {
            let mut cursor = Cursor::new(&universe());
            for (slot, version) in versions.into_iter().enumerate() {
                cursor.set(slot, Slot::At(version));
            }
            Token {
                cursor,
                slot: leg,
                member_token: member,
                reading,
            }
        })
}

proptest! {
    #[test]
    fn what_is_written_is_read(token in token()) {
        let text = token.encode(&universe(), &binding()).unwrap();
        prop_assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'));
        prop_assert_eq!(Token::decode(&text, &universe(), &binding()), Ok(token));
    }

    #[test]
    fn a_flipped_or_cut_one_is_refused(token in token(), at in any::<prop::sample::Index>(), to in "[A-Za-z0-9_-]", cut in any::<bool>()) {
        let text = token.encode(&universe(), &binding()).unwrap();
        let at = at.index(text.len());
        let tampered = if cut { text[..at].to_owned() } else { format!("{}{to}{}", &text[..at], &text[at + 1..]) };
        prop_assume!(tampered != text);
        prop_assert!(Token::decode(&tampered, &universe(), &binding()).is_err());
    }

    #[test]
    fn anything_is_read_without_panic(text in "[A-Za-z0-9_-]{0,200}|.{0,40}") {
        prop_assert!(Token::decode(&text, &universe(), &binding()).is_err());
    }
}

fn some() -> String {
    let mut cursor = Cursor::new(&universe());
    cursor.set(1, Slot::At(7));
    let token = Token {
        cursor,
        slot: 1,
        member_token: Some("eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ".to_owned()),
        reading: Reading::Pinned,
    };
    token.encode(&universe(), &binding()).unwrap()
}

#[test]
fn another_callers_or_collections_token_is_refused() {
    let text = some();
    for other in [
        [
            "other",
            "system:serviceaccount:team:operator",
            "/api/v1/pods",
            "app=x",
            "",
        ],
        ["shard", "system:serviceaccount:team:other", "/api/v1/pods", "app=x", ""],
        [
            "shard",
            "system:serviceaccount:team:operator",
            "/api/v1/secrets",
            "app=x",
            "",
        ],
        [
            "shard",
            "system:serviceaccount:team:operator",
            "/api/v1/pods",
            "",
            "app=x",
        ],
    ] {
        let read = Token::decode(&text, &universe(), &Binding::new(other));
        assert_eq!(read, Err(TokenError::NotYours), "{other:?}");
    }
}

#[test]
fn another_set_of_members_is_told_apart() {
    let other = Universe::new("shard", ["uid-0".to_owned()]);
    assert_eq!(Token::decode(&some(), &other, &binding()), Err(TokenError::WrongEpoch));
}

#[test]
fn the_rest_begins_with_the_same_member_where_it_has_another_slot() {
    let member_token = Some("eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ".to_owned());
    let more = Universe::new("shard", ["uid-00".to_owned(), "uid-1".to_owned(), "uid-2".to_owned()]);
    let rest = Token::rest(&some(), &more, binding()).unwrap();
    let slots = [Slot::Unasked; 3];
    assert_eq!(
        (rest.slot, &rest.member_token, rest.cursor.slots()),
        (1, &member_token, &slots[..])
    );
    assert_eq!(rest.reading, Reading::Anew);
    let fewer = Universe::new("shard", ["uid-1".to_owned()]);
    assert_eq!(Token::rest(&some(), &fewer, binding()).unwrap().slot, 0);
    let without = Universe::new("shard", ["uid-0".to_owned(), "uid-2".to_owned()]);
    assert_eq!(Token::rest(&some(), &without, binding()), None);
    assert_eq!(Token::rest(&some(), &fewer, Binding::new(["another"])), None);
}

#[test]
fn an_api_servers_token_is_not_ours() {
    let theirs = URL_SAFE_NO_PAD.encode(br#"{"v":"meta.k8s.io/v1","rv":734,"start":"default/a\u0000"}"#);
    assert!(matches!(
        Token::decode(&theirs, &universe(), &binding()),
        Err(TokenError::Unreadable(_))
    ));
}

#[test]
fn what_is_too_long_is_refused_on_both_sides() {
    let member = Some("x".repeat(LONGEST));
    let token = Token {
        cursor: Cursor::new(&universe()),
        slot: 0,
        member_token: member,
        reading: Reading::Pinned,
    };
    assert!(token.encode(&universe(), &binding()).is_err());
    assert!(Token::decode(&"A".repeat(LONGEST + 1), &universe(), &binding()).is_err());
}

#[test]
fn a_leg_outside_the_set_is_refused() {
    let token = Token {
        cursor: Cursor::new(&universe()),
        slot: 3,
        member_token: None,
        reading: Reading::Pinned,
    };
    let text = token.encode(&universe(), &binding()).unwrap();
    assert!(Token::decode(&text, &universe(), &binding()).is_err());
}
