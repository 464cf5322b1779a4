//! Names of several members.

use super::*;

/// A union of names in which the client stands at version 10 of every member.
fn union(members: usize) -> WatchMerge {
    let starts = vec![Start::At(10); members];
    let mut cursor = Cursor::new(&Universe::new("shard", names(&starts)));
    (0..members).for_each(|slot| cursor.set(slot, Slot::At(10)));
    let legs = legs(&starts);
    WatchMerge::new(WatchSpec {
        format: WatchFormat::Json,
        bookmarks: true,
        initial_events: false,
        cursor,
        legs,
        unique: true,
        cluster_column: false,
        known_objects: None,
    })
}

/// Bytes of a leg, and all that is to be done after them.
fn feed(merge: &mut WatchMerge, leg: usize, bytes: &str, out: &mut Output) -> Vec<Act> {
    let first = merge.push(leg, bytes.to_owned().into(), out).unwrap();
    merge.flush(out);
    first
        .into_iter()
        .chain(std::iter::from_fn(|| merge.next_act()))
        .collect()
}

fn text(out: &mut Output) -> String {
    String::from_utf8(drain(out).concat()).unwrap()
}

#[test]
fn a_name_that_is_wanted_of_a_member_is_not_forgotten_when_it_is_counted_again() {
    for stays in [true, false] {
        let mut merge = union(2);
        let mut out = Output::default();
        assert_eq!(merge.start(1), Start::Sync);
        // The second is being counted, slowly; the first is through, and has lost the name that the client holds of it.
        feed(&mut merge, 1, &named("ADDED", "x", "1", 8), &mut out);
        let start = Start::At(10);
        assert_eq!(
            feed(&mut merge, 0, &bookmark(12, true), &mut out),
            [Act::Restart { leg: 0, start }]
        );
        assert_eq!(merge.give_up(1, &mut out), None);
        feed(&mut merge, 0, &named("DELETED", "x", "0", 12), &mut out);
        assert_eq!(
            merge.lost(1),
            Act::Restart {
                leg: 1,
                start: Start::Sync
            }
        );
        let there = if stays {
            named("ADDED", "x", "1", 8)
        } else {
            String::new()
        };
        feed(&mut merge, 1, &(there.clone() + &bookmark(12, true)), &mut out);
        let acts = feed(&mut merge, 1, &bookmark(12, false), &mut out);
        let said = text(&mut out);
        if stays {
            assert_eq!(
                acts,
                [Act::Restart {
                    leg: 1,
                    start: Start::Sync
                }]
            );
            feed(&mut merge, 1, &(there + &bookmark(12, true)), &mut out);
            assert!(
                said.is_empty() && text(&mut out).starts_with(&named("ADDED", "x", "1", 8)),
                "the second's is told now"
            );
        } else {
            assert!(
                said.starts_with("{\"type\":\"DELETED\""),
                "nobody has the name any more: {said}"
            );
        }
    }
}

#[test]
fn a_frame_of_the_stream_before_has_no_part_in_a_comparison() {
    let mut merge = union(2);
    for leg in &mut merge.legs.all {
        leg.state = LegState::starting(Start::Sync);
        leg.start = Start::Recent;
    }
    let mut out = Output::default();
    feed(&mut merge, 1, &named("ADDED", "x", "1", 18), &mut out);
    // The first takes the name, and leaves it.
    let taken = named("ADDED", "x", "0", 11) + &bookmark(11, false) + &named("DELETED", "x", "0", 12);
    feed(&mut merge, 0, &taken, &mut out);
    let start = Start::Sync;
    assert_eq!(
        feed(&mut merge, 1, &named("MODIFIED", "x", "1", 19), &mut out),
        [Act::Restart { leg: 1, start }]
    );
    // Meanwhile it was deleted in the second, too.
    text(&mut out);
    feed(&mut merge, 1, &bookmark(22, true), &mut out);
    let said = text(&mut out);
    assert!(said.starts_with("{\"type\":\"DELETED\""), "{said}");
}

#[test]
fn what_left_before_a_comparison_is_through_is_not_told_again() {
    let mut merge = merge(WatchFormat::Json, &[Start::Sync]);
    merge.legs[0].known = Some(Box::new(KnownObjects::new(None)));
    let mut out = Output::default();
    feed(
        &mut merge,
        0,
        &(named("ADDED", "a", "1", 3) + &bookmark(5, true)),
        &mut out,
    );
    merge.legs[0].begin_resync(ResyncCause::Recovery);
    drain(&mut out);
    // A cache that is behind tells what came since before the marker.
    let behind = named("ADDED", "a", "1", 3) + &named("DELETED", "a", "1", 7);
    feed(&mut merge, 0, &behind, &mut out);
    assert_eq!(bookmarks(&drain(&mut out)), 0, "5 is before what was told");
    assert_eq!(merge.sent().resume(7), None);
    feed(&mut merge, 0, &bookmark(8, true), &mut out);
    assert_eq!(bookmarks(&drain(&mut out)), 1);
}

