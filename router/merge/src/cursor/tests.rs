//! The laws of cursors.

use std::cmp::Ordering;

use proptest::prelude::*;

use super::text::{CHECK, check, digits};
use super::*;

fn universe(members: usize) -> Universe {
    Universe::new("shard", (0..members).map(|member| format!("uid-{member:04}")))
}

fn at_revision(members: usize, revision: u64) -> Universe {
    universe(members).identified("shard-uid", "hub", revision, Format::Two)
}

/// One set of members, as each format has it.
fn either(members: usize) -> impl Strategy<Value = Universe> {
    prop_oneof![
        Just(universe(members)),
        (0_u64..10_000_000_000).prop_map(move |revision| at_revision(members, revision)),
    ]
}

fn slots_in(count: std::ops::Range<usize>) -> impl Strategy<Value = (Vec<Slot>, Universe)> {
    prop::collection::vec(slot(), count).prop_flat_map(|slots| {
        let members = slots.len();
        (Just(slots), either(members))
    })
}

/// How clients compare resourceVersions (KEP-5504).
fn compare(a: &str, b: &str) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

fn slot() -> impl Strategy<Value = Slot> {
    prop_oneof![
        Just(Slot::Unasked),
        Just(Slot::Sync),
        (0_u32..64, any::<u64>()).prop_map(|(shift, version)| Slot::At((version >> shift).max(1))),
    ]
}

/// Some time later: the next number, the next with a digit more, or any later one.
fn later() -> impl Strategy<Value = (usize, u8, u64)> {
    (any::<usize>(), 0_u8..3, any::<u64>())
}

fn cursor_of(universe: &Universe, slots: &[Slot]) -> Cursor {
    let mut cursor = Cursor::new(universe);
    for (index, slot) in slots.iter().enumerate() {
        cursor.set(index, *slot);
    }
    cursor
}

