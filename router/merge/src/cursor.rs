//! The merged resourceVersion: where a client stands on every member, as one decimal number.
//!
//! Format 1 is `1 eeeeeeeeee nnnn (ll rrr…)* ccccccccc`: format digit, ten digits of the epoch, the number of slots, per
//! slot the length and the digits of that member's raw resourceVersion, nine check digits. Format 2 is
//! `2 eeeeeeeeee vvvvvvvvvv nnnn (20 digits)* ccccccccc`: behind the epoch the view revision, and slots of one width, the
//! member's raw resourceVersion plus one. The fixed parts alone are 24 digits, so no member can take one for its uint64. A
//! slot only moves forward, and so the whole grows under "longer is greater, else lexicographic", the order clients compare
//! by. Stateless: every router replica reads both, and writes the one it is told to. The check digits tell accidents and
//! tampering, they keep no secret: a client that forges one only chooses where its own watches begin.
//!
//! The epoch says what the slots are positions *of*. In format 1 that is the shard, its set of members, and which of the
//! members' objects are the caller's in this request ([`Universe::covering`]): a position says nothing of objects that were
//! not asked for when it was reached, so another share is another epoch, and its cursors are expired. In format 2 it is the
//! shard, the hub's incarnation and the set of members, and the *view revision* says how new the share was: a cursor of
//! another revision is whole, and who reads it is told which view is the newer one ([`View`]). Not in either: how a member
//! is asked (by labels or not), whether it can be reached, and whatever is only so until more is known. All of it follows
//! from content alone, so all routers, also after a restart, agree on it.
//!
//! ```
//! use portolan_merge::cursor::{Cursor, Slot, Universe};
//!
//! let universe = Universe::new("shard", ["uid-of-east".to_owned(), "uid-of-west".to_owned()]);
//! let mut cursor = Cursor::new(&universe);
//! cursor.set(universe.slot("uid-of-west").unwrap(), Slot::At(1042));
//! let text = cursor.encode()?;
//! assert!(text.bytes().all(|byte| byte.is_ascii_digit()), "clients compare it as a number");
//! assert_eq!(Cursor::decode(&text, &universe)?.slots(), [Slot::Unasked, Slot::At(1042)]);
//! # Ok::<(), portolan_merge::cursor::CursorError>(())
//! ```

use std::cmp::Ordering;

use xxhash_rust::xxh3::Xxh3;

mod text;

/// Digits of the shortest cursor: below this a number may be a member's own resourceVersion (uint64: at most 20 digits).
pub const SHORTEST: usize = 24;
/// Digits of the longest cursor: above this, URLs that carry it become longer than clients and proxies accept.
pub const LONGEST: usize = 4_000;
/// So many members can be asked at once and every cursor of it be written, in either format.
pub const MOST_MEMBERS: usize = text::most_members();

/// How a cursor is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The epoch covers the share; what routers of before the second read.
    #[default]
    One,
    /// The view revision says how new the share is.
    Two,
}

/// Whose positions the slots are, and in which form that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    format: Format,
    epoch: u32,
    /// 0 in format 1.
    revision: u64,
}

/// How new the view is that a cursor was made in, beside the universe that it is read against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// The same share.
    Same,
    /// The shard's pairs have changed since it was made, at this revision.
    Older(u64),
    /// It was made at this revision, which is not known here yet: only the hub can say what came with it.
    Newer(u64),
}

/// What a caller's cursors speak of: member clusters in the order of their slots, and its share of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Universe {
    uids: Box<[String]>,
    /// For format 1: of the shard's name, the members and the shares.
    epoch: u32,
    /// For format 2; none: the hub has not told what it takes, and none is read or written.
    identity: Option<Identity>,
    writes: Format,
}

/// What format 2 says of a universe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    epoch: u32,
    revision: u64,
}

impl Universe {
    /// The universe of these members. `uids` in any order, repeated or not; the epoch follows from the shard's name and the set.
    pub fn new(shard: &str, uids: impl IntoIterator<Item = String>) -> Self {
        let mut uids: Vec<String> = uids.into_iter().collect();
        uids.sort_unstable();
        uids.dedup();
        Self {
            epoch: epoch_of(&[shard], &uids),
            uids: uids.into_boxed_slice(),
            identity: None,
            writes: Format::One,
        }
    }

    /// The universe as format 2 has it: of the shard of this UID, in this incarnation of the hub, at this view revision (the
    /// highest of all changes of the shard's own pairs, those that left included). `writes`: the format of its cursors.
    #[must_use]
    pub fn identified(self, shard_uid: &str, hub_incarnation: &str, revision: u64, writes: Format) -> Self {
        let epoch = epoch_of(&[shard_uid, hub_incarnation], &self.uids);
        Self {
            identity: Some(Identity { epoch, revision }),
            writes,
            ..self
        }
    }

