//! What a collection request asks for, and what each member is asked instead.
//!
//! One pure table over `resourceVersion` × `resourceVersionMatch` × `limit` × `continue` × `sendInitialEvents`. Whatever an
//! API server refuses by validation is put to one member with our own values neutralised ([`InvalidQuery`]), so that the client
//! reads the server's own words; only what no member can know (our tokens and cursors) is refused here. The router's
//! `fanout` calls it; the tables are in [`list`] and [`watch`].

pub mod list;
pub mod watch;

use crate::cursor::{Cursor, Universe, View, is_cursor};
use crate::token::Token;

pub use list::{LegAsk, ListAsk, ListRead};
pub use watch::{Begin, WatchAsk};

/// `resourceVersionMatch=NotOlderThan`, the only one that watches take.
const NOT_OLDER_THAN: &str = "NotOlderThan";
const EXACT: &str = "Exact";

/// The parameters of one LIST or WATCH that a merged view cannot hand on as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectionQuery {
    version: Version,
    matching: Match,
    limit: Limit,
    token: Option<String>,
    initial: Option<bool>,
    bookmarks: bool,
}

/// `resourceVersion`, sorted by who can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Version {
    Unset,
    Any,
    /// A member's own, but of which member?
    Raw(u64),
    /// One of our cursors, of this universe or another.
    Cursor(String),
    /// No API server reads it: one of them shall say so.
    Unreadable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Match {
    Unset,
    NotOlderThan,
    Exact,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    None,
    Some,
    /// There is one, and it is not heeded.
    Ignored,
    Unreadable,
}

/// What happens to one query parameter on its way to a member.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Param {
    /// It stays as the client wrote it.
    #[default]
    Keep,
    /// It is left out.
    Drop,
    /// It gets this value instead.
    Set(String),
}

/// The changed parameters of one member's request.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LegQuery {
    /// What becomes of `resourceVersion`.
    pub resource_version: Param,
    /// What becomes of `resourceVersionMatch`.
    pub resource_version_match: Param,
    /// What becomes of `limit`.
    pub limit: Param,
    /// What becomes of `continue`.
    pub continue_: Param,
    /// What becomes of `sendInitialEvents`.
    pub send_initial_events: Param,
    /// What becomes of `allowWatchBookmarks`.
    pub allow_watch_bookmarks: Param,
}

impl LegQuery {
    /// Every parameter with its name in the URL.
    pub fn overrides(&self) -> [(&'static str, &Param); 6] {
        [
            ("resourceVersion", &self.resource_version),
            ("resourceVersionMatch", &self.resource_version_match),
            ("limit", &self.limit),
            ("continue", &self.continue_),
            ("sendInitialEvents", &self.send_initial_events),
            ("allowWatchBookmarks", &self.allow_watch_bookmarks),
        ]
    }
}

/// A request that API servers refuse whatever they hold: the first member that can be reached is asked exactly this and
/// its refusal handed on. One that does not refuse makes it a [`QueryFault::BadRequest`] ([`InvalidQuery::fault`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidQuery(pub LegQuery);

impl InvalidQuery {
    /// What is answered when the member that was asked to refuse it did not.
    pub fn fault() -> QueryFault {
        QueryFault::BadRequest("this combination of list parameters is not valid".to_owned())
    }
}

/// Why a request ends here, in the words an API server uses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryFault {
    /// Answered as 400 `BadRequest`.
    #[error("{0}")]
    BadRequest(String),
    /// Answered as 410 `Expired`; on a watch as 200 and one in-stream ERROR event.
    #[error("{0}")]
    Expired(String),
    /// Answered as 410 `Expired` with [`CONTINUE_INCONSISTENT`], and this token in `metadata.continue`.
    #[error("{CONTINUE_INCONSISTENT}")]
    Rest {
        /// For the rest of the list as it is now.
        token: String,
    },
}

/// What API servers say of a list whose version they no longer have.
pub(crate) const LIST_EXPIRED: &str = "The resourceVersion for the provided list is too old.";
/// What API servers say of a continue token that cannot be gone on with.
pub(crate) const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.";
/// What API servers say of an expired continue token where the answer carries another to go on with.
pub const CONTINUE_INCONSISTENT: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

