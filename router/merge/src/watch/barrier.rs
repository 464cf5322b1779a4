//! The end of the initial events: a client of a watch-list waits for one marker, which follows all legs' own.
//!
//! A leg that is through waits for the others: what happens in it would come before the marker else.

use super::leg::Leg;
use super::legs::Legs;
use crate::cursor::{Cursor, Slot};

/// The marker that is waited for, and what it said.
#[derive(Debug)]
pub(super) struct Barrier {
    closed: bool,
    /// Slots of which the marker said that more follows: no bookmark says less.
    early: Vec<usize>,
}

impl Barrier {
    /// Closed if the client asked for initial events with a marker.
    pub(super) fn new(closed: bool) -> Self {
        let early = Vec::new();
        Self { closed, early }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether this leg waits for the others.
    pub(super) fn holds(&self, leg: &Leg) -> bool {
        self.closed && leg.is_through()
    }

    /// Whether nobody is waited for any longer.
    pub(super) fn is_reached(&self, legs: &Legs) -> bool {
        self.closed && legs.all.iter().all(Leg::is_through)
    }

    /// Opens. `early`: slots of which something is told after the marker (what has left meanwhile, or is to be sent again),
    /// so whoever resumes from just there must not begin behind that: the marker's cursor says [`Slot::UNFINISHED`] of them.
    pub(super) fn open(&mut self, cursor: &Cursor, early: Vec<usize>) -> Cursor {
        self.closed = false;
        self.early = early;
        set_early(cursor, self.early.iter())
    }

    /// The cursor of a bookmark: a slot of which the marker said so may be back at nothing, which is less.
    pub(super) fn no_less(&self, cursor: &Cursor) -> Cursor {
        let back = |slot: &&usize| cursor.slot(**slot).version().is_none();
        set_early(cursor, self.early.iter().filter(back))
    }

    /// Slots mean other members now, or none.
    pub(super) fn renumber(&mut self, new: impl Fn(usize) -> Option<usize>) {
        self.early = self.early.iter().filter_map(|slot| new(*slot)).collect();
    }
}

fn set_early<'a>(cursor: &Cursor, slots: impl Iterator<Item = &'a usize>) -> Cursor {
    slots.fold(cursor.clone(), |cursor, slot| cursor.with(*slot, Slot::UNFINISHED))
}
