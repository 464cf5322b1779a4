//! Objects of replicated kinds in the members beside the primary (`docs/semantics.md#replicated-kinds`).
//!
//! What the primary has after a write is read there and applied to the others by server-side apply, as the same caller and without
//! force, and compared with the primary's once more: of two writers the last one wins everywhere. Which members these are is the plan's,
//! what is applied `decision::replica`'s. Caller: `edge`, before the client has the primary's answer.

pub(crate) mod deletion;
pub(crate) mod stored;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use portolan_crds::selector::Selector;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::FanOuts;
use crate::decision::plan::choose::{Choose, Decides, Finding, Holder};
use crate::decision::plan::{Candidate, Forward, Need, Replica, Replicas, Way};
use crate::decision::replica::{self, Service};
use crate::decision::rewrite;
use crate::resource::upstream::{Body, gather};
use crate::stage::dispatch::{Dispatched, Leg};
use crate::stage::preflight::Pending;
use crate::value::classify::{ApiRequest, Query, ResourceRequest, Verb};
use crate::value::fault::Fault;
use crate::value::object::{self, message_of};
use crate::value::snapshot::Caller;

/// For all that follows a write, and for the other members to serve a definition: its client waits for the answer.
pub(crate) const WITHIN: Duration = Duration::from_secs(10);
/// Between two looks whether a definition is served, and half as much again after each. Members take a tenth of a second or two.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Who owns the fields of the copies, in the members' `managedFields`: this, and the name of the primary. So shards with another
/// primary do not take fields from each other without a conflict.
const MANAGER: &str = "portolan-replica";
const APPLY: HeaderValue = HeaderValue::from_static("application/apply-patch+yaml");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Of an answer that is looked into: an object, or a Status.
const MAX_ANSWER_BYTES: usize = 2 << 20;
/// Of a warning, which stands in a header of its own: conflicts name each field.
const MAX_WARNING_CHARS: usize = 1000;
/// Another manager owns what differs, as a word for metrics.
const CONFLICT: &str = "conflict";

/// A member whose copy is not what the primary has, with why.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Behind {
    pub(crate) cluster: String,
    /// A word for metrics.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// One object of a replicated kind, and who has it.
struct Copies<'a> {
    primary: &'a Forward,
    /// What of it is the shard's.
    limits: Option<&'a Selector>,
    resource: &'a ResourceRequest,
    path: String,
    pending: Pending<'a>,
}

impl FanOuts {
    /// Brings the others to what the primary has by now, as far as they let the caller and within [`WITHIN`]. Who is behind in
    /// the end is told.
    pub(crate) async fn replicate(
        &self,
        primary: &Forward,
        replicas: &Replicas,
        (name, is_new): (&str, bool),
        pending: Pending<'_>,
    ) -> Vec<Behind> {
        let until = pending.deadline.min(Instant::now() + WITHIN);
        let resource = ResourceRequest {
            name: Some(name.to_owned()),
            ..replicas.resource.clone()
        };
        let copies = Copies {
            primary,
            limits: replicas.limits.as_ref(),
            path: resource.object_path(),
            resource: &resource,
            pending: Pending {
                deadline: until,
                ..pending
            },
        };
        let applied = self.until_the_same(&copies, &replicas.others).await;
        let settled = replicas.others.iter().zip(applied).map(async |(other, applied)| {
            match (applied, &other.way) {
                (Ok(()), Way::Open(candidate)) => self.served(candidate, &copies).await,
                (applied, _) => applied,
            }
            .err()
        });
        let behind: Vec<Behind> = join_all(settled).await.into_iter().flatten().collect();
        if is_new && resource.is_definition() {
            self.remember_young(&copies, &replicas.others, &behind).await;
        }
        self.open.metrics.replicated(replicas.others.len(), &behind);
        behind
    }

    /// That the kind was made just now, and where those stand that have it.
    async fn remember_young(&self, copies: &Copies<'_>, others: &[Replica], behind: &[Behind]) {
        let read = self
            .preflight
            .object(copies.primary, &copies.path, copies.pending)
            .await;
        let Some(definition) = read.ok().and_then(|(_, bytes)| serde_json::from_slice(&bytes).ok()) else {
            return;
        };
        let serving = others.iter().filter_map(|other| match &other.way {
            Way::Open(candidate) if behind.iter().all(|one| one.cluster != other.cluster) => Some(&**candidate),
            _ => None,
        });
        let primary = (copies.primary, &definition);
        self.is_young(primary, serving.collect(), copies.pending).await;
    }

