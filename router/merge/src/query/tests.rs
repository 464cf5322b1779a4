//! Every combination of parameters, and what the members are asked.

use super::list::ListRead;
use super::*;
use crate::cursor::{Cursor, Format, Slot, Universe, View};
use crate::token::{Binding, Reading, Token};

mod views;

const SLOTS: [usize; 3] = [2, 0, 1];
const INITIAL: &str = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
const NONE: &str = "&sendInitialEvents=false&resourceVersionMatch=NotOlderThan";

fn universe() -> Universe {
    Universe::new("shard", ["a".to_owned(), "b".to_owned(), "c".to_owned()])
}

fn binding() -> Binding {
    Binding::new(["shard", "ann", "/api/v1/pods"])
}

fn cursor(slots: [Slot; 3]) -> Cursor {
    let mut cursor = Cursor::new(&universe());
    for (index, slot) in slots.into_iter().enumerate() {
        cursor.set(index, slot);
    }
    cursor
}

fn known() -> Cursor {
    cursor([Slot::At(10), Slot::At(20), Slot::At(30)])
}

/// `query` as a URL has it; `CURSOR`, `PARTIAL`, `UNSEEN` and `FOREIGN` stand for cursors.
fn parse(query: &str) -> CollectionQuery {
    CollectionQuery::parse(|name| {
        query.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key == name).then(|| match value {
                "CURSOR" => known().encode().unwrap(),
                "PARTIAL" => cursor([Slot::At(10), Slot::Sync, Slot::Unasked]).encode().unwrap(),
                "UNSEEN" => cursor([Slot::At(10), Slot::Sync, Slot::Sync]).encode().unwrap(),
                "FOREIGN" => Cursor::new(&Universe::new("other", ["a".to_owned()])).encode().unwrap(),
                value => value.to_owned(),
            })
        })
    })
}

fn list(query: &str) -> Result<ListAsk, QueryFault> {
    parse(query).list(&universe(), &binding(), &SLOTS)
}

fn read(query: &str) -> ListRead {
    match list(query) {
        Ok(ListAsk::Read(read)) => read,
        other => panic!("{query}: {other:?}"),
    }
}

/// One leg in short: version, match and limit, `=` kept, `-` dropped.
fn short(ask: &LegAsk) -> String {
    let one = |param: &Param| match param {
        Param::Keep => "=".to_owned(),
        Param::Drop => "-".to_owned(),
        Param::Set(value) => value.clone(),
    };
    let query = &ask.query;
    let parts = [
        &query.resource_version,
        &query.resource_version_match,
        &query.limit,
        &query.continue_,
    ];
    format!("{}:{}", ask.slot, parts.map(one).join(" "))
}

fn shorts(asks: &[LegAsk]) -> Vec<String> {
    asks.iter().map(short).collect()
}

#[test]
fn whole_lists() {
    let same = ["2:= = = =", "0:= = = =", "1:= = = ="];
    let newest = ["2:- - = =", "0:- - = =", "1:- - = ="];
    let at = ["2:30 = = =", "0:10 = = =", "1:20 = = ="];
    let any = ["2:= = - =", "0:= = - =", "1:= = - ="];
    for (query, expected) in [
        ("", same),
        ("limit=0", same),
        ("limit=-1", same),
        ("resourceVersion=", same),
        ("resourceVersion=0", any),
        ("resourceVersion=0&limit=500", any),
        ("resourceVersion=0&resourceVersionMatch=NotOlderThan", any),
        ("resourceVersion=CURSOR", at),
        ("resourceVersion=CURSOR&resourceVersionMatch=NotOlderThan", at),
        ("resourceVersion=CURSOR&resourceVersionMatch=Exact", at),
        ("resourceVersion=PARTIAL", newest),
        ("resourceVersion=FOREIGN", newest),
        ("resourceVersion=FOREIGN&resourceVersionMatch=NotOlderThan", newest),
        ("resourceVersion=734", newest),
        ("resourceVersion=734&resourceVersionMatch=NotOlderThan", newest),
        ("resourceVersion=007", newest),
        ("resourceVersion=111111111111111111111111", newest),
    ] {
        let read = read(query);
        assert_eq!(shorts(&read.legs), expected, "{query}");
        assert!(
            !read.paged && read.pins.is_empty() && read.later.is_empty() && read.reading == Reading::Pinned,
            "{query}"
        );
    }
}

