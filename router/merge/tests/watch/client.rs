//! A client's cache, and the laws that every event must keep.

use std::collections::{BTreeMap, BTreeSet};

use portolan_merge::cursor::is_cursor;
use portolan_merge::watch::WatchFormat;

use crate::dice::Dice;
use crate::member::Key;
use crate::truth::Truth;
use crate::wirefmt::{Seen, decode, take};

/// uid and version of what a client holds.
pub(crate) type Cache = BTreeMap<Key, (String, u64)>;

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// client-go's reflector: watch-list into a new store, swapped at the marker.
    WatchList,
    /// client-go's reflector and kube-rs: list, then watch.
    ListWatch,
    /// Python's default: never asks for bookmarks.
    NoBookmarks,
    /// Takes what a watch without a version begins with for a list.
    WatchOnly,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) manner: Manner,
    format: WatchFormat,
    pub(crate) cache: Cache,
    /// A watch-list under way: what becomes the cache at the marker.
    pub(crate) listing: bool,
    /// Where it would resume; `None`: it must list.
    pub(crate) resume: Option<String>,
    /// The version of its last list: it may ask for what is not older.
    pub(crate) last_listed: Option<String>,
    /// What it held, and from where it would have resumed, after each event of its connection.
    past: Vec<(Cache, String)>,
    pub(crate) remembers: bool,
    read: Vec<u8>,
    last_cursor: Option<String>,
    /// Resumed from before what it has seen: the marker of a watch-list in which something left. Holds until it lists: it may
    /// lose its connection, and resume, in the middle of what it is told again.
    pub(crate) replay: bool,
    /// It was told DELETED since it listed, perhaps before what happened earlier.
    pub(crate) told_gone: bool,
    /// Resumed with a cursor of an older view: of what came and went since it may be told that it is gone.
    pub(crate) came_and_went: bool,
    /// Of these namespaces, whose owner changed since its view, it may be told what it has been told already.
    pub(crate) retold: BTreeSet<String>,
    pub(crate) bookmarks: usize,
    pub(crate) events: usize,
}

impl Client {
    pub(crate) fn new(manner: Manner, format: WatchFormat) -> Self {
        Self {
            manner,
            format,
            cache: BTreeMap::new(),
            listing: false,
            resume: None,
            last_listed: None,
            past: Vec::new(),
            remembers: false,
            read: Vec::new(),
            last_cursor: None,
            replay: false,
            told_gone: false,
            came_and_went: false,
            retold: BTreeSet::new(),
            bookmarks: 0,
            events: 0,
        }
    }

    /// A list answered.
    pub(crate) fn list(&mut self, objects: Cache, version: String) {
        self.cache = objects;
        self.last_cursor = None;
        self.last_listed = Some(version.clone());
        self.resume = Some(version);
    }

    /// It looks at something else, of which it holds this.
    pub(crate) fn move_to(&mut self, objects: Cache) {
        self.cache = objects;
        self.last_listed = None;
    }

    /// A new connection.
    pub(crate) fn connect(&mut self) {
        self.read.clear();
        self.past.clear();
        let anew = self.resume.is_none();
        self.retold.clear();
        self.replay &= !anew;
        self.told_gone &= !anew;
        self.came_and_went &= !anew;
        self.listing = anew && self.manner == Manner::WatchList;
        if anew {
            self.cache.clear();
            self.last_cursor = None;
        }
    }

    pub(crate) fn read(&mut self, bytes: &[u8], truth: &Truth) {
        self.read.extend_from_slice(bytes);
        while let Some(frame) = take(self.format, &mut self.read) {
            let seen = decode(self.format, &frame);
            self.apply(&seen, truth);
            if let Some(resume) = self.resume.clone().filter(|_| self.remembers && !self.listing) {
                self.past.push((self.cache.clone(), resume));
            }
        }
    }

    /// As if it had not read further than this, of all that its connection brought.
    pub(crate) fn rewind(&mut self, dice: &mut Dice) {
        if !self.past.is_empty() {
            let (cache, resume) = self.past.swap_remove(dice.below(self.past.len()));
            self.cache = cache;
            self.resume = Some(resume);
            self.last_cursor = None;
        }
    }