    /// The universe of the same members, asked for these shares of their objects: slot and [`crate::filter::share_digest`] of each leg, in
    /// any order.
    #[must_use]
    pub fn covering(mut self, shares: impl IntoIterator<Item = (usize, u64)>) -> Self {
        let mut shares: Vec<(usize, u64)> = shares.into_iter().collect();
        shares.sort_unstable();
        let mut hash = Xxh3::new();
        hash.update(&self.epoch.to_le_bytes());
        for (slot, share) in shares {
            hash.update(&(slot as u64).to_le_bytes());
            hash.update(&share.to_le_bytes());
        }
        self.epoch = high(&hash);
        self
    }

    /// The same members as the shard was at another view revision: what its cursors of then are read against.
    #[must_use]
    pub fn at(&self, revision: u64) -> Self {
        let identity = self.identity.map(|identity| Identity { revision, ..identity });
        Self {
            identity,
            ..self.clone()
        }
    }

    /// The slot of the member with this cluster UID.
    pub fn slot(&self, uid: &str) -> Option<usize> {
        self.uids.binary_search_by(|held| held.as_str().cmp(uid)).ok()
    }

    /// A hash of the cluster UID of the member with this slot.
    pub(crate) fn member_hash(&self, slot: usize) -> Option<u32> {
        self.uids.get(slot).map(|uid| hash_of(uid))
    }

    /// The slot of the one member whose UID has this hash.
    pub(crate) fn slot_of_hash(&self, hash: u32) -> Option<usize> {
        let mut slots = (0..self.len()).filter(|slot| self.member_hash(*slot) == Some(hash));
        slots.next().filter(|_| slots.next().is_none())
    }

    /// How many slots a cursor of this universe has.
    pub fn len(&self) -> usize {
        self.uids.len()
    }

    /// Whether the universe has no member at all.
    pub fn is_empty(&self) -> bool {
        self.uids.is_empty()
    }

    /// Whether cursors in which so many of them have a position can be written, however far those get.
    pub fn has_room(&self, asked: usize) -> bool {
        let format = self.head().format;
        let wide = match format {
            Format::One => asked,
            Format::Two => self.len(),
        };
        wide <= MOST_MEMBERS && text::longest(format, self.len(), asked) <= LONGEST
    }

    /// What tells this universe's cursors from all others.
    pub fn epoch(&self) -> u32 {
        self.head().epoch
    }

    /// What its cursors begin with.
    fn head(&self) -> Head {
        match (self.writes, self.identity) {
            (Format::Two, Some(identity)) => Head {
                format: Format::Two,
                epoch: identity.epoch,
                revision: identity.revision,
            },
            _ => Head {
                format: Format::One,
                epoch: self.epoch,
                revision: 0,
            },
        }
    }

    /// Which view a cursor with this head was made in; none: of another universe.
    fn view(&self, head: Head) -> Option<View> {
        match (head.format, self.identity) {
            (Format::One, _) => (head.epoch == self.epoch).then_some(View::Same),
            (Format::Two, Some(identity)) if identity.epoch == head.epoch => {
                Some(match head.revision.cmp(&identity.revision) {
                    Ordering::Less => View::Older(head.revision),
                    Ordering::Equal => View::Same,
                    Ordering::Greater => View::Newer(head.revision),
                })
            }
            (Format::Two, _) => None,
        }
    }
}

/// Where a client stands on one member. The order is the order of progress.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Slot {
    /// The member is not part of what was asked.
    Unasked,
    /// The member is asked, but nothing is seen of it yet: whoever goes on from here begins with its initial events.
    Sync,
    /// The client has all of the member up to this raw resourceVersion.
    At(u64),
}

impl Slot {
    /// The client holds more of the member than is there, and would be told so after where this is written: only a list goes
    /// on from here. No API server gives out the version, and where it is gone on with it is older than all there is.
    pub(crate) const UNFINISHED: Self = Self::At(1);

    /// The raw resourceVersion up to which the client has all, if it has anything.
    pub fn version(self) -> Option<u64> {
        match self {
            Self::At(version) => Some(version),
            Self::Unasked | Self::Sync => None,
        }
    }
}

/// One position on every member of a set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cursor {
    head: Head,
    slots: Box<[Slot]>,
}

/// Why a text is no cursor of the set it is read against.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CursorError {
    /// The text is not digits only, or too few of them.
    #[error("not a cursor")]
    NotACursor,
    /// A whole cursor, but of another shard, another set of members or another share of their objects.
    #[error("a cursor of another set of members or namespaces")]
    WrongEpoch,
    /// A whole cursor of this shard, made in another view.
    #[error("a cursor of another view of the shard")]
    OtherView(View),
    /// Check digits or layout do not hold.
    #[error("a damaged cursor")]
    Damaged,
    /// More members than a URL can carry.
    #[error("a cursor of more than {LONGEST} digits")]
    TooLong,
}

impl Cursor {
    /// A cursor in which nothing is asked of anyone.
    pub fn new(universe: &Universe) -> Self {
        Self {
            head: universe.head(),
            slots: vec![Slot::Unasked; universe.len()].into_boxed_slice(),
        }
    }

