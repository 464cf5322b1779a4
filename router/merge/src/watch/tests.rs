//! What random histories do not show: bytes that are not copied, bookmarks in a flush, memory, columns, bad members.

use std::collections::HashSet;
use std::sync::Arc;

use super::known::KnownObjects;
use super::leg::Leg;
use super::state::ResyncCause;
use super::*;
use crate::cursor::{Format, Slot, Universe};
use crate::filter::NamespaceFilter;

mod away;
mod columns;
mod incarnations;
mod memory;
mod order;
mod plain;
mod unions;

fn names(starts: &[Start]) -> Vec<String> {
    (0..starts.len()).map(|leg| format!("m{leg}")).collect()
}

fn legs(starts: &[Start]) -> Vec<WatchLeg> {
    let legs = names(starts).into_iter().zip(starts).enumerate();
    legs.map(|(slot, (name, start))| WatchLeg {
        cluster: name.into(),
        uid_hash: 0,
        slot,
        filter: None,
        request_hash: 0,
        share: None,
        selector_hash: 0,
        start: *start,
    })
    .collect()
}

fn merge(format: WatchFormat, starts: &[Start]) -> WatchMerge {
    let universe = Universe::new("shard", names(starts));
    WatchMerge::new(WatchSpec {
        format,
        bookmarks: true,
        initial_events: false,
        cursor: Cursor::new(&universe),
        legs: legs(starts),
        unique: false,
        cluster_column: format == WatchFormat::Table,
        known_objects: None,
    })
}

fn event(kind: &str, version: u64, pad: usize) -> String {
    let pad = "x".repeat(pad);
    format!(
        "{{\"type\":\"{kind}\",\"object\":{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{{\"name\":\"p\",\
         \"namespace\":\"ns\",\"uid\":\"u\",\"resourceVersion\":\"{version}\"}},\"spec\":\"{pad}\"}}}}\n"
    )
}

fn drain(out: &mut Output) -> Vec<Bytes> {
    std::iter::from_fn(|| out.pop()).collect()
}

fn bookmarks(chunks: &[Bytes]) -> usize {
    chunks
        .iter()
        .filter(|chunk| chunk.starts_with(b"{\"type\":\"BOOKMARK\""))
        .count()
}

#[test]
fn frames_of_one_chunk_go_out_as_one_slice_of_it() {
    let mut merge = merge(WatchFormat::Json, &[Start::At(1), Start::At(1)]);
    let mut out = Output::default();
    let chunk: Bytes = (2..12)
        .map(|version| event("MODIFIED", version, 0))
        .collect::<String>()
        .into();
    assert_eq!(merge.push(0, chunk.clone(), &mut out), Ok(None));
    merge.flush(&mut out);
    let sent = drain(&mut out);
    assert_eq!((sent.len(), bookmarks(&sent)), (2, 1));
    assert_eq!(
        (sent[0].as_ptr(), sent[0].len()),
        (chunk.as_ptr(), chunk.len()),
        "not copied"
    );
    merge.flush(&mut out);
    assert!(out.is_empty(), "nothing new, no bookmark");
    assert_eq!(merge.cursor().slots(), [Slot::At(11), Slot::At(1)]);
}

#[test]
fn a_large_flush_has_bookmarks_in_it() {
    for (pad, events, expected) in [(0, 640, 10), (16 * 1024, 10, 10), (1024, 32, 2)] {
        let mut merge = merge(WatchFormat::Json, &[Start::At(1)]);
        let mut out = Output::default();
        for version in 2..2 + events {
            merge.push(0, event("MODIFIED", version, pad).into(), &mut out).unwrap();
        }
        assert_eq!(bookmarks(&drain(&mut out)), expected, "{pad}");
    }
}

#[test]
fn an_idle_leg_costs_a_few_hundred_bytes() {
    assert!(size_of::<Leg>() <= 384, "{}", size_of::<Leg>());
    assert!(size_of::<WatchMerge>() <= 1024, "{}", size_of::<WatchMerge>());
}

#[test]
fn what_is_filtered_moves_the_cursor_and_is_not_worth_a_bookmark() {
    let mut merge = merge(WatchFormat::Json, &[Start::At(1)]);
    merge.legs[0].filter = Some(NamespaceFilter::only(Arc::new(HashSet::from([Arc::from("other")]))));
    let mut out = Output::default();
    merge.push(0, event("DELETED", 7, 0).into(), &mut out).unwrap();
    merge.flush(&mut out);
    assert!(out.is_empty());
    assert_eq!(merge.cursor().slot(0), Slot::At(7));
    merge.close(&mut out);
    assert_eq!(
        bookmarks(&drain(&mut out)),
        1,
        "a planned end tells where the client is"
    );
}