fn advanced(slot: Slot, how: u8, any: u64) -> Slot {
    match (slot, how) {
        (Slot::Unasked, 0) => Slot::Sync,
        (Slot::Unasked | Slot::Sync, _) => Slot::At(any.max(1)),
        (Slot::At(version), 0) => Slot::At(version.saturating_add(1)),
        (Slot::At(version), 1) => Slot::At(10_u64.checked_pow(digits(version)).unwrap_or(u64::MAX)),
        (Slot::At(version), _) => Slot::At(version.max(any)),
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read((slots, universe) in slots_in(0..40)) {
        let cursor = cursor_of(&universe, &slots);
        let text = cursor.encode().unwrap();
        prop_assert!(is_cursor(&text) && !text.starts_with('0') && text.len() <= LONGEST);
        prop_assert!(text.parse::<u64>().is_err(), "a member could take it for its own");
        prop_assert_eq!(Cursor::decode(&text, &universe), Ok(cursor));
    }

    #[test]
    fn it_grows_as_any_slot_moves(
        (slots, universe) in slots_in(1..8),
        steps in prop::collection::vec(later(), 1..20),
    ) {
        let mut cursor = cursor_of(&universe, &slots);
        for (index, how, any) in steps {
            let before = cursor.clone();
            let index = index % slots.len();
            cursor.set(index, advanced(cursor.slot(index), how, any));
            let (old, new) = (before.encode().unwrap(), cursor.encode().unwrap());
            let expected = if before == cursor { Ordering::Equal } else { Ordering::Greater };
            prop_assert_eq!(compare(&new, &old), expected, "{} then {}", old, new);
        }
    }

    #[test]
    fn it_never_goes_back(held in slot(), asked in slot()) {
        let universe = universe(1);
        let mut cursor = cursor_of(&universe, &[held]);
        cursor.set(0, asked);
        prop_assert_eq!(cursor.slot(0), held.max(asked));
    }

    #[test]
    fn one_wrong_digit_is_refused(
        (slots, universe) in slots_in(1..6), at in any::<prop::sample::Index>(), by in 1_u8..10,
    ) {
        let mut text = cursor_of(&universe, &slots).encode().unwrap().into_bytes();
        let at = at.index(text.len());
        text[at] = b'0' + (text[at] - b'0' + by) % 10;
        let text = String::from_utf8(text).unwrap();
        prop_assert_eq!(Cursor::decode(&text, &universe), Err(CursorError::Damaged));
    }

    #[test]
    fn a_cut_one_is_refused((slots, universe) in slots_in(1..6), from in any::<prop::sample::Index>(), n in 1_usize..4) {
        let text = cursor_of(&universe, &slots).encode().unwrap();
        let from = from.index(text.len());
        let cut = format!("{}{}", &text[..from], &text[(from + n).min(text.len())..]);
        prop_assert!(Cursor::decode(&cut, &universe).is_err());
        prop_assert!(Cursor::decode(&text[..from], &universe).is_err());
    }

    #[test]
    fn anything_is_read_without_panic_and_only_what_would_be_written(text in "[0-9]{0,80}|.{0,40}") {
        let universe = universe(2);
        if let Ok(cursor) = Cursor::decode(&text, &universe) {
            prop_assert_eq!(cursor.encode(), Ok(text));
        }
    }

    #[test]
    fn it_grows_with_the_view_whatever_the_slots_say(
        before in prop::collection::vec(slot(), 3), after in prop::collection::vec(slot(), 3), revision in 0_u64..9_999_999_999,
    ) {
        let older = cursor_of(&at_revision(3, revision), &before).encode().unwrap();
        let newer = cursor_of(&at_revision(3, revision + 1), &after).encode().unwrap();
        prop_assert_eq!(compare(&newer, &older), Ordering::Greater, "{} then {}", older, newer);
    }

    #[test]
    fn wide_slots_made_up_with_right_check_digits_are_read_only_as_they_would_be_written(slots in "[0-9]{60}|[0-9]{0,70}|0{20}[0-2][0-9]{19}0{20}") {
        let universe = at_revision(3, 7);
        let body = format!("2{:010}00000000070003{slots}", universe.epoch());
        let text = format!("{body}{:09}", check(body.as_bytes()));
        if let Ok(cursor) = Cursor::decode(&text, &universe) {
            prop_assert_eq!(cursor.encode(), Ok(text));
        }
    }

    #[test]
    fn a_body_made_up_with_right_check_digits_is_read_only_as_it_would_be_written(slots in "[0-9]{0,40}") {
        let universe = universe(3);
        let body = format!("1{:010}0003{slots}", universe.epoch());
        let text = format!("{body}{:09}", check(body.as_bytes()));
        if let Ok(cursor) = Cursor::decode(&text, &universe) {
            prop_assert_eq!(cursor.encode(), Ok(text));
        }
    }
}

#[test]
fn roll_overs_grow() {
    let universe = universe(2);
    let steps = [
        [Slot::Unasked, Slot::Unasked],
        [Slot::Sync, Slot::Unasked],
        [Slot::Sync, Slot::Sync],
        [Slot::At(1), Slot::Sync],
        [Slot::At(9), Slot::Sync],
        [Slot::At(9), Slot::At(9)],
        [Slot::At(10), Slot::At(9)],
        [Slot::At(10), Slot::At(10)],
        [Slot::At(99), Slot::At(10)],
        [Slot::At(100), Slot::At(10)],
        [Slot::At(999_999_999), Slot::At(999_999_999)],
        [Slot::At(1_000_000_000), Slot::At(999_999_999)],
        [Slot::At(u64::MAX), Slot::At(999_999_999)],
        [Slot::At(u64::MAX), Slot::At(u64::MAX)],
    ];
    let texts: Vec<String> = steps
        .iter()
        .map(|slots| cursor_of(&universe, slots).encode().unwrap())
        .collect();
    for pair in texts.windows(2) {
        assert_eq!(
            compare(&pair[1], &pair[0]),
            Ordering::Greater,
            "{} then {}",
            pair[0],
            pair[1]
        );
    }
    for pair in texts.windows(3) {
        assert_eq!(compare(&pair[2], &pair[0]), Ordering::Greater);
    }
}

#[test]
fn the_wire_form_is_what_the_design_says() {
    let universe = Universe::new("payments", ["uid-b".to_owned(), "uid-a".to_owned(), "uid-a".to_owned()]);
    assert_eq!(
        (universe.len(), universe.slot("uid-a"), universe.slot("uid-b")),
        (2, Some(0), Some(1))
    );
    assert_eq!(universe.slot("uid-c"), None);
    let text = cursor_of(&universe, &[Slot::At(734), Slot::Sync]).encode().unwrap();
    assert_eq!(
        &text[..text.len() - CHECK],
        format!("1{:010}000203734010", universe.epoch())
    );
    assert_eq!(Cursor::new(&Universe::new("", [])).encode().unwrap().len(), SHORTEST);
}

#[test]
fn the_second_wire_form_is_what_the_design_says() {
    let universe = at_revision(3, 4_711);
    let text = cursor_of(&universe, &[Slot::At(734), Slot::Sync, Slot::At(u64::MAX)])
        .encode()
        .unwrap();
    let expected = format!(
        "2{:010}000000471100030000000000000000073500000000000000000001{}",
        universe.epoch(),
        "18446744073709551616"
    );
    assert_eq!(text, format!("{expected}670338137"));
    let longest = cursor_of(&at_revision(180, 1), &[Slot::At(7); 180]).encode().unwrap();
    assert_eq!(longest.len(), 3_634);
    // Clients come back with it to routers of other builds.
    assert_eq!(universe.epoch(), 2_933_984_966);
}

#[test]
fn who_reads_a_cursor_is_told_which_view_is_newer() {
    let text = |revision| {
        cursor_of(&at_revision(2, revision), &[Slot::At(5), Slot::At(6)])
            .encode()
            .unwrap()
    };
    for (written, held, view) in [(7, 7, View::Same), (7, 8, View::Older(7)), (8, 7, View::Newer(8))] {
        let universe = at_revision(2, held);
        let (cursor, told) = Cursor::read(&text(written), &universe).unwrap();
        assert_eq!((cursor.slots(), told), (&[Slot::At(5), Slot::At(6)][..], view));
        let only = Cursor::decode(&text(written), &universe);
        assert_eq!(only.is_ok(), view == View::Same);
        assert!(only.is_ok() || only == Err(CursorError::OtherView(view)));
    }
    let universe = universe(2);
    for other in [
        universe.clone().identified("another", "hub", 7, Format::Two),
        universe.clone().identified("shard-uid", "another", 7, Format::Two),
        at_revision(3, 7),
        universe,
    ] {
        assert_eq!(Cursor::read(&text(7), &other).unwrap_err(), CursorError::WrongEpoch);
    }
}

#[test]
fn both_formats_are_read_and_the_one_told_is_written() {
    let of = |writes| universe(2).covering([(0, 1)]).identified("shard-uid", "hub", 7, writes);
    let (one, two) = (of(Format::One), of(Format::Two));
    let slots = [Slot::At(5), Slot::Sync];
    for (writer, reader) in [(&one, &two), (&two, &one)] {
        let text = cursor_of(writer, &slots).encode().unwrap();
        let read = Cursor::decode(&text, reader).unwrap();
        assert!(read.speaks_of(reader) && !read.speaks_of(writer));
        assert_eq!(read, cursor_of(reader, &slots), "it is written as the reader writes");
    }
    assert!(cursor_of(&one, &slots).encode().unwrap().starts_with('1'));
    assert!(cursor_of(&two, &slots).encode().unwrap().starts_with('2'));
    // The first knows no view but by its epoch.
    let other = universe(2)
        .covering([(0, 2)])
        .identified("shard-uid", "hub", 7, Format::Two);
    let text = cursor_of(&one, &slots).encode().unwrap();
    assert_eq!(Cursor::decode(&text, &other), Err(CursorError::WrongEpoch));
    // Nobody has told what the second is of.
    let text = cursor_of(&two, &slots).encode().unwrap();
    assert_eq!(
        Cursor::decode(&text, &universe(2).covering([(0, 1)])),
        Err(CursorError::WrongEpoch)
    );
}

#[test]
fn a_move_to_smaller_numbers_never_makes_it_shorter() {
    let text = |revision, slots: [Slot; 2]| cursor_of(&at_revision(2, revision), &slots).encode().unwrap();
    let large = text(7, [Slot::At(u64::MAX), Slot::Unasked]);
    let small = text(8, [Slot::Unasked, Slot::At(1)]);
    assert_eq!(compare(&small, &large), Ordering::Greater);
}

#[test]
fn version_zero_is_no_position() {
    let universe = universe(1);
    let cursor = cursor_of(&universe, &[Slot::At(0)]);
    assert_eq!(cursor.slot(0), Slot::Sync);
    assert_eq!(Cursor::decode(&cursor.encode().unwrap(), &universe), Ok(cursor));
}

#[test]
fn other_shards_and_other_members_are_told_apart() {
    let members = || ["a".to_owned(), "b".to_owned()];
    let universe = Universe::new("one", members());
    let text = Cursor::new(&universe).encode().unwrap();
    for other in [
        Universe::new("two", members()),
        Universe::new("one", ["a".to_owned()]),
        Universe::new("one", ["a".to_owned(), "c".to_owned()]),
        Universe::new("one", ["a".to_owned(), "b".to_owned(), "c".to_owned()]),
        Universe::new("", ["one".to_owned(), "a".to_owned(), "b".to_owned()]),
    ] {
        assert_eq!(Cursor::decode(&text, &other), Err(CursorError::WrongEpoch));
    }
    assert!(Cursor::decode(&text, &Universe::new("one", ["b".to_owned(), "a".to_owned()])).is_ok());
}

#[test]
fn other_shares_of_the_same_members_are_told_apart() {
    let of = |shares: &[(usize, u64)]| Universe::new("one", ["a".to_owned(), "b".to_owned()]).covering(shares.to_vec());
    let text = Cursor::new(&of(&[(0, 7), (1, 8)])).encode().unwrap();
    assert!(Cursor::decode(&text, &of(&[(1, 8), (0, 7)])).is_ok(), "in any order");
    for other in [&[(0, 7), (1, 9)][..], &[(0, 8), (1, 7)], &[(0, 7)], &[]] {
        assert_eq!(
            Cursor::decode(&text, &of(other)),
            Err(CursorError::WrongEpoch),
            "{other:?}"
        );
    }
    // Clients come back with it to routers of other builds.
    assert_eq!(of(&[(0, 7), (1, 8)]).epoch(), 2_082_159_245);
}

#[test]
fn what_is_no_cursor_is_called_so() {
    let universe = universe(1);
    for text in [
        "",
        "0",
        "abc",
        "12345678901234567890",
        "12345678901234567890123",
        "1234567890123456789012345x",
        "-1",
    ] {
        assert_eq!(Cursor::decode(text, &universe), Err(CursorError::NotACursor), "{text}");
    }
    let digits = |n: usize| "1".repeat(n);
    assert_eq!(Cursor::decode(&digits(24), &universe), Err(CursorError::Damaged));
    assert_eq!(Cursor::decode(&digits(4_000), &universe), Err(CursorError::Damaged));
    assert_eq!(Cursor::decode(&digits(4_001), &universe), Err(CursorError::TooLong));
    assert_eq!(
        Cursor::decode("１２３４５６７８９０１２３４５６７８９０１２３４５", &universe),
        Err(CursorError::NotACursor)
    );
}

#[test]
fn more_than_a_url_carries_is_refused() {
    let full = |members: usize| {
        let universe = universe(members);
        cursor_of(&universe, &vec![Slot::At(u64::MAX); members]).encode()
    };
    assert!(full(180).unwrap().len() <= LONGEST);
    assert_eq!(full(181), Err(CursorError::TooLong));
    assert_eq!(MOST_MEMBERS, 180);
    assert!(universe(180).has_room(180) && !universe(181).has_room(181));
    // One of many: the others' slots are empty.
    assert!(universe(1_000).has_room(1) && !universe(1_988).has_room(1));
    // Of fixed width all slots take room.
    let wide = |members: usize| cursor_of(&at_revision(members, 1), &[]).encode();
    assert!(wide(180).is_ok() && at_revision(180, 1).has_room(1));
    assert!(wide(181).is_err() && !at_revision(181, 1).has_room(1));
    assert!(Cursor::new(&at_revision(1, 10_000_000_000)).encode().is_err());
    assert_eq!(Cursor::new(&universe(10_000)).encode(), Err(CursorError::TooLong));
    assert_eq!(Cursor::new(&universe(1_989)).encode(), Err(CursorError::TooLong));
    assert!(Cursor::new(&universe(1_988)).encode().is_ok());
}