    /// Applies what the primary has to each of the others, until it has nothing else. In the order of the others.
    async fn until_the_same(&self, copies: &Copies<'_>, others: &[Replica]) -> Vec<Result<(), Behind>> {
        let mut applied: Option<(Value, Vec<Result<(), Behind>>)> = None;
        loop {
            let now = match self.shared(copies).await {
                Ok(Some(now)) => now,
                Ok(None) => return fail(others, "deleted", "it was deleted at the primary meanwhile"),
                Err((reason, why)) => return fail(others, reason, &why),
            };
            match applied {
                Some((before, results)) if before == now => return results,
                Some(_) if Instant::now() >= copies.pending.deadline => {
                    return fail(others, "late", "it changes at the primary all the time");
                }
                _ => {}
            }
            let results = join_all(others.iter().map(|other| self.apply(copies, other, &now))).await;
            applied = Some((now, results));
        }
    }

    /// What is to be the same everywhere, as the primary has it; `None` if the object is on its way out there, or gone.
    /// Else a word for metrics, and why. What somebody else made of it meanwhile may not be the shard's.
    async fn shared(&self, copies: &Copies<'_>) -> Result<Option<Value>, (&'static str, String)> {
        let cluster = &copies.primary.target.cluster;
        let unread = |why: String| ("unread", why);
        let asked = self.preflight.object(copies.primary, &copies.path, copies.pending);
        let (status, bytes) = asked.await.map_err(|fault| unread(fault.to_string()))?;
        match status {
            StatusCode::OK => {
                let object: Value = serde_json::from_slice(&bytes).map_err(|error| unread(error.to_string()))?;
                if copies.limits.is_some_and(|limits| !limits.matches(&labels_of(&object))) {
                    let why = format!("what member cluster {cluster} has by now is outside the limits of the shard");
                    return Err(("refused", why));
                }
                let meta = object::metadata(&bytes).unwrap_or_default();
                match meta.decides() {
                    Some(decides) if *decides != **cluster => {
                        Err(("decided", format!("member cluster {decides} decides about it")))
                    }
                    _ => Ok(replica::shared(&object)),
                }
            }
            StatusCode::NOT_FOUND => Ok(None),
            status => {
                let said = message_of(&bytes).unwrap_or_else(|| status.to_string());
                let why = format!("member cluster {cluster} does not show it to this caller: {said}");
                Err(unread(why))
            }
        }
    }

    /// The member to which a write would go now, as [`Preflight::choose`] finds out.
    ///
    /// [`Preflight::choose`]: crate::stage::preflight::Preflight::choose
    pub(crate) async fn chosen(&self, choose: Choose, pending: Pending<'_>) -> Result<Box<Forward>, Fault> {
        self.preflight.choose(choose, pending, &mut Body::Empty).await
    }

    /// Whether the caller may be served by the primary, whatever is known of an earlier request.
    pub(crate) async fn may_read(&self, primary: &Forward, caller: &Caller) -> Result<(), Fault> {
        self.preflight.access(caller, primary).await
    }

