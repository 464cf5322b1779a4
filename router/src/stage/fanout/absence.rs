//! A member's 404 for a collection: it serves nothing of the kind, or nobody knows yet (`docs/semantics.md#lists`).
//!
//! Absence is known, not guessed: taken for it, objects that are merely out of reach would be missing from an answer that
//! says 200, and every informer would drop them. Callers: `list`, `connect` and `listing`, for each such answer.

use http::HeaderValue;

use crate::decision::plan::FanLeg;
use crate::decision::rewrite;
use crate::resource::routing::RoutingStore;
use crate::value::classify::ApiRequest;

/// Why a member that answered 404 counts as away; `None`: it serves nothing of this. Discovery looks again when in doubt,
/// and its word settles it. `legs`: who is asked together. `has_place`: the client goes on from a version of this member, so
/// it did serve the collection once.
pub(super) fn doubt(
    routing: &RoutingStore,
    asked: &ApiRequest,
    (leg, legs): (&FanLeg, &[FanLeg]),
    has_place: bool,
) -> Option<String> {
    let resource = asked.resource.as_ref()?;
    let gvr = (&*resource.group, &*resource.version, &*resource.resource);
    let kinds = &routing.load().kinds;
    let doubted = match kinds.serves_version(leg.cluster(), gvr) {
        Some(true) => true,
        // A member that says itself that it does not know serves what it did, as far as anybody can tell.
        None => has_place || kinds.is_stale(leg.cluster(), &resource.group),
        // Known since this was planned: the next request is told so.
        Some(false) => {
            let clusters: Vec<_> = legs.iter().map(|leg| leg.cluster().clone()).collect();
            kinds.version_conflict(&clusters, gvr).is_some()
        }
    };
    if !doubted {
        return None;
    }
    routing.miss();
    Some(format!(
        "member cluster {} answered 404 for {}, and its discovery does not say that there is none",
        leg.cluster(),
        resource.kind()
    ))
}

/// What is said of a member that serves nothing of this, where others do.
pub(super) fn warning(asked: &ApiRequest, leg: &FanLeg) -> Option<HeaderValue> {
    let resource = asked.resource.as_ref()?;
    rewrite::warning(&format!(
        "member cluster {} does not serve {} as {}",
        leg.cluster(),
        resource.kind(),
        resource.version
    ))
}
