//! The merged continue token: at which member a paged list goes on, and at which cursor all its pages stand.
//!
//! Opaque to clients, stateless for routers. Bound to shard, user, path and selectors: a token that another caller or
//! another collection was given is refused instead of showing a wrong page. Checksummed, not secret: what it carries is
//! what the caller was already told.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::cursor::{Cursor, CursorError, Universe, View};
use crate::filter::feed;

/// What every token begins with once decoded; another one means another program's token.
const VERSION: &str = "portolan/v1";
/// A member's own token is some hundred bytes; what is longer than a URL may be was not made here.
const LONGEST: usize = 16 * 1024;
const NOT_OURS: TokenError = TokenError::Unreadable("it is not a token of this server");

/// Who may use a token, and for what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Binding(u64);

impl Binding {
    /// A binding of `parts` in a fixed order: shard, user, path, label selector, field selector.
    pub fn new<'a>(parts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut hash = Xxh3::new();
        for part in parts {
            feed(&mut hash, part);
        }
        Self(hash.digest())
    }

    pub(crate) fn key(self) -> u64 {
        self.0
    }
}

/// Where a paged list goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Token {
    /// The cursor that all pages stand at.
    pub cursor: Cursor,
    /// Slot of the member that the next page begins with.
    pub slot: usize,
    /// That member's own continue token; none: it begins at its pinned slot.
    pub member_token: Option<String>,
    /// How the rest is read.
    pub reading: Reading,
}

/// How what is left of a paged list is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// As it was on the first page.
    Pinned,
    /// After an expiry: as it is now.
    Now,
    /// After a change of the members, or of what of them is the caller's: as it is now, of all members that come later.
    Anew,
}

/// Why a token cannot be made or used. `Display` is what comes after "continue key is not valid: ".
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TokenError {
    /// The token is not one of ours, or damaged.
    #[error("{0}")]
    Unreadable(&'static str),
    /// A whole token, but another caller's or another collection's.
    #[error("it was given to another caller or for another request")]
    NotYours,
    /// A token of another set of members: the list cannot be gone on with.
    #[error("the set of members has changed since it was given")]
    WrongEpoch,
    /// A token of a view of the shard that is not known here: what came with it would be missing.
    #[error("more was known of the shard where it was given")]
    NewerView,
    /// The cursor in it is too long.
    #[error("{0}")]
    Cursor(#[from] CursorError),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire<'a> {
    v: &'a str,
    b: u64,
    rv: &'a str,
    m: usize,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    start: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    inconsistent: Option<bool>,
    /// Of which member it is, also where another set of members gives it another slot.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    u: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    anew: Option<bool>,
}

impl Token {
    /// URL-safe text for `metadata.continue`. `universe`: of its slots.
    pub fn encode(&self, universe: &Universe, binding: &Binding) -> Result<String, TokenError> {
        let cursor = self.cursor.encode()?;
        let wire = Wire {
            v: VERSION,
            b: binding.0,
            rv: &cursor,
            m: self.slot,
            start: self.member_token.clone(),
            inconsistent: (self.reading != Reading::Pinned).then_some(true),
            u: universe.member_hash(self.slot),
            anew: (self.reading == Reading::Anew).then_some(true),
        };
        let mut bytes = serde_json::to_vec(&wire).map_err(|_| TokenError::Unreadable("it cannot be written"))?;
        let sum = xxh3_64(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        let text = URL_SAFE_NO_PAD.encode(bytes);
        if text.len() > LONGEST {
            Err(TokenError::Unreadable("it is too long"))
        } else {
            Ok(text)
        }
    }

    /// The cursor in it, unread, if it is a whole token.
    pub(crate) fn cursor_text(text: &str) -> Option<String> {
        let wire = open(text).ok()?;
        Some(serde_json::from_slice::<Wire<'_>>(&wire).ok()?.rv.to_owned())
    }

    /// A token for what a token of another set of members has left, which begins in `universe` with the same member; none where
    /// that is not known, or is no member any more.
    pub(crate) fn rest(text: &str, universe: &Universe, binding: Binding) -> Option<Self> {
        let json = open(text).ok()?;
        let wire = bound(&json, binding).ok()?;
        Some(Self {
            cursor: Cursor::new(universe),
            slot: universe.slot_of_hash(wire.u?)?,
            member_token: wire.start,
            reading: Reading::Anew,
        })
    }

    /// Reads a token of the same set of members and the same request.
    pub fn decode(text: &str, universe: &Universe, binding: &Binding) -> Result<Self, TokenError> {
        let json = open(text)?;
        let wire = bound(&json, *binding)?;
        let cursor = Cursor::decode(wire.rv, universe).map_err(|error| match error {
            CursorError::OtherView(View::Newer(_)) => TokenError::NewerView,
            CursorError::WrongEpoch | CursorError::OtherView(_) => TokenError::WrongEpoch,
            other => TokenError::Cursor(other),
        })?;
        if wire.m >= universe.len() {
            return Err(TokenError::Unreadable("it names no member"));
        }
        Ok(Self {
            cursor,
            slot: wire.m,
            member_token: wire.start,
            reading: match (wire.inconsistent, wire.anew) {
                (_, Some(true)) => Reading::Anew,
                (Some(true), _) => Reading::Now,
                _ => Reading::Pinned,
            },
        })
    }
}

/// What stands in a token of the same request.
fn bound(json: &[u8], binding: Binding) -> Result<Wire<'_>, TokenError> {
    let wire: Wire<'_> = serde_json::from_slice(json).map_err(|_| NOT_OURS)?;
    if wire.v != VERSION {
        return Err(NOT_OURS);
    }
    if wire.b != binding.0 {
        return Err(TokenError::NotYours);
    }
    Ok(wire)
}

/// The JSON in a token that is whole.
fn open(text: &str) -> Result<Vec<u8>, TokenError> {
    if text.len() > LONGEST {
        return Err(TokenError::Unreadable("it is too long"));
    }
    let mut bytes = URL_SAFE_NO_PAD
        .decode(text)
        .map_err(|_| TokenError::Unreadable("it is not base64"))?;
    let Some((json, sum)) = bytes.split_last_chunk::<8>() else {
        return Err(TokenError::Unreadable("it is cut"));
    };
    if xxh3_64(json) != u64::from_le_bytes(*sum) {
        return Err(NOT_OURS);
    }
    let length = json.len();
    bytes.truncate(length);
    Ok(bytes)
}

#[cfg(test)]
mod tests;