    /// The copy that is there is applied to by its uid: one that is deleted meanwhile is not made anew.
    async fn apply(&self, copies: &Copies<'_>, other: &Replica, object: &Value) -> Result<(), Behind> {
        let behind = |reason, message: String| Behind {
            cluster: other.cluster.clone(),
            reason,
            message,
        };
        let away = |fault: Fault| behind("away", fault.to_string());
        let candidate = match &other.way {
            Way::Open(candidate) => candidate,
            Way::Closed(why) => return Err(behind("refused", why.clone())),
            Way::Unknown(fault) => return Err(away(fault.clone())),
        };
        if let Some(held) = &candidate.held {
            return Err(behind("away", held.clone()));
        }
        let pending = copies.pending;
        self.is_ours(candidate, copies).await.map_err(|fault| match fault {
            Fault::Forbidden(why) => behind("refused", why),
            other => away(other),
        })?;
        let mut object = object.clone();
        let uid = self.uid_of_copy(candidate, copies).await.map_err(away)?;
        if let Some(uid) = uid {
            object["metadata"]["uid"] = uid.into();
        }
        let object = Bytes::from(object.to_string());
        let manager = format!("fieldManager={MANAGER}-{}", copies.primary.target.cluster);
        let asked = copies.request(Method::PATCH, Some(&manager));
        let sent = self.send(&candidate.forward, (asked, APPLY, object), pending);
        let (status, body) = sent.await.map_err(away)?;
        let said = || message_of(&body).unwrap_or_else(|| status.to_string());
        if status.is_success() {
            let leaves = object::metadata(&body).is_ok_and(|meta| meta.deletion_timestamp.is_some());
            return if leaves {
                Err(behind("leaving", "its copy is being deleted there".to_owned()))
            } else {
                Ok(())
            };
        }
        Err(match status {
            // That of fields names each of them as a cause; else somebody else was first.
            StatusCode::CONFLICT if is_of_fields(&body) => behind(CONFLICT, said()),
            StatusCode::CONFLICT => behind("gone", said()),
            // It does not serve the kind yet, or does not know the token of the moment.
            StatusCode::NOT_FOUND | StatusCode::UNAUTHORIZED => behind("away", said()),
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => behind("away", said()),
            _ => behind("refused", said()),
        })
    }

    /// `None` if there is none, or it is not the caller's to see.
    async fn uid_of_copy(&self, candidate: &Candidate, copies: &Copies<'_>) -> Result<Option<String>, Fault> {
        let holder = Holder {
            path: copies.path.clone(),
            object: copies.resource.kind(),
            writes: true,
            one_of: false,
            replicated: true,
            decides: Decides::Place,
            unasked: None,
            placing: None,
        };
        let (finding, body) = self.preflight.look(&holder, candidate, copies.pending).await;
        match finding {
            Finding::Has => {}
            Finding::HasNot | Finding::Forbidden => return Ok(None),
            Finding::Unknown(fault) => return Err(fault),
        }
        let bytes = gather(body, MAX_ANSWER_BYTES).await;
        let bytes = bytes.map_err(|error| candidate.forward.unavailable(error.to_string()))?;
        Ok(object::metadata(&bytes).ok().and_then(|meta| meta.uid))
    }

    /// Whether the caller may be served by the member, and the copy that is there is the shard's.
    async fn is_ours(&self, candidate: &Candidate, copies: &Copies<'_>) -> Result<(), Fault> {
        let mut forward = candidate.forward.clone();
        for need in &mut forward.needs {
            if let Need::Labels(check) = need {
                // A create has its name in the body.
                check.path.clone_from(&copies.path);
            }
        }
        let mut nothing = Body::Empty;
        self.preflight.check(&forward, copies.pending, &mut nothing).await
    }

    /// Waits until a member serves what its copy defines, if it defines anything.
    async fn served(&self, candidate: &Candidate, copies: &Copies<'_>) -> Result<(), Behind> {
        if !copies.resource.is_definition() {
            return Ok(());
        }
        let cluster = candidate.forward.target.cluster.to_string();
        let behind = |reason, message: String| Behind {
            cluster: cluster.clone(),
            reason,
            message,
        };
        let mut pause = LOOK_PAUSE;
        loop {
            let asked = self.preflight.object(&candidate.forward, &copies.path, copies.pending);
            let (status, bytes) = asked.await.map_err(|fault| behind("late", fault.to_string()))?;
            let service = match status {
                StatusCode::OK => {
                    serde_json::from_slice(&bytes).map_or(Service::Waits, |read: Value| replica::service(&read))
                }
                StatusCode::NOT_FOUND => return Err(behind("gone", "its copy was deleted there meanwhile".to_owned())),
                StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => {
                    let said = message_of(&bytes).unwrap_or_else(|| status.to_string());
                    return Err(behind("unseen", said));
                }
                _ => Service::Waits,
            };
            match service {
                Service::Served => return Ok(()),
                Service::Never(why) => return Err(behind("refused", why)),
                Service::Waits if Instant::now() >= copies.pending.deadline => {
                    return Err(behind("late", "it is not established there yet".to_owned()));
                }
                Service::Waits => {
                    sleep(pause).await;
                    pause = (pause * 3 / 2).min(LONGEST_LOOK_PAUSE);
                }
            }
        }
    }

