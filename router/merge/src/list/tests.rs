//! Lists are cut at random places, merged, and read back by decoders that know nothing of the merge.

mod json;
mod protobuf;
mod speed;
mod table;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::*;

pub(super) const LIMIT: usize = 1 << 20;

pub(super) fn options() -> ListOptions {
    ListOptions {
        unique: false,
        cluster_column: false,
        hide_objects: false,
        max_item_bytes: LIMIT,
    }
}

pub(super) fn only(namespaces: &[&str]) -> NamespaceFilter {
    let names: HashSet<Arc<str>> = namespaces.iter().map(|name| Arc::from(*name)).collect();
    NamespaceFilter::only(Arc::new(names))
}

/// A leg's body, in pieces.
pub(super) struct Body {
    pub(super) pieces: VecDeque<Bytes>,
    pub(super) filter: Option<NamespaceFilter>,
}

impl Body {
    /// Cut behind each of these shares of it.
    pub(super) fn cut(body: impl Into<Bytes>, cuts: &[u16]) -> Self {
        let mut body: Bytes = body.into();
        let mut pieces = VecDeque::new();
        for cut in cuts {
            let at = body.len() * usize::from(*cut) / (usize::from(u16::MAX) * 2);
            pieces.push_back(body.split_to(at));
        }
        pieces.push_back(body);
        Self { pieces, filter: None }
    }

    pub(super) fn whole(body: impl Into<Bytes>) -> Self {
        Self::cut(body, &[])
    }

    pub(super) fn bytewise(body: &[u8]) -> Self {
        Self {
            pieces: body.iter().map(|byte| Bytes::copy_from_slice(&[*byte])).collect(),
            filter: None,
        }
    }

    pub(super) fn only(self, namespaces: &[&str]) -> Self {
        Self {
            filter: Some(only(namespaces)),
            ..self
        }
    }
}

pub(super) struct Merged {
    pub(super) body: Vec<u8>,
    pub(super) metas: Vec<Option<LegMeta>>,
    pub(super) collisions: u64,
    pub(super) pieces: usize,
}

/// Drives a merge as the router does.
pub(super) fn merge(format: ListFormat, options: ListOptions, mut bodies: Vec<Body>) -> Result<Merged, ListError> {
    let leg = |(index, body): (usize, &Body)| ListLeg {
        cluster: format!("c{index}").into(),
        filter: body.filter.clone(),
    };
    let mut merge = ListMerge::new(format, bodies.iter().enumerate().map(leg).collect(), options);
    let mut out = VecDeque::new();
    let mut metas = Vec::new();
    loop {
        match merge.wants() {
            Wants::Leg(leg) => match bodies[leg].pieces.pop_front() {
                Some(piece) => merge.push(leg, piece, &mut out)?,
                None => merge.end(leg, &mut out)?,
            },
            Wants::Meta => {
                metas = merge.metas().to_vec();
                merge.set_meta(meta(), &mut out)?;
            }
            Wants::Done => break,
        }
    }
    assert!(bodies.iter().all(|body| body.pieces.is_empty()), "all was read");
    Ok(Merged {
        pieces: out.len(),
        body: out.into_iter().flatten().collect(),
        metas,
        collisions: merge.collisions(),
    })
}

pub(super) fn meta() -> MergedMeta {
    MergedMeta {
        remaining: None,
        shard_selector: None,
        resource_version: "1000000000000000000000000".to_owned(),
        continue_: Some("to\"ken".to_owned()),
    }
}

#[test]
fn a_shard_selector_is_echoed_if_all_members_have_kept_to_it() {
    let json = |info: &str| {
        format!(r#"{{"kind":"L","apiVersion":"v1","metadata":{{"resourceVersion":"7"{info}}},"items":[]}}"#)
    };
    let meta = |info: &str| {
        let merged = merge(ListFormat::Json, options(), vec![Body::whole(json(info))]);
        merged.unwrap().metas[0].clone()
    };
    let (kept, other, none) = (
        meta(r#","shardInfo":{"selector":"a"}"#),
        meta(r#","shardInfo":{"selector":"b"}"#),
        meta(""),
    );
    assert_eq!(kept.as_ref().unwrap().shard_selector.as_deref(), Some("a"));
    let echoed =
        |metas: &[&Option<LegMeta>]| shard_selector(&metas.iter().map(|meta| (*meta).clone()).collect::<Vec<_>>());
    assert_eq!(echoed(&[&kept, &kept]).as_deref(), Some("a"));
    for metas in [
        vec![&kept, &other],
        vec![&kept, &none],
        vec![&none, &kept],
        vec![&kept, &None],
        vec![],
    ] {
        assert_eq!(echoed(&metas), None);
    }
    // In both encodings.
    let sharded = MergedMeta {
        shard_selector: Some("a\"".to_owned()),
        ..meta_of("7")
    };
    let written = |format, body: Vec<u8>| {
        let leg = ListLeg {
            cluster: "c".into(),
            filter: None,
        };
        let (mut merge, mut out) = (ListMerge::new(format, vec![leg], options()), VecDeque::new());
        merge.push(0, body.into(), &mut out).unwrap();
        if merge.wants() == Wants::Leg(0) {
            merge.end(0, &mut out).unwrap();
        }
        merge.set_meta(sharded.clone(), &mut out).unwrap();
        if merge.wants() == Wants::Leg(0) {
            merge.end(0, &mut out).unwrap();
        }
        out.into_iter().flatten().collect::<Vec<u8>>()
    };
    let text = String::from_utf8(written(ListFormat::Json, json("").into())).unwrap();
    assert!(text.contains(r#""shardInfo":{"selector":"a\""}"#), "{text}");
    let kind = TypeMeta {
        api_version: "v1".to_owned(),
        kind: "PodList".to_owned(),
    };
    let head = super::protobuf::write_head(&kind, &sharded, 0).unwrap();
    let whole = [head, super::protobuf::TAIL.to_vec()].concat();
    let read = merge(ListFormat::Protobuf, options(), vec![Body::whole(whole)]).unwrap();
    assert_eq!(read.metas[0].as_ref().unwrap().shard_selector, sharded.shard_selector);
}

fn meta_of(version: &str) -> MergedMeta {
    MergedMeta {
        resource_version: version.to_owned(),
        ..MergedMeta::default()
    }
}
