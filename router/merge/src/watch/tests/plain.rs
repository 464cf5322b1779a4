//! Members that know no watch-list and never send a marker.

use super::*;

pub(super) fn named(kind: &str, name: &str, version: u64) -> String {
    event(kind, version, 0)
        .replace("\"name\":\"p\"", &format!("\"name\":\"{name}\""))
        .replace("\"uid\":\"u\"", &format!("\"uid\":\"{name}\""))
}

pub(super) fn push(merge: &mut WatchMerge, leg: usize, bytes: String, out: &mut Output) -> (Vec<Act>, String) {
    let first = merge.push(leg, bytes.into(), out).unwrap();
    merge.flush(out);
    let acts = first.into_iter().chain(std::iter::from_fn(|| merge.next_act()));
    (acts.collect(), String::from_utf8(drain(out).concat()).unwrap())
}

fn resyncing() -> WatchMerge {
    let mut merge = merge(WatchFormat::Json, &[Start::Sync]);
    merge.legs[0].known = Some(Box::new(KnownObjects::new(None)));
    let there = named("ADDED", "a", 3) + &named("ADDED", "b", 4) + &bookmark(5, true);
    push(&mut merge, 0, there, &mut Output::default());
    let gone = "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410}}\n".to_owned();
    let (acts, _) = push(&mut merge, 0, gone, &mut Output::default());
    let start = Start::Sync;
    assert_eq!(acts, [Act::Restart { leg: 0, start }]);
    merge.disable_watch_list(0);
    merge
}

#[test]
fn what_is_there_ends_at_a_bookmark() {
    let mut merge = merge(WatchFormat::Json, &[Start::Sync]);
    merge.disable_watch_list(0);
    let mut out = Output::default();
    let (_, said) = push(&mut merge, 0, named("ADDED", "a", 3), &mut out);
    assert!(!merge.leg_state(0).synced && !said.contains("BOOKMARK"));
    let (_, said) = push(&mut merge, 0, bookmark(5, false), &mut out);
    assert!(merge.leg_state(0).synced && said.contains("BOOKMARK"), "{said}");
    assert_eq!(merge.cursor().slot(0), Slot::At(5));
}

#[test]
fn a_comparison_tells_what_has_left_at_a_bookmark_or_at_the_first_change() {
    for after in [bookmark(9, false), named("MODIFIED", "b", 9)] {
        let mut merge = resyncing();
        let mut out = Output::default();
        let (_, said) = push(&mut merge, 0, named("ADDED", "b", 4), &mut out);
        assert_eq!(said, "", "the client has it");
        let (acts, said) = push(&mut merge, 0, after, &mut out);
        assert!(acts.is_empty() && merge.leg_state(0).synced);
        assert_eq!(said.matches("DELETED").count(), 1, "{said}");
        assert!(said.contains("\"name\":\"a\""), "{said}");
        assert_eq!(merge.cursor().slot(0), Slot::At(9));
    }
}

#[test]
fn a_cache_that_is_behind_what_the_client_has_is_waited_for() {
    let mut merge = resyncing();
    let mut out = Output::default();
    let (acts, said) = push(&mut merge, 0, named("ADDED", "a", 3) + &bookmark(3, false), &mut out);
    assert!(acts.is_empty() && said.is_empty(), "{acts:?} {said}");
    assert!(!merge.leg_state(0).synced);
    let (_, said) = push(&mut merge, 0, named("ADDED", "b", 4) + &bookmark(6, false), &mut out);
    assert!(merge.leg_state(0).synced && !said.contains("DELETED"), "{said}");
}

#[test]
fn a_union_counts_it_in() {
    for after in [bookmark(12, false), named("DELETED", "x", 12)] {
        let mut merge = merge(WatchFormat::Json, &[Start::At(10); 2]);
        merge.legs.unique = true;
        for leg in 0..2 {
            merge.legs[leg].state = LegState::Inventory;
            merge.legs[leg].start = Start::Sync;
            merge.legs[leg].known = Some(Box::new(KnownObjects::new(None)));
        }
        merge.disable_watch_list(0);
        let mut out = Output::default();
        let start = Start::At(10);
        let (acts, _) = push(&mut merge, 1, named("ADDED", "y", 4) + &bookmark(11, true), &mut out);
        assert_eq!(acts, [Act::Restart { leg: 1, start }]);
        assert!(merge.paused(1));
        let (acts, said) = push(&mut merge, 0, named("ADDED", "x", 5) + &after, &mut out);
        assert_eq!(acts, [Act::Restart { leg: 0, start }]);
        assert!(!merge.paused(1));
        assert!(
            !said.contains("\"name\":\"x\""),
            "the client was told of it before: {said}"
        );
    }
}

#[test]
fn a_cache_that_is_behind_what_was_told_before_a_break_is_waited_for() {
    let mut merge = merge(WatchFormat::Json, &[Start::Sync]);
    merge.legs[0].known = Some(Box::new(KnownObjects::new(None)));
    merge.disable_watch_list(0);
    let mut out = Output::default();
    push(
        &mut merge,
        0,
        named("ADDED", "a", 3) + &named("ADDED", "b", 6),
        &mut out,
    );
    let start = Start::Sync;
    assert_eq!(merge.lost(0), Act::Restart { leg: 0, start });
    // It does not know of b yet, and of a newer one neither.
    let (_, said) = push(&mut merge, 0, named("ADDED", "a", 3) + &bookmark(5, false), &mut out);
    assert!(said.is_empty() && !merge.leg_state(0).synced, "{said}");
    let (_, said) = push(&mut merge, 0, named("MODIFIED", "b", 6) + &bookmark(7, false), &mut out);
    assert!(merge.leg_state(0).synced && !said.contains("DELETED"), "{said}");
}

#[test]
fn a_cache_that_goes_on_and_stays_behind_is_of_another_past() {
    for (second, expires) in [(3, false), (4, true), (6, false)] {
        let mut merge = resyncing();
        let mut out = Output::default();
        push(&mut merge, 0, bookmark(3, false), &mut out);
        let (acts, _) = push(&mut merge, 0, bookmark(second, false), &mut out);
        let expired = acts.iter().any(|act| matches!(act, Act::Expired { .. }));
        assert_eq!(expired, expires, "{second}: {acts:?}");
    }
}
