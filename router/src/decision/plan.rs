//! (caller, request, snapshot) → what to do. Pure, and every routing rule is here (design 4).
//!
//! A [`Plan`] is complete: whoever runs it (`dispatch`, `fanout`) decides nothing any more. The explicit view is planned in
//! `explicit`, the merged view in `merged` (one object), `collection` (lists and watches) and `clusterwide` (what has no
//! namespace), what a shard's limits mean for one request in `scope`; what the object's labels or the body must say besides
//! is a [`Guard`] and a [`BodyRule`], judged by the pure functions of [`guard`] once they are at hand.

pub(crate) mod choose;
mod clusterwide;
mod collection;
mod discovery;
mod explicit;
pub(crate) mod fanout;
mod forward;
pub(crate) mod guard;
mod merged;
pub(crate) mod owners;
mod rule;
mod scope;
mod single;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use portolan_crds::selector::Selector;

pub(crate) use self::choose::Choose;
pub(crate) use self::fanout::{FanLeg, FanOut, Replan};
use self::forward::{Refusal, Route};
pub(crate) use self::rule::Rule;
use crate::value::check::Check;
use crate::value::classify::{ApiRequest, Impersonation, Verb, View};
use crate::value::document::Wanted;
use crate::value::fault::Fault;
use crate::value::kinds::Kinds;
use crate::value::snapshot::{Caller, LeaseName, Snapshot, Target};
use crate::value::traffic::TrafficClass;

/// A plan and the rule that made it.
#[derive(Debug, Clone)]
pub(crate) struct Planned {
    /// What to do.
    pub(crate) plan: Plan,
    /// By which rule; a closed set, for span, metric and `/explain`.
    pub(crate) rule: Rule,
}

/// What to do with a request.
#[derive(Debug, Clone)]
pub(crate) enum Plan {
    /// Send it to one member.
    Forward(Box<Forward>),
    /// Ask one or more members for a collection, and make one answer of theirs.
    FanOut(Box<FanOut>),
    /// Find out which of some members it is for, and send it there; see [`choose`].
    Choose(Box<Choose>),
    /// Discovery and OpenAPI, united from several members'.
    Discovery(Box<Wanted>),
    /// The router answers itself.
    Local(LocalAnswer),
    /// Nothing leaves.
    Refuse(Fault),
}

/// Answers of the router's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LocalAnswer {
    /// `/healthz` and `/livez`.
    Live,
    /// `/readyz`.
    Ready,
}

/// How one request goes to one member.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "four independent answers, each for another stage"
)]
pub(crate) struct Forward {
    /// The member.
    pub(crate) target: Arc<Target>,
    /// Which connections and which breaker.
    pub(crate) class: TrafficClass,
    /// A renewal or an acquisition of the caller's own leader election: first in every queue, and past breaker rules
    /// meant for something else.
    pub(crate) priority: bool,
    /// No deadline: watches, logs, and connections into Pods.
    pub(crate) long_running: bool,
    /// Nothing in the member can change by it: may be retried when it was sent.
    pub(crate) read: bool,
    /// A list or a watch start: an open breaker answers it 429 instead of 503.
    pub(crate) collection: bool,
    /// Changes to the request and to what comes back.
    pub(crate) rewrite: Rewrite,
    /// The object's labels must be looked at first.
    pub(crate) guard: Option<Guard>,
    /// The body must be looked at first.
    pub(crate) body_rule: Option<BodyRule>,
    /// Whom the member shall see.
    pub(crate) act_as: Impersonation,
    /// Questions to ask before anything is sent, in order; a no is 403.
    pub(crate) checks: Vec<Check>,
    /// Text for a `Warning` header: let through by `Audit`. To be counted.
    pub(crate) warning: Option<String>,
    /// Send this instead if the body creates the leader-election Lease; see `lease::names_lease`.
    pub(crate) election: Option<Box<Forward>>,
}

/// What `rewrite` changes. Default: nothing but headers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Rewrite {
    /// ANDed into `labelSelector`.
    pub(crate) selector: Option<Selector>,
    /// The leader-election Lease is renamed in path, query and both bodies.
    pub(crate) lease: Option<LeaseName>,
}

impl Rewrite {
    /// Whether request and response bodies must be buffered and changed.
    pub(crate) fn touches_bodies(&self) -> bool {
        self.lease.is_some()
    }
}

/// Before the request: GET the object's metadata (as the same user) and judge its labels; see [`guard::judge`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Guard {
    /// Path of the object in the member, without subresource.
    pub(crate) path: String,
    /// What its labels must match.
    pub(crate) selector: Selector,
    /// For the refusal: what, where, whose.
    pub(crate) object: String,
    /// The shard's ShardingConfig.
    pub(crate) shard: String,
    /// The member.
    pub(crate) cluster: String,
}

/// Before the request: judge the body; see [`guard::check_body`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BodyRule {
    /// What the labels of the result must match.
    pub(crate) selector: Selector,
    /// How the body becomes the result.
    pub(crate) change: Change,
    /// For the refusal: what, where.
    pub(crate) object: String,
    /// The shard's ShardingConfig.
    pub(crate) shard: String,
}

/// How a body relates to the object that results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The body is the object.
    Whole,
    /// The body is the object, but absent labels stay as they are: custom resources' `/status`.
    Status,
    /// The body's labels are laid over the object's: a Pod's `/binding`.
    Over,
    /// The body is a patch.
    Patch,
}

/// Decides. `kinds`: what members said they serve, as far as it is known.
pub(crate) fn plan(caller: &Caller, request: &ApiRequest, snapshot: &Snapshot, kinds: &Kinds) -> Planned {
    if let Some(answer) = local(request) {
        return Planned {
            plan: Plan::Local(answer),
            rule: Rule::Health,
        };
    }
    let route = Route {
        caller,
        request,
        snapshot,
        kinds,
    };
    let outcome = match &request.view {
        View::Explicit(cluster) => explicit::plan(&route, cluster).map(|(rule, forward)| (rule, forward.into())),
        View::Merged => merged::plan(&route),
    };
    match outcome {
        Ok((rule, plan)) => Planned { plan, rule },
        Err(Refusal { rule, fault }) => Planned {
            plan: Plan::Refuse(fault),
            rule,
        },
    }
}

/// What the router answers itself, to anyone: health of the merged view. `edge` asks before it identifies.
pub(crate) fn local(request: &ApiRequest) -> Option<LocalAnswer> {
    if request.view != View::Merged || request.resource.is_some() || request.verb != Verb::Get {
        return None;
    }
    match request.path.split('/').nth(1)? {
        "healthz" | "livez" => Some(LocalAnswer::Live),
        "readyz" => Some(LocalAnswer::Ready),
        _ => None,
    }
}

impl From<Forward> for Plan {
    fn from(forward: Forward) -> Self {
        Self::Forward(Box::new(forward))
    }
}

impl From<FanOut> for Plan {
    fn from(fan: FanOut) -> Self {
        Self::FanOut(Box::new(fan))
    }
}

impl Forward {
    /// The answer when this member cannot be asked now: an open breaker, a cordon, no credential. Nothing was sent.
    pub(crate) fn unavailable(&self, message: String) -> Fault {
        forward::unavailable(self.collection, message, &self.target.cluster)
    }
}
