//! Faults that a FaultInjection orders for a request: drawn once, when it is planned, and told wherever somebody may look.
//!
//! What becomes of them is `admit`'s and `inject`'s. Caller: `call`.

use std::sync::Arc;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use jiff::Timestamp;

use super::completion::Completion;
use super::{Edge, EdgeParts, span};
use crate::decision::injection::{Circumstances, Injection};
use crate::decision::policy::{self, Reach};
use crate::stage::admit::Admission;
use crate::stage::inject::{Injector, WatchInjection};
use crate::value::classify::{ApiRequest, Verb};
use crate::value::fault::Fault;
use crate::value::injection::{FaultName, Head, WatchFault, WatchPart, Who};
use crate::value::snapshot::{Caller, CallerView};

/// Names what was ordered for a request, on its answer.
const PORTOLAN_FAULT: HeaderName = HeaderName::from_static("portolan-fault");

/// A request that is about to go to members.
pub(super) struct PlannedRequest<'a> {
    /// Its answers are merged of several members'.
    pub(super) merged: bool,
    pub(super) reach: &'a Reach,
    pub(super) head: &'a Parts,
    pub(super) asked: &'a ApiRequest,
    pub(super) caller: &'a Caller,
}

/// What is ordered for it; `None` for nearly all, and for one of which its body has yet to tell whether it is an election's. Told in its record and its span.
pub(super) fn draw(request: &PlannedRequest<'_>, completion: &mut Completion) -> Option<Box<Injection>> {
    let (Caller::Pod(view), Some(election)) = (request.caller, request.reach.election) else {
        return None;
    };
    let policies = view.policies.as_ref().filter(|policies| policies.has_faults())?;
    let clusters: Vec<&str> = request.reach.clusters.iter().map(|cluster| &**cluster).collect();
    let asked = policy::asked(request.asked, &clusters, election);
    let watches = if request.asked.verb == Verb::Watch {
        policies.watch_faults(&asked)
    } else {
        Vec::new()
    };
    let circumstances = Circumstances {
        head: Head(request.head),
        who: who(view),
        now: Timestamp::now(),
    };
    let watches = watches.into_iter().filter(|fault| can_happen(fault, request));
    let drawn = Injection::draw(policies.http_faults(&asked), watches, circumstances, || {
        rand::random_range(0.0..100.0)
    });
    let names: Vec<String> = drawn.names().iter().map(ToString::to_string).collect();
    if names.is_empty() {
        return None;
    }
    let names = names.join(", ");
    span::injected(&names, &drawn);
    completion.record.injected = true;
    completion.names.injected = Some(names);
    Some(Box::new(drawn))
}

/// What is ordered for a request before anything else. Its wait ends at once when nobody orders it any more, and what would
/// follow is judged by that.
pub(super) async fn happens(edge: &EdgeParts, injection: &Injection, admission: &Admission<'_>) -> Result<(), Fault> {
    let Caller::Pod(view) = admission.caller else {
        return Ok(());
    };
    let orders = |name: &FaultName| {
        let snapshot = edge.routing.load().snapshot.clone();
        let held_by = snapshot.callers.get(&view.key).and_then(|view| view.policies.as_ref());
        held_by.is_some_and(|policies| policies.orders_of_requests(name))
    };
    let mut swaps = edge.routing.subscribe();
    let taken_back = async {
        while injection.delayed_by.iter().any(orders) {
            if swaps.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        // What is to be told comes first.
        biased;
        over = edge.admit.put_off(injection, admission) => over?,
        () = taken_back => {
            if injection.abort.as_ref().is_none_or(|(_, name)| !orders(name)) {
                return Ok(());
            }
        }
    }
    edge.admit.abort(injection, admission)
}

/// Whether a fault of running watches can happen to this one: a watch of one member as it answers has no legs, and one that
/// is a tunnel of bytes has no events.
fn can_happen(fault: &WatchFault, request: &PlannedRequest<'_>) -> bool {
    request.merged || (fault.part == WatchPart::Whole && request.asked.upgrade.is_none())
}

fn who(view: &CallerView) -> Who<'_> {
    Who {
        cluster: &view.key.home_cluster,
        pod: &view.pod,
        service_account: &view.service_account,
    }
}

impl Edge {
    /// The faults of a watch that begins; `None`: it has none.
    pub(super) fn watch_injection(
        &self,
        injection: Option<Box<Injection>>,
        asked: &ApiRequest,
        caller: &Caller,
    ) -> Option<Arc<WatchInjection>> {
        let (faults, Caller::Pod(view)) = (injection?.watch, caller) else {
            return None;
        };
        let injector = Injector {
            routing: self.parts.routing.clone(),
            injected: self.parts.injected.clone(),
            tasks: self.parts.tasks.clone(),
        };
        WatchInjection::new(injector, view, asked, faults)
    }
}

/// Says on an answer by whose order it came so, or late, or may end otherwise.
pub(super) fn mark(headers: &mut HeaderMap, completion: &Completion) {
    let names = completion.names.injected.as_deref();
    // Names of rules are printable.
    if let Some(value) = names.and_then(|names| HeaderValue::try_from(names).ok()) {
        headers.insert(PORTOLAN_FAULT, value);
    }
}
