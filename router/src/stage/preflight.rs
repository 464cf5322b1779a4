//! What must be known before a request may leave: asked here, in the plan's order, and nowhere else.
//!
//! First which member it is for, where only an answer or the body tells (`choose`), then all that the plan [needs](Need).
//! Access comes first: nobody makes the router read a body before they may do what they ask for. Members are asked for
//! metadata as the same user; these questions are sent by `dispatch` like any read, and end by the deadline of [`Pending`],
//! also where the request itself has none. Nothing is decided here: answers go to the pure functions of `plan`, and what
//! comes out is ready to be sent. Callers: `edge` for single requests and documents, `fanout` for each leg.

mod bring;
mod choose;
mod new_object;
mod nowhere;
mod owners;
mod twins;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use http::header::{ACCEPT, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use opentelemetry::Context;
use tokio::time::Instant;

use crate::decision::plan::labels;
use crate::decision::plan::{Candidate, Forward, LabelCheck, Need, Rewrite};
use crate::resource::access::Access;
use crate::resource::routing::{Routing, RoutingStore};
use crate::resource::upstream::{Body, gather, gather_request};
use crate::stage::dispatch::{Dispatcher, Leg};
use crate::value::check::Check;
use crate::value::classify::{ApiRequest, Query, ResourceRequest, Verb};
use crate::value::fault::Fault;
use crate::value::media;
use crate::value::object::Labels;
use crate::value::snapshot::Caller;
use crate::value::traffic::Traffic;

/// `Accept` of a question: metadata is enough.
const METADATA: HeaderValue = HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
/// The same of a list.
const METADATA_LIST: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
/// `Accept` where the object itself tells.
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// One object or its metadata: no larger than the object may be in etcd.
const MAX_METADATA_BYTES: usize = 2 << 20;

/// The stage. One per process.
pub(crate) struct Preflight {
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) access: Access,
    /// Told of kinds that are missing.
    pub(crate) routing: Arc<RoutingStore>,
}

/// A request that waits until everything is known.
#[derive(Clone, Copy)]
pub(crate) struct Pending<'a> {
    pub(crate) head: &'a Parts,
    pub(crate) asked: &'a ApiRequest,
    pub(crate) caller: &'a Caller,
    /// What it was planned with.
    pub(crate) routing: &'a Arc<Routing>,
    /// Trace context that came with it.
    pub(crate) received: &'a Context,
    /// For all that is asked.
    pub(crate) deadline: Instant,
}

impl Preflight {
    /// Asks all that the plan needs. The body is gathered where it tells, and stays there to be sent.
    pub(crate) async fn check(&self, forward: &Forward, pending: Pending<'_>, body: &mut Body) -> Result<(), Fault> {
        let mut labels = None;
        for need in &forward.needs {
            match need {
                Need::Access(check) => self.access.check(pending.caller, [check]).await?,
                Need::Owners => self.owners(forward, pending, body).await?,
                Need::Copies(copies) => Box::pin(self.copies(copies, pending, body)).await?,
                Need::Labels(check) => labels = self.labels(forward, check, pending).await?,
                Need::Body(rule) => {
                    let bytes = pending.gather(body).await?;
                    labels::check_body(rule, pending.content_type(), labels.as_ref(), &bytes)?;
                }
                Need::Lock(moved) => Box::pin(self.bring(moved, forward, pending)).await?,
            }
        }
        Ok(())
    }

    /// Whether the caller may be served by this member, by the word of the hub and of the member: 403 for a no, 503 if
    /// nobody can be asked.
    pub(crate) async fn access(&self, caller: &Caller, forward: &Forward) -> Result<(), Fault> {
        self.access.check(caller, forward.access()).await
    }

    /// Brings what is recorded of a leader lock, where a collection may show it.
    pub(crate) async fn bring_locks(&self, forward: &Forward, pending: Pending<'_>) -> Result<(), Fault> {
        for need in &forward.needs {
            if let Need::Lock(moved) = need {
                Box::pin(self.bring(moved, forward, pending)).await?;
            }
        }
        Ok(())
    }

    /// The same of questions that no plan for one member asks.
    pub(crate) async fn allowed(&self, caller: &Caller, checks: &[Check]) -> Result<(), Fault> {
        self.access.check(caller, checks).await
    }

    async fn labels(
        &self,
        forward: &Forward,
        check: &LabelCheck,
        pending: Pending<'_>,
    ) -> Result<Option<Labels>, Fault> {
        let cluster = &forward.target.cluster;
        let asked = self.metadata(forward, (&check.path, None), pending).await?;
        let (head, body) = asked.into_parts();
        let bytes = gather(body, MAX_METADATA_BYTES).await;
        let bytes = bytes.map_err(|error| labels::undecided(check, cluster, &error.to_string()))?;
        labels::check_labels(check, cluster, head.status, &bytes)
    }