    /// The position on member `index`; a slot there is none of was not asked.
    pub fn slot(&self, index: usize) -> Slot {
        self.slots.get(index).copied().unwrap_or(Slot::Unasked)
    }

    /// Whether some of these members had more to tell when it was made.
    pub(crate) fn is_unfinished(&self, slots: &[usize]) -> bool {
        slots.iter().any(|slot| self.slot(*slot) == Slot::UNFINISHED)
    }

    /// Whether the members of all these slots were asked when it was made.
    pub(crate) fn has_asked(&self, slots: &[usize]) -> bool {
        slots.iter().all(|slot| self.slot(*slot) != Slot::Unasked)
    }

    /// The same positions in this universe, if it is of the same members: those of members that are not asked, too. None in
    /// format 1, which does not tell a universe of other members from one of other shares.
    pub(crate) fn renewed(&self, universe: &Universe) -> Self {
        let head = universe.head();
        let same = (self.head.format, self.head.epoch) == (Format::Two, head.epoch) && head.format == Format::Two;
        if !same {
            return Self::new(universe);
        }
        Self { head, ..self.clone() }
    }

    /// Whether slots mean the same members as in the other, however new each view is. Unknown in format 1.
    pub(crate) fn is_of_members_of(&self, other: &Self) -> bool {
        let format = |cursor: &Self| (cursor.head.format, cursor.head.epoch);
        format(self) == (Format::Two, other.head.epoch) && format(other) == format(self)
    }

    /// The same positions, of who knows the shard as the other cursor has it; both are of the same members.
    pub(crate) fn in_view_of(&self, other: &Self) -> Self {
        Self {
            head: other.head,
            ..self.clone()
        }
    }

    /// All positions, in slot order.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The epoch it was made in.
    pub fn epoch(&self) -> u32 {
        self.head.epoch
    }

    /// Whether it is a position in this universe as it is now.
    pub fn speaks_of(&self, universe: &Universe) -> bool {
        self.head == universe.head()
    }

    /// Whether `text` may have been written where more was known of the shard than `universe` says: in a newer view, or of
    /// other members. Only the hub can say.
    pub fn may_be_newer(text: &str, universe: &Universe) -> bool {
        match text::read(text, universe.len()) {
            Ok((head, _)) => match universe.view(head) {
                Some(view) => matches!(view, View::Newer(_)),
                None => head.format == Format::Two && universe.identity.is_some(),
            },
            Err(_) => false,
        }
    }

    /// Moves a slot forward; never backwards. Version 0 says "whatever you have", which is no position: `Sync`.
    pub fn set(&mut self, index: usize, slot: Slot) {
        let slot = if slot == Slot::At(0) { Slot::Sync } else { slot };
        if let Some(held) = self.slots.get_mut(index) {
            *held = slot.max(*held);
        }
    }

    /// The cursor with this slot set, also to an earlier position.
    pub(crate) fn with(mut self, index: usize, slot: Slot) -> Self {
        self.slots[index] = slot;
        self
    }

    /// Writes the digits. Refuses what [`Cursor::decode`] would not read.
    pub fn encode(&self) -> Result<String, CursorError> {
        text::write(self.head, &self.slots)
    }

    /// Reads what [`Cursor::encode`] wrote for the same set of members in the same view, in either format, and nothing
    /// else.
    pub fn decode(text: &str, universe: &Universe) -> Result<Self, CursorError> {
        match Self::read(text, universe)? {
            (cursor, View::Same) => Ok(cursor),
            (_, other) => Err(CursorError::OtherView(other)),
        }
    }

    /// Reads a cursor of the same set of members, and says in which view it was made. It stands in `universe` from then on:
    /// written again it says that its share is today's, which only [`View::Same`] makes true.
    pub fn read(text: &str, universe: &Universe) -> Result<(Self, View), CursorError> {
        let (head, slots) = text::read(text, universe.len())?;
        let view = universe.view(head).ok_or(CursorError::WrongEpoch)?;
        let slots = slots.ok_or(CursorError::WrongEpoch)??;
        Ok((
            Self {
                head: universe.head(),
                slots,
            },
            view,
        ))
    }
}

/// Whether this can only be a cursor (whole or not) and never a member's own resourceVersion.
pub fn is_cursor(text: &str) -> bool {
    text.len() >= SHORTEST && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A hash of who is meant and of which members.
fn epoch_of(who: &[&str], uids: &[String]) -> u32 {
    let mut hash = Xxh3::new();
    for part in who.iter().copied().chain(uids.iter().map(String::as_str)) {
        hash.update(part.as_bytes());
        hash.update(&[0]);
    }
    high(&hash)
}

/// Of one member's UID.
fn hash_of(uid: &str) -> u32 {
    let mut hash = Xxh3::new();
    hash.update(uid.as_bytes());
    high(&hash)
}

/// The half of a hash that becomes the epoch.
fn high(hash: &Xxh3) -> u32 {
    u32::try_from(hash.digest() >> 32).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
