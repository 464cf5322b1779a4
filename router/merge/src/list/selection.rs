//! Which items of a merged list are looked at, and that of a union a name stays once.
//!
//! `list` asks for each item whose list may have to lose some.

use std::collections::HashSet;

use crate::filter::NamespaceFilter;
use crate::object_meta::ObjectMeta;

/// Begins the names of what each API server makes itself. One hides another and is the same: that it does is no news, and tools that
/// take each warning for an error could not list any.
const MADE_BY_SERVERS: &str = "system:";

#[derive(Debug, Default)]
pub(super) struct Selection {
    /// Names taken by earlier legs; `None` where names need not be unique.
    taken: Option<HashSet<Box<str>>>,
    /// Names of the leg under way: it may not collide with itself.
    leg: usize,
    fresh: Vec<Box<str>>,
    collisions: u64,
}

impl Selection {
    pub(super) fn new(unique: bool) -> Self {
        Self {
            taken: unique.then(HashSet::new),
            ..Self::default()
        }
    }

    pub(super) fn collisions(&self) -> u64 {
        self.collisions
    }

    /// Whether items of a leg must be looked at.
    pub(super) fn looks_at_items(&self, filter: Option<&NamespaceFilter>) -> bool {
        filter.is_some() || self.taken.is_some()
    }

    /// Whether the name of an item is free, and takes it. Legs come one after the other.
    pub(super) fn takes(&mut self, leg: usize, meta: &ObjectMeta<'_>) -> bool {
        let Some(taken) = &mut self.taken else { return true };
        if self.leg != leg {
            self.leg = leg;
            taken.extend(self.fresh.drain(..));
        }
        if taken.contains(&*meta.name) {
            self.collisions += u64::from(!meta.name.starts_with(MADE_BY_SERVERS));
            return false;
        }
        self.fresh.push((&*meta.name).into());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_server_makes_is_hidden_without_a_word() {
        let mut selection = Selection::new(true);
        for (leg, name, takes) in [
            (0, "system:node", true),
            (0, "mine", true),
            (1, "system:node", false),
            (1, "mine", false),
            (1, "other", true),
        ] {
            let meta = ObjectMeta {
                name: name.into(),
                ..ObjectMeta::default()
            };
            assert_eq!(selection.takes(leg, &meta), takes, "{name}");
        }
        assert_eq!(selection.collisions(), 1);
    }
}
