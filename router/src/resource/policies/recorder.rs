//! What callers asked in the last minutes, as far as rules speak of it: to see what a policy would have refused before it is
//! applied.
//!
//! Records are appended to chunks, and the oldest chunk goes when there are too many, too many bytes, or when all in it are
//! too old. What a client sends that is longer than any name of Kubernetes is not recorded.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::decision::policy::Tick;
use crate::value::policy::{Asked, AskedResource};
use crate::value::snapshot::CallerKey;

/// Most records.
const MOST: usize = 65_536;
/// Most bytes of them.
const MOST_BYTES: usize = 16 << 20;
/// How far back they go, in nanoseconds.
const SPAN: u64 = 300_000_000_000;
/// Bytes of a chunk; one record may make it longer.
const CHUNK_BYTES: usize = 64 << 10;

/// All records of this router. A mutex: held to append some hundred bytes.
#[derive(Debug, Default)]
pub(super) struct Recorder(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    /// The oldest first. `Arc`: who reads them holds up no request.
    full: VecDeque<Arc<Chunk>>,
    open: Chunk,
    count: usize,
    bytes: usize,
}

/// Some records, one after another.
#[derive(Debug, Clone, Default)]
pub(super) struct Chunk {
    bytes: Vec<u8>,
    count: usize,
    /// When the last of them was.
    newest: Tick,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub(super) at: Tick,
    /// Home cluster and Pod uid.
    pub(super) caller: (&'a str, &'a str),
    verb: &'a str,
    /// Group, plural name and subresource.
    resource: Option<(&'a str, &'a str, Option<&'a str>)>,
    namespace: Option<&'a str>,
    clusters: Vec<&'a str>,
    election: bool,
}

impl Record<'_> {
    /// In the words of rules.
    pub(super) fn asked(&self) -> Asked<'_> {
        Asked {
            resource: self.resource.map(|(group, resource, subresource)| AskedResource {
                group,
                resource,
                subresource,
            }),
            verb: self.verb,
            namespace: self.namespace,
            clusters: &self.clusters,
            election: self.election,
        }
    }
}

impl Recorder {
    /// One more, now.
    pub(super) fn record(&self, caller: &CallerKey, asked: &Asked<'_>, now: Tick) {
        let mut ring = self.0.lock();
        let before = ring.open.bytes.len();
        if !ring.open.append(caller, asked, now) {
            ring.open.bytes.truncate(before);
            return;
        }
        ring.count += 1;
        ring.bytes += ring.open.bytes.len() - before;
        if ring.open.bytes.len() >= CHUNK_BYTES {
            let next = Chunk {
                bytes: Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 8),
                ..Chunk::default()
            };
            let full = std::mem::replace(&mut ring.open, next);
            ring.full.push_back(Arc::new(full));
            ring.drop_old(now);
        }
    }

    /// All of the last minutes, the oldest first, for [`Chunk::records`].
    pub(super) fn of_late(&self, now: Tick) -> Vec<Arc<Chunk>> {
        let mut ring = self.0.lock();
        ring.drop_old(now);
        let open = Arc::new(ring.open.clone());
        ring.full.iter().cloned().chain([open]).collect()
    }

    /// Records that are kept, and their bytes.
    pub(super) fn size(&self) -> (usize, usize) {
        let ring = self.0.lock();
        (ring.count, ring.bytes)
    }
}

impl Ring {
    fn drop_old(&mut self, now: Tick) {
        while let Some(oldest) = self.full.front() {
            let late = now.since(oldest.newest) <= SPAN;
            if late && self.count <= MOST && self.bytes <= MOST_BYTES {
                return;
            }
            self.count -= oldest.count;
            self.bytes -= oldest.bytes.len();
            self.full.pop_front();
        }
    }
}

/// What of a record may be absent, one bit each.
const ELECTION: u8 = 1;
const RESOURCE: u8 = 2;
const SUBRESOURCE: u8 = 4;
const NAMESPACE: u8 = 8;

impl Chunk {
    /// All of it that is not older than so long before `now`.
    pub(super) fn records(&self, now: Tick) -> impl Iterator<Item = Record<'_>> {
        let mut rest = &*self.bytes;
        let all = std::iter::from_fn(move || read(&mut rest));
        all.filter(move |record| now.since(record.at) <= SPAN)
    }

    /// False: it has a word that is too long, or too many members. Part of it may have been appended.
    fn append(&mut self, caller: &CallerKey, asked: &Asked<'_>, now: Tick) -> bool {
        let resource = asked.resource.as_ref();
        let subresource = resource.and_then(|of| of.subresource);
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = flag(asked.election, ELECTION)
            | flag(resource.is_some(), RESOURCE)
            | flag(subresource.is_some(), SUBRESOURCE)
            | flag(asked.namespace.is_some(), NAMESPACE);
        // A shard has fewer members, and names in Kubernetes have at most 253 bytes.
        let Ok(clusters) = u8::try_from(asked.clusters.len()) else {
            return false;
        };
        self.bytes.extend_from_slice(&now.nanoseconds().to_le_bytes());
        self.bytes.extend_from_slice(&[flags, clusters]);
        let words = [
            Some(&*caller.home_cluster),
            Some(&*caller.pod_uid),
            Some(asked.verb),
            resource.map(|of| of.group),
            resource.map(|of| of.resource),
            subresource,
            asked.namespace,
        ];
        for word in words.into_iter().flatten().chain(asked.clusters.iter().copied()) {
            let Ok(length) = u8::try_from(word.len()) else {
                return false;
            };
            self.bytes.push(length);
            self.bytes.extend_from_slice(word.as_bytes());
        }
        self.count += 1;
        self.newest = now;
        true
    }
}

