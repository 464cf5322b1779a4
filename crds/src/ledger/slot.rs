//! Which namespaces of a member a chunk holds: those whose hash, modulo a power of two, is the chunk's index.
//!
//! The hash is keyed by the ledger: who names namespaces (a shard's author, a member's agent) cannot make many of one slot.
//! A slot that becomes too full is halved; the others stay as they are, so that one crowded chunk moves no other pair.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// Most chunks of one member: slots are halved no further.
const OF_MAX: u64 = 1 << 20;

/// The namespaces whose hash modulo `of` is `index`. Written `index-of-of`, as in `3-of-8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Slot {
    of: u64,
    index: u64,
}

/// A text that names no slot.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no slot: it must be written as in 3-of-8, with a power of two up to {OF_MAX}")]
pub struct SlotError(String);

impl Slot {
    /// The slot of all namespaces.
    pub const WHOLE: Self = Self { of: 1, index: 0 };

    /// Whether `namespace` is of this slot, in the ledger of this key.
    pub fn holds(self, key: &str, namespace: &str) -> bool {
        hash(key, namespace) % self.of == self.index
    }

    /// The two slots that hold together what this one holds; `None` if it is the smallest.
    pub fn halves(self) -> Option<[Self; 2]> {
        let of = self.of * 2;
        let upper = Self {
            of,
            index: self.index + self.of,
        };
        (of <= OF_MAX).then_some([Self { of, ..self }, upper])
    }

    /// The slot among `slots` that holds `namespace`, in the ledger of this key.
    pub fn of_namespace(key: &str, slots: &BTreeSet<Self>, namespace: &str) -> Option<Self> {
        let hash = hash(key, namespace);
        sizes()
            .map(|of| Self { of, index: hash % of })
            .find(|slot| slots.contains(slot))
    }

    /// Whether each namespace is of exactly one of `slots`.
    pub fn is_partition(slots: &BTreeSet<Self>) -> bool {
        let parts: u64 = slots.iter().map(|slot| OF_MAX / slot.of).sum();
        let inside_another = |slot: &Self| {
            let wider = sizes().take_while(|of| *of < slot.of);
            let index = slot.index;
            wider
                .map(|of| Self { of, index: index % of })
                .any(|wider| slots.contains(&wider))
        };
        parts == OF_MAX && !slots.iter().any(inside_another)
    }
}

fn hash(key: &str, namespace: &str) -> u64 {
    let hash = Sha256::new().chain_update(key).chain_update(namespace).finalize();
    hash[..8]
        .iter()
        .fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

fn sizes() -> impl Iterator<Item = u64> {
    std::iter::successors(Some(1), |of| Some(of * 2)).take_while(|of| *of <= OF_MAX)
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-of-{}", self.index, self.of)
    }
}

impl FromStr for Slot {
    type Err = SlotError;

    fn from_str(text: &str) -> Result<Self, SlotError> {
        let numbers = text
            .split_once("-of-")
            .and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((index, of)) if index < of && sizes().any(|size| size == of) => Ok(Self { of, index }),
            _ => Err(SlotError(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Slot {
    type Error = SlotError;

    fn try_from(text: String) -> Result<Self, SlotError> {
        text.parse()
    }
}

impl From<Slot> for String {
    fn from(slot: Slot) -> Self {
        slot.to_string()
    }
}
