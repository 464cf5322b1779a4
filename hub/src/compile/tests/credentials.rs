//! Tokens: what worlds share of them, and what is told anew.

use super::fleet::Fleet;
use super::*;
use crate::facts::Token;

fn token(text: &str) -> Token {
    Token {
        router_uid: "uid".to_owned(),
        token: text.into(),
        expires_unix_seconds: 1,
    }
}

#[test]
fn they_are_shared_until_one_of_them_changes() {
    let mut fleet = Fleet::new(&["ns-a"]);
    fleet.agent("east").tokens.insert("a".to_owned(), token("one"));
    let first = fleet.compile(0).credentials;
    fleet.inventory("east", &["ns-a", "ns-b"]);
    let same = fleet.compile(0).credentials;
    assert!(same.is(&first));
    fleet.agent("east").tokens.insert("b".to_owned(), token("two"));
    let second = fleet.compile(0).credentials;
    let of = |credentials: &Credentials, router: &str| {
        let told = credentials.get(router, &Ref::gateway_credential("east"))?;
        Some(Arc::as_ptr(&told.resource))
    };
    assert!(!second.is(&first) && second != first);
    assert_eq!((of(&first, "b"), of(&second, "a")), (None, of(&first, "a")));
    assert!(of(&second, "b").is_some() && second.get("b", &Ref::gateway_credential("west")).is_none());
    assert_eq!(second.of_router("b").count(), 1);
}

/// A router may have a token of it from an earlier hub, of which no agent has told this one.
#[test]
fn a_member_that_goes_makes_others_of_them_although_none_was_of_it() {
    let mut fleet = Fleet::new(&["ns-a"]);
    let first = fleet.compile(0).credentials;
    fleet.facts.members.remove("west");
    assert!(!fleet.compile(0).credentials.is(&first));
}
