//! A member's API server for one resource: a revisioned store, its history, compaction, and watches on it.

use std::collections::{BTreeMap, BTreeSet};

use portolan_merge::watch::{Start, WatchFormat};

use crate::wirefmt::{Object, error, frame};

#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) version: u64,
    /// What selectors of the caller see.
    pub(crate) shown: bool,
}

pub(crate) type Key = (String, String);

/// One change: the object before and after.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    version: u64,
    before: Option<Stored>,
    after: Option<Stored>,
}

#[derive(Debug, Default)]
pub(crate) struct Member {
    pub(crate) objects: BTreeMap<Key, Stored>,
    pub(crate) history: Vec<Change>,
    pub(crate) version: u64,
    pub(crate) compacted: u64,
    /// Its version when the shard was configured last: what was before is nobody's to see.
    pub(crate) configured: u64,
    pub(crate) up: bool,
    /// Knows no watch-list: it sends no marker, whatever it is asked.
    pub(crate) plain: bool,
    /// Counts restarts: streams of an earlier one are dead.
    pub(crate) epoch: u32,
}

/// What a watch is asked for beside its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Namespaces by label; `None`: all.
    pub(crate) namespaces: Option<BTreeSet<String>>,
    /// Objects that are `shown` only.
    pub(crate) selector: bool,
}

impl Asked {
    fn fits(&self, object: &Stored) -> bool {
        let place = self
            .namespaces
            .as_ref()
            .is_none_or(|all| all.contains(&object.namespace));
        place && (object.shown || !self.selector)
    }
}

/// How a server begins a watch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Serves {
    /// A marker also if it was not asked for in so many words.
    pub(crate) marker: bool,
    /// Its cache is so many versions behind, if it has that history. What came since is told before the marker.
    pub(crate) behind: u64,
}

impl Serves {
    pub(crate) const NOW: Self = Self {
        marker: false,
        behind: 0,
    };
}

/// What a list is asked for.
#[derive(Debug)]
pub(crate) struct ListAsked {
    pub(crate) limit: Option<usize>,
    pub(crate) token: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) exact: bool,
    /// Its cache is so many versions behind; matters where any version will do.
    pub(crate) behind: u64,
}

/// A page of a list.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) items: Vec<Stored>,
    pub(crate) version: u64,
    pub(crate) token: Option<String>,
}

/// One open watch: how far it is, and bytes on their way.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) bytes: Vec<u8>,
    position: u64,
    /// The marker is due when the stream is there; its server's cache was behind when it began.
    marks_at: Option<u64>,
    asked: Asked,
    epoch: u32,
    /// Ends when `bytes` are read.
    pub(crate) ended: bool,
    headed: bool,
    format: WatchFormat,
}

impl Member {
    pub(crate) fn write(&mut self, key: &Key, after: Option<Stored>) -> u64 {
        self.version += 1;
        let before = self.objects.remove(key);
        let after = after.map(|object| Stored {
            version: self.version,
            ..object
        });
        if let Some(object) = &after {
            self.objects.insert(key.clone(), object.clone());
        }
        self.history.push(Change {
            version: self.version,
            before,
            after,
        });
        self.version
    }

    /// Others write too: versions have gaps.
    pub(crate) fn skip(&mut self, versions: u64) {
        self.version += versions;
    }

    pub(crate) fn compact(&mut self, to: u64) {
        self.compacted = self.compacted.max(to.min(self.version));
        self.history.retain(|change| change.version > self.compacted);
    }

    /// It is as it was at a version that is not compacted; streams are cut.
    pub(crate) fn restore(&mut self, version: u64) {
        let version = version.max(self.compacted).max(2);
        self.objects = self.objects_at(version);
        self.history.retain(|change| change.version <= version);
        self.version = version;
        self.configured = version;
        self.epoch += 1;
    }

    /// A list, in the order of keys. The error is an expiry, for a token with one to go on with at the newest version.
    pub(crate) fn list(&self, of: &Asked, asked: &ListAsked) -> Result<Page, Option<String>> {
        let token = asked.token.as_deref().map(|token| token.split_once('|').unwrap());
        let oldest = self.compacted.max(self.configured);
        let (version, after) = match (token, asked.version.as_deref()) {
            (Some(("", after)), _) => (self.version, Some(after)),
            (Some((version, after)), _) => (version.parse().unwrap(), Some(after)),
            // A limit means nothing to a cache.
            (None, Some("0")) => (self.version.saturating_sub(asked.behind).max(oldest), None),
            (None, Some(version)) if asked.exact => (version.parse().unwrap(), None),
            (None, _) => (self.version, None),
        };
        if version < self.compacted {
            return Err(after.map(|after| format!("|{after}")));
        }
        let key = |object: &Stored| format!("{}/{}", object.namespace, object.name);
        let objects = self.objects_at(version).into_values().filter(|object| of.fits(object));
        let mut items: Vec<Stored> = objects
            .filter(|object| after.is_none_or(|after| *key(object) > *after))
            .collect();
        let more = asked.limit.is_some_and(|limit| limit < items.len());
        items.truncate(asked.limit.unwrap_or(items.len()));
        Ok(Page {
            token: items
                .last()
                .filter(|_| more)
                .map(|last| format!("{version}|{}", key(last))),
            items,
            version,
        })
    }