    /// Sends a request of the router's own making, as the caller, and reads its answer.
    async fn send(
        &self,
        forward: &Forward,
        (asked, content_type, body): (ApiRequest, HeaderValue, Bytes),
        pending: Pending<'_>,
    ) -> Result<(StatusCode, Bytes), Fault> {
        let mut forward = forward.clone();
        // Asked already, as the plan of the moment in which it leaves has it: for a create that was another one.
        forward.needs.retain(|need| matches!(need, Need::Labels(_)));
        let (mut head, ()) = Request::new(()).into_parts();
        head.method = asked.method.clone();
        head.headers.insert(CONTENT_TYPE, content_type);
        head.headers.insert(ACCEPT, JSON);
        let leg = self.leg(forward, asked, pending);
        let Dispatched { response, seat, .. } = self.dispatcher.dispatch(leg, head, Body::from(body)).await?;
        let (head, body) = response.into_parts();
        let read = gather(body, MAX_ANSWER_BYTES).await;
        drop(seat);
        Ok((head.status, read.unwrap_or_default()))
    }

    fn leg(&self, forward: Forward, asked: ApiRequest, pending: Pending<'_>) -> Leg {
        Leg {
            forward: Box::new(forward),
            asked: Box::new(asked),
            routing: pending.routing.clone(),
            caller: pending.caller.clone(),
            deadline: Some(pending.deadline),
            received: pending.received.clone(),
            replanner: Some(self.replanner.clone()),
            running: false,
        }
    }
}

impl Copies<'_> {
    /// About its status.
    fn of_status(&self, method: Method) -> ApiRequest {
        let mut request = self.request(method, None);
        request.path.push_str("/status");
        if let Some(resource) = &mut request.resource {
            resource.subresource = Some("status".to_owned());
        }
        request
    }

    /// About the object itself.
    fn request(&self, method: Method, query: Option<&str>) -> ApiRequest {
        let resource = ResourceRequest {
            subresource: None,
            named_by_path: true,
            ..self.resource.clone()
        };
        ApiRequest {
            view: self.pending.asked.view.clone(),
            path: self.path.clone(),
            query: Query::new(query),
            verb: if method == Method::DELETE {
                Verb::Delete
            } else {
                Verb::Patch
            },
            method,
            resource: Some(resource),
            upgrade: None,
            impersonate: self.pending.asked.impersonate.clone(),
        }
    }
}

fn labels_of(object: &Value) -> BTreeMap<String, String> {
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
    let labels = labels.into_iter().flatten();
    labels
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// Whether a 409 is about fields that another manager owns.
fn is_of_fields(body: &[u8]) -> bool {
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
    let causes = status.pointer("/details/causes").and_then(Value::as_array);
    let mut causes = causes.into_iter().flatten();
    causes.any(|cause| cause["reason"] == "FieldManagerConflict")
}

fn fail(others: &[Replica], reason: &'static str, message: &str) -> Vec<Result<(), Behind>> {
    let behind = |other: &Replica| Behind {
        cluster: other.cluster.clone(),
        reason,
        message: message.to_owned(),
    };
    others.iter().map(|other| Err(behind(other))).collect()
}

impl Behind {
    /// Whether it may be well by itself: the member comes back, or another manager lets go of what differs.
    pub(crate) fn may_pass(&self) -> bool {
        self.is_conflict() || ["away", "late", "unread", "leaving", "gone", "decided"].contains(&self.reason)
    }

    /// Whether another manager owns what differs.
    pub(crate) fn is_conflict(&self) -> bool {
        self.reason == CONFLICT
    }

    /// For the client that wrote the object.
    pub(crate) fn warning(&self, kind: &str, name: &str) -> String {
        let Self {
            cluster,
            message,
            reason,
        } = self;
        if *reason == "unseen" {
            return format!(
                "{kind} {name} was applied to member cluster {cluster}, and whether it is served there is not known: {message}"
            );
        }
        format!("{kind} {name} in member cluster {cluster} is not what the primary has: {message}")
    }
}

/// Tells the client by a header each.
pub(crate) fn warn(response: &mut Response<Body>, warnings: &[String]) {
    for warning in warnings {
        let text: String = warning.chars().take(MAX_WARNING_CHARS).collect();
        if let Some(value) = rewrite::warning(&text) {
            response.headers_mut().append(http::header::WARNING, value);
        }
    }
}
