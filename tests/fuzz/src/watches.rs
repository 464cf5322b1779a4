//! Watch streams: what goes out does not depend on cuts, and is made of whole frames.

use bytes::Bytes;
use portolan_merge::cursor::Cursor;
use portolan_merge::watch::{Output, Start, WatchFormat, WatchLeg, WatchMerge, WatchSpec};
use serde_json::Value;

use crate::cursors::universe;
use crate::input::{Flags, pieces};

/// A member's stream of JSON events.
pub fn watch_frames(data: &[u8]) {
    let (flags, stream) = Flags::split(data);
    let merged = merged(WatchFormat::Json, flags, stream);
    let lines = |stream: &[u8]| -> Option<Vec<Value>> {
        let lines = stream.split_inclusive(|byte| *byte == b'\n');
        lines
            .filter(|line| line.ends_with(b"\n") && !line.trim_ascii().is_empty())
            .map(|line| serde_json::from_slice(line).ok())
            .collect()
    };
    assert!(merged.is_empty() || merged.ends_with(b"\n"), "whole frames");
    if lines(stream).is_none() {
        return;
    }
    for event in lines(&merged).expect("events of what is JSON are JSON") {
        if event["type"] == "BOOKMARK" {
            let version = event["object"]["metadata"]["resourceVersion"]
                .as_str()
                .unwrap_or_default();
            assert!(
                Cursor::decode(version, &universe(2)).is_ok(),
                "bookmarks carry cursors: {event}"
            );
        }
    }
}

/// A member's stream of protobuf events.
pub fn watch_envelopes(data: &[u8]) {
    let (flags, stream) = Flags::split(data);
    let mut merged = &merged(WatchFormat::Protobuf, flags, stream)[..];
    while let Some((length, rest)) = merged.split_first_chunk::<4>() {
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap();
        merged = rest.get(length..).expect("whole frames");
    }
    assert!(merged.is_empty(), "whole frames");
}

fn merged(format: WatchFormat, flags: Flags, stream: &[u8]) -> Vec<u8> {
    let whole = merge(format, flags, std::iter::once(Bytes::copy_from_slice(stream)));
    let cut = merge(format, flags, pieces(stream, flags.piece()));
    assert_eq!(whole, cut, "cuts change nothing");
    whole
}

/// Up to where the member errs or something else must be done.
fn merge(format: WatchFormat, flags: Flags, stream: impl Iterator<Item = Bytes>) -> Vec<u8> {
    let universe = universe(2);
    let mut cursor = Cursor::new(&universe);
    cursor.set(0, portolan_merge::cursor::Slot::At(7));
    let mut merge = WatchMerge::new(WatchSpec {
        format,
        bookmarks: true,
        initial_events: flags.third(),
        cursor,
        legs: vec![WatchLeg {
            cluster: "east".into(),
            uid_hash: 0,
            slot: 1,
            filter: flags.filter(),
            share: None,
            request_hash: 0,
            selector_hash: 0,
            start: if flags.third() { Start::Sync } else { Start::At(5) },
        }],
        unique: flags.second(),
        cluster_column: false,
        known_objects: None,
    });
    let mut out = Output::default();
    for piece in stream {
        if !matches!(merge.push(0, piece, &mut out), Ok(None)) {
            break;
        }
    }
    merge.close(&mut out);
    std::iter::from_fn(|| out.pop()).flatten().collect()
}
