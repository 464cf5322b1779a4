//! A write of what all members of the shard are to have alike: what follows it once the primary has carried it out
//! (`docs/semantics.md#replicated-kinds`).
//!
//! It is a task of its own, so that it goes on when the client has gone away; the answer waits for it. Before the write leaves it is
//! noted, so that whatever becomes of it somebody looks after the copies (`lagging`). Callers: `call`, `call::several`.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Response, StatusCode};
use opentelemetry::Context;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{Instant, timeout_at};

use portolan_crds::names::DNS_SUBDOMAIN_MAX;

use super::Edge;
use super::after::After;
use super::bounds::patience;
use super::lagging::{Doing, Outcome, Writing, patch_of};
use crate::decision::plan::{Candidate, Forward, Replicas};
use crate::resource::routing::Routing;
use crate::resource::upstream::{Body, gather_request};
use crate::stage::dispatch::{Dispatched, Leg};
use crate::stage::fanout::fence;
use crate::stage::fanout::replicate::deletion::Rest;
use crate::stage::fanout::replicate::stored::{StoredVersions, unread};
use crate::stage::fanout::replicate::{Behind, WITHIN, warn};
use crate::stage::preflight::Pending;
use crate::value::classify::{ApiRequest, Verb};
use crate::value::fault::Fault;
use crate::value::media;
use crate::value::object;
use crate::value::snapshot::Caller;

/// For the answer to a deletion.
const LONGEST_DELETION: Duration = Duration::from_secs(30);

/// What is kept of a request for what follows it.
struct Kept {
    head: Parts,
    asked: ApiRequest,
    caller: Caller,
    routing: Arc<Routing>,
    received: Context,
    deadline: Instant,
}

/// A write that the other members follow.
pub(super) struct Replicated {
    replicas: Box<Replicas>,
    /// At the primary.
    forward: Forward,
    request: Kept,
    /// As path or body give it.
    name: Option<String>,
    /// Before the write, of one that may take some out; `None` if that could not be read.
    stored: Option<StoredVersions>,
    noted: Option<Writing>,
}

impl Kept {
    fn of(pending: Pending<'_>) -> Self {
        Self {
            head: pending.head.clone(),
            asked: pending.asked.clone(),
            caller: pending.caller.clone(),
            routing: pending.routing.clone(),
            received: pending.received.clone(),
            deadline: pending.deadline,
        }
    }

    fn until(&self, deadline: Instant) -> Pending<'_> {
        Pending {
            head: &self.head,
            asked: &self.asked,
            caller: &self.caller,
            routing: &self.routing,
            received: &self.received,
            deadline,
        }
    }

    /// Until when the client waits for what follows.
    fn patience(&self) -> Instant {
        patience(&self.asked, self.deadline).min(Instant::now() + WITHIN)
    }
}

impl Replicated {
    /// `None` for all but writes of such kinds. Reads what the write may take out, and notes the write.
    pub(super) async fn of(
        edge: &Edge,
        forward: &mut Forward,
        pending: Pending<'_>,
        body: &mut Body,
    ) -> Result<Option<Box<Self>>, Fault> {
        let Some(replicas) = forward.replicas.take() else {
            return Ok(None);
        };
        let name = if let Some(name) = &replicas.resource.name {
            Some(name.clone())
        } else {
            // One that cannot be read is the member's to refuse.
            let bytes = gather_request(body).await?;
            object::name(media::content_type(&pending.head.headers), &bytes).ok()
        };
        let stored = match replicas.resource.subresource {
            Some(_) => edge.fanouts.stored_versions(forward, &replicas, pending).await,
            None => None,
        };
        let mut replicated = Self {
            replicas,
            forward: forward.clone(),
            request: Kept::of(pending),
            name: name.filter(|name| !name.is_empty()),
            stored,
            noted: None,
        };
        replicated.note(edge);
        // A box, as what follows: hardly a request has any.
        Ok(Some(Box::new(replicated)))
    }