#[test]
fn first_pages_ask_one_member_and_pin_the_others() {
    for (query, page, pins) in [
        ("limit=3", "2:= = = =", ["0:= = 1 =", "1:= = 1 ="]),
        ("limit=3&resourceVersion=734", "2:- - = =", ["0:- - 1 =", "1:- - 1 ="]),
        (
            "limit=3&resourceVersion=PARTIAL",
            "2:- - = =",
            ["0:- - 1 =", "1:- - 1 ="],
        ),
        (
            "limit=3&resourceVersion=CURSOR",
            "2:30 Exact = =",
            ["0:10 Exact 1 =", "1:20 Exact 1 ="],
        ),
        (
            "limit=3&resourceVersion=CURSOR&resourceVersionMatch=Exact",
            "2:30 = = =",
            ["0:10 = 1 =", "1:20 = 1 ="],
        ),
        (
            "limit=3&resourceVersion=CURSOR&resourceVersionMatch=NotOlderThan",
            "2:30 = = =",
            ["0:10 = 1 =", "1:20 = 1 ="],
        ),
        ("limit=9223372036854775807", "2:= = = =", ["0:= = 1 =", "1:= = 1 ="]),
    ] {
        let read = read(query);
        assert_eq!(shorts(&read.legs), [page], "{query}");
        assert_eq!(shorts(&read.pins), pins, "{query}");
        assert!(read.paged && read.later == [0, 1] && !read.continued, "{query}");
    }
}

#[test]
fn a_limit_that_is_not_heeded_is_not_asked_for() {
    let asked = parse("limit=3").unlimited().list(&universe(), &binding(), &SLOTS);
    let Ok(ListAsk::Read(read)) = asked else {
        panic!("{asked:?}")
    };
    assert_eq!(shorts(&read.legs), ["2:= = - =", "0:= = - =", "1:= = - ="]);
    assert!(!read.paged);
}

#[test]
fn exactly_a_version_that_nobody_knows_has_expired() {
    for version in ["PARTIAL", "FOREIGN", "734", "111111111111111111111111"] {
        for limit in ["", "&limit=3"] {
            let answer = list(&format!("resourceVersion={version}&resourceVersionMatch=Exact{limit}"));
            assert_eq!(answer, Err(QueryFault::Expired(LIST_EXPIRED.to_owned())), "{version}");
        }
    }
}

#[test]
fn what_validation_refuses_is_put_to_a_member() {
    let token = known_token(None, Reading::Pinned);
    for (query, expected) in [
        ("limit=9223372036854775808".to_owned(), "0:= = = -"),
        ("limit=abc".to_owned(), "0:= = = -"),
        ("limit=".to_owned(), "0:= = = -"),
        ("limit=abc&resourceVersion=CURSOR".to_owned(), "0:1 = = -"),
        ("resourceVersion=abc".to_owned(), "0:= = 1 -"),
        ("resourceVersion=-1".to_owned(), "0:= = 1 -"),
        ("resourceVersion=18446744073709551616".to_owned(), "0:= = 1 -"),
        ("resourceVersionMatch=Exact".to_owned(), "0:= = 1 -"),
        ("resourceVersionMatch=NotOlderThan".to_owned(), "0:= = 1 -"),
        ("resourceVersion=0&resourceVersionMatch=Exact".to_owned(), "0:= = 1 -"),
        (
            "resourceVersion=CURSOR&resourceVersionMatch=Sometimes".to_owned(),
            "0:1 = 1 -",
        ),
        (
            "resourceVersion=734&resourceVersionMatch=Sometimes".to_owned(),
            "0:1 = 1 -",
        ),
        ("resourceVersion=CURSOR&sendInitialEvents=true".to_owned(), "0:1 = 1 -"),
        ("sendInitialEvents=false".to_owned(), "0:= = 1 -"),
        (
            format!("continue={token}&resourceVersion=0&resourceVersionMatch=NotOlderThan"),
            "0:= = 1 x",
        ),
    ] {
        let Ok(ListAsk::Invalid(InvalidQuery(asked))) = list(&query) else {
            panic!("{query}: {:?}", list(&query))
        };
        assert_eq!(short(&LegAsk { slot: 0, query: asked }), expected, "{query}");
    }
}

fn known_token(member: Option<&str>, reading: Reading) -> String {
    let member = member.map(str::to_owned);
    Token {
        cursor: known(),
        slot: 0,
        member_token: member,
        reading,
    }
    .encode(&universe(), &binding())
    .unwrap()
}

