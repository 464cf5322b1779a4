//! What callers asked in the last minutes, as far as rules speak of it: to see what a policy would have refused before it is
//! applied.
//!
//! Each caller has a ring of its own, so that a busy one pushes out its own records alone: two chunks, of which the older
//! goes when the newer is full. All rings have so many bytes together, of which each may have the same part; a router with more
//! callers keeps less of each. What a client sends that is longer than any name of Kubernetes is not recorded. Recording is a
//! look-up and some bytes copied: hardly anybody ever asks for them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::DashMap;
use parking_lot::Mutex;

use crate::decision::policy::Tick;
use crate::value::policy::{Asked, AskedResource};
use crate::value::snapshot::CallerKey;

/// Most bytes of all records.
const MOST_BYTES: usize = 16 << 20;
/// Most bytes of the records of one caller.
const MOST_EACH: usize = 2 << 20;
/// Bytes of a chunk at first.
const FIRST_BYTES: usize = 256;
/// How far back records go, in nanoseconds.
const SPAN: u64 = 300_000_000_000;

/// All records of this router.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    // Sharded locks, and in them a mutex for each caller: held to append some hundred bytes.
    rings: DashMap<CallerKey, Mutex<Ring>>,
    callers: AtomicUsize,
    /// Bytes that rings have reserved.
    bytes: AtomicUsize,
}

/// The records of one caller.
#[derive(Debug, Default)]
struct Ring {
    /// `Arc`: who reads it holds up no request.
    older: Arc<Chunk>,
    newer: Chunk,
}

/// Some records, one after another.
#[derive(Debug, Clone, Default)]
struct Chunk {
    bytes: Vec<u8>,
    count: usize,
    /// When the last of them was.
    newest: Tick,
}

/// All records of late.
pub(super) struct Late(Vec<(CallerKey, [Arc<Chunk>; 2])>);

/// One request of a caller's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub(super) at: Tick,
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
        let bytes = if let Some(ring) = self.rings.get(caller) {
            self.append(&mut ring.lock(), asked, now)
        } else {
            let ring = self.rings.entry(caller.clone()).or_insert_with(|| {
                self.callers.fetch_add(1, Ordering::Relaxed);
                Mutex::default()
            });
            self.append(&mut ring.lock(), asked, now)
        };
        if bytes > MOST_BYTES {
            self.make_room();
        }
    }

    /// All of the last minutes.
    pub(super) fn of_late(&self, now: Tick) -> Late {
        let rings = self.rings.iter().map(|entry| {
            let mut ring = entry.value().lock();
            self.resized(&mut ring, |ring| ring.forget(now));
            let chunks = [ring.older.clone(), Arc::new(ring.newer.clone())];
            (entry.key().clone(), chunks)
        });
        Late(rings.collect())
    }

    /// Records of the last minutes that are kept, and the bytes of all that are.
    pub(super) fn size(&self, now: Tick) -> (usize, usize) {
        let counts = self.rings.iter().map(|entry| {
            let mut ring = entry.value().lock();
            self.resized(&mut ring, |ring| ring.forget(now));
            ring.older.count + ring.newer.count
        });
        (counts.sum(), self.bytes.load(Ordering::Relaxed))
    }

    /// Forgets all other callers.
    pub(super) fn keep(&self, is_known: impl Fn(&CallerKey) -> bool) {
        self.rings.retain(|caller, ring| {
            let known = is_known(caller);
            if !known {
                self.bytes.fetch_sub(ring.get_mut().bytes(), Ordering::Relaxed);
                self.callers.fetch_sub(1, Ordering::Relaxed);
            }
            known
        });
    }

    /// Returns the bytes of all rings.
    fn append(&self, ring: &mut Ring, asked: &Asked<'_>, now: Tick) -> usize {
        let half = self.part() / 2;
        self.resized(ring, |ring| ring.append(asked, half, now))
    }

    fn resized(&self, ring: &mut Ring, change: impl FnOnce(&mut Ring)) -> usize {
        let before = ring.bytes();
        change(ring);
        let after = ring.bytes();
        if after == before {
            return 0;
        }
        // What is added and taken away sums up to what there is; in between it may wrap.
        let all = self.bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        all.wrapping_add(after).wrapping_sub(before)
    }

    /// Bytes that each caller may have.
    fn part(&self) -> usize {
        MOST_EACH.min(MOST_BYTES / self.callers.load(Ordering::Relaxed).max(1))
    }

    /// There are more callers than when rings grew: those that are over their part now give away what is older.
    fn make_room(&self) {
        let part = self.part();
        for ring in &self.rings {
            // Some more than is needed: the next record is not to begin anew with it.
            if self.bytes.load(Ordering::Relaxed) <= MOST_BYTES / 8 * 7 {
                return;
            }
            self.resized(&mut ring.value().lock(), |ring| ring.shrink(part));
        }
    }
}