#[test]
fn members_that_speak_no_kubernetes_are_named() {
    let mut out = Output::default();
    for (bytes, fault) in [
        ("<html>\n".to_owned(), WatchFault::NotAnEvent),
        ("{\"type\":\"ADDED\"}\n".to_owned(), WatchFault::NotAnEvent),
        ("{\"type\":\"NEWS\",\"object\":{}}\n".to_owned(), WatchFault::NotAnEvent),
        (event("ADDED", 5, 0).replace("\"5\"", "\"v5\""), WatchFault::NoVersion),
    ] {
        let mut merge = merge(WatchFormat::Json, &[Start::At(1), Start::At(3)]);
        let error = merge.push(1, bytes.into(), &mut out).unwrap_err();
        assert_eq!((&*error.cluster, error.fault), ("m1", fault));
        let start = Start::At(3);
        assert_eq!(merge.lost(1), Act::Restart { leg: 1, start });
    }
    let mut merge = merge(WatchFormat::Protobuf, &[Start::At(1)]);
    let error = merge.push(0, Bytes::from_static(&[0xff; 5]), &mut out).unwrap_err();
    assert_eq!(error.fault, WatchFault::TooLarge);
}

#[test]
fn history_that_goes_back_is_no_history() {
    let mut merge = merge(WatchFormat::Json, &[Start::At(10)]);
    let act = merge.push(0, event("MODIFIED", 9, 0).into(), &mut Output::default());
    assert!(matches!(act, Ok(Some(Act::Expired { .. }))), "{act:?}");
}

