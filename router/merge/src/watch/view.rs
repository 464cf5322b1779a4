//! In which view of the shard a client stands while a change of it is being told.
//!
//! A member that is away owes its part of a change for as long as it is; that must not cost the client its place on the
//! others. Its place is told in the last view of which all was told: a cursor of an older view is told what came and went
//! since. Where members came or went with the change there is no such view.

use crate::cursor::Cursor;

/// The view before the changes that are being told.
#[derive(Default)]
pub(super) enum View {
    /// None is.
    #[default]
    Told,
    /// Its cursors are like this one; boxed, because most watches have none.
    Before(Box<Cursor>),
    /// No cursor can say it.
    Unsayable,
}

impl View {
    /// The shard changed. `before` and `now`: cursors of before and after it.
    pub(super) fn change(&mut self, before: &Cursor, now: &Cursor) {
        if !before.is_of_members_of(now) {
            *self = Self::Unsayable;
        } else if matches!(self, Self::Told) {
            *self = Self::Before(Box::new(before.clone()));
        }
    }

    /// Legs came or went with the change.
    pub(super) fn forget(&mut self) {
        *self = Self::Unsayable;
    }

    /// All is told. True if it was not before.
    pub(super) fn catch_up(&mut self) -> bool {
        !matches!(std::mem::take(self), Self::Told)
    }

    /// A cursor of the view before the changes that are being told.
    pub(super) fn before(&self) -> Option<&Cursor> {
        match self {
            Self::Before(cursor) => Some(cursor),
            Self::Told | Self::Unsayable => None,
        }
    }
}