#[test]
fn a_comparison_with_a_cache_that_is_behind_takes_nothing_back() {
    let mut merge = merge(WatchFormat::Json, &[Start::Sync]);
    merge.legs[0].known = Some(Box::new(KnownObjects::new(None)));
    let mut out = Output::default();
    feed(
        &mut merge,
        0,
        &(named("ADDED", "a", "2", 9) + &bookmark(9, true)),
        &mut out,
    );
    merge.legs[0].begin_resync(ResyncCause::Recovery);
    drain(&mut out);
    let behind = named("ADDED", "a", "1", 3)
        + &named("ADDED", "gone", "1", 4)
        + &named("DELETED", "gone", "1", 5)
        + &named("DELETED", "a", "1", 7)
        + &named("ADDED", "a", "2", 9);
    feed(&mut merge, 0, &behind, &mut out);
    assert_eq!(text(&mut out), "");
    feed(
        &mut merge,
        0,
        &(named("MODIFIED", "a", "2", 11) + &bookmark(11, true)),
        &mut out,
    );
    assert!(text(&mut out).starts_with(&named("MODIFIED", "a", "2", 11)));
}

/// How a member is asked after the shard changed.
fn again(slot: usize, cluster: &str) -> WatchLeg {
    WatchLeg {
        cluster: cluster.into(),
        uid_hash: 0,
        slot,
        filter: None,
        request_hash: 0,
        share: None,
        selector_hash: 0,
        start: Start::Sync,
    }
}

#[test]
fn members_of_a_union_that_change_places_begin_it_anew() {
    for (order, expires) in [(["m1", "m0"], true), (["m0", "m1"], false)] {
        let mut merge = union(2);
        let mut out = Output::default();
        for leg in [0, 1] {
            feed(&mut merge, leg, &bookmark(10, true), &mut out);
            feed(&mut merge, leg, &bookmark(11, false), &mut out);
        }
        let universe = Universe::new("other", ["m0".to_owned(), "m1".to_owned()]);
        let legs = order
            .iter()
            .map(|name| again(universe.slot(name).unwrap(), name))
            .collect();
        let acts = merge.replan(&universe, legs, &mut out);
        let expired = acts.iter().any(|act| matches!(act, Act::Expired { .. }));
        assert_eq!(expired, expires, "{acts:?}");
    }
}

#[test]
fn a_union_that_goes_on_without_a_member_that_has_the_kind_no_more_begins_anew() {
    let mut merge = union(2);
    let mut out = Output::default();
    feed(&mut merge, 0, &bookmark(10, true), &mut out);
    let act = merge.absent(1, &mut out);
    assert!(matches!(act, Some(Act::Expired { .. })), "{act:?}");
    // From a list on it is one that has nothing.
    let mut merge = union(2);
    merge.legs[1].state = LegState::starting(Start::Sync);
    let there = named("ADDED", "x", "0", 5) + &bookmark(10, true);
    feed(&mut merge, 0, &there, &mut out);
    assert_eq!(merge.absent(1, &mut out), None);
    text(&mut out);
    feed(&mut merge, 0, &named("DELETED", "x", "0", 12), &mut out);
    assert!(text(&mut out).starts_with("{\"type\":\"DELETED\""));
}

#[test]
fn another_cluster_under_a_members_name_is_another_member() {
    let mut merge = merge(WatchFormat::Json, &[Start::Sync]);
    merge.legs[0].cluster = "m0".into();
    merge.legs[0].known = Some(Box::new(KnownObjects::new(None)));
    let mut out = Output::default();
    let there = named("ADDED", "a", "1", 30) + &named("ADDED", "b", "1", 31) + &bookmark(40, true);
    feed(&mut merge, 0, &there, &mut out);
    text(&mut out);
    let universe = Universe::new("shard", ["other".to_owned()]);
    let spec = WatchLeg {
        uid_hash: 1,
        ..again(0, "m0")
    };
    let acts = merge.replan(&universe, vec![spec], &mut out);
    let start = Start::Sync;
    assert_eq!(acts, [Act::Restart { leg: 0, start }]);
    // It has counted less far.
    let there = named("ADDED", "a", "2", 3) + &bookmark(4, true);
    feed(&mut merge, 0, &there, &mut out);
    let said = text(&mut out);
    assert!(said.starts_with(&named("ADDED", "a", "2", 3)), "{said}");
    assert!(
        said.contains("\"name\":\"b\"") && said.matches("DELETED").count() == 1,
        "{said}"
    );
    assert_eq!(merge.cursor().slot(0), Slot::At(4));
}

#[test]
fn a_change_of_the_shard_that_asks_nothing_else_of_members_expires_no_union() {
    let mut merge = union(2);
    let mut out = Output::default();
    for leg in 0..2 {
        // Told names up to 20, and is to be read again from 10 on: what it has is not known exactly before that is through.
        let acts = feed(
            &mut merge,
            leg,
            &(named("ADDED", "x", "0", 8) + &bookmark(20, true)),
            &mut out,
        );
        assert_eq!(
            acts[0],
            Act::Restart {
                leg,
                start: Start::At(10)
            }
        );
        assert!(merge.is_catching_up(leg));
    }
    let universe = Universe::new("shard", names(&[Start::Sync; 2]));
    let same = || legs(&[Start::Sync; 2]);
    let acts = merge.replan(&universe, same(), &mut out);
    assert_eq!(acts, Vec::new(), "a namespace came to the shard");
    let mut other = same();
    other[1].request_hash = 1;
    let acts = merge.replan(&universe, other, &mut out);
    assert!(matches!(acts[..], [Act::Expired { .. }]), "{acts:?}");
}
