//! A member that is away: what it owes of a change of the shard, and what nobody waits for.

use super::*;

fn only(names: &[&str]) -> NamespaceFilter {
    let names = names.iter().map(|name| Arc::from(*name));
    NamespaceFilter::only(Arc::new(names.collect()))
}

fn view(revision: u64) -> Universe {
    Universe::new("shard", names(&[Start::Sync; 2])).identified("shard", "hub", revision, Format::Two)
}

/// Legs of two members with these namespaces; `labelled`: the member chooses, by its labels.
fn asked(shares: [&[&str]; 2], labelled: [bool; 2]) -> Vec<WatchLeg> {
    let legs = legs(&[Start::At(10); 2]).into_iter().zip(shares).zip(labelled);
    legs.map(|((leg, share), labelled)| WatchLeg {
        share: Some(only(share)),
        filter: (!labelled).then(|| only(share)),
        request_hash: u64::from(labelled),
        ..leg
    })
    .collect()
}

/// A watch that stands at version 10 of both members, in view 1.
fn resumed(shares: [&[&str]; 2], labelled: [bool; 2]) -> (WatchMerge, Output) {
    let mut cursor = Cursor::new(&view(1));
    (0..2).for_each(|slot| cursor.set(slot, Slot::At(10)));
    let merge = WatchMerge::new(WatchSpec {
        format: WatchFormat::Json,
        bookmarks: true,
        initial_events: false,
        cursor,
        legs: asked(shares, labelled),
        unique: false,
        cluster_column: false,
        known_objects: Some(Budget::new(1 << 20)),
    });
    (merge, Output::default())
}

fn feed(merge: &mut WatchMerge, leg: usize, bytes: &str, out: &mut Output) -> (Vec<Act>, String) {
    let first = merge.push(leg, bytes.to_owned().into(), out).unwrap().into_iter();
    let acts = first.chain(std::iter::from_fn(|| merge.next_act())).collect();
    merge.flush(out);
    (acts, String::from_utf8(drain(out).concat()).unwrap())
}

fn object(kind: &str, namespace: &str, version: u64) -> String {
    event(kind, version, 0).replace("\"namespace\":\"ns\"", &format!("\"namespace\":\"{namespace}\""))
}

