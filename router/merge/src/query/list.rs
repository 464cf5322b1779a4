//! The table for LIST: which members are asked, from which version, and what makes up the answer's cursor.
//!
//! A page asks one of them, and goes on with the next where there is room ([`ListRead::next`]). The first page pins the others by a
//! metadata-only `limit=1`; what follows is read at the pinned versions, so that all pages together are one list at one cursor.

use super::{
    CONTINUE_EXPIRED, CollectionQuery, EXACT, InvalidQuery, LIST_EXPIRED, LegQuery, Limit, Match, Param, QueryFault,
    Version,
};
use crate::cursor::{Cursor, CursorError, Universe, View};
use crate::token::{Binding, Reading, Token, TokenError};

/// The request that one member is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegAsk {
    /// The member's slot.
    pub slot: usize,
    /// Its query parameters.
    pub query: LegQuery,
}

/// How one LIST is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListAsk {
    /// One member is asked, so that it refuses the query in its own words.
    Invalid(InvalidQuery),
    /// These members are read.
    Read(ListRead),
}

/// The members read for one answer. Its cursor is `cursor` with every answered slot set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListRead {
    /// Positions known before anybody is asked.
    pub cursor: Cursor,
    /// The members whose items make up the answer, in this order.
    pub legs: Vec<LegAsk>,
    /// The members that are asked for their version only (and whether they have anything at all).
    pub pins: Vec<LegAsk>,
    /// Slots whose turn comes on later pages.
    pub later: Vec<usize>,
    /// The answer is one page, and begins with one member; more may follow.
    pub paged: bool,
    /// How a list that goes on is read.
    pub reading: Reading,
    /// The page was begun by a token: an expiry of the member becomes ours, with a token to go on.
    pub continued: bool,
}

impl ListRead {
    /// The member with which a page goes on that has room for so many objects more: the next one, at the version that is pinned. `None`:
    /// there is none, or it is not read at a version.
    pub fn next(&self, room: u64) -> Option<LegAsk> {
        let slot = *self.later.first()?;
        let pinned = self.paged && self.reading == Reading::Pinned && self.cursor.slot(slot).version().is_some();
        pinned.then(|| LegAsk {
            slot,
            query: LegQuery {
                limit: Param::Set(room.to_string()),
                continue_: Param::Drop,
                ..exactly(&self.cursor, slot)
            },
        })
    }
}

impl CollectionQuery {
    /// How this LIST is answered. `slots`: the slots of the members that serve this collection, in the order their items are listed.
    pub fn list(&self, universe: &Universe, binding: &Binding, slots: &[usize]) -> Result<ListAsk, QueryFault> {
        if self.list_is_refused() {
            return Ok(ListAsk::Invalid(self.invalid()));
        }
        if let Some(token) = &self.token {
            return self.go_on(token, universe, *binding, slots).map(ListAsk::Read);
        }
        // Any version at all is served from caches, where a limit means nothing; to kinds that are not cached it would,
        // and the pages of a list at no version could not be told apart.
        let paged = self.limit == Limit::Some && self.version != Version::Any;
        let mut asks = self.list_versions(universe, paged, slots)?;
        if self.limit == Limit::Ignored {
            for ask in &mut asks {
                ask.query.limit = Param::Drop;
            }
        }
        Ok(ListAsk::Read(first_read(Cursor::new(universe), asks, paged)))
    }

    /// What `ValidateListOptions` of an API server refuses, and parameters it cannot parse.
    fn list_is_refused(&self) -> bool {
        self.limit == Limit::Unreadable
            || self.version == Version::Unreadable
            || self.initial.is_some()
            || match self.matching {
                Match::Unset => false,
                Match::Unknown => true,
                _ if self.version == Version::Unset || self.token.is_some() => true,
                Match::Exact => self.version == Version::Any,
                Match::NotOlderThan => false,
            }
    }

    fn list_versions(&self, universe: &Universe, paged: bool, slots: &[usize]) -> Result<Vec<LegAsk>, QueryFault> {
        let cursor = match &self.version {
            Version::Unset | Version::Any => {
                let limit = if self.version == Version::Any {
                    Param::Drop
                } else {
                    Param::Keep
                };
                return Ok(ask_all(slots, |_| LegQuery {
                    limit: limit.clone(),
                    ..LegQuery::default()
                }));
            }
            Version::Cursor(text) => match Cursor::decode(text, universe) {
                // What this view says to be the newest state would take back what the client was told.
                Err(CursorError::OtherView(View::Newer(_))) => {
                    return Err(QueryFault::Expired(LIST_EXPIRED.to_owned()));
                }
                read => read.ok(),
            },
            Version::Raw(_) | Version::Unreadable => None,
        };
        let known = cursor.filter(|cursor| slots.iter().all(|slot| cursor.slot(*slot).version().is_some()));
        match (known, self.matching) {
            // With a limit and no word on how to match, API servers read exactly the version given.
            (Some(cursor), Match::Unset) if paged => Ok(ask_all(slots, |slot| exactly(&cursor, slot))),
            (Some(cursor), _) => Ok(ask_all(slots, |slot| LegQuery {
                resource_version: version(&cursor, slot),
                ..LegQuery::default()
            })),
            (None, Match::Exact) => Err(QueryFault::Expired(LIST_EXPIRED.to_owned())),
            // Whatever it was, the newest state is not older.
            (None, _) => Ok(ask_all(slots, |_| newest())),
        }
    }