fn row(version: u64, columns: Option<&str>, cells: &str) -> String {
    format!(
        "{{\"type\":\"ADDED\",\"object\":{{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":\
         {{\"resourceVersion\":\"{version}\"}},\"columnDefinitions\":{},\"rows\":[{{\"cells\":{cells},\"object\":{{\
         \"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{{\"name\":\"p\",\
         \"namespace\":\"ns\",\"uid\":\"u\",\"resourceVersion\":\"{version}\"}}}}}}]}}}}\n",
        columns.unwrap_or("null")
    )
}

#[test]
fn the_client_sees_columns_once_and_all_cells_under_them() {
    let mut merge = merge(WatchFormat::Table, &[Start::At(1), Start::At(1)]);
    let mut out = Output::default();
    let ours = r#"[{"name":"Name","type":"string"},{"name":"Age","type":"string"}]"#;
    let theirs = r#"[{"name":"Age","type":"string"},{"name":"New","type":"string"},{"name":"Name","type":"string"}]"#;
    merge
        .push(0, row(2, Some(ours), r#"["a","1s"]"#).into(), &mut out)
        .unwrap();
    merge
        .push(1, row(2, Some(theirs), r#"["2s",true,"b"]"#).into(), &mut out)
        .unwrap();
    merge.push(0, row(3, None, r#"["c","3s"]"#).into(), &mut out).unwrap();
    let seen: Vec<serde_json::Value> = drain(&mut out)
        .iter()
        .map(|chunk| serde_json::from_slice(chunk).unwrap())
        .collect();
    let names: Vec<_> = seen[0]["object"]["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .collect();
    assert_eq!(
        names.iter().map(|column| &column["name"]).collect::<Vec<_>>(),
        ["Name", "Age", "Cluster"]
    );
    assert!(
        seen[1..]
            .iter()
            .all(|event| event["object"]["columnDefinitions"].is_null())
    );
    let cells: Vec<_> = seen.iter().map(|event| &event["object"]["rows"][0]["cells"]).collect();
    assert_eq!(
        cells,
        [
            &serde_json::json!(["a", "1s", "m0"]),
            &serde_json::json!(["b", "2s", "m1"]),
            &serde_json::json!(["c", "3s", "m0"])
        ]
    );
}

fn bookmark(version: u64, end: bool) -> String {
    let marker = if end {
        ",\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}"
    } else {
        ""
    };
    format!(
        "{{\"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":\
         {{\"resourceVersion\":\"{version}\"{marker}}}}}}}\n"
    )
}

#[test]
fn idle_members_together_make_no_more_bookmarks_than_one() {
    let mut merge = merge(WatchFormat::Json, &[Start::At(1); 5]);
    let mut out = Output::default();
    let mut seen = 0;
    for round in 0..10 {
        for leg in 0..5 {
            merge.push(leg, bookmark(10 + round, false).into(), &mut out).unwrap();
            merge.flush(&mut out);
            seen += bookmarks(&drain(&mut out));
        }
    }
    // The first comes before all members have shown that they are there.
    assert!((10..=11).contains(&seen), "{seen}");
}

#[test]
fn who_is_through_waits_for_the_others() {
    let mut merge = merge(WatchFormat::Json, &[Start::Sync; 2]);
    merge.barrier = Barrier::new(true);
    let mut out = Output::default();
    let both = event("ADDED", 3, 0) + &bookmark(5, true) + &event("MODIFIED", 6, 0);
    merge.push(0, both.into(), &mut out).unwrap();
    merge.flush(&mut out);
    assert!(merge.paused(0) && !merge.paused(1));
    let before = drain(&mut out).concat();
    assert_eq!(
        before,
        event("ADDED", 3, 0).as_bytes(),
        "what came behind the marker is held"
    );
    merge.push(1, bookmark(9, true).into(), &mut out).unwrap();
    let after = drain(&mut out);
    assert!(!merge.paused(0));
    assert!(memchr::memmem::find(&after[0], b"initial-events-end").is_some());
    assert_eq!(after[1], event("MODIFIED", 6, 0).as_bytes());
}

#[test]
fn a_marker_that_cannot_be_written_is_not_waited_for() {
    let mut merge = merge(WatchFormat::Json, &[Start::Sync; 200]);
    merge.barrier = Barrier::new(true);
    let mut out = Output::default();
    let acts = (0..200).map(|leg| merge.push(leg, bookmark(u64::MAX, true).into(), &mut out).unwrap());
    let last = acts.last().flatten();
    assert!(matches!(last, Some(Act::Expired { .. })), "{last:?}");
}

#[test]
fn a_marker_is_no_place_to_resume_from_if_something_left_before_it() {
    let mut merge = merge(WatchFormat::Json, &[Start::Sync]);
    merge.barrier = Barrier::new(true);
    merge.legs[0].known = Some(Box::new(KnownObjects::new(None)));
    let mut out = Output::default();
    merge.push(0, event("ADDED", 3, 0).into(), &mut out).unwrap();
    assert_eq!(
        merge.lost(0),
        Act::Restart {
            leg: 0,
            start: Start::Sync
        }
    );
    merge.push(0, bookmark(5, true).into(), &mut out).unwrap();
    merge.flush(&mut out);
    let sent = drain(&mut out);
    let slot = |frame: &[u8]| {
        let event: serde_json::Value = serde_json::from_slice(frame).unwrap();
        let cursor = event["object"]["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .to_owned();
        Cursor::decode(&cursor, &Universe::new("shard", ["m0".to_owned()])).map(|cursor| cursor.slot(0))
    };
    assert_eq!(
        slot(&sent[1]),
        Ok(Slot::At(1)),
        "else the DELETED behind it would be lost with it"
    );
    assert!(sent[2].starts_with(b"{\"type\":\"DELETED\""));
    assert_eq!(slot(&sent[3]), Ok(Slot::At(5)));
}

/// `event` of another object, whose uid is `<name>-<uid>`.
fn named(kind: &str, name: &str, uid: &str, version: u64) -> String {
    event(kind, version, 0)
        .replace("\"name\":\"p\"", &format!("\"name\":\"{name}\""))
        .replace("\"uid\":\"u\"", &format!("\"uid\":\"{name}-{uid}\""))
}

#[test]
fn what_has_left_is_no_event_for_who_reads_whole_objects() {
    for (metadata, told) in [("Pod", false), ("PartialObjectMetadata", true)] {
        let mut merge = merge(WatchFormat::Json, &[Start::Sync]).of_whole_objects();
        merge.legs[0].known = Some(Box::new(KnownObjects::new(None)));
        let mut out = Output::default();
        let kind = |frames: String| frames.replace("\"Pod\"", &format!("\"{metadata}\""));
        let both = named("ADDED", "a", "1", 3) + &named("ADDED", "b", "1", 4) + &bookmark(5, true);
        merge.push(0, kind(both).into(), &mut out).unwrap();
        // Its member tells of it itself, whole.
        merge
            .push(0, kind(named("DELETED", "b", "1", 6)).into(), &mut out)
            .unwrap();
        let gone = event("ERROR", 1, 0).replace("\"metadata\"", "\"code\":410,\"metadata\"");
        merge.push(0, gone.into(), &mut out).unwrap();
        let act = merge.push(0, kind(bookmark(9, true)).into(), &mut out).unwrap();
        assert_eq!((act, merge.has_untold()), (None, !told), "{metadata}");
        merge.flush(&mut out);
        merge.expire_untold();
        let cause = match merge.next_act() {
            Some(Act::Expired { cause, .. }) => Some(cause),
            _ => None,
        };
        assert_eq!(cause, (!told).then_some(Expiry::Metadata), "{metadata}");
        let sent = drain(&mut out);
        let deleted = sent.iter().filter(|frame| frame.starts_with(b"{\"type\":\"DELETED\""));
        assert_eq!(deleted.count(), 1 + usize::from(told), "{metadata}");
        assert_eq!(bookmarks(&sent), usize::from(told), "none behind what was not told");
    }
}

#[test]
fn what_left_at_one_version_is_no_place_to_resume_from() {
    let mut merge = merge(WatchFormat::Json, &[Start::Sync]);
    merge.legs[0].known = Some(Box::new(KnownObjects::new(None)));
    let mut out = Output::default();
    let both = named("ADDED", "a", "1", 3) + &named("ADDED", "b", "1", 4) + &bookmark(5, true);
    merge.push(0, both.into(), &mut out).unwrap();
    let gone = event("ERROR", 1, 0).replace("\"metadata\"", "\"code\":410,\"metadata\"");
    let start = Start::Sync;
    assert_eq!(
        merge.push(0, gone.into(), &mut out).unwrap(),
        Some(Act::Restart { leg: 0, start })
    );
    merge.push(0, bookmark(9, true).into(), &mut out).unwrap();
    let sent = drain(&mut out);
    let deleted = sent.iter().filter(|frame| frame.starts_with(b"{\"type\":\"DELETED\""));
    assert_eq!(deleted.count(), 2);
    assert_eq!(merge.sent().resume(9), None, "the client may have read one of them");
}

#[test]
fn a_page_of_a_list_is_kept_as_far_as_it_is_the_callers_and_fits() {
    let merge = merge(WatchFormat::Json, &[Start::At(9)]);
    let item = |name: &str| {
        format!(r#"{{"metadata":{{"name":"{name}","namespace":"ns","uid":"{name}","resourceVersion":"7"}}}}"#)
    };
    let page = |items: String, token: &str| {
        let meta = format!(r#"{{"resourceVersion":"9","continue":"{token}"}}"#);
        format!(
            r#"{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{meta},"items":{items}}}"#
        )
    };
    let mut listing = merge.listing(0);
    let two = page(format!("[{},{}]", item("a"), item("b")), "more");
    assert_eq!(listing.page(two.as_bytes()), Ok(Some("more".to_owned())));
    assert_eq!(listing.page(page("null".to_owned(), "").as_bytes()), Ok(None));
    for none in ["<html>", "{}", r#"{"metadata":{}}"#, r#"{"items":[{"metadata":{}}]}"#] {
        assert_eq!(listing.page(none.as_bytes()), Err(ListingFault::NotAList), "{none}");
    }
}

#[test]
fn what_came_is_asked_for_alone_where_it_has_a_name() {
    let share = |names: &[&str]| {
        let names = names.iter().map(|name| Arc::from(*name));
        Some(NamespaceFilter::only(Arc::new(names.collect())))
    };
    let universe = Universe::new("shard", ["m0".to_owned()]);
    let mut merge = merge(WatchFormat::Json, &[Start::At(5)]);
    merge.legs[0].filter = share(&["ns"]);
    merge.legs[0].share = share(&["ns"]);
    merge.legs.keep_memory(Budget::new(10_000));
    let spec = |names: &[&str]| WatchLeg {
        cluster: "m0".into(),
        uid_hash: 0,
        slot: 0,
        filter: share(names),
        share: share(names),
        request_hash: 0,
        selector_hash: 0,
        start: Start::Sync,
    };
    let mut out = Output::default();
    let asked = |acts: Vec<Act>| match acts.as_slice() {
        [Act::Restart { start, .. }] => *start,
        acts => panic!("{acts:?}"),
    };
    let acts = merge.replan(&universe, vec![spec(&["ns", "more"])], &mut out);
    assert_eq!(asked(acts), Start::Came(5), "as of where the stream stands");
    assert_eq!(merge.selects_only(0).as_deref(), Some("metadata.namespace=more"));
    let act = merge.reads_what_came_by_watching(0);
    assert_eq!(
        asked(act.into_iter().collect()),
        Start::Sync,
        "its member does not list so"
    );
    assert!(merge.is_changing(0) && !merge.is_catching_up(0));
    let act = merge.push(0, bookmark(9, true).into(), &mut out).unwrap();
    assert_eq!(asked(act.into_iter().collect()), Start::At(5));
    assert!(merge.is_changing(0) && merge.is_catching_up(0) && merge.selects_only(0).is_none());
    merge.push(0, bookmark(9, false).into(), &mut out).unwrap();
    assert!(!merge.is_changing(0) && !merge.is_catching_up(0));
    let acts = merge.replan(&universe, vec![spec(&["more"])], &mut out);
    assert_eq!(asked(acts), Start::Exact(9), "what the client holds in it is not known");
    assert_eq!(
        merge.selects_only(0).as_deref(),
        Some("metadata.namespace=ns"),
        "what left"
    );
    assert_eq!(
        merge.lost(0),
        Act::Restart {
            leg: 0,
            start: Start::Exact(9)
        }
    );
}

#[test]
#[ignore = "prints numbers"]
fn speed() {
    const EVENTS: u64 = 200_000;
    for (name, known) in [("no known", None), ("known", Some(Budget::new(1 << 30)))] {
        for pad in [100, 3_000] {
            let mut merge = merge(WatchFormat::Json, &[Start::Sync; 5]);
            for leg in &mut merge.legs.all {
                leg.state = LegState::Live;
                leg.known = known.clone().map(|budget| Box::new(KnownObjects::new(Some(budget))));
            }
            let frames: Vec<Bytes> = (2..2 + EVENTS)
                .map(|at| event("MODIFIED", at, pad).into())
                .take(1000)
                .collect();
            let mut out = Output::default();
            let mut spent = std::time::Duration::ZERO;
            for round in 0..EVENTS / 1000 {
                for leg in &mut merge.legs.all {
                    leg.start = Start::Sync;
                }
                merge.legs.cursor = Cursor::new(&Universe::new("shard", (0..5).map(|leg| format!("m{leg}"))));
                let began = std::time::Instant::now();
                for frame in &frames {
                    merge
                        .push(usize::try_from(round % 5).unwrap(), frame.clone(), &mut out)
                        .unwrap();
                    merge.flush(&mut out);
                    while out.pop().is_some() {}
                }
                spent += began.elapsed();
            }
            println!(
                "{name}, {pad} bytes: {:?} per event with its bookmark",
                spent / u32::try_from(EVENTS).unwrap()
            );
        }
    }
}

#[test]
fn positions_of_members_that_are_not_asked_outlive_a_replan() {
    let universe = |revision| {
        let uids = ["m0", "m1"].map(str::to_owned);
        Universe::new("shard", uids).identified("shard", "hub", revision, Format::Two)
    };
    let leg = |slot: usize| legs(&[Start::At(5); 2]).swap_remove(slot);
    let mut cursor = Cursor::new(&universe(1));
    cursor.set(0, Slot::At(5));
    cursor.set(1, Slot::At(9));
    let mut merge = WatchMerge::new(WatchSpec {
        format: WatchFormat::Json,
        bookmarks: true,
        initial_events: false,
        cursor,
        legs: vec![leg(0)],
        unique: false,
        cluster_column: false,
        known_objects: None,
    });
    let mut out = Output::default();
    let before = merge.cursor().encode().unwrap();
    assert_eq!(merge.replan(&universe(1), vec![leg(0)], &mut out), []);
    assert_eq!(merge.cursor().encode().unwrap(), before, "it never goes back");
    assert_eq!(merge.replan(&universe(2), vec![leg(0)], &mut out), []);
    assert_eq!(merge.cursor().slots(), [Slot::At(5), Slot::At(9)]);
    // Of a member that is asked from now on the client has nothing of this collection.
    let acts = merge.replan(&universe(3), vec![leg(0), leg(1)], &mut out);
    let start = Start::Sync;
    assert_eq!(acts, [Act::Restart { leg: 1, start }]);
    assert_eq!(merge.cursor().slots(), [Slot::At(5), Slot::Sync]);
}
