//! Ordered faults of watches that run: cut, stalled, expired, put off, with a bookmark that comes again
//! (`docs/semantics.md#injected-faults`).
//!
//! Which faults a watch has was drawn when it began (`decision::injection`). Here they are judged again whenever one is due:
//! by their times, and by whether the newest snapshot still orders them, so that the kill switch ends at once what goes on.
//! A [`StreamInjection`] is of one stream, whatever connections it goes over: of what the client sees, or of one member's
//! leg below the merge core, which mends it as if the member had done it. Callers: `edge` for watches of one member as it
//! answers, `fanout` for merged ones.

mod body;
mod scan;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Response;
use jiff::Timestamp;
use parking_lot::Mutex;
use portolan_runtime::Tasks;
use tokio::time::Instant;

use self::body::InjectedBody;
use crate::decision::injection::stream::{Place, Step, StreamFaults};
use crate::decision::policy;
use crate::resource::injected::{InjectedFaults, Kind};
use crate::resource::routing::{Routing, RoutingStore};
use crate::resource::upstream::{Body, Ending, Merged};
use crate::value::classify::ApiRequest;
use crate::value::event_boundary::EventBoundary;
use crate::value::injection::{WatchFault, WatchPart};
use crate::value::policy::CallerPolicies;
use crate::value::snapshot::{CallerKey, CallerView};

/// How long a watch goes on whose client names no end: as an API server's, at most.
const LONGEST: Duration = Duration::from_hours(1);
/// A client may name a year; no clock overflows by it.
const MOST_SECONDS: u64 = 365 * 24 * 3600;

/// What injecting needs of the process.
#[derive(Clone)]
pub(crate) struct Injector {
    pub(crate) routing: Arc<RoutingStore>,
    pub(crate) injected: Arc<InjectedFaults>,
    /// Cancelled when the router drains: nothing is held back then.
    pub(crate) tasks: Tasks,
}

/// The faults of one watch.
pub(crate) struct WatchInjection {
    injector: Injector,
    caller: CallerKey,
    /// As it was drawn with.
    policies: Arc<CallerPolicies>,
    asked: ApiRequest,
    faults: Vec<WatchFault>,
    begun: Instant,
    /// When its client wants it to end.
    ends: Instant,
}

/// The faults of one stream of it.
pub(crate) struct StreamInjection {
    watch: Arc<WatchInjection>,
    /// Places in `watch.faults`.
    faults: Vec<usize>,
    /// `None`: what the client sees.
    leg: Option<Arc<str>>,
    /// A mutex: connections of a leg follow each other, and each has its body.
    state: Mutex<State>,
    /// Nothing comes of it now, as ordered.
    silent: AtomicBool,
    /// It was told that it has expired, as ordered.
    expired: AtomicBool,
}

impl fmt::Debug for StreamInjection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StreamInjection").field(&self.names()).finish()
    }
}

struct State {
    faults: StreamFaults,
    /// Of the snapshot that was looked at last.
    generation: u64,
    /// Whether that one orders them.
    ordered: Vec<bool>,
}

/// What is to be done by the faults of a stream now.
struct Due {
    step: Step,
    /// By how much everything is put off.
    delay: Duration,
}

impl WatchInjection {
    /// `faults`: those that were drawn for it, at least one.
    pub(crate) fn new(
        injector: Injector,
        view: &CallerView,
        asked: &ApiRequest,
        faults: Vec<WatchFault>,
    ) -> Option<Arc<Self>> {
        let policies = view.policies.clone()?;
        let wanted = asked.query.first("timeoutSeconds").and_then(|text| text.parse().ok());
        let lasts = match wanted {
            Some(seconds) if seconds > 0 => Duration::from_secs(MOST_SECONDS.min(seconds)),
            _ => LONGEST,
        };
        let begun = Instant::now();
        Some(Arc::new(Self {
            injector,
            caller: view.key.clone(),
            policies,
            asked: asked.clone(),
            faults,
            begun,
            ends: begun + lasts,
        }))
    }

    /// What the client sees of a watch that has begun.
    pub(crate) fn whole(self: &Arc<Self>, response: Response<Body>) -> Response<Body> {
        let (head, body) = response.into_parts();
        let boundary = EventBoundary::of(&head.headers);
        let body = match self.stream(None) {
            Some(stream) if head.status == http::StatusCode::OK => stream.inject(boundary, body),
            _ => body,
        };
        Response::from_parts(head, body)
    }

    /// What comes of one member below the merge core; `None`: no fault is for it.
    pub(crate) fn leg(self: &Arc<Self>, cluster: &Arc<str>) -> Option<Arc<StreamInjection>> {
        self.stream(Some(cluster.clone()))
    }