impl CollectionQuery {
    /// Reads the parameters. `get` gives the first value of a query parameter, decoded.
    pub fn parse(get: impl Fn(&str) -> Option<String>) -> Self {
        let text = |name: &str| get(name).filter(|value| !value.is_empty());
        Self {
            version: parse_version(text("resourceVersion")),
            matching: match text("resourceVersionMatch").as_deref() {
                None => Match::Unset,
                Some(NOT_OLDER_THAN) => Match::NotOlderThan,
                Some(EXACT) => Match::Exact,
                Some(_) => Match::Unknown,
            },
            limit: match get("limit").map(|value| value.parse::<i64>()) {
                None | Some(Ok(i64::MIN..=0)) => Limit::None,
                Some(Ok(_)) => Limit::Some,
                Some(Err(_)) => Limit::Unreadable,
            },
            token: text("continue"),
            initial: get("sendInitialEvents").as_deref().map(truth),
            bookmarks: get("allowWatchBookmarks").as_deref().is_some_and(truth),
        }
    }

    /// The raw version a client wants to resume from: only resume memory knows which member's it is.
    pub fn raw(&self) -> Option<u64> {
        match self.version {
            Version::Raw(version) => Some(version),
            _ => None,
        }
    }

    /// Whether it goes on from where more may have been known of the shard than `universe` says: it is answered once the hub
    /// has said.
    pub fn may_be_newer(&self, universe: &Universe) -> bool {
        let token = self.token.as_deref().and_then(Token::cursor_text);
        match (&token, &self.version) {
            (Some(cursor), _) | (None, Version::Cursor(cursor)) => Cursor::may_be_newer(cursor, universe),
            (None, _) => false,
        }
    }

    /// In which view of the shard the list was begun that its token goes on with; `None`: there is no token that says.
    pub fn begun_in(&self, universe: &Universe) -> Option<View> {
        let cursor = Token::cursor_text(self.token.as_deref()?)?;
        Cursor::read(&cursor, universe).ok().map(|(_, view)| view)
    }

    /// Whether the client comes with a cursor that names a version of this member.
    pub fn has_place(&self, universe: &Universe, slot: usize) -> bool {
        let Version::Cursor(text) = &self.version else {
            return false;
        };
        Cursor::decode(text, universe).is_ok_and(|cursor| cursor.slot(slot).version().is_some())
    }

    /// The query without its limit, for where pages cannot be kept apart.
    pub fn unlimited(self) -> Self {
        match self.limit {
            Limit::Some => Self {
                limit: Limit::Ignored,
                ..self
            },
            _ => self,
        }
    }

    /// Whether the client takes bookmarks.
    pub fn bookmarks(&self) -> bool {
        self.bookmarks
    }

    /// Whether a client without a position asks: nothing it holds can go back in time, and it may be told less than all
    /// (`PartialStart`).
    pub fn is_first(&self) -> bool {
        self.token.is_none() && matches!(self.version, Version::Unset | Version::Any)
    }

    /// The request with its own version and token replaced by ones that pass validation, for a member to refuse the rest.
    fn invalid(&self) -> InvalidQuery {
        let own = matches!(self.version, Version::Raw(_) | Version::Cursor(_));
        let matched = self.matching != Match::Unset;
        InvalidQuery(LegQuery {
            resource_version: if own { Param::Set("1".to_owned()) } else { Param::Keep },
            limit: if self.limit == Limit::Unreadable {
                Param::Keep
            } else {
                Param::Set("1".to_owned())
            },
            continue_: if self.token.is_some() && matched {
                Param::Set("x".to_owned())
            } else {
                Param::Drop
            },
            ..LegQuery::default()
        })
    }
}

fn parse_version(text: Option<String>) -> Version {
    match text {
        None => Version::Unset,
        Some(text) if text == "0" => Version::Any,
        Some(text) if is_cursor(&text) => Version::Cursor(text),
        Some(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            text.parse().map_or(Version::Unreadable, Version::Raw)
        }
        Some(_) => Version::Unreadable,
    }
}

/// How API servers read a boolean parameter: valueless is true, and so is anything but these two.
fn truth(text: &str) -> bool {
    !(text == "0" || text.eq_ignore_ascii_case("false"))
}

#[cfg(test)]
mod tests;
