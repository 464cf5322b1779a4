//! Who of the callers has changed its shard, as this hub has seen it, by a clock that does not jump; and what all of them may hold.
//! Caller: `distribute`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::acks::Acks;
use crate::compile::{CallerKey, Holders, Past, World, callers_of};

/// The callers that were in any shard of late.
#[derive(Debug, Default)]
pub(crate) struct Pasts {
    callers: BTreeMap<CallerKey, Seen>,
    /// Writes of some are closed.
    closes: bool,
}

#[derive(Debug)]
struct Seen {
    past: Past,
    /// When it was in no shard any more.
    left: Option<Instant>,
}

impl Pasts {
    /// What is known by now. `longest`: what nothing counts for without a renewal.
    pub(super) fn holders(&self, acks: &Acks, longest: Duration) -> Arc<Holders> {
        let renewals = acks.renewals(longest);
        Arc::new(Holders {
            at: Instant::now().into_std(),
            held: renewals.held,
            untold: renewals.untold,
            young: renewals.young,
            past: self
                .callers
                .iter()
                .map(|(caller, seen)| (caller.clone(), seen.past.clone()))
                .collect(),
        })
    }

    /// Takes what routers are told from now on.
    pub(super) fn note(&mut self, world: &World, longest: Duration) {
        let now = Instant::now();
        for seen in self.callers.values_mut() {
            seen.left.get_or_insert(now);
        }
        self.closes = false;
        for (caller, present) in callers_of(world) {
            self.closes |= present.closed_until.is_some();
            let seen = self.callers.entry(caller).or_insert_with(|| Seen {
                past: Past::new(present),
                left: None,
            });
            seen.past.move_on(present, (now.into_std(), longest));
            seen.left = None;
        }
        self.callers
            .retain(|_, seen| seen.left.is_none_or(|left| now < left + longest));
    }

    /// Whether what is published depends on what routers tell next, or on the time.
    pub(super) fn close_writes(&self) -> bool {
        self.closes
    }
}