    /// That the write is under way, once its object has a name and if what it may take out is known.
    fn note(&mut self, edge: &Edge) {
        let of_status = self.replicas.resource.subresource.is_some();
        let Some(name) = self.name.as_ref().filter(|_| !of_status || self.stored.is_some()) else {
            return;
        };
        let Kept { asked, caller, .. } = &self.request;
        let asked = patch_of(asked, &self.replicas.resource, name);
        // What comes in a body may be anything, of megabytes: no member makes an object of such a name.
        let is_name = asked.resource.as_ref().is_some_and(|one| one.unfit_part().is_none());
        if !is_name || name.len() > DNS_SUBDOMAIN_MAX {
            return;
        }
        let stored = self.stored.clone().unwrap_or_default();
        let content_type = media::content_type(&self.request.head.headers);
        let makes = self.request.asked.verb == Verb::Create || content_type.is_some_and(media::is_apply);
        let doing = if makes { Doing::Make } else { Doing::Write };
        self.noted = edge.lagging.begins(caller, doing, (asked, stored), Instant::now());
    }

    /// What is known of the copies after an attempt.
    fn ends(&mut self, outcome: Outcome) {
        if let Some(noted) = self.noted.take() {
            noted.ends(outcome);
        }
    }

    /// The primary's answer, once the others have the object as it is there or the client loses its patience; with a `Warning` for
    /// each that has not.
    async fn answered(mut self: Box<Self>, edge: &Arc<Edge>, response: Response<Body>) -> Response<Body> {
        let status = response.status();
        if !status.is_success() {
            // One whose answer was lost is sent again by its client, and is there then.
            let made = status == StatusCode::CONFLICT && self.request.asked.verb == Verb::Create;
            if !made && !status.is_server_error() {
                self.ends(Outcome::Untouched);
            }
            return response;
        }
        let until = self.request.patience();
        let (name, mut response) = match self.name.take() {
            Some(name) => (Some(name), response),
            None => fence::name_of(response, until).await,
        };
        self.name = name.filter(|name| !name.is_empty());
        let Some(name) = self.name.clone() else {
            let text = "the object was made at the primary alone: its answer does not say its name";
            warn(&mut response, &[text.to_owned()]);
            return response;
        };
        if self.noted.is_none() {
            self.note(edge);
        }
        let others: Vec<&str> = self.replicas.others.iter().map(|other| &*other.cluster).collect();
        let unfinished = format!(
            "{} {name} in member cluster {} may not be what the primary has yet: the answer did not wait any longer",
            self.replicas.resource.kind(),
            others.join(", ")
        );
        let is_new = status == StatusCode::CREATED;
        if let Some(noted) = self.noted.as_mut().filter(|_| !is_new) {
            noted.made_nothing();
        }
        let told = match edge.following(until).await {
            Some(permit) => edge.told_until(
                until,
                permit,
                |edge| async move { self.follow(&edge, &name, is_new).await },
            ),
            None => return told_alone(response, unfinished),
        };
        match told.await {
            Some(warnings) => warn(&mut response, &warnings),
            None => return told_alone(response, unfinished),
        }
        response
    }

    /// What follows; what is to be told of it comes back.
    async fn follow(mut self: Box<Self>, edge: &Edge, name: &str, is_new: bool) -> Vec<String> {
        let pending = self.request.until(Instant::now() + WITHIN);
        let (fanouts, replicas) = (&edge.fanouts, &self.replicas);
        let behind: Vec<Behind> = if replicas.resource.subresource.is_none() {
            fanouts
                .replicate(&self.forward, replicas, (name, is_new), pending)
                .await
        } else if let Some(stored) = &self.stored {
            fanouts.forget_versions(&self.forward, replicas, stored, pending).await
        } else {
            let why = "what the primary stored before could not be read";
            replicas.others.iter().map(|other| unread(other, why)).collect()
        };
        let kind = replicas.resource.kind();
        let warnings = behind.iter().map(|behind| behind.warning(&kind, name)).collect();
        self.ends(Outcome::of(behind));
        warnings
    }
}

fn busy() -> Fault {
    Fault::TooManyRequests {
        message: "this router is busy with what follows other writes: nothing was sent".to_owned(),
        retry_after_seconds: 1,
        cluster: None,
    }
}

fn told_alone(mut response: Response<Body>, text: String) -> Response<Body> {
    warn(&mut response, &[text]);
    response
}