/// The view and the slots of the last bookmark.
fn place(said: &str, revision: u64) -> Result<Vec<Slot>, crate::cursor::CursorError> {
    let line = said.lines().rfind(|line| line.contains("BOOKMARK")).unwrap_or("{}");
    let event: serde_json::Value = serde_json::from_str(line).unwrap();
    let text = event["object"]["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default();
    Cursor::decode(text, &view(revision)).map(|cursor| cursor.slots().to_vec())
}

/// A page of metadata in one namespace.
fn page(namespace: &str) -> String {
    let meta = format!(r#"{{"name":"p","namespace":"{namespace}","uid":"u","resourceVersion":"9"}}"#);
    format!(r#"{{"metadata":{{}},"items":[{{"metadata":{meta}}}]}}"#)
}

#[test]
fn nobody_waits_for_a_member_that_is_to_be_asked_in_another_way() {
    let (mut merge, mut out) = resumed([&["a", "c"], &["b"]], [false, true]);
    // Its labels do not count any more, and it does not answer.
    let acts = merge.replan(&view(1), asked([&["a", "c"], &["b"]], [false, false]), &mut out);
    let start = Start::Exact(10);
    assert_eq!(acts, [Act::Restart { leg: 1, start }]);
    let (_, said) = feed(&mut merge, 0, &object("ADDED", "a", 11), &mut out);
    assert_eq!(place(&said, 1), Ok(vec![Slot::At(11), Slot::At(10)]), "{said}");
    // A namespace leaves the other one: told at once, and the bookmark is of the new view.
    let acts = merge.replan(&view(2), asked([&["a"], &["b"]], [false, false]), &mut out);
    assert_eq!(
        acts,
        [Act::Restart {
            leg: 0,
            start: Start::Exact(11)
        }]
    );
    assert!(!merge.is_catching_up(0));
    let mut listing = merge.listing(0);
    assert_eq!(listing.page(page("c").as_bytes()), Ok(None));
    let act = merge.listed(0, listing, &mut out);
    assert_eq!(
        act,
        Some(Act::Restart {
            leg: 0,
            start: Start::At(11)
        })
    );
    merge.flush(&mut out);
    let said = String::from_utf8(drain(&mut out).concat()).unwrap();
    assert!(said.contains("DELETED"), "{said}");
    assert_eq!(place(&said, 2), Ok(vec![Slot::At(11), Slot::At(10)]), "{said}");
}

#[test]
fn what_a_member_owes_holds_back_the_view_and_not_the_place() {
    let (mut merge, mut out) = resumed([&["a"], &["b"]], [false, false]);
    let both = asked([&["a", "c"], &["b", "d"]], [false, false]);
    let acts = merge.replan(&view(2), both, &mut out);
    let came = |leg| Act::Restart {
        leg,
        start: Start::Came(10),
    };
    assert_eq!(acts, [came(0), came(1)]);
    // The first lists what came, the second is away.
    let (acts, said) = feed(
        &mut merge,
        0,
        &(object("ADDED", "c", 8) + &bookmark(10, true)),
        &mut out,
    );
    assert_eq!(
        acts,
        [Act::Restart {
            leg: 0,
            start: Start::At(10)
        }]
    );
    assert_eq!(place(&said, 1), Ok(vec![Slot::At(10), Slot::At(10)]), "{said}");
    let (_, said) = feed(&mut merge, 0, &object("MODIFIED", "c", 12), &mut out);
    assert_eq!(place(&said, 1), Ok(vec![Slot::At(12), Slot::At(10)]), "{said}");
    assert!(!merge.is_changing(0) && merge.is_changing(1));
    // It is back.
    let (_, said) = feed(
        &mut merge,
        1,
        &(object("ADDED", "d", 7) + &bookmark(10, true)),
        &mut out,
    );
    assert_eq!(place(&said, 2), Ok(vec![Slot::At(12), Slot::At(10)]), "{said}");
}

#[test]
fn a_deletion_waits_for_who_was_given_just_that_namespace() {
    for (given, waits) in [("d", false), ("c", true)] {
        let (mut merge, mut out) = resumed([&["a", "c"], &["b"]], [false, false]);
        feed(&mut merge, 0, &bookmark(11, false), &mut out);
        let acts = merge.replan(&view(2), asked([&["a"], &["b", given]], [false, false]), &mut out);
        assert_eq!(acts.len(), 2);
        let mut listing = merge.listing(0);
        listing.page(page("c").as_bytes()).unwrap();
        merge.listed(0, listing, &mut out);
        merge.flush(&mut out);
        let said = String::from_utf8(drain(&mut out).concat()).unwrap();
        assert_eq!(
            (said.contains("DELETED"), said.contains("BOOKMARK")),
            (!waits, !waits),
            "{given}: {said}"
        );
    }
}

#[test]
fn what_left_before_any_member_has_said_its_type_hurries_the_stream() {
    let (mut merge, mut out) = resumed([&["a", "c"], &["b"]], [false, false]);
    merge.replan(&view(2), asked([&["a"], &["b"]], [false, false]), &mut out);
    let mut listing = merge.listing(0);
    listing.page(page("c").as_bytes()).unwrap();
    merge.listed(0, listing, &mut out);
    merge.flush(&mut out);
    assert!(out.is_empty() && merge.is_catching_up(0));
    let (_, said) = feed(&mut merge, 0, &bookmark(10, false), &mut out);
    assert!(said.contains("DELETED") && !merge.is_catching_up(0), "{said}");
}

#[test]
fn two_members_that_swap_their_namespaces_do_not_wait_for_each_other() {
    let (mut merge, mut out) = resumed([&["a"], &["b"]], [false, false]);
    for leg in 0..2 {
        feed(&mut merge, leg, &bookmark(11, false), &mut out);
    }
    let acts = merge.replan(&view(2), asked([&["b"], &["a"]], [false, false]), &mut out);
    assert_eq!(acts.len(), 2);
    for (leg, left) in [(0, "a"), (1, "b")] {
        let mut listing = merge.listing(leg);
        listing.page(page(left).as_bytes()).unwrap();
        assert!(merge.listed(leg, listing, &mut out).is_some());
    }
    let mut said = String::new();
    for (leg, came) in [(0, "b"), (1, "a")] {
        let (_, more) = feed(
            &mut merge,
            leg,
            &(object("ADDED", came, 8) + &bookmark(11, true)),
            &mut out,
        );
        said.push_str(&more);
    }
    for leg in 0..2 {
        let (_, more) = feed(&mut merge, leg, &bookmark(12, false), &mut out);
        said.push_str(&more);
    }
    assert_eq!(place(&said, 2), Ok(vec![Slot::At(12), Slot::At(11)]), "{said}");
    assert!(!merge.is_changing(0) && !merge.is_changing(1), "nothing is owed");
}

/// A watch of a namespace that was nowhere: one member showed nothing, and another one gets it.
#[test]
fn who_showed_nothing_leaves_without_a_word() {
    let one = |leg: usize, share: &[&str]| vec![asked([share, share], [false, false]).swap_remove(leg)];
    let mut cursor = Cursor::new(&view(1));
    cursor.set(0, Slot::At(10));
    let mut merge = WatchMerge::new(WatchSpec {
        format: WatchFormat::Json,
        bookmarks: true,
        initial_events: false,
        cursor,
        legs: one(0, &[]),
        unique: false,
        cluster_column: false,
        known_objects: Some(Budget::new(1 << 20)),
    });
    let mut out = Output::default();
    feed(&mut merge, 0, &bookmark(11, false), &mut out);
    let acts = merge.replan(&view(2), one(1, &["a"]), &mut out);
    let start = Start::Sync;
    assert_eq!(acts, [Act::Restart { leg: 0, start }]);
    let (_, said) = feed(
        &mut merge,
        0,
        &(object("ADDED", "a", 8) + &bookmark(12, true)),
        &mut out,
    );
    assert!(said.contains("ADDED"), "{said}");
}

/// The member that showed nothing gets the namespace.
#[test]
fn who_showed_nothing_shows_what_comes() {
    let (mut merge, mut out) = resumed([&[], &["b"]], [false, false]);
    for leg in 0..2 {
        feed(&mut merge, leg, &bookmark(11, false), &mut out);
    }
    let acts = merge.replan(&view(2), asked([&["a"], &["b"]], [true, false]), &mut out);
    let (leg, start) = (0, Start::Exact(11));
    assert_eq!(acts, [Act::Restart { leg, start }]);
    let mut listing = merge.listing(leg);
    listing.page(br#"{"metadata":{},"items":[]}"#).unwrap();
    merge.listed(leg, listing, &mut out).unwrap();
    let (_, said) = feed(
        &mut merge,
        0,
        &(object("ADDED", "a", 8) + &bookmark(12, true)),
        &mut out,
    );
    assert!(said.contains("ADDED"), "{said}");
}