    /// The stream ended by plan: what is half a frame was lost, and that is a fault.
    pub(crate) fn whole(&self) {
        assert!(self.read.is_empty(), "a stream ended within a frame");
    }

    fn apply(&mut self, seen: &Seen, truth: &Truth) {
        self.look(seen);
        let object = &seen.object;
        if seen.kind == "BOOKMARK" {
            return self.bookmark(seen);
        }
        self.events += 1;
        let version: u64 = object.version.parse().expect("raw versions on objects");
        let key = (object.namespace.clone(), object.name.clone());
        match seen.kind.as_str() {
            "DELETED" => {
                if !self.delete(&key, seen, truth) {
                    return;
                }
            }
            kind => {
                let held = self.cache.get(&key);
                // After a resume nobody knows which member's object of a name the client holds: it may be told again.
                let replay = self.replay || truth.setting.unique;
                if let Some((uid, known)) = held.filter(|(uid, _)| *uid == object.uid) {
                    let retold = self.retold.contains(&key.0);
                    let back = self.replay || retold || truth.went_back(*known);
                    let replay = replay || back;
                    assert!(replay || *known < version, "twice: {seen:?}, {uid} known at {known}");
                    assert!(back || *known <= version, "back: {seen:?}, {uid} known at {known}");
                    assert!(
                        replay || kind == "MODIFIED" || truth.went(uid, *known),
                        "ADDED of what the client has: {seen:?}"
                    );
                } else {
                    // What a mend told last was told at its newest version: who lost that hears of it as of then.
                    assert!(
                        replay || self.came_and_went || kind == "ADDED" || held.is_some(),
                        "MODIFIED of what the client does not have: {seen:?}"
                    );
                }
                self.cache.insert(key, (object.uid.clone(), version));
            }
        }
        if !self.listing {
            self.resume = Some(object.version.clone());
        }
    }

    /// False if the client did not have it.
    fn delete(&mut self, key: &Key, seen: &Seen, truth: &Truth) -> bool {
        let object = &seen.object;
        assert!(!self.listing, "DELETED before the marker: {seen:?}");
        assert!(seen.whole || !truth.setting.whole, "of metadata alone: {seen:?}");
        self.told_gone = true;
        let Some((uid, known)) = self.cache.get(key) else {
            assert!(
                self.replay || self.came_and_went || truth.setting.unique,
                "DELETED of what the client does not have: {seen:?}"
            );
            return false;
        };
        assert!(
            *uid == object.uid || self.replay || truth.setting.unique,
            "DELETED of another object, not {uid}: {seen:?}"
        );
        // Who goes on from before what it has seen hears again what is over, and of what was before it could see it.
        assert!(
            self.replay || truth.went(uid, *known),
            "DELETED of what exists: {seen:?}, known at {known}"
        );
        // What another member has under a name may not have come yet; a namespace's move is told in order.
        let moved = !self.replay && !truth.setting.unique && !truth.was_absent(key, uid, *known);
        assert!(!moved, "DELETED of what only moved: {seen:?}, known at {known}");
        self.cache.remove(key);
        true
    }

    /// Printed where a seed is replayed.
    fn look(&self, seen: &Seen) {
        if std::env::var_os("PORTOLAN_SEED").is_some() {
            println!("{seen:?}");
        }
        let expected = if self.format == WatchFormat::Table {
            "Table"
        } else {
            "Thing"
        };
        assert_eq!(seen.object_kind, expected, "{seen:?}");
    }

    fn bookmark(&mut self, seen: &Seen) {
        self.bookmarks += 1;
        assert_ne!(self.manner, Manner::NoBookmarks, "nobody asked for bookmarks");
        let version = &seen.object.version;
        assert!(is_cursor(version), "{seen:?}");
        assert_eq!(
            seen.object.end, self.listing,
            "one marker, at the end of the initial events: {seen:?}"
        );
        if let Some(last) = &self.last_cursor
            && last[1..15] == version[1..15]
        {
            assert!(
                (last.len(), last) <= (version.len(), version),
                "the cursor went back: {last} {version}"
            );
        }
        self.last_cursor = Some(version.clone());
        self.listing = false;
        self.resume = Some(version.clone());
    }
}