    /// What there was at a version that is not compacted.
    pub(crate) fn objects_at(&self, version: u64) -> BTreeMap<Key, Stored> {
        let mut objects = self.objects.clone();
        for change in self.history.iter().rev().filter(|change| change.version > version) {
            if let Some(after) = &change.after {
                objects.remove(&(after.namespace.clone(), after.name.clone()));
            }
            if let Some(before) = &change.before {
                objects.insert((before.namespace.clone(), before.name.clone()), before.clone());
            }
        }
        objects
    }

    pub(crate) fn watch(&self, format: WatchFormat, start: Start, asked: Asked, serves: Serves) -> Stream {
        let mut stream = Stream {
            bytes: Vec::new(),
            position: self.version,
            marks_at: None,
            asked,
            epoch: self.epoch,
            ended: false,
            headed: false,
            format,
        };
        match start {
            Start::At(version) if version < self.compacted => stream.fail(410, "Expired"),
            Start::At(version) if version > self.version => stream.fail(504, "Timeout"),
            Start::At(version) => stream.position = version,
            Start::Came(version) if version < self.compacted => stream.fail(410, "Expired"),
            Start::Came(version) => {
                stream.position = version;
                for object in self.objects_at(version).values() {
                    if stream.asked.fits(object) {
                        stream.event("ADDED", object, object.version);
                    }
                }
                // No watch: nothing follows.
                stream.mark(true);
                stream.ended = true;
            }
            Start::Any | Start::Recent | Start::Sync | Start::Exact(_) => {
                stream.position = self
                    .version
                    .saturating_sub(serves.behind)
                    .max(self.compacted)
                    .max(self.configured);
                for object in self.objects_at(stream.position).values() {
                    if stream.asked.fits(object) {
                        stream.event("ADDED", object, object.version);
                    }
                }
                let consistent = start != Start::Any;
                if !self.plain && (start == Start::Sync || serves.marker) {
                    stream.marks_at = Some(if consistent { self.version } else { stream.position });
                    stream.mark_end();
                }
            }
        }
        stream
    }

    /// What happened since goes into the stream.
    pub(crate) fn feed(&self, stream: &mut Stream) {
        if stream.ended || stream.epoch != self.epoch {
            stream.ended = true;
            return;
        }
        if stream.position < self.compacted && self.version > stream.position {
            // Too slow: its cache has moved on.
            return stream.fail(410, "Expired");
        }
        let from = stream.position;
        for change in self.history.iter().filter(|change| change.version > from) {
            if stream.marks_at.is_some_and(|at| at < change.version) {
                stream.position = change.version - 1;
                stream.mark_end();
            }
            let before = change.before.as_ref().filter(|object| stream.asked.fits(object));
            let after = change.after.as_ref().filter(|object| stream.asked.fits(object));
            match (before, after) {
                (None, Some(object)) => stream.event("ADDED", object, change.version),
                (Some(_), Some(object)) => stream.event("MODIFIED", object, change.version),
                (Some(object), None) => stream.event("DELETED", object, change.version),
                (None, None) => {}
            }
        }
        stream.position = self.version;
        stream.mark_end();
    }
}

impl Stream {
    fn event(&mut self, kind: &str, object: &Stored, version: u64) {
        let object = Object {
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            uid: object.uid.clone(),
            version: version.to_string(),
            end: false,
        };
        self.put(kind, &object);
    }

    fn put(&mut self, kind: &str, object: &Object) {
        let columns = !std::mem::replace(&mut self.headed, true);
        self.bytes.extend(frame(self.format, kind, object, columns));
    }

    fn mark_end(&mut self) {
        if self.marks_at.is_some_and(|at| at <= self.position) {
            self.marks_at = None;
            self.mark(true);
        }
    }

    /// A bookmark; the first of a stream that is to have one is the marker.
    pub(crate) fn mark(&mut self, end: bool) {
        let object = Object {
            namespace: String::new(),
            name: String::new(),
            uid: String::new(),
            version: self.position.to_string(),
            end,
        };
        if self.position > 0 && !self.ended && self.marks_at.is_none() {
            self.put("BOOKMARK", &object);
        }
    }

    pub(crate) fn fail(&mut self, code: u16, reason: &str) {
        if !self.ended {
            self.bytes.extend(error(self.format, code, reason));
            self.ended = true;
        }
    }
}
