//! (caller, request, snapshot) → what to do. Pure, and every routing rule is here: `docs/semantics.md#planning`.
//!
//! A [`Plan`] is complete: whoever runs it (`preflight`, `dispatch`, `fanout`) decides nothing any more. The explicit view is planned in
//! `explicit`, the merged view in `merged` (one object), `collection` (lists and watches) and `clusterwide` (what has no
//! namespace), what a shard's limits mean for one request in `scope`. What must be known besides is in it as well, as
//! [`Need`] and [`Choose`], for `preflight` to ask.

pub(crate) mod choose;
mod clusterwide;
mod collection;
mod discovery;
pub(crate) mod explicit;
pub(crate) mod fanout;
mod forward;
pub(crate) mod labels;
mod leases;
mod merged;
mod need;
mod new_namespace;
pub(crate) mod new_object;
mod nodes;
pub(crate) mod owners;
mod past;
pub(crate) mod placing;
pub(crate) mod replicated;
pub(crate) mod reviews;
mod rule;
mod scope;
mod single;
#[cfg(test)]
mod tests;
pub(crate) mod twins;
mod unowned;
pub(crate) mod wanted;
mod well_known;

use std::cell::Cell;
use std::sync::Arc;

use portolan_crds::selector::Selector;

pub(crate) use self::choose::{Absent, Choose, Presence, Unowned};
pub(crate) use self::fanout::{FanLeg, FanOut, Left, Replan};
use self::forward::{Refusal, Route};
pub(crate) use self::need::{BodyRule, Change, LabelCheck, LockMove, Need, OtherCopies};
pub(crate) use self::past::plan_as_of;
pub(crate) use self::replicated::{Replica, Replicas, Way};
pub(crate) use self::rule::Rule;
use crate::value::check::Check;
use crate::value::classify::{ApiRequest, Impersonation, Verb, View};
use crate::value::document::Wanted;
use crate::value::fault::Fault;
use crate::value::kinds::Kinds;
use crate::value::snapshot::{Caller, LeaseName, Snapshot, Target};
use crate::value::traffic::{Traffic, TrafficClass};

/// A plan and the rule that made it.
#[derive(Debug, Clone)]
pub(crate) struct Planned {
    /// What to do.
    pub(crate) plan: Plan,
    /// By which rule; a closed set, for span, metric and `/explain`.
    pub(crate) rule: Rule,
    /// No member is known to serve the kind: whoever runs the plan has discovery look again.
    pub(crate) unknown_kind: bool,
    /// The namespace is not the caller's, as far as this router was told: whoever runs the plan has the hub asked first.
    pub(crate) lacks_grant: bool,
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
    /// Delete a collection in each of several members, or in none.
    DeleteEach(Vec<Candidate>),
    /// A review, of which the body tells which of these members answers; see [`reviews`].
    Review(Vec<Arc<str>>),
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
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Forward {
    /// The member.
    pub(crate) target: Arc<Target>,
    /// Connections, queues, deadline and retries.
    pub(crate) traffic: Traffic,
    /// Changes to the request and to what comes back.
    pub(crate) rewrite: Rewrite,
    /// Whom the member shall see.
    pub(crate) act_as: Impersonation,
    /// What must be known before it may leave, in the order in which it is asked: access first, the body last.
    pub(crate) needs: Vec<Need>,
    /// Text for a `Warning` header: let through by `Audit`. To be counted.
    pub(crate) warning: Option<String>,
    /// Of a write to a namespace that the caller's shard has by name in that member.
    pub(crate) grant: Option<WriteGrant>,
    /// What follows once the member has carried it out. A box: hardly a request has any.
    pub(crate) replicas: Option<Box<Replicas>>,
}

/// A member that the request could go to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Candidate {
    /// The whole plan, if it is this one.
    pub(crate) forward: Forward,
    /// Why it must not be asked now.
    pub(crate) held: Option<String>,
}

impl From<Forward> for Candidate {
    fn from(forward: Forward) -> Self {
        Self { forward, held: None }
    }
}

