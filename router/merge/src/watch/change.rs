//! From one share of a member to another: what came is told, what left is found and told, the rest goes on.
//!
//! What came is read alone as of where the stream stands, and the stream goes on from there. Of a member that does not list
//! what was there at a version it is read as of a later one; then the stream says nothing of it up to that. What left is in
//! no event: where it is not known what the client holds, the member lists that (`listing`) as of where the stream stands.

use crate::filter::NamespaceFilter;
use crate::object_meta::ObjectMeta;

/// How a leg gets to another share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It has what it had, and some more: that is read, and the stream goes on from where it stands.
    Gains,
    /// It has less, and maybe some more: what left is found first.
    Loses,
    /// What is there is compared with all that the client holds.
    Whole,
}

/// A leg's share is another one than when the client came to where it stands.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is true or not whatever the others are"
)]
pub(super) struct ShareChange {
    /// Whose objects the client has up to where it stands; `None`: all that were asked for.
    pub(super) held: Option<NamespaceFilter>,
    /// Only what came is read, else all.
    pub(super) entering: bool,
    /// What came is read as of where the stream stands.
    pub(super) exactly: bool,
    /// Only what left is listed: nothing else is compared.
    pub(super) leaving: bool,
    /// What came was told as of this version; 0: it is being told.
    pub(super) until: u64,
    /// The known objects are those that came alone.
    pub(super) partial: bool,
    /// There was no memory for what a list must not bring back.
    pub(super) starved: bool,
}

impl ShareChange {
    /// Of a leg whose share was `held`, of which nothing is read yet.
    pub(super) fn of(held: Option<NamespaceFilter>, entering: bool, partial: bool) -> Self {
        Self {
            held,
            entering,
            exactly: true,
            leaving: false,
            until: 0,
            partial,
            starved: false,
        }
    }

    /// Whether the object is of what came, and was told with it.
    pub(super) fn has_told(&self, meta: &ObjectMeta<'_>, version: u64) -> bool {
        self.entering && version <= self.until && self.came(meta)
    }

    /// Whether the object is of what came, and not of what the client had before.
    pub(super) fn came(&self, meta: &ObjectMeta<'_>) -> bool {
        self.held.as_ref().is_some_and(|held| !held.admits_object(meta))
    }

    /// As [`ShareChange::came`], of the object of this key.
    pub(super) fn key_came(&self, key: &str) -> bool {
        let (namespace, name) = key.split_once('/').unwrap_or_default();
        self.held.as_ref().is_some_and(|held| !held.admits_key(namespace, name))
    }
}
