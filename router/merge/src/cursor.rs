//! The merged resourceVersion: where a client stands on every member, as one decimal number.
//!
//! `1 eeeeeeeeee nnnn (ll rrr…)* ccccccccc`: format digit, ten digits of the epoch, the number of slots, per
//! slot the length and the digits of that member's raw resourceVersion, nine check digits. The fixed parts alone are 24
//! digits, so no member can take one for its uint64 and no filler is needed to reach the floor. A slot only moves forward;
//! its length grows before its digits start again, so the whole grows under "longer is greater, else lexicographic", the
//! order clients compare by. Stateless: every router replica reads it. The check digits tell accidents and tampering, they
//! keep no secret: a client that forges one only chooses where its own watches begin.
//!
//! The epoch says what the slots are positions *of*: the shard, its set of members, and which of the members' objects are
//! the caller's in this request ([`Universe::covering`]). A position says nothing of objects that were not asked for when
//! it was reached: who went on from it with more namespaces would never hear of what is in them already, and with fewer
//! never of what is gone. So another share is another epoch, and its cursors are expired. Not in it: how a member is asked
//! (by labels or not), whether it can be reached, and whatever is only so until more is known. It follows from content
//! alone, so all routers, also after a restart, agree on it.
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

use std::fmt::Write as _;

use xxhash_rust::xxh3::Xxh3;

/// Digits of the shortest cursor: below this a number may be a member's own resourceVersion (uint64: at most 20 digits).
pub const SHORTEST: usize = 24;
/// Digits of the longest cursor: above this, URLs that carry it become longer than clients and proxies accept.
pub const LONGEST: usize = 4_000;

const FORMAT: char = '1';
const EPOCH: usize = 10;
const COUNT: usize = 4;
const CHECK: usize = 9;
const SLOTS_AT: usize = 1 + EPOCH + COUNT;
/// Digits of a slot's length, and of the largest version.
const LENGTH: usize = 2;
const VERSION: usize = 20;
/// So many members can be asked at once and every cursor of it be written.
pub const MOST_MEMBERS: usize = (LONGEST - SLOTS_AT - CHECK) / (LENGTH + VERSION);
/// The largest prime below 10⁹: no digit times a power of ten is a multiple of it, so one wrong digit never passes.
const CHECK_PRIME: u64 = 999_999_937;

/// What a caller's cursors speak of: member clusters in the order of their slots, and its share of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Universe {
    uids: Box<[String]>,
    epoch: u32,
}

impl Universe {
    /// The universe of these members. `uids` in any order, repeated or not; the epoch follows from the shard's name and the set.
    pub fn new(shard: &str, uids: impl IntoIterator<Item = String>) -> Self {
        let mut uids: Vec<String> = uids.into_iter().collect();
        uids.sort_unstable();
        uids.dedup();
        let mut hash = Xxh3::new();
        for part in std::iter::once(shard).chain(uids.iter().map(String::as_str)) {
            hash.update(part.as_bytes());
            hash.update(&[0]);
        }
        Self {
            uids: uids.into_boxed_slice(),
            epoch: high(&hash),
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

    /// The slot of the member with this cluster UID.
    pub fn slot(&self, uid: &str) -> Option<usize> {
        self.uids.binary_search_by(|held| held.as_str().cmp(uid)).ok()
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
        SLOTS_AT + self.len() * LENGTH + asked * VERSION + CHECK <= LONGEST
    }

    /// What tells this universe's cursors from all others.
    pub fn epoch(&self) -> u32 {
        self.epoch
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
    epoch: u32,
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
            epoch: universe.epoch,
            slots: vec![Slot::Unasked; universe.len()].into_boxed_slice(),
        }
    }

    /// The position on member `index`; a slot there is none of was not asked.
    pub fn slot(&self, index: usize) -> Slot {
        self.slots.get(index).copied().unwrap_or(Slot::Unasked)
    }

    /// All positions, in slot order.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The epoch it was made in.
    pub fn epoch(&self) -> u32 {
        self.epoch
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
        if self.slots.len() >= 10_usize.pow(4) {
            return Err(CursorError::TooLong);
        }
        let mut text = String::with_capacity(SHORTEST + self.slots.len() * 12);
        // Writing to a String cannot fail.
        let _ = write!(text, "{FORMAT}{:0EPOCH$}{:0COUNT$}", self.epoch, self.slots.len());
        for slot in &self.slots {
            match slot {
                Slot::Unasked => text.push_str("00"),
                Slot::Sync => text.push_str("010"),
                Slot::At(version) => {
                    let _ = write!(text, "{:02}{version}", digits(*version));
                }
            }
        }
        if text.len() + CHECK > LONGEST {
            return Err(CursorError::TooLong);
        }
        let _ = write!(text, "{:0CHECK$}", check(text.as_bytes()));
        Ok(text)
    }

    /// Reads what [`Cursor::encode`] wrote for the same set of members, and nothing else.
    pub fn decode(text: &str, universe: &Universe) -> Result<Self, CursorError> {
        if !is_cursor(text) {
            return Err(CursorError::NotACursor);
        }
        if text.len() > LONGEST {
            return Err(CursorError::TooLong);
        }
        let (body, sum) = text.split_at(text.len() - CHECK);
        if !body.starts_with(FORMAT) || sum.parse() != Ok(check(body.as_bytes())) {
            return Err(CursorError::Damaged);
        }
        let (head, slots) = body.split_at(SLOTS_AT);
        let (epoch, count) = head[1..].split_at(EPOCH);
        if epoch.parse() != Ok(universe.epoch) || count.parse() != Ok(universe.len()) {
            return Err(CursorError::WrongEpoch);
        }
        let slots = read_slots(slots, universe.len()).ok_or(CursorError::Damaged)?;
        Ok(Self {
            epoch: universe.epoch,
            slots,
        })
    }
}

/// Whether this can only be a cursor (whole or not) and never a member's own resourceVersion.
pub fn is_cursor(text: &str) -> bool {
    text.len() >= SHORTEST && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn read_slots(mut text: &str, count: usize) -> Option<Box<[Slot]>> {
    let mut slots = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, rest) = text.split_at_checked(2)?;
        let (version, rest) = rest.split_at_checked(length.parse().ok()?)?;
        slots.push(match version {
            "" => Slot::Unasked,
            "0" => Slot::Sync,
            _ if version.starts_with('0') => return None,
            _ => Slot::At(version.parse().ok()?),
        });
        text = rest;
    }
    text.is_empty().then(|| slots.into_boxed_slice())
}

/// The half of a hash that becomes the epoch.
fn high(hash: &Xxh3) -> u32 {
    u32::try_from(hash.digest() >> 32).unwrap_or(u32::MAX)
}

fn digits(version: u64) -> u32 {
    version.checked_ilog10().map_or(1, |log| log + 1)
}

fn check(body: &[u8]) -> u64 {
    body.iter()
        .fold(0, |sum, byte| (sum * 10 + u64::from(byte - b'0')) % CHECK_PRIME)
}

#[cfg(test)]
mod tests;
