//! One attempt to bring the copies of an object to what the primary has by now, as the caller of some request. Caller: `call`, for
//! each request.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::Request;
use opentelemetry::Context;
use tokio::time::Instant;

use super::{MOST_AT_ONCE, Outcome};
use crate::decision::plan::{self, Forward, Plan, Replicas};
use crate::edge::Edge;
use crate::resource::routing::Routing;
use crate::stage::fanout::FanOuts;
use crate::stage::fanout::replicate::WITHIN;
use crate::stage::fanout::replicate::stored::StoredVersions;
use crate::stage::preflight::Pending;
use crate::value::classify::ApiRequest;
use crate::value::snapshot::Caller;

/// Mends beside a request what its caller may mend.
pub(in crate::edge) fn mend(edge: &Arc<Edge>, caller: &Caller, routing: &Arc<Routing>, beside: &ApiRequest) {
    if edge.lagging.behind.load(Ordering::Relaxed) == 0 {
        return;
    }
    let but = if beside.is_read() { "" } else { &*beside.path };
    // Half of the places are left to what clients wait for.
    let running = &edge.lagging.running;
    while running.available_permits() > MOST_AT_ONCE / 2
        && let Ok(permit) = running.clone().try_acquire_owned()
    {
        let Some((mending, asked, stored)) = edge.lagging.due(caller, but, Instant::now()) else {
            return;
        };
        let (edge, caller, routing) = (edge.clone(), caller.clone(), routing.clone());
        let tasks = edge.parts.tasks.clone();
        tasks.spawn("replicate", async move {
            let outcome = again(&edge, &caller, (&asked, &stored), &routing).await;
            mending.ends(outcome);
            drop(permit);
        });
    }
}

async fn again(
    edge: &Edge,
    caller: &Caller,
    (asked, stored): (&ApiRequest, &StoredVersions),
    routing: &Arc<Routing>,
) -> Outcome {
    let (head, ()) = Request::new(()).into_parts();
    let received = Context::new();
    let pending = Pending {
        head: &head,
        asked,
        caller,
        routing,
        received: &received,
        deadline: Instant::now() + WITHIN,
    };
    let fanouts = &edge.fanouts;
    let (forward, replicas) = match planned(fanouts, pending).await {
        Now::Follows(forward, replicas) => (forward, replicas),
        Now::Nothing => return Outcome::Settled,
        Now::Unknown => return Outcome::Behind(Vec::new()),
    };
    // The primary's object is read by the right that there is now.
    if fanouts.may_read(&forward, caller).await.is_err() {
        return Outcome::Behind(Vec::new());
    }
    let behind = if replicas.resource.subresource.is_some() {
        fanouts.forget_versions(&forward, &replicas, stored, pending).await
    } else {
        let name = replicas.resource.name.clone().unwrap_or_default();
        fanouts.replicate(&forward, &replicas, (&name, false), pending).await
    };
    Outcome::of(behind)
}

/// What would follow a write now.
enum Now {
    Follows(Box<Forward>, Box<Replicas>),
    /// It is nothing that others follow any more.
    Nothing,
    /// The primary cannot be asked, or not by this caller.
    Unknown,
}

/// As the write would be planned now, where the object says who decides about it.
async fn planned(fanouts: &FanOuts, pending: Pending<'_>) -> Now {
    let Routing { snapshot, kinds, .. } = &**pending.routing;
    let mut forward = match plan::plan(pending.caller, pending.asked, snapshot, kinds).plan {
        Plan::Forward(forward) => forward,
        Plan::Choose(choose) => match fanouts.chosen(*choose, pending).await {
            Ok(forward) => forward,
            Err(_) => return Now::Unknown,
        },
        Plan::Refuse(_) => return Now::Unknown,
        _ => return Now::Nothing,
    };
    match forward.replicas.take() {
        Some(replicas) => Now::Follows(forward, replicas),
        None => Now::Nothing,
    }
}
