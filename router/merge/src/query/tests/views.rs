//! Positions of other views of the shard, and for other collections.

use super::*;

#[test]
fn an_older_view_never_answers_for_a_newer_one() {
    let identified = |revision| universe().identified("shard", "hub", revision, Format::Two);
    let mut cursor = Cursor::new(&identified(7));
    (0..3).for_each(|slot| cursor.set(slot, Slot::At(10)));
    let text = cursor.encode().unwrap();
    let token = Token {
        cursor,
        slot: 0,
        member_token: None,
        reading: Reading::Pinned,
    };
    let token = token.encode(&universe(), &binding()).unwrap();
    for (query, expires) in [
        (format!("resourceVersion={text}"), true),
        (format!("resourceVersion={text}&resourceVersionMatch=Exact"), true),
        (format!("limit=2&continue={token}"), true),
        ("resourceVersion=FOREIGN".to_owned(), false),
        (String::new(), false),
    ] {
        let query = parse(&query);
        for (revision, newer) in [(6, true), (7, false), (8, false)] {
            assert_eq!(query.may_be_newer(&identified(revision)), newer && expires, "{query:?}");
        }
        let answer = query.list(&identified(6), &binding(), &SLOTS);
        assert_eq!(
            matches!(answer, Err(QueryFault::Expired(_))),
            expires,
            "{query:?}: {answer:?}"
        );
    }
    for query in [
        format!("resourceVersion={text}"),
        format!("resourceVersion={text}{INITIAL}"),
    ] {
        let answer = parse(&query).watch(&identified(6), &SLOTS);
        assert!(matches!(answer, Err(QueryFault::Expired(_))), "{query}: {answer:?}");
    }
    let of_others = Universe::new("shard", ["a".to_owned()]).identified("shard", "hub", 6, Format::Two);
    let query = parse(&format!("resourceVersion={text}"));
    assert!(query.may_be_newer(&of_others), "of members that may have come since");
    assert!(!query.may_be_newer(&universe()), "format 2 is not read here");
}

#[test]
fn a_position_is_good_for_any_collection_of_the_members_that_it_speaks_of() {
    let query = parse("resourceVersion=PARTIAL");
    for (slots, begins) in [
        (vec![0], Some(vec![(0, Begin::At(10))])),
        (
            vec![1, 0],
            Some(vec![(1, Begin::Sync { not_older: None }), (0, Begin::At(10))]),
        ),
        (vec![2], None),
        (vec![0, 2], None),
    ] {
        match (query.watch(&universe(), &slots), begins) {
            (Ok(WatchAsk::Open { legs, .. }), Some(begins)) => assert_eq!(legs, begins),
            (Err(QueryFault::Expired(_)), None) => {}
            (answer, _) => panic!("{slots:?}: {answer:?}"),
        }
    }
    let mut unfinished = Cursor::new(&universe());
    unfinished.set(0, Slot::At(10));
    unfinished.set(1, Slot::UNFINISHED);
    let query = parse(&format!("resourceVersion={}", unfinished.encode().unwrap()));
    let refused = |slots: &[usize]| matches!(query.watch(&universe(), slots), Err(QueryFault::Expired(_)));
    assert!(
        refused(&[0, 1]) && !refused(&[0]),
        "only a list goes on from where more was to be told"
    );
    let anew = parse(&format!("resourceVersion=PARTIAL{INITIAL}"));
    assert!(matches!(anew.watch(&universe(), &[2]), Ok(WatchAsk::Open { .. })));
}

#[test]
fn of_which_view_a_position_is() {
    let identified = |revision| universe().identified("shard", "hub", revision, Format::Two);
    let mut cursor = Cursor::new(&identified(7));
    cursor.set(0, Slot::At(10));
    let text = cursor.encode().unwrap();
    for (revision, view) in [(7, View::Same), (9, View::Older(7)), (6, View::Newer(7))] {
        let query = parse(&format!("resourceVersion={text}"));
        assert_eq!(query.view(&identified(revision)), Some(view));
        let expired = matches!(query.watch(&identified(revision), &[0]), Err(QueryFault::Expired(_)));
        assert_eq!(expired, view != View::Same, "gone on with in its own view alone");
    }
    for query in [
        format!("resourceVersion={text}{INITIAL}"),
        "resourceVersion=7".to_owned(),
        String::new(),
        "resourceVersion=FOREIGN".to_owned(),
    ] {
        assert_eq!(parse(&query).view(&identified(7)), None, "{query}");
    }
}
