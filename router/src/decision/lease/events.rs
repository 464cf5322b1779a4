//! A watch of the leader-election Lease: its bytes, in any cut → whole events with the client's name.
//!
//! An event that cannot be read passes as it is, like any answer. Called by `dispatch`, chunk by chunk.

use bytes::{Buf as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Names, json, proto};
use crate::value::object::Encoding;
use crate::value::object::protobuf::replace;
use crate::value::snapshot::LeaseName;

/// One event: a Lease is some kilobytes.
const MAX_EVENT_BYTES: usize = 8 << 20;
/// Before each event in protobuf.
const LENGTH: usize = 4;
/// `metav1.WatchEvent`: the object, a `runtime.RawExtension`.
const EVENT_OBJECT: u64 = 2;
const EXTENSION_RAW: u64 = 1;

/// Follows one watch.
#[derive(Debug)]
pub(crate) struct Events {
    lease: LeaseName,
    encoding: Encoding,
    /// The beginning of an event.
    rest: BytesMut,
}

/// As members write it.
#[derive(Deserialize, Serialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

impl Events {
    /// `None` for a stream whose events cannot be told apart.
    pub(crate) fn new(lease: &LeaseName, content_type: Option<&str>) -> Option<Self> {
        let encoding = Encoding::of(content_type).filter(|encoding| *encoding != Encoding::Yaml)?;
        Some(Self {
            lease: lease.clone(),
            encoding,
            rest: BytesMut::new(),
        })
    }

    /// The events that end in `chunk`, which may be none. `None`: one is too large.
    pub(crate) fn push(&mut self, chunk: &[u8]) -> Option<Bytes> {
        self.rest.extend_from_slice(chunk);
        let mut out = Vec::new();
        while let Some(length) = self.length() {
            if length > MAX_EVENT_BYTES {
                return None;
            }
            if length > self.rest.len() {
                break;
            }
            let event = self.rest.split_to(length);
            out.extend(self.rename(&event).unwrap_or_else(|| event.to_vec()));
        }
        if self.rest.is_empty() {
            // An idle watch holds no buffer.
            self.rest = BytesMut::new();
        }
        (self.rest.len() <= MAX_EVENT_BYTES).then(|| out.into())
    }

    /// Of the next event, with its delimiter, as far as it is known.
    fn length(&self) -> Option<usize> {
        if self.encoding != Encoding::Protobuf {
            return memchr::memchr(b'\n', &self.rest).map(|at| at + 1);
        }
        let mut head = self.rest.get(..LENGTH)?;
        usize::try_from(head.get_u32()).ok()?.checked_add(LENGTH)
    }

    fn rename(&self, event: &[u8]) -> Option<Vec<u8>> {
        let names = Names {
            from: &self.lease.member,
            to: &self.lease.client,
        };
        if self.encoding != Encoding::Protobuf {
            let mut event: Event = serde_json::from_slice(event).ok()?;
            json::rename(&names, &mut event.object);
            let mut line = serde_json::to_vec(&event).ok()?;
            line.push(b'\n');
            return Some(line);
        }
        let raw = |number, raw: &[u8]| (number == EXTENSION_RAW).then(|| proto::rename(&names, raw)).flatten();
        let object = |number, object: &[u8]| (number == EVENT_OBJECT).then(|| replace(object, raw)).flatten();
        let renamed = replace(event.get(LENGTH..)?, object)?;
        let length = u32::try_from(renamed.len()).ok()?.to_be_bytes();
        Some([&length[..], &renamed].concat())
    }
}