#[test]
fn later_pages_go_on_where_the_token_says() {
    let (pinned, now, anew) = (Reading::Pinned, Reading::Now, Reading::Anew);
    for (member, reading, limit, legs, later) in [
        (Some("m"), pinned, "&limit=3", vec!["0:- - = m"], vec![1]),
        (None, pinned, "&limit=3", vec!["0:10 Exact = -"], vec![1]),
        (Some("m"), now, "&limit=3", vec!["0:- - = m"], vec![1]),
        (None, now, "&limit=3", vec!["0:- - = -"], vec![1]),
        (Some("m"), pinned, "", vec!["0:- - = m", "1:20 Exact = -"], vec![]),
        (
            Some("m"),
            pinned,
            "&resourceVersion=0",
            vec!["0:- - = m", "1:20 Exact = -"],
            vec![],
        ),
        (Some("m"), now, "&limit=0", vec!["0:- - = m", "1:- - = -"], vec![]),
        (Some("m"), anew, "", vec!["0:- - = m", "1:- - = -"], vec![]),
    ] {
        let read = read(&format!("continue={}{limit}", known_token(member, reading)));
        assert_eq!(shorts(&read.legs), legs);
        assert_eq!((read.later, read.reading, read.continued), (later, reading, true));
        assert!(read.pins.is_empty() && read.cursor == known());
    }
}

#[test]
fn members_that_had_nothing_to_pin_are_passed_over_unless_all_is_read_anew() {
    let begun = cursor([Slot::At(10), Slot::Sync, Slot::At(30)]);
    for (reading, later) in [
        (Reading::Pinned, vec![0]),
        (Reading::Now, vec![0]),
        (Reading::Anew, vec![0, 1]),
    ] {
        let token = Token {
            cursor: begun.clone(),
            slot: 2,
            member_token: None,
            reading,
        };
        let token = token.encode(&universe(), &binding()).unwrap();
        assert_eq!(read(&format!("limit=3&continue={token}")).later, later, "{reading:?}");
    }
}

#[test]
fn tokens_that_cannot_be_gone_on_with() {
    let token = known_token(None, Reading::Pinned);
    let bad = |query: String| match list(&query) {
        Err(QueryFault::BadRequest(why)) => why,
        other => panic!("{query}: {other:?}"),
    };
    assert!(bad("continue=abc".to_owned()).starts_with("invalid continue token: continue key is not valid: "));
    assert!(
        bad(format!("continue={}", &token[1..])).starts_with("invalid continue token: continue key is not valid: ")
    );
    let why = bad(format!("continue={token}&resourceVersion=734"));
    assert_eq!(why, "specifying resource version is not allowed when using continue");
    let expired = Err(QueryFault::Expired(CONTINUE_EXPIRED.to_owned()));
    let query = parse(&format!("limit=3&continue={token}"));
    let others = Universe::new("shard", ["x".to_owned()]);
    assert_eq!(query.list(&others, &binding(), &[0]), expired, "its member is none");
    let fewer = Universe::new("shard", ["a".to_owned(), "x".to_owned()]);
    let Err(QueryFault::Rest { token }) = query.list(&fewer, &binding(), &[1, 0]) else {
        panic!("its member is another slot's")
    };
    let rest = parse(&format!("limit=3&continue={token}")).list(&fewer, &binding(), &[1, 0]);
    let Ok(ListAsk::Read(rest)) = rest else {
        panic!("{rest:?}")
    };
    assert_eq!(
        (shorts(&rest.legs), rest.reading),
        (vec!["0:- - = -".to_owned()], Reading::Anew)
    );
    assert_eq!(query.list(&universe(), &binding(), &[1, 2]), expired, "its member left");
    let other = query.list(&universe(), &Binding::new(["shard", "bob", "/api/v1/pods"]), &SLOTS);
    assert!(matches!(other, Err(QueryFault::BadRequest(_))), "{other:?}");
}

#[test]
fn watches_begin_where_the_client_stands() {
    let all = |begin| vec![(2, begin), (0, begin), (1, begin)];
    let sync = Begin::Sync { not_older: None };
    let at = vec![(2, Begin::At(30)), (0, Begin::At(10)), (1, Begin::At(20))];
    let not_older = |version| Begin::Sync {
        not_older: Some(version),
    };
    for (query, expected, marker) in [
        (String::new(), all(Begin::Recent), false),
        ("resourceVersion=0".to_owned(), all(Begin::Any), false),
        ("resourceVersion=CURSOR".to_owned(), at.clone(), false),
        (
            "resourceVersion=UNSEEN".to_owned(),
            vec![(2, sync), (0, Begin::At(10)), (1, sync)],
            false,
        ),
        (INITIAL.to_owned(), all(sync), true),
        (format!("resourceVersion=0{INITIAL}"), all(sync), true),
        (format!("resourceVersion=734{INITIAL}"), all(sync), true),
        (format!("resourceVersion=FOREIGN{INITIAL}"), all(sync), true),
        (
            format!("resourceVersion=CURSOR{INITIAL}"),
            vec![(2, not_older(30)), (0, not_older(10)), (1, not_older(20))],
            true,
        ),
        (NONE.to_owned(), all(Begin::Latest), false),
        (format!("resourceVersion=0{NONE}"), all(Begin::Latest), false),
        (format!("resourceVersion=CURSOR{NONE}"), at, false),
    ] {
        let Ok(WatchAsk::Open {
            cursor,
            legs,
            initial_events,
        }) = parse(&query).watch(&universe(), &SLOTS)
        else {
            panic!("{query}: {:?}", parse(&query).watch(&universe(), &SLOTS));
        };
        assert_eq!((legs, initial_events), (expected, marker), "{query}");
        let stands = query.contains("CURSOR") && !marker;
        assert_eq!(cursor == known(), stands, "{query}");
    }
}