/// By which grant of a (cluster, namespace) pair a write is its caller's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WriteGrant {
    /// The pair's namespace.
    pub(crate) namespace: String,
    /// `namespace/name` of the ShardingConfig.
    pub(crate) shard: String,
    /// Number of owners that the pair has had.
    pub(crate) epoch: u64,
    /// The member refuses writes that say another epoch: this one must say its own.
    pub(crate) fenced: bool,
}

impl WriteGrant {
    /// The member, the namespace and the shard: what the write is counted by.
    pub(crate) fn pair<'a>(&'a self, target: &'a Target) -> (&'a Arc<str>, &'a str, &'a str) {
        (&target.cluster, &self.namespace, &self.shard)
    }
}

/// What `rewrite` changes. Default: nothing but headers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Rewrite {
    /// ANDed into `labelSelector`.
    pub(crate) selector: Option<Selector>,
    /// ANDed into `fieldSelector`.
    pub(crate) fields: Option<&'static str>,
    /// The leader-election Lease is renamed in path, query and both bodies.
    pub(crate) lease: Option<LeaseName>,
    /// The leader lock may be among what the answer shows: it is renamed there, and the request is none of an election.
    pub(crate) shown: Option<LeaseName>,
}

impl Rewrite {
    /// Whether request and response bodies must be buffered and changed.
    pub(crate) fn touches_bodies(&self) -> bool {
        self.renames_answers().is_some()
    }

    /// Whose member's name becomes the client's in answers.
    pub(crate) fn renames_answers(&self) -> Option<&LeaseName> {
        self.lease.as_ref().or(self.shown.as_ref())
    }
}

/// Decides, and does nothing. `kinds`: what members said they serve, as far as it is known.
pub(crate) fn plan(caller: &Caller, request: &ApiRequest, snapshot: &Snapshot, kinds: &Kinds) -> Planned {
    if let Some(answer) = local(request) {
        return Planned {
            plan: Plan::Local(answer),
            rule: Rule::Health,
            unknown_kind: false,
            lacks_grant: false,
        };
    }
    let (unknown_kind, lacks_grant) = (Cell::new(false), Cell::new(false));
    let route = Route {
        caller,
        request,
        snapshot,
        kinds,
        unknown_kind: &unknown_kind,
        lacks_grant: &lacks_grant,
    };
    let outcome = match &request.view {
        View::Explicit(cluster) => explicit::plan(&route, cluster).map(|(rule, forward)| (rule, forward.into())),
        View::Merged => merged::plan(&route),
    };
    let (rule, plan) = outcome.unwrap_or_else(|Refusal { rule, fault }| (rule, Plan::Refuse(fault)));
    Planned {
        plan,
        rule,
        unknown_kind: unknown_kind.get(),
        lacks_grant: lacks_grant.get(),
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
    /// A renewal or an acquisition of the caller's own leader election: first in every queue, and past breaker rules
    /// meant for something else.
    pub(crate) fn is_priority(&self) -> bool {
        self.rewrite.lease.is_some()
    }

    /// Whether the router must have all of the request's body before it sends any of it.
    pub(crate) fn gathers(&self) -> bool {
        let told = |need: &Need| matches!(need, Need::Owners | Need::Copies(_) | Need::Body(_));
        // Nobody reads the body of a watch.
        let renames = self.rewrite.touches_bodies() && self.traffic.class != TrafficClass::Watch;
        // What is the same in every member is remembered by its name before it is made in one.
        let named_by_body = self
            .replicas
            .as_ref()
            .is_some_and(|replicas| replicas.resource.name.is_none());
        renames || named_by_body || self.needs.iter().any(told)
    }

    /// What others must be asked about rights, in order.
    pub(crate) fn access(&self) -> impl Iterator<Item = &Check> {
        self.needs.iter().filter_map(|need| match need {
            Need::Access(check) => Some(check),
            Need::Owners | Need::Copies(_) | Need::Labels(_) | Need::Body(_) | Need::Lock(_) => None,
        })
    }

    /// The answer when this member cannot be asked now: an open breaker, a cordon, no credential. Nothing was sent.
    pub(crate) fn unavailable(&self, message: String) -> Fault {
        forward::unavailable(self.traffic, message, Some(&self.target.cluster))
    }
}