    /// The faults of what the client sees.
    pub(crate) fn client(self: &Arc<Self>) -> Option<Arc<StreamInjection>> {
        self.stream(None)
    }

    fn stream(self: &Arc<Self>, leg: Option<Arc<str>>) -> Option<Arc<StreamInjection>> {
        let part = if leg.is_some() {
            WatchPart::Leg
        } else {
            WatchPart::Whole
        };
        let of_part = self.faults.iter().enumerate().filter(|(_, fault)| fault.part == part);
        let faults = of_part.filter(|(_, fault)| leg.as_ref().is_none_or(|cluster| self.is_for(fault, cluster)));
        let faults: Vec<usize> = faults.map(|(at, _)| at).collect();
        let state = State {
            faults: StreamFaults::new(faults.iter().map(|at| self.faults[*at].fault)),
            // Of no snapshot: the first look is one.
            generation: u64::MAX,
            ordered: Vec::new(),
        };
        (!faults.is_empty()).then(|| {
            Arc::new(StreamInjection {
                watch: self.clone(),
                faults,
                leg,
                state: Mutex::new(state),
                silent: AtomicBool::new(false),
                expired: AtomicBool::new(false),
            })
        })
    }

    /// Whether a fault of legs is for this member's: if the rule matches the request as if it went there alone.
    fn is_for(&self, fault: &WatchFault, cluster: &str) -> bool {
        let clusters = [cluster];
        let asked = policy::asked(&self.asked, &clusters, false);
        let matching = self.policies.watch_faults(&asked);
        matching.into_iter().any(|one| one.name == fault.name)
    }

    /// Whether a snapshot still orders a fault, as it was when it was drawn.
    fn orders(&self, routing: &Routing, fault: &WatchFault) -> bool {
        let caller = routing.snapshot.callers.get(&self.caller);
        let policies = caller.and_then(|view| view.policies.as_ref());
        policies.is_some_and(|policies| {
            Arc::ptr_eq(policies, &self.policies) || policies.all_watch_faults().any(|one| one == fault)
        })
    }
}

impl StreamInjection {
    /// Makes what is ordered happen to this body, which is of the stream.
    pub(crate) fn inject(self: &Arc<Self>, boundary: EventBoundary, body: Body) -> Body {
        let ending = Ending::default();
        let injected = InjectedBody::new(self.clone(), boundary, body, ending.clone());
        Body::Merged(Merged::ending(injected, ending))
    }

    /// Names of the faults, for people.
    pub(crate) fn names(&self) -> Vec<String> {
        let faults = self.faults.iter().map(|at| &self.watch.faults[*at]);
        faults.map(|fault| fault.name.to_string()).collect()
    }

    /// Whether nothing comes of it because that was ordered.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Whether it was told that it has expired because that was ordered.
    pub(crate) fn has_expired(&self) -> bool {
        self.expired.load(Ordering::Relaxed)
    }

    fn set_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    /// Since the watch began.
    fn now(&self) -> Duration {
        self.watch.begun.elapsed()
    }

    /// What is due there. `released`: nothing is in force any more.
    fn due(&self, place: Place, released: bool) -> Due {
        let watch = &self.watch;
        let mut state = self.state.lock();
        let routing = watch.injector.routing.load();
        if state.generation != routing.snapshot.generation {
            state.generation = routing.snapshot.generation;
            let faults = self.faults.iter().map(|at| watch.orders(&routing, &watch.faults[*at]));
            state.ordered = faults.collect();
        }
        let now = Timestamp::now();
        let State { faults, ordered, .. } = &mut *state;
        let in_force =
            |index: usize| !released && ordered[index] && watch.faults[self.faults[index]].when.is_in_force(now);
        let step = faults.step(place, in_force);
        Due {
            step,
            delay: faults.delay(in_force),
        }
    }

    fn fault(&self, index: usize) -> &WatchFault {
        &self.watch.faults[self.faults[index]]
    }

    /// One happens now: it is told of.
    fn began(&self, index: usize) {
        let fault = self.fault(index);
        let kind = Kind::from(fault.fault.action);
        if kind == Kind::Expire {
            self.expired.store(true, Ordering::Relaxed);
        }
        self.watch
            .injector
            .injected
            .injected(kind, &fault.name, &self.watch.caller);
        tracing::info!(
            fault = %fault.name,
            kind = kind.as_str(),
            cluster = self.leg.as_deref(),
            pod_uid = &*self.watch.caller.pod_uid,
            "an ordered fault of a watch happens"
        );
    }

    /// Whether a fault may come into force, or go out of it, by the time of the day.
    fn is_timed(&self) -> bool {
        self.faults.iter().any(|at| self.watch.faults[*at].when.is_timed())
    }
}
