//! Lists: the answer does not depend on cuts, what is cut is no list, and what comes out can be read.

use std::collections::VecDeque;

use bytes::Bytes;
use portolan_merge::list::{ListError, ListFault, ListFormat, ListLeg, ListMerge, ListOptions, MergedMeta, Wants};
use serde_json::Value;

use crate::input::{Flags, pieces};

const MAX_ITEM: usize = 64 << 10;

/// A member's JSON list or Table.
pub fn json_list(data: &[u8]) {
    let (flags, body) = Flags::split(data);
    let format = if flags.third() {
        ListFormat::Table
    } else {
        ListFormat::Json
    };
    let Some(merged) = merged(format, flags, body) else {
        return;
    };
    let Ok(given) = serde_json::from_slice::<Value>(body) else {
        return;
    };
    let read: Value = serde_json::from_slice(&merged).expect("a list of what is JSON is JSON");
    for array in ["items", "rows"] {
        let (Some(given), Some(read)) = (given[array].as_array(), read[array].as_array()) else {
            continue;
        };
        let copies = if flags.second() { 2 } else { 1 };
        if flags.filtered() || format == ListFormat::Table {
            assert!(read.len() <= given.len() * copies);
        } else {
            assert!(
                read.iter().eq(std::iter::repeat_n(given, copies).flatten()),
                "the union"
            );
        }
    }
}

/// A member's protobuf list.
pub fn protobuf_list(data: &[u8]) {
    let (flags, body) = Flags::split(data);
    let Some(merged) = merged(ListFormat::Protobuf, flags, body) else {
        return;
    };
    let again = merge(ListFormat::Protobuf, Flags(0), vec![VecDeque::from([merged.clone()])]);
    assert_eq!(
        again.as_ref(),
        Ok(&merged),
        "what comes out is a list, and merging it changes nothing"
    );
    if flags.filtered() || flags.second() {
        return;
    }
    for end in [merged.len() / 2, merged.len() - 5] {
        let cut = merge(
            ListFormat::Protobuf,
            Flags(0),
            vec![VecDeque::from([merged.slice(..end)])],
        );
        assert_eq!(cut.err().map(|error| error.fault), Some(ListFault::Cut));
    }
}

/// Merged in one piece and in many, once or with itself.
fn merged(format: ListFormat, flags: Flags, body: &[u8]) -> Option<Bytes> {
    let legs = if flags.second() { 2 } else { 1 };
    let whole = || VecDeque::from([Bytes::copy_from_slice(body)]);
    let whole = merge(format, flags, (0..legs).map(|_| whole()).collect());
    let cut = merge(
        format,
        flags,
        (0..legs).map(|_| pieces(body, flags.piece()).collect()).collect(),
    );
    match (whole, cut) {
        (Ok(whole), Ok(cut)) => {
            assert_eq!(whole, cut, "cuts change nothing");
            Some(whole)
        }
        (Err(_), Err(_)) => None,
        (whole, cut) => panic!("whole {whole:?}, cut {cut:?}"),
    }
}

fn merge(format: ListFormat, flags: Flags, mut bodies: Vec<VecDeque<Bytes>>) -> Result<Bytes, ListError> {
    let leg = |_: &VecDeque<Bytes>| ListLeg {
        cluster: "east".into(),
        filter: flags.filter(),
    };
    let options = ListOptions {
        unique: false,
        cluster_column: true,
        hide_objects: false,
        max_item_bytes: MAX_ITEM,
    };
    let mut merge = ListMerge::new(format, bodies.iter().map(leg).collect(), options);
    let mut out = VecDeque::new();
    loop {
        match merge.wants() {
            Wants::Leg(leg) => match bodies[leg].pop_front() {
                Some(piece) => merge.push(leg, piece, &mut out)?,
                None => merge.end(leg, &mut out)?,
            },
            Wants::Meta => {
                let resource_version = "1".repeat(24);
                let continue_ = None;
                merge.set_meta(
                    MergedMeta {
                        shard_selector: None,
                        remaining: None,
                        resource_version,
                        continue_,
                    },
                    &mut out,
                )?;
            }
            Wants::Done => return Ok(out.into_iter().flatten().collect()),
        }
    }
}