impl Ring {
    /// `half`: bytes of one of the two chunks.
    fn append(&mut self, asked: &Asked<'_>, half: usize, now: Tick) {
        let Some(length) = length(asked).filter(|length| *length <= half) else {
            return;
        };
        if self.newer.bytes.len() + length > half {
            let full = std::mem::take(&mut self.newer);
            self.older = Arc::new(full);
        }
        self.newer.reserve(length, half);
        self.newer.append(asked, now);
    }

    /// Drops what is too old.
    fn forget(&mut self, now: Tick) {
        if self.older.count > 0 && now.since(self.older.newest) > SPAN {
            self.older = Arc::default();
        }
        if self.newer.count > 0 && now.since(self.newer.newest) > SPAN {
            self.newer = Chunk::default();
        }
    }

    /// Drops what is older until it has so many bytes at most.
    fn shrink(&mut self, most: usize) {
        if self.bytes() > most {
            self.older = Arc::default();
        }
        if self.bytes() > most {
            self.newer = Chunk::default();
        }
    }

    fn bytes(&self) -> usize {
        self.older.bytes.capacity() + self.newer.bytes.capacity()
    }
}

impl Late {
    /// Tells all records in the order in which they came.
    pub(super) fn each(&self, now: Tick, mut tell: impl FnMut(&CallerKey, &Record<'_>)) {
        let rings = self.0.iter().map(|(_, chunks)| chunks.iter());
        let rings = rings.map(|chunks| chunks.flat_map(|chunk| chunk.records(now)).peekable());
        let mut rest: Vec<_> = rings.collect();
        let mut next = BinaryHeap::new();
        for (index, records) in rest.iter_mut().enumerate() {
            next.extend(records.peek().map(|record| Reverse((record.at, index))));
        }
        while let Some(Reverse((_, index))) = next.pop() {
            let Some(record) = rest[index].next() else { continue };
            tell(&self.0[index].0, &record);
            next.extend(rest[index].peek().map(|record| Reverse((record.at, index))));
        }
    }
}

/// What of a record may be absent, one bit each.
const ELECTION: u8 = 1;
const RESOURCE: u8 = 2;
const SUBRESOURCE: u8 = 4;
const NAMESPACE: u8 = 8;

/// All words of a request, but for those that it does not have.
fn words<'a>(asked: &'a Asked<'_>) -> impl Iterator<Item = &'a str> {
    let resource = asked.resource.as_ref();
    let words = [
        Some(asked.verb),
        resource.map(|of| of.group),
        resource.map(|of| of.resource),
        resource.and_then(|of| of.subresource),
        asked.namespace,
    ];
    words.into_iter().flatten().chain(asked.clusters.iter().copied())
}

/// Bytes of its record; `None`: it has a word that is too long, or too many members. A shard has fewer, and names in Kubernetes
/// have at most 253 bytes.
fn length(asked: &Asked<'_>) -> Option<usize> {
    u8::try_from(asked.clusters.len()).ok()?;
    let mut length = 8 + 2;
    for word in words(asked) {
        u8::try_from(word.len()).ok()?;
        length += 1 + word.len();
    }
    Some(length)
}

impl Chunk {
    /// All of it that is not older than so long before `now`.
    fn records(&self, now: Tick) -> impl Iterator<Item = Record<'_>> {
        let mut rest = &*self.bytes;
        let all = std::iter::from_fn(move || read(&mut rest));
        all.filter(move |record| now.since(record.at) <= SPAN)
    }

