//! Cursors of older views of the shard, and of other scopes than the client asks for now.

use portolan_merge::cursor::{Cursor, Slot, Universe, View, is_cursor};
use portolan_merge::query::{CollectionQuery, WatchAsk};

use super::World;
use crate::shard::{NAMESPACES, Shard};

impl World {
    /// Where a client stands that comes with a cursor, and the shard as its view has it. `None`: 410.
    pub(super) fn position(
        &mut self,
        query: &CollectionQuery,
        shard: &Shard,
        universe: &Universe,
    ) -> Option<(Cursor, Shard)> {
        let then = match query.view(universe)? {
            View::Same | View::Newer(_) => shard.clone(),
            View::Older(revision) => {
                let then = shard.as_of(revision);
                self.tally.forgotten_views += usize::from(then.is_none());
                // What is another member's now cannot be told of one that need not be there to be asked.
                let asked = shard.asks(self.truth.scope);
                then.filter(|then| then.asks(self.truth.scope).iter().all(|member| asked.contains(member)))?
            }
        };
        let universe = then.universe();
        let asks = then.asks(self.truth.scope).into_iter();
        let slots: Vec<usize> = asks.map(|member| then.slot(&universe, member)).collect();
        match query.watch(&universe, &slots).ok()? {
            WatchAsk::Open { cursor, .. } => Some((cursor, then)),
            WatchAsk::Invalid(_) => panic!("a watch that members are to refuse"),
        }
    }

    /// The client looks at all namespaces, or another one, from where it stands: as if it had asked for that before.
    pub(super) fn change_scope(&mut self) {
        self.deliver();
        let resume = self.client.resume.clone().filter(|text| is_cursor(text));
        let shard = self.truth.shard.clone();
        let universe = shard.universe();
        let position = resume.and_then(|text| Cursor::read(&text, &universe).ok());
        let Some((cursor, view)) = position.filter(|_| self.twin.is_none() && !self.client.listing) else {
            return;
        };
        let revision = match view {
            View::Older(revision) => revision,
            View::Same | View::Newer(_) => shard.revision,
        };
        let compacted =
            |(slot, member): (&Slot, usize)| matches!(slot, Slot::At(at) if *at < self.truth.members[member].compacted);
        if cursor.slots().iter().zip(shard.members()).any(compacted) {
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
        for (slot, member) in shard.members().enumerate() {
            if cursor.slot(slot) == Slot::Unasked {
                // What it holds of a member that its list did not ask is of another moment, which the cursor does not say.
                cursor.set(slot, Slot::At(self.truth.members[member].version));
            }
        }
        let mut then = shard;
        then.owner
            .clone_from(&self.truth.views[usize::try_from(revision).unwrap()]);
        self.client.move_to(self.expected(&then, &universe, &cursor));
    }

    /// Whether what the client looks at is not the caller's, for who knows the shard so.
    pub(super) fn is_outside(&self, shard: &Shard) -> bool {
        shard.asks(self.truth.scope).is_empty()
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