#[test]
fn watches_from_nowhere_have_expired() {
    for version in ["734", "FOREIGN", "111111111111111111111111"] {
        for more in ["", "&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"] {
            let query = parse(&format!("resourceVersion={version}{more}"));
            let answer = query.watch(&universe(), &SLOTS);
            assert!(
                matches!(&answer, Err(QueryFault::Expired(why)) if why.starts_with("too old resource version: ")),
                "{answer:?}"
            );
            assert_eq!(query.raw(), (version == "734").then_some(734));
        }
    }
}

#[test]
fn watches_that_validation_refuses_are_put_to_a_member() {
    for query in [
        "sendInitialEvents=true",
        "sendInitialEvents",
        "sendInitialEvents=false",
        "resourceVersionMatch=NotOlderThan",
        "resourceVersion=CURSOR&resourceVersionMatch=Exact",
        "sendInitialEvents=true&resourceVersionMatch=Exact",
        "sendInitialEvents=true&resourceVersionMatch=Sometimes",
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&continue=x",
        "resourceVersion=abc",
        "limit=abc",
    ] {
        let Ok(WatchAsk::Invalid(InvalidQuery(asked))) = parse(query).watch(&universe(), &SLOTS) else {
            panic!("{query}")
        };
        let own = query.contains("CURSOR");
        assert_eq!(
            asked.resource_version,
            if own { Param::Set("1".to_owned()) } else { Param::Keep },
            "{query}"
        );
    }
}

#[test]
fn no_cursor_and_no_token_of_ours_reaches_a_member() {
    let token = known_token(Some("m"), Reading::Pinned);
    for query in [
        "resourceVersion=CURSOR".to_owned(),
        "resourceVersion=PARTIAL&limit=3".to_owned(),
        "resourceVersion=FOREIGN&resourceVersionMatch=Sometimes".to_owned(),
        "resourceVersion=CURSOR&sendInitialEvents=true".to_owned(),
        format!("continue={token}"),
        format!("continue={token}&limit=abc&resourceVersion=CURSOR"),
    ] {
        let asks = match list(&query).unwrap() {
            ListAsk::Invalid(InvalidQuery(asked)) => vec![LegAsk { slot: 0, query: asked }],
            ListAsk::Read(read) => read.legs.into_iter().chain(read.pins).collect(),
        };
        for ask in asks {
            let versions = query.contains("resourceVersion=");
            assert!(
                !versions || ask.query.resource_version != Param::Keep,
                "{query}: {ask:?}"
            );
            assert!(
                !query.contains("continue=") || ask.query.continue_ != Param::Keep,
                "{query}: {ask:?}"
            );
        }
    }
}

#[test]
fn a_beginning_is_asked_for_in_a_members_own_words() {
    let asked = |begin: Begin| {
        let query = begin.query();
        let parts = [
            &query.resource_version,
            &query.resource_version_match,
            &query.send_initial_events,
        ];
        parts
            .map(|param| {
                if let Param::Set(value) = param {
                    value.clone()
                } else {
                    format!("{param:?}")
                }
            })
            .join(" ")
    };
    assert_eq!(asked(Begin::At(7)), "7 Drop Drop");
    assert_eq!(asked(Begin::Any), "0 Drop Drop");
    assert_eq!(asked(Begin::Recent), "Drop Drop Drop");
    assert_eq!(asked(Begin::Sync { not_older: None }), "Drop NotOlderThan true");
    assert_eq!(asked(Begin::Sync { not_older: Some(7) }), "7 NotOlderThan true");
    assert_eq!(asked(Begin::Latest), "Drop NotOlderThan false");
}

#[test]
fn who_asks_for_the_first_time_and_what_it_takes() {
    assert!(parse("").is_first() && parse("resourceVersion=0&limit=500").is_first());
    assert!(!parse("resourceVersion=CURSOR").is_first() && !parse("resourceVersion=7").is_first());
    assert!(!parse("continue=x").is_first());
    for (text, expected) in [
        ("allowWatchBookmarks", true),
        ("allowWatchBookmarks=1", true),
        ("allowWatchBookmarks=False", false),
        ("", false),
    ] {
        assert_eq!(parse(text).bookmarks(), expected, "{text}");
    }
}