    /// Makes room for so many bytes more, and for some more of them while it has less than `most`.
    fn reserve(&mut self, length: usize, most: usize) {
        let needed = self.bytes.len() + length;
        let capacity = self.bytes.capacity();
        if needed > capacity {
            let wanted = (capacity * 2).max(FIRST_BYTES).min(most).max(needed);
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
    }

    /// Of a request whose [`length`] is known.
    fn append(&mut self, asked: &Asked<'_>, now: Tick) {
        let resource = asked.resource.as_ref();
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = flag(asked.election, ELECTION)
            | flag(resource.is_some(), RESOURCE)
            | flag(resource.is_some_and(|of| of.subresource.is_some()), SUBRESOURCE)
            | flag(asked.namespace.is_some(), NAMESPACE);
        let byte = |length: usize| u8::try_from(length).unwrap_or(u8::MAX);
        self.bytes.extend_from_slice(&now.nanoseconds().to_le_bytes());
        self.bytes.extend_from_slice(&[flags, byte(asked.clusters.len())]);
        for word in words(asked) {
            self.bytes.push(byte(word.len()));
            self.bytes.extend_from_slice(word.as_bytes());
        }
        self.count += 1;
        self.newest = now;
    }
}

/// The next record; `None` at the end.
fn read<'a>(rest: &mut &'a [u8]) -> Option<Record<'a>> {
    let (at, tail) = rest.split_first_chunk::<8>()?;
    let (&[flags, clusters], tail) = tail.split_first_chunk::<2>()?;
    *rest = tail;
    let has = |flag: u8| flags & flag != 0;
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

    /// Each record, by the uid of its caller.
    fn all(recorder: &Recorder, now: Tick) -> Vec<(String, Tick)> {
        let mut all = Vec::new();
        recorder
            .of_late(now)
            .each(now, |caller, record| all.push((caller.pod_uid.to_string(), record.at)));
        all
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
        let first = Record {
            at: Tick::at(5),
            verb: "get",
            resource: Some(("apps", "deployments", Some("scale"))),
            namespace: Some("ns"),
            clusters: vec!["east", "west"],
            election: false,
        };
        let second = Record {
            at: Tick::at(6),
            verb: "other",
            resource: None,
            namespace: None,
            clusters: Vec::new(),
            election: true,
        };
        let mut expected = vec![("1", first), ("2", second)].into_iter();
        recorder.of_late(Tick::at(8)).each(Tick::at(8), |caller, record| {
            let (uid, of) = expected.next().expect("what no name can be is left out");
            assert_eq!((&*caller.pod_uid, record), (uid, &of));
        });
        assert!(expected.next().is_none());
    }

    #[test]
    fn records_of_all_callers_are_read_in_the_order_of_time() {
        let recorder = Recorder::default();
        for at in 0..3_000_u64 {
            let uid = (at * 7 % 11).to_string();
            recorder.record(&caller(&uid), &get("ns", &["east"]), Tick::at(at));
        }
        let all = all(&recorder, Tick::at(3_000));
        let expected = (0..3_000_u64).map(|at| ((at * 7 % 11).to_string(), Tick::at(at)));
        assert!(all.into_iter().eq(expected));
    }

    #[test]
    fn a_busy_caller_pushes_out_nobody_elses_records() {
        let recorder = Recorder::default();
        for uid in 0..100 {
            recorder.record(&caller(&uid.to_string()), &get("ns", &["east"]), Tick::at(uid));
        }
        let name = "n".repeat(200);
        for at in 100..400_000_u64 {
            recorder.record(&caller("busy"), &get(&name, &["east"]), Tick::at(at));
        }
        let now = Tick::at(400_000);
        let all = all(&recorder, now);
        let busy = all.iter().filter(|(uid, _)| uid == "busy").count();
        assert_eq!(all.len() - busy, 100);
        assert!(busy > 300, "{busy}");
        assert_eq!(all.last().unwrap().1, Tick::at(399_999), "the newest are kept");
        assert!(recorder.size(now).1 <= MOST_BYTES);
    }

    #[test]
    fn records_are_bounded_by_number_of_callers_bytes_and_time() {
        let recorder = Recorder::default();
        let name = "n".repeat(200);
        let mut at = 0;
        // Few callers fill it; then come more and more.
        for callers in [1_u64, 8, 100, 3_000] {
            for round in 0..600_000 / callers.max(20) {
                for uid in 0..callers {
                    at += 1;
                    let uid = caller(&uid.to_string());
                    recorder.record(
                        &uid,
                        &get(if round % 2 == 0 { "a" } else { &name }, &["east"]),
                        Tick::at(at),
                    );
                }
            }
            let (records, bytes) = recorder.size(Tick::at(at));
            assert!(bytes <= MOST_BYTES, "{callers}: {bytes}");
            let held: usize = recorder.rings.iter().map(|ring| ring.lock().bytes()).sum();
            assert_eq!(bytes, held, "{callers}");
            assert_eq!(all(&recorder, Tick::at(at)).len(), records);
            assert!(
                recorder.rings.iter().all(|ring| ring.lock().newer.count > 0),
                "{callers}"
            );
        }
        let later = Tick::at(at).after(SPAN + 1);
        assert_eq!(recorder.size(later), (0, 0));
        recorder.record(&caller("1"), &get("a", &[]), later);
        recorder.keep(|caller| &*caller.pod_uid != "1");
        assert_eq!(recorder.size(later), (0, 0));
        assert_eq!(recorder.callers.load(Ordering::Relaxed), recorder.rings.len());
    }
}
