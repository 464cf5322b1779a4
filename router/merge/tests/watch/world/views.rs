//! Cursors of older views of the shard, and of other scopes than the client asks for now.

use portolan_merge::cursor::{Cursor, Slot, Universe, View, is_cursor};
use portolan_merge::query::{CollectionQuery, WatchAsk};

use super::World;
use crate::truth::{NAMESPACES, Owners, Truth};

impl World {
    /// Where a client stands that comes with a cursor, and what was whose in its view. `None`: 410.
    pub(super) fn position(&self, text: &str, universe: &Universe) -> Option<(Cursor, Owners)> {
        let query = CollectionQuery::parse(|name| (name == "resourceVersion").then(|| text.to_owned()));
        let (universe, owners) = match query.view(universe)? {
            View::Same => (universe.clone(), self.truth.owner.clone()),
            View::Older(revision) => (universe.at(revision), self.truth.owners_as_of(revision)?),
            View::Newer(_) => panic!("nothing is newer here"),
        };
        let asks = self.truth.asks(&owners).into_iter();
        let slots: Vec<usize> = asks
            .map(|member| universe.slot(&Truth::name(member)).unwrap())
            .collect();
        match query.watch(&universe, &slots).ok()? {
            WatchAsk::Open { cursor, .. } => Some((cursor, owners)),
            WatchAsk::Invalid(_) => panic!("a watch that members are to refuse"),
        }
    }

    /// The client looks at all namespaces, or another one, from where it stands: as if it had asked for that before.
    pub(super) fn change_scope(&mut self) {
        self.deliver();
        let resume = self.client.resume.clone().filter(|text| is_cursor(text));
        let universe = self.truth.universe();
        let position = resume.and_then(|text| Cursor::read(&text, &universe).ok());
        let Some((cursor, view)) = position.filter(|_| self.twin.is_none() && !self.client.listing) else {
            return;
        };
        let revision = match view {
            View::Older(revision) => revision,
            View::Same | View::Newer(_) => self.truth.revision(),
        };
        let slots = cursor.slots().iter().zip(self.joined());
        if slots
            .into_iter()
            .any(|(slot, member)| matches!(slot, Slot::At(at) if *at < self.truth.members[member].compacted))
        {
            return;
        }
        self.drop_session();
        self.paging = None;
        self.own = None;
        self.tally.scopes += 1;
        self.truth.scope = match self.truth.scope {
            Some(_) if self.dice.percent(50) => None,
            _ => Some(*self.dice.pick(&NAMESPACES)),
        };
        let mut cursor = cursor;
        for slot in 0..universe.len() {
            if cursor.slot(slot) == Slot::Unasked {
                // What it holds of a member that its list did not ask is of another moment, which the cursor does not say.
                cursor.set(slot, Slot::At(self.truth.members[self.joined()[slot]].version));
            }
        }
        let owners = self.truth.views[usize::try_from(revision).unwrap()].clone();
        self.client.move_to(self.expected(&owners, &universe, &cursor));
        if self.is_outside() {
            self.leave_scope();
        }
    }

    /// The members of now, in the order of their slots.
    fn joined(&self) -> Vec<usize> {
        let members = 0..self.truth.members.len();
        members.filter(|member| self.truth.joined[*member]).collect()
    }

    /// Whether what the client looks at is not the caller's.
    pub(super) fn is_outside(&self) -> bool {
        self.truth.asks(&self.truth.owner).is_empty()
    }

    /// It is refused, and looks at all namespaces from then on.
    pub(super) fn leave_scope(&mut self) {
        self.drop_session();
        self.truth.scope = None;
        self.paging = None;
        self.client.resume = None;
        self.client.last_listed = None;
    }
}