/// The next record; `None` at the end.
fn read<'a>(rest: &mut &'a [u8]) -> Option<Record<'a>> {
    let (at, tail) = rest.split_first_chunk::<8>()?;
    let (&[flags, clusters], tail) = tail.split_first_chunk::<2>()?;
    *rest = tail;
    let has = |flag: u8| flags & flag != 0;
    let caller = (word(rest)?, word(rest)?);
    let verb = word(rest)?;
    let resource = if has(RESOURCE) {
        let (group, resource) = (word(rest)?, word(rest)?);
        let subresource = if has(SUBRESOURCE) { Some(word(rest)?) } else { None };
        Some((group, resource, subresource))
    } else {
        None
    };
    Some(Record {
        at: Tick::at(u64::from_le_bytes(*at)),
        caller,
        verb,
        resource,
        namespace: if has(NAMESPACE) { Some(word(rest)?) } else { None },
        clusters: (0..clusters).map(|_| word(rest)).collect::<Option<_>>()?,
        election: has(ELECTION),
    })
}

fn word<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let (length, tail) = rest.split_first()?;
    let (word, tail) = tail.split_at_checked((*length).into())?;
    *rest = tail;
    std::str::from_utf8(word).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(uid: &str) -> CallerKey {
        CallerKey {
            home_cluster: "east".into(),
            pod_uid: uid.into(),
        }
    }

    fn get<'a>(namespace: &'a str, clusters: &'a [&'a str]) -> Asked<'a> {
        Asked {
            resource: Some(AskedResource {
                group: "apps",
                resource: "deployments",
                subresource: Some("scale"),
            }),
            verb: "get",
            namespace: Some(namespace),
            clusters,
            election: false,
        }
    }

    fn count(recorder: &Recorder, now: Tick) -> usize {
        let late = recorder.of_late(now);
        late.iter().map(|chunk| chunk.records(now).count()).sum()
    }

    #[test]
    fn what_was_asked_is_read_back() {
        let recorder = Recorder::default();
        let nothing = Asked {
            resource: None,
            verb: "other",
            namespace: None,
            clusters: &[],
            election: true,
        };
        recorder.record(&caller("1"), &get("ns", &["east", "west"]), Tick::at(5));
        recorder.record(&caller("2"), &nothing, Tick::at(6));
        recorder.record(&caller("3"), &get(&"x".repeat(300), &[]), Tick::at(7));
        let late = recorder.of_late(Tick::at(8));
        let records: Vec<_> = late.iter().flat_map(|chunk| chunk.records(Tick::at(8))).collect();
        let first = Record {
            at: Tick::at(5),
            caller: ("east", "1"),
            verb: "get",
            resource: Some(("apps", "deployments", Some("scale"))),
            namespace: Some("ns"),
            clusters: vec!["east", "west"],
            election: false,
        };
        let second = Record {
            at: Tick::at(6),
            caller: ("east", "2"),
            verb: "other",
            resource: None,
            namespace: None,
            clusters: Vec::new(),
            election: true,
        };
        assert_eq!(records, [first, second], "and what no name can be is left out");
    }

    #[test]
    fn records_are_bounded_by_number_bytes_and_time() {
        let recorder = Recorder::default();
        let name = "n".repeat(200);
        for index in 0..400_000_u64 {
            let namespace = if index < 200_000 { "a" } else { &*name };
            recorder.record(&caller("1"), &get(namespace, &["east"]), Tick::at(index));
        }
        let now = Tick::at(400_000);
        let readable = count(&recorder, now);
        let (records, bytes) = recorder.size();
        assert!(
            records <= MOST + 2_000 && bytes <= MOST_BYTES + 2 * CHUNK_BYTES,
            "{records} {bytes}"
        );
        assert!(records > 40_000, "{records}");
        assert_eq!(readable, records);
        assert_eq!(count(&recorder, now.after(SPAN)), 0);
        assert!(recorder.size().0 < 1_000, "only what is in the open chunk");
    }
}