    /// Whether a member that a collection is to be deleted in serves it, and lets the caller act as whom it wants to. An error if
    /// that cannot be had now: a 404 is no absence where discovery does not say so. A 403 is an answer, about listing: who may not
    /// list may delete all the same, and the member says whether.
    pub(crate) async fn is_there(&self, part: &Candidate, pending: Pending<'_>) -> Result<bool, Fault> {
        if let Some(held) = &part.held {
            return Err(part.forward.unavailable(held.clone()));
        }
        self.access(pending.caller, &part.forward).await?;
        let asked = (pending.asked.path.as_str(), Some("limit=1"));
        let status = self.metadata(&part.forward, asked, pending).await?.status();
        let cluster = &part.forward.target.cluster;
        let resource = pending.asked.resource.as_ref();
        let is_served = resource.and_then(|kind| pending.routing.kinds.serves(cluster, &kind.group, &kind.resource));
        match status {
            StatusCode::NOT_FOUND if is_served == Some(false) => Ok(false),
            StatusCode::NOT_FOUND | StatusCode::TOO_MANY_REQUESTS => Err(answered(part, status)),
            status if status.is_server_error() => Err(answered(part, status)),
            _ => Ok(true),
        }
    }

    /// Asks the plan's member for an object's metadata (path and query), as the same user.
    async fn metadata(
        &self,
        forward: &Forward,
        asked: (&str, Option<&str>),
        pending: Pending<'_>,
    ) -> Result<Response<Body>, Fault> {
        self.read(forward, asked, METADATA, pending).await
    }

    /// The object itself as the plan's member has it, as the same user; the member's answer where that is another.
    pub(crate) async fn object(
        &self,
        forward: &Forward,
        path: &str,
        pending: Pending<'_>,
    ) -> Result<(StatusCode, bytes::Bytes), Fault> {
        let answer = self.read(forward, (path, None), JSON, pending).await?;
        let (head, body) = answer.into_parts();
        let bytes = gather(body, MAX_METADATA_BYTES).await;
        let bytes = bytes.map_err(|error| forward.unavailable(error.to_string()))?;
        Ok((head.status, bytes))
    }

    /// The first objects of a collection (path and query) of the plan's member, in a list of metadata, as the same user.
    pub(crate) async fn first_of(
        &self,
        forward: &Forward,
        (path, query): (&str, &'static str),
        pending: Pending<'_>,
    ) -> Result<(StatusCode, bytes::Bytes), Fault> {
        self.access(pending.caller, forward).await?;
        let asked = (path, Some(query));
        let answer = self.read(forward, asked, METADATA_LIST, pending).await?;
        let (head, body) = answer.into_parts();
        let bytes = gather(body, MAX_METADATA_BYTES).await;
        let bytes = bytes.map_err(|error| forward.unavailable(error.to_string()))?;
        Ok((head.status, bytes))
    }

    /// Asks the plan's member for an object (path and query) in the words of `accept`, as the same user.
    async fn read(
        &self,
        forward: &Forward,
        (path, query): (&str, Option<&str>),
        accept: HeaderValue,
        pending: Pending<'_>,
    ) -> Result<Response<Body>, Fault> {
        let forward = Forward {
            target: forward.target.clone(),
            traffic: Traffic::QUESTION,
            rewrite: Rewrite::default(),
            act_as: forward.act_as.clone(),
            needs: Vec::new(),
            warning: None,
            grant: None,
            replicas: None,
        };
        let asked = ApiRequest {
            query: Query::new(query),
            ..pending.question(path, None)
        };
        self.read_as(forward, asked, accept, pending).await
    }

    /// Asks a question by a plan of its own.
    async fn read_as(
        &self,
        forward: Forward,
        asked: ApiRequest,
        accept: HeaderValue,
        pending: Pending<'_>,
    ) -> Result<Response<Body>, Fault> {
        let leg = pending.leg(asked, forward);
        let (mut head, ()) = Request::new(()).into_parts();
        head.headers.insert(ACCEPT, accept);
        self.dispatcher.read(leg, head).await
    }
}

impl Pending<'_> {
    /// A GET of a path, about this resource where that matters to how it is sent.
    fn question(&self, path: &str, resource: Option<ResourceRequest>) -> ApiRequest {
        ApiRequest {
            view: self.asked.view.clone(),
            path: path.to_owned(),
            query: Query::new(None),
            method: Method::GET,
            verb: Verb::Get,
            resource,
            upgrade: None,
            impersonate: self.asked.impersonate.clone(),
        }
    }

    /// A question that must be answered before the request goes on.
    fn leg(&self, asked: ApiRequest, forward: Forward) -> Leg {
        Leg {
            forward: Box::new(forward),
            asked: Box::new(asked),
            routing: self.routing.clone(),
            caller: self.caller.clone(),
            deadline: Some(self.deadline),
            received: self.received.clone(),
            replanner: None,
            running: false,
        }
    }

    /// Whether it may make an object that is not there.
    fn makes(&self) -> bool {
        match self.asked.verb {
            Verb::Create | Verb::Update => true,
            Verb::Patch => self.content_type().is_some_and(media::is_apply),
            _ => false,
        }
    }

    /// Of the body.
    fn content_type(&self) -> Option<&str> {
        media::content_type(&self.head.headers)
    }

    async fn gather(&self, body: &mut Body) -> Result<bytes::Bytes, Fault> {
        gather_request(body).await
    }
}

fn answered(part: &Candidate, status: StatusCode) -> Fault {
    let cluster = &part.forward.target.cluster;
    part.forward
        .unavailable(format!("member cluster {cluster} answered {status}"))
}
