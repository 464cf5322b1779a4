//! The table for WATCH: from where each member's stream begins.

use super::{CollectionQuery, InvalidQuery, LegQuery, Limit, Match, NOT_OLDER_THAN, Param, QueryFault, Version};
use crate::cursor::{Cursor, CursorError, Universe, View};

/// Why a position cannot be gone on with in another collection.
const OTHER_MEMBERS: &str = "too old resource version: it is of a list that asked other members than this watch has to";

/// Why the end of the initial events is sometimes no position.
const UNFINISHED: &str = "too old resource version: initial events ended before all was told that had left meanwhile";

/// From where one member's stream begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Events after this version.
    At(u64),
    /// `resourceVersion=0`: the member's state as it happens to have it as ADDED, then on.
    Any,
    /// No version: the member's newest state as ADDED, then on.
    Recent,
    /// `sendInitialEvents=true`: the state, not older than this version (none: the newest) as ADDED, the member's marker,
    /// then on.
    Sync {
        /// The oldest state that will do.
        not_older: Option<u64>,
    },
    /// `sendInitialEvents=false` without a version: from now on.
    Latest,
}

/// How one WATCH is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchAsk {
    /// One member is asked, so that it refuses the query in its own words.
    Invalid(InvalidQuery),
    /// These members are watched.
    Open {
        /// Where the client stands before the first event.
        cursor: Cursor,
        /// Slot and beginning of each leg, in the order of `slots`.
        legs: Vec<(usize, Begin)>,
        /// The client waits for one marker after all initial events.
        initial_events: bool,
    },
}

impl CollectionQuery {
    /// In which view of the shard the client's position was made; `None`: it has none, or asks for the state anew.
    pub fn view(&self, universe: &Universe) -> Option<View> {
        match &self.version {
            Version::Cursor(text) if self.initial != Some(true) => {
                Cursor::read(text, universe).ok().map(|(_, view)| view)
            }
            _ => None,
        }
    }

    /// How this WATCH is answered. `slots`: the slots of the members that serve this collection.
    pub fn watch(&self, universe: &Universe, slots: &[usize]) -> Result<WatchAsk, QueryFault> {
        if self.watch_is_refused() {
            return Ok(WatchAsk::Invalid(self.invalid()));
        }
        let cursor = match &self.version {
            Version::Cursor(text) => match Cursor::decode(text, universe) {
                // Nor are initial events of this view all that the client may hold.
                Err(CursorError::OtherView(View::Newer(_))) => return Err(QueryFault::Expired(self.too_old())),
                read => read.ok(),
            },
            _ => None,
        };
        let initial = self.initial == Some(true);
        let begin = |slot: usize| match (&self.version, self.initial, &cursor) {
            (_, Some(true), Some(cursor)) => Begin::Sync {
                not_older: cursor.slot(slot).version(),
            },
            (_, Some(true), None) => Begin::Sync { not_older: None },
            (_, _, Some(cursor)) => cursor
                .slot(slot)
                .version()
                .map_or(Begin::Sync { not_older: None }, Begin::At),
            (_, Some(false), None) => Begin::Latest,
            (Version::Any, None, None) => Begin::Any,
            (_, None, None) => Begin::Recent,
        };
        if cursor.is_none() && !initial && !matches!(self.version, Version::Unset | Version::Any) {
            return Err(QueryFault::Expired(self.too_old()));
        }
        // A position is good for whatever is asked of its members: it is a moment of each. Of one that its list did not
        // ask it says nothing, and whoever watches from a list expects no state but what happens since.
        if !initial && cursor.as_ref().is_some_and(|cursor| !cursor.has_asked(slots)) {
            return Err(QueryFault::Expired(OTHER_MEMBERS.to_owned()));
        }
        // A replay from a moment that the client is past says nothing of what it holds of later ones.
        if !initial && cursor.as_ref().is_some_and(|cursor| cursor.is_unfinished(slots)) {
            return Err(QueryFault::Expired(UNFINISHED.to_owned()));
        }
        Ok(WatchAsk::Open {
            legs: slots.iter().map(|slot| (*slot, begin(*slot))).collect(),
            // Its own slots hold only as long as no state is sent anew.
            cursor: cursor.filter(|_| !initial).unwrap_or_else(|| Cursor::new(universe)),
            initial_events: initial,
        })
    }

    /// What `validateWatchOptions` of an API server refuses, and parameters it cannot parse.
    fn watch_is_refused(&self) -> bool {
        self.limit == Limit::Unreadable
            || self.version == Version::Unreadable
            || match self.matching {
                Match::Unset => self.initial.is_some(),
                Match::NotOlderThan => self.initial.is_none() || self.token.is_some(),
                Match::Exact | Match::Unknown => true,
            }
    }

    fn too_old(&self) -> String {
        match &self.version {
            Version::Raw(version) => format!("too old resource version: {version} (of one member only)"),
            _ => "too old resource version: the set of members has changed, or it was not made here".to_owned(),
        }
    }
}

impl Begin {
    /// The query parameters of a request that begins so. Members are always asked for bookmarks: they move the cursor while nothing happens.
    pub fn query(self) -> LegQuery {
        let (version, initial) = match self {
            Self::At(version) => (Param::Set(version.to_string()), None),
            Self::Any => (Param::Set("0".to_owned()), None),
            Self::Recent => (Param::Drop, None),
            Self::Sync { not_older } => (
                not_older.map_or(Param::Drop, |rv| Param::Set(rv.to_string())),
                Some(true),
            ),
            Self::Latest => (Param::Drop, Some(false)),
        };
        LegQuery {
            resource_version: version,
            resource_version_match: initial.map_or(Param::Drop, |_| Param::Set(NOT_OLDER_THAN.to_owned())),
            send_initial_events: initial.map_or(Param::Drop, |initial| Param::Set(initial.to_string())),
            allow_watch_bookmarks: Param::Set("true".to_owned()),
            limit: Param::Drop,
            continue_: Param::Drop,
        }
    }
}