    fn go_on(
        &self,
        text: &str,
        universe: &Universe,
        binding: Binding,
        slots: &[usize],
    ) -> Result<ListRead, QueryFault> {
        let token = match Token::decode(text, universe, &binding) {
            Err(TokenError::WrongEpoch) => return Err(rest(text, universe, binding, slots)),
            Err(TokenError::NewerView) => return Err(QueryFault::Expired(CONTINUE_EXPIRED.to_owned())),
            read => read.map_err(refuse)?,
        };
        if !matches!(self.version, Version::Unset | Version::Any) {
            let why = "specifying resource version is not allowed when using continue";
            return Err(QueryFault::BadRequest(why.to_owned()));
        }
        // A member that has left the shard's namespaces meanwhile cannot be listed to its end.
        let Some(at) = slots.iter().position(|slot| *slot == token.slot) else {
            return Err(QueryFault::Expired(CONTINUE_EXPIRED.to_owned()));
        };
        let mut asks: Vec<LegAsk> = slots[at..]
            .iter()
            .filter(|slot| **slot == token.slot || token.reading == Reading::Anew || begins(&token, **slot))
            .map(|slot| LegAsk {
                slot: *slot,
                query: page(&token, *slot),
            })
            .collect();
        let paged = self.limit == Limit::Some;
        let later = if paged { asks.split_off(1) } else { Vec::new() };
        Ok(ListRead {
            paged,
            reading: token.reading,
            continued: true,
            cursor: token.cursor,
            legs: asks,
            pins: Vec::new(),
            later: later.into_iter().map(|ask| ask.slot).collect(),
        })
    }
}

fn first_read(cursor: Cursor, mut asks: Vec<LegAsk>, paged: bool) -> ListRead {
    let others = if paged && asks.len() > 1 {
        asks.split_off(1)
    } else {
        Vec::new()
    };
    ListRead {
        cursor,
        later: others.iter().map(|ask| ask.slot).collect(),
        pins: others.into_iter().map(pin).collect(),
        legs: asks,
        paged,
        reading: Reading::Pinned,
        continued: false,
    }
}

fn pin(ask: LegAsk) -> LegAsk {
    LegAsk {
        query: LegQuery {
            limit: Param::Set("1".to_owned()),
            ..ask.query
        },
        ..ask
    }
}

fn ask_all(slots: &[usize], query: impl Fn(usize) -> LegQuery) -> Vec<LegAsk> {
    slots
        .iter()
        .map(|slot| LegAsk {
            slot: *slot,
            query: query(*slot),
        })
        .collect()
}

/// A consistent read, whatever the client wrote.
fn newest() -> LegQuery {
    LegQuery {
        resource_version: Param::Drop,
        resource_version_match: Param::Drop,
        ..LegQuery::default()
    }
}

fn version(cursor: &Cursor, slot: usize) -> Param {
    let version = cursor.slot(slot).version();
    version.map_or(Param::Drop, |version| Param::Set(version.to_string()))
}

fn exactly(cursor: &Cursor, slot: usize) -> LegQuery {
    LegQuery {
        resource_version: version(cursor, slot),
        resource_version_match: Param::Set(EXACT.to_owned()),
        ..LegQuery::default()
    }
}

/// Whether a later member has a place in a list that was begun at this token's cursor: one that had nothing to pin (the
/// kind is not served there, or it was left out) has none.
fn begins(token: &Token, slot: usize) -> bool {
    token.cursor.slot(slot).version().is_some()
}

fn page(token: &Token, slot: usize) -> LegQuery {
    let (continue_, versions) = match &token.member_token {
        Some(member) if slot == token.slot => (Param::Set(member.clone()), newest()),
        _ if token.reading == Reading::Pinned => (Param::Drop, exactly(&token.cursor, slot)),
        _ => (Param::Drop, newest()),
    };
    LegQuery { continue_, ..versions }
}

fn refuse(error: TokenError) -> QueryFault {
    QueryFault::BadRequest(format!("invalid continue token: continue key is not valid: {error}"))
}

/// A list that cannot be gone on with as it was: a new one can be had, and the rest as it is now, where its next member is asked
/// still. Clients fall back to either on 410 only.
fn rest(text: &str, universe: &Universe, binding: Binding, slots: &[usize]) -> QueryFault {
    let rest = Token::rest(text, universe, binding).filter(|rest| slots.contains(&rest.slot));
    let token = rest.and_then(|rest| rest.encode(universe, &binding).ok());
    match token {
        Some(token) => QueryFault::Rest { token },
        None => QueryFault::Expired(CONTINUE_EXPIRED.to_owned()),
    }
}
