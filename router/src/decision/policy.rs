//! What traffic policies make of a request. Pure: the clock is an argument.
//!
//! [`asked`] puts a request into the words of rules; `value::policy` says which it meets. `bucket` counts tokens, `takes` many at
//! once, `rule` is the state of one limit, `judge` what all that are met make of a request together, `demand` what is asked of a limit
//! that routers share. Not here: where state is kept (`resource::policies`).

mod bucket;
mod demand;
mod judge;
mod recent;
mod rule;
mod takes;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub(crate) use self::demand::Demand;
pub(crate) use self::judge::{Denied, Judged, Met, Why, judge, would_deny};
pub(crate) use self::recent::Recent;
pub(crate) use self::rule::{Look, Passed, RuleState, Stands};
pub(crate) use self::takes::Takes;
use crate::decision::plan::{Candidate, FanLeg, Forward, Plan};
use crate::value::classify::ApiRequest;
use crate::value::policy::{Asked, AskedResource};

/// A moment, in nanoseconds since some beginning that all moments of a clock have in common.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(u64);

impl Tick {
    /// So long after the beginning.
    pub(crate) fn at(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Since the beginning.
    pub(crate) fn nanoseconds(self) -> u64 {
        self.0
    }

    /// Nanoseconds that have passed since an earlier moment; none since a later one.
    pub(crate) fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// So many nanoseconds later.
    pub(crate) fn after(self, nanoseconds: u64) -> Self {
        Self(self.0.saturating_add(nanoseconds))
    }
}

/// A request in the words of rules. `clusters` and `election`: as in its [`Reach`].
pub(crate) fn asked<'a>(request: &'a ApiRequest, clusters: &'a [&'a str], election: bool) -> Asked<'a> {
    let resource = request.resource.as_ref();
    Asked {
        resource: resource.map(|of| AskedResource {
            group: &of.group,
            resource: &of.resource,
            subresource: of.subresource.as_deref(),
        }),
        verb: request.verb.as_str(),
        namespace: resource.and_then(|of| of.namespace.as_deref()),
        clusters,
        election,
    }
}

/// What policies must know of a plan, once the plan itself is on its way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    /// The members that it goes to, or may go to. None: the router answers it itself, and no policy is asked.
    pub(crate) clusters: Vec<Arc<str>>,
    /// See [`is_election`].
    pub(crate) election: Option<bool>,
}

impl Reach {
    pub(crate) fn of(plan: &Plan) -> Self {
        let of_candidates = |candidates: &[Candidate]| {
            let clusters = candidates.iter().map(|one| one.forward.target.cluster.clone());
            clusters.collect()
        };
        let clusters = match plan {
            Plan::Forward(forward) => vec![forward.target.cluster.clone()],
            Plan::FanOut(fan) => fan.legs.iter().map(FanLeg::cluster).cloned().collect(),
            Plan::Choose(choose) => of_candidates(&choose.candidates),
            Plan::DeleteEach(parts) => of_candidates(parts),
            Plan::Discovery(wanted) => wanted.members.iter().map(|one| one.cluster.clone()).collect(),
            Plan::Review(clusters) => clusters.clone(),
            Plan::Local(_) | Plan::Refuse(_) => Vec::new(),
        };
        Self {
            clusters,
            election: is_election(plan),
        }
    }

    /// Of a request that goes to one member, once that is known.
    pub(crate) fn of_one(forward: &Forward) -> Self {
        Self {
            clusters: vec![forward.target.cluster.clone()],
            election: Some(forward.is_priority()),
        }
    }
}

/// Whether it is of the caller's own leader election, which only rules stop that name `leases`; `None`: its body tells, and it is
/// judged once that has chosen where it goes.
fn is_election(plan: &Plan) -> Option<bool> {
    match plan {
        Plan::Forward(forward) => Some(forward.is_priority()),
        Plan::Choose(choose) if choose.candidates.iter().any(|one| one.forward.is_priority()) => None,
        // A list or a watch of its Lease alone.
        Plan::FanOut(fan) => Some(!fan.legs.is_empty() && fan.legs.iter().all(|leg| leg.forward.is_priority())),
        Plan::Choose(_)
        | Plan::DeleteEach(_)
        | Plan::Review(_)
        | Plan::Discovery(_)
        | Plan::Local(_)
        | Plan::Refuse(_) => Some(false),
    }
}
