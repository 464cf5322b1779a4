//! Pages of a list that was begun in an older view of the shard: they go on at its cursor, and show what was the shard's then and
//! is now. What has entered since comes by a watch from that cursor, which is told of what left as well (`watch::since`).

use std::sync::Arc;

use portolan_merge::cursor::{Universe, View};
use portolan_merge::filter::NamespaceFilter;
use portolan_merge::query::CollectionQuery;

use crate::decision::plan::{FanLeg, Plan, plan_as_of};
use crate::stage::fanout::Fan;
use crate::value::classify::ApiRequest;

/// What the list was begun with.
pub(super) struct Then {
    /// Its cursors' own.
    pub(super) universe: Arc<Universe>,
    /// Slot of each member that was asked, in the order of their pages; and what of it was the shard's, where that is another
    /// part than now.
    legs: Vec<(usize, Option<NamespaceFilter>)>,
}

impl Then {
    /// `None`: the list is of the present view, or begins; or what was whose in its view is not known any more, and its token is as
    /// one of another epoch.
    pub(super) fn of(fan: &Fan, query: &CollectionQuery) -> Option<Self> {
        let Fan {
            plan, asking, routing, ..
        } = fan;
        let Some(View::Older(revision)) = query.begun_in(&plan.universe) else {
            return None;
        };
        let (snapshot, kinds) = (&routing.snapshot, &routing.kinds);
        let Plan::FanOut(before) = plan_as_of(&asking.caller, &asking.asked, snapshot, kinds, revision)?.plan else {
            return None;
        };
        // A watch from there could not be told what became of a member's that need not be there to be asked.
        let now = |leg: &FanLeg| plan.legs.iter().find(|now| now.cluster() == leg.cluster());
        if before.left.is_some() || before.legs.iter().any(|leg| now(leg).is_none()) {
            return None;
        }
        let leg = |leg: &FanLeg| {
            let changed = now(leg).is_some_and(|now| now.share != leg.share);
            (leg.slot, leg.share.namespaces.clone().filter(|_| changed))
        };
        Some(Self {
            universe: Arc::new(plan.universe.at(revision)),
            legs: before.legs.iter().map(leg).collect(),
        })
    }

    pub(super) fn slots(&self) -> Vec<usize> {
        self.legs.iter().map(|(slot, _)| *slot).collect()
    }

    /// Whether less of a member is shown than is the shard's now.
    pub(super) fn narrows(&self, leg: &FanLeg) -> bool {
        self.namespaces(leg).is_some()
    }

    /// What of a member's objects is shown: what the present plan believes, if it was the shard's then.
    pub(super) fn believed(&self, asked: &ApiRequest, leg: &FanLeg) -> Option<NamespaceFilter> {
        let now = leg.filter.clone().or_else(|| leg.believed(asked));
        match (now, self.namespaces(leg).cloned()) {
            (Some(now), Some(then)) => Some(now.and(then)),
            (now, then) => now.or(then),
        }
    }

    fn namespaces(&self, leg: &FanLeg) -> Option<&NamespaceFilter> {
        let mut legs = self.legs.iter();
        legs.find(|(slot, _)| *slot == leg.slot)?.1.as_ref()
    }
}
