//! The events in the bytes of a watch, however they are cut: where each ends, whether it is a bookmark, and the last bookmark.

use bytes::{Bytes, BytesMut};

use crate::value::event_boundary::EventBoundary;
use crate::value::media::Media;

/// A bookmark has a version, a kind and some annotations; of one that is larger nothing is kept.
const LARGEST_BOOKMARK: usize = 64 << 10;
/// How API servers, and the merge core, begin a bookmark: the type comes first, without white space.
const JSON: &[u8] = b"{\"type\":\"BOOKMARK\"";
/// Field 1, eight bytes long, behind the length of the event.
const PROTOBUF: &[u8] = b"\x0a\x08BOOKMARK";
/// Of the length before each event in protobuf.
const LENGTH: usize = 4;

/// Follows one stream.
#[derive(Debug)]
pub(super) struct Scan {
    boundary: EventBoundary,
    /// The beginning of the event under way, as much as tells what it is.
    head: Vec<u8>,
    /// The event under way, as long as it may be a bookmark that is to be kept.
    gathered: Option<BytesMut>,
    last_bookmark: Option<Bytes>,
}

impl Scan {
    pub(super) fn new(boundary: EventBoundary) -> Self {
        Self {
            boundary,
            head: Vec::new(),
            gathered: None,
            last_bookmark: None,
        }
    }

    /// A stream whose events cannot be told apart is between two anywhere.
    pub(super) fn is_between(&self) -> bool {
        self.boundary == EventBoundary::Unknown || self.boundary.is_between_events()
    }

    /// In what format an event of our own is to be; `None`: no event can be put between others.
    pub(super) fn format(&self) -> Option<Media> {
        (self.boundary != EventBoundary::Unknown).then(|| self.boundary.format())
    }

    pub(super) fn last_bookmark(&self) -> Option<&Bytes> {
        self.last_bookmark.as_ref()
    }

    /// How much of these bytes is of the event under way; all, if it does not end with them.
    pub(super) fn event(&self, data: &[u8]) -> usize {
        self.boundary.first_end(data).unwrap_or(data.len())
    }

    /// These bytes, of one event, are handed on. True if an event ended with them that is no bookmark. `keep`: the last
    /// bookmark is wanted.
    pub(super) fn pass(&mut self, data: &[u8], keep: bool) -> bool {
        if self.boundary == EventBoundary::Unknown {
            return false;
        }
        if self.boundary.is_between_events() {
            self.head.clear();
            self.gathered = keep.then(BytesMut::new);
        }
        let wanted = self.mark().len() + self.prefix();
        let missing = wanted.saturating_sub(self.head.len()).min(data.len());
        self.head.extend_from_slice(&data[..missing]);
        let may_be = self.may_be_bookmark();
        if let Some(gathered) = &mut self.gathered {
            if may_be && gathered.len() + data.len() <= LARGEST_BOOKMARK {
                gathered.extend_from_slice(data);
            } else {
                self.gathered = None;
            }
        }
        self.boundary.pass(data);
        if !self.boundary.is_between_events() {
            return false;
        }
        let bookmark = may_be && self.head.len() == wanted;
        if bookmark && let Some(whole) = self.gathered.take() {
            self.last_bookmark = Some(whole.freeze());
        }
        !bookmark
    }

    /// These bytes are handed on, of any number of events.
    pub(super) fn pass_unread(&mut self, data: &[u8]) {
        self.head.clear();
        self.gathered = None;
        self.boundary.pass(data);
    }

    fn mark(&self) -> &'static [u8] {
        match self.boundary.format() {
            Media::Json => JSON,
            Media::Protobuf => PROTOBUF,
        }
    }

    fn prefix(&self) -> usize {
        match self.boundary.format() {
            Media::Json => 0,
            Media::Protobuf => LENGTH,
        }
    }

    fn may_be_bookmark(&self) -> bool {
        let begun = self.head.get(self.prefix()..).unwrap_or_default();
        self.mark().starts_with(begun)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http::header::CONTENT_TYPE;
    use proptest::prelude::*;

    use super::*;

    fn of(kind: &str) -> Scan {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, kind.parse().unwrap());
        Scan::new(EventBoundary::of(&headers))
    }

    fn json(bookmark: bool, text: &str) -> Vec<u8> {
        let kind = if bookmark { "BOOKMARK" } else { "ADDED" };
        format!("{{\"type\":\"{kind}\",\"object\":\"{text}\"}}\n").into_bytes()
    }

    fn protobuf(bookmark: bool, text: &str) -> Vec<u8> {
        let kind: &[u8] = if bookmark { PROTOBUF } else { b"\x0a\x05ADDED" };
        let event = [kind, text.as_bytes()].concat();
        [&u32::try_from(event.len()).unwrap().to_be_bytes()[..], &event].concat()
    }

    proptest! {
        #[test]
        fn events_and_bookmarks_are_told_apart_however_they_are_cut(
            events in proptest::collection::vec((any::<bool>(), "[a-z]{0,30}"), 0..12),
            cuts in proptest::collection::vec(1_usize..25, 1..40),
        ) {
            for (kind, write) in [
                ("application/json", json as fn(bool, &str) -> Vec<u8>),
                ("application/vnd.kubernetes.protobuf;stream=watch", protobuf),
            ] {
                let mut scan = of(kind);
                let written: Vec<_> = events.iter().map(|(bookmark, text)| write(*bookmark, text)).collect();
                let whole = Bytes::from(written.concat());
                let (mut at, mut counted) = (0, 0);
                for cut in cuts.iter().cycle() {
                    if at == whole.len() {
                        break;
                    }
                    let mut chunk = whole.slice(at..(at + cut).min(whole.len()));
                    at += chunk.len();
                    while !chunk.is_empty() {
                        let piece = chunk.split_to(scan.event(&chunk));
                        counted += u64::from(scan.pass(&piece, true));
                    }
                }
                prop_assert!(scan.is_between());
                prop_assert_eq!(counted, events.iter().filter(|(bookmark, _)| !bookmark).count() as u64);
                let last = events.iter().zip(&written).rfind(|((bookmark, _), _)| *bookmark);
                prop_assert_eq!(scan.last_bookmark().map(|last| &**last), last.map(|(_, event)| &**event));
            }
        }
    }

    #[test]
    fn nothing_is_between_events_that_cannot_be_told_apart() {
        let mut scan = of("application/cbor");
        assert!(scan.is_between() && scan.format().is_none());
        assert!(!scan.pass(b"anything", true));
        assert_eq!(scan.event(b"anything"), 8);
    }
}
