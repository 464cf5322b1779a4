//! What is remembered of objects, where all watches share the room for it.

use super::plain::push;
use super::*;

const OBJECTS: [&str; 3] = ["a", "b", "c"];

fn page() -> String {
    let item =
        |name| format!(r#"{{"metadata":{{"name":"{name}","namespace":"ns","uid":"{name}","resourceVersion":"7"}}}}"#);
    format!(r#"{{"metadata":{{}},"items":[{}]}}"#, OBJECTS.map(item).join(","))
}

/// A watch that was gone on with and is mended after its member forgot where it stood.
fn mended(memory: &Budget) -> WatchMerge {
    let mut merge = merge(WatchFormat::Json, &[Start::At(9)]);
    merge.legs.keep_memory(memory.clone());
    let mut out = Output::default();
    let gone = "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410}}\n".to_owned();
    let (acts, _) = push(&mut merge, 0, gone, &mut out);
    let start = Start::Exact(9);
    assert_eq!(acts, [Act::Restart { leg: 0, start }]);
    let mut listing = merge.listing(0);
    listing.page(page().as_bytes()).expect("room for what one watch holds");
    let start = Start::Sync;
    assert_eq!(merge.listed(0, listing, &mut out), Some(Act::Restart { leg: 0, start }));
    let there = OBJECTS.map(|name| plain::named("ADDED", name, 7)).concat() + &bookmark(12, true);
    let (acts, said) = push(&mut merge, 0, there, &mut out);
    assert!(acts.is_empty() && !said.contains("ADDED"), "{acts:?} {said}");
    merge
}

#[test]
fn what_was_mended_leaves_room_for_who_is_mended_next() {
    let memory = Budget::new(1024);
    let watches: Vec<WatchMerge> = (0..9).map(|_| mended(&memory)).collect();
    let remembering = watches
        .iter()
        .filter(|merge| merge.leg_state(0).known_objects.is_some());
    assert!(memory.used() <= 512 && remembering.count() == 1, "{}", memory.used());
}

#[test]
fn what_grows_while_it_runs_gives_way_too() {
    let memory = Budget::new(1024);
    let mut merge = mended(&memory);
    assert_eq!(merge.leg_state(0).known_objects, Some(OBJECTS.len()));
    let mut out = Output::default();
    for (version, name) in (20_u64..).zip(["d", "e", "f"]) {
        push(&mut merge, 0, plain::named("ADDED", name, version), &mut out);
    }
    assert_eq!((merge.leg_state(0).known_objects, memory.used()), (None, 0));
}