impl Edge {
    /// Sends one request to its member; where it is a write that others follow, its answer comes once they do.
    pub(super) async fn sent(
        self: &Arc<Self>,
        (leg, head, body): (Leg, Parts, Body),
        after: After,
        replicated: Option<Box<Replicated>>,
    ) -> Result<Dispatched, Fault> {
        let mut dispatched = match self.parts.dispatcher.dispatch(leg, head, body).await {
            Ok(dispatched) => dispatched,
            Err(fault) => {
                if let Some(mut replicated) = replicated.filter(|_| !fault.may_have_run()) {
                    replicated.ends(Outcome::Untouched);
                }
                return Err(fault);
            }
        };
        dispatched.response = after.answered(&self.parts, dispatched.response).await?;
        if let Some(replicated) = replicated {
            dispatched.response = Box::pin(replicated.answered(self, dispatched.response)).await;
        }
        Ok(dispatched)
    }

    /// Deletes what several members may have alike, in all of them.
    pub(super) async fn delete_everywhere(
        self: &Arc<Self>,
        parts: &[Candidate],
        pending: Pending<'_>,
        body: Body,
    ) -> Result<Response<Body>, Fault> {
        let request = Kept::of(pending);
        let until = patience(pending.asked, pending.deadline);
        // What still follows a write would make a copy after it was found that there is none.
        if !self.lagging.rests(pending.asked, until).await {
            return Err(busy());
        }
        let deleting = self.deleting(&request);
        // Until something is sent, it may end with its client, and keeps no place from others.
        let ready = async {
            let deletion = self.fanouts.deletion(parts, pending, body).await?;
            Ok((deletion, self.following(until).await.ok_or_else(busy)?))
        };
        let (deletion, permit) = match ready.await {
            Ok(ready) => ready,
            Err(fault) => {
                if let Some(deleting) = deleting {
                    deleting.ends(Outcome::Untouched);
                }
                return Err(fault);
            }
        };
        let (answer, answered) = oneshot::channel();
        let told = self.told_until(until, permit, |edge| async move {
            let fanouts = &edge.fanouts;
            let mut outcome = Outcome::Untouched;
            // A place among those that follow writes is not kept for as long as a client may choose.
            let pending = request.until(request.deadline.min(Instant::now() + LONGEST_DELETION));
            let rest = match fanouts.delete_everywhere(deletion, pending).await {
                Ok((response, rest)) => {
                    outcome = if rest.is_some() { Outcome::Settled } else { outcome };
                    let staying = rest.as_ref().map(Rest::clusters);
                    let _ = answer.send(Ok((response, staying)));
                    rest
                }
                Err(fault) => {
                    let _ = answer.send(Err(fault));
                    None
                }
            };
            let warnings = match rest {
                Some(rest) => fanouts.delete_rest(&rest, request.until(Instant::now() + WITHIN)).await,
                None => Vec::new(),
            };
            if let Some(deleting) = deleting {
                deleting.ends(outcome);
            }
            warnings
        });
        let lost = |_| Fault::Internal("the deletion ended without an answer".to_owned());
        let (mut response, staying) = answered.await.map_err(lost)??;
        let unfinished = |clusters| {
            format!("the copy in member cluster {clusters} may not be deleted yet: the answer did not wait any longer")
        };
        let warnings = told
            .await
            .unwrap_or_else(|| staying.map(unfinished).into_iter().collect());
        warn(&mut response, &warnings);
        Ok(response)
    }

    /// Notes a deletion: nobody brings a copy meanwhile, and none is missed afterwards.
    fn deleting(&self, request: &Kept) -> Option<Writing> {
        let resource = request.asked.resource.as_ref()?;
        let asked = patch_of(&request.asked, resource, resource.name.as_deref()?);
        let noted = (asked, StoredVersions::new());
        self.lagging
            .begins(&request.caller, Doing::Deletion, noted, Instant::now())
    }

    /// A place for what follows a write; `None` if none is free until then.
    async fn following(&self, until: Instant) -> Option<OwnedSemaphorePermit> {
        let permit = self.lagging.running.clone().acquire_owned();
        timeout_at(until, permit).await.ok()?.ok()
    }

    /// Runs what follows a write, whoever waits for it. What it has to tell, if that is known until then.
    fn told_until<F>(
        self: &Arc<Self>,
        until: Instant,
        permit: OwnedSemaphorePermit,
        follow: impl FnOnce(Arc<Self>) -> F,
    ) -> impl Future<Output = Option<Vec<String>>>
    where
        F: Future<Output = Vec<String>> + Send + 'static,
    {
        let (tell, told) = oneshot::channel();
        let following = follow(self.clone());
        self.parts.tasks.spawn("replicate", async move {
            let _ = tell.send(following.await);
            drop(permit);
        });
        async move { timeout_at(until, told).await.ok()?.ok() }
    }
}
