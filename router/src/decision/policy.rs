//! What traffic policies make of a request. Pure: the clock is an argument.

use crate::decision::plan::Plan;
use crate::value::classify::ApiRequest;
use crate::value::policy::{Asked, AskedResource};

/// A request in the words of rules. `clusters`: see [`clusters`]. `election`: see [`is_election`].
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

/// The members that a request goes to by its plan, or may go to. None: the router answers it itself, and no policy is asked.
pub(crate) fn clusters(plan: &Plan) -> Vec<&str> {
    match plan {
        Plan::Forward(forward) => vec![&forward.target.cluster],
        Plan::FanOut(fan) => fan.legs.iter().map(|leg| &**leg.cluster()).collect(),
        Plan::Choose(choose) => choose
            .candidates
            .iter()
            .map(|one| &*one.forward.target.cluster)
            .collect(),
        Plan::DeleteEach(parts) => parts.iter().map(|one| &*one.forward.target.cluster).collect(),
        Plan::Discovery(wanted) => wanted.members.iter().map(|one| &*one.cluster).collect(),
        Plan::Local(_) | Plan::Refuse(_) => Vec::new(),
    }
}

/// Whether it is of the caller's own leader election, which only rules stop that name `leases`. So is one whose body tells
/// whether it makes the election's Lease.
pub(crate) fn is_election(plan: &Plan) -> bool {
    match plan {
        Plan::Forward(forward) => forward.is_priority(),
        Plan::Choose(choose) => choose.candidates.iter().any(|one| one.forward.is_priority()),
        Plan::FanOut(_) | Plan::DeleteEach(_) | Plan::Discovery(_) | Plan::Local(_) | Plan::Refuse(_) => false,
    }
}
