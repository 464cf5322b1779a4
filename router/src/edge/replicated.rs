//! A write of what all members of the shard are to have alike, once the primary has carried it out
//! (`docs/semantics.md#replicated-kinds`). Caller: `call`.

use std::sync::Arc;

use http::request::Parts;
use http::{Response, StatusCode};
use opentelemetry::Context;
use tokio::time::Instant;

use super::Edge;
use super::lagging::patch_of;
use crate::decision::plan::{Forward, Replicas};
use crate::resource::routing::Routing;
use crate::resource::upstream::Body;
use crate::stage::fanout::fence;
use crate::stage::fanout::replicate::stored::StoredVersions;
use crate::stage::fanout::replicate::warn;
use crate::stage::preflight::Pending;
use crate::value::classify::ApiRequest;
use crate::value::media;
use crate::value::object;
use crate::value::snapshot::Caller;

/// What is kept of a request for what follows it.
pub(super) struct Replicated {
    replicas: Box<Replicas>,
    /// At the primary.
    forward: Forward,
    head: Parts,
    asked: ApiRequest,
    caller: Caller,
    routing: Arc<Routing>,
    received: Context,
    deadline: Instant,
    /// As path or body give it.
    name: Option<String>,
    /// Before the write, of one that may take some out.
    versions: Option<StoredVersions>,
}

impl Replicated {
    /// `None` for all but writes of such kinds.
    pub(super) fn of(forward: &mut Forward, pending: Pending<'_>, body: &Body) -> Option<Box<Self>> {
        let replicas = forward.replicas.take()?;
        let in_body = || match body {
            Body::Whole(bytes) => object::name(media::content_type(&pending.head.headers), bytes).ok(),
            _ => None,
        };
        let name = replicas.resource.name.clone().or_else(in_body);
        // A box, as what follows: hardly a request has any.
        Some(Box::new(Self {
            replicas,
            forward: forward.clone(),
            head: pending.head.clone(),
            asked: pending.asked.clone(),
            caller: pending.caller.clone(),
            routing: pending.routing.clone(),
            received: pending.received.clone(),
            deadline: pending.deadline,
            name: name.filter(|name| !name.is_empty()),
            versions: None,
        }))
    }

    /// With what the write may take out.
    pub(super) async fn with_versions(mut self: Box<Self>, edge: &Edge) -> Box<Self> {
        if self.replicas.resource.subresource.is_some() {
            let read = edge
                .fanouts
                .stored_versions(&self.forward, &self.replicas, self.pending());
            self.versions = read.await;
        }
        self
    }

    fn pending(&self) -> Pending<'_> {
        Pending {
            head: &self.head,
            asked: &self.asked,
            caller: &self.caller,
            routing: &self.routing,
            received: &self.received,
            deadline: self.deadline,
        }
    }

    /// The primary's answer, once the others have the object as it is there; with a `Warning` for each that has not.
    pub(super) async fn answered(mut self, edge: &Edge, response: Response<Body>) -> Response<Body> {
        if !response.status().is_success() {
            return response;
        }
        let (name, mut response) = match self.name.take() {
            Some(name) => (Some(name), response),
            None => fence::name_of(response, self.deadline).await,
        };
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            let text = "the object was made at the primary alone: its answer does not say its name";
            warn(&mut response, &[text.to_owned()]);
            return response;
        };
        let (pending, replicas) = (self.pending(), &self.replicas);
        let written = (&*name, response.status() == StatusCode::CREATED);
        let behind = if replicas.resource.subresource.is_none() {
            let behind = edge.fanouts.replicate(&self.forward, replicas, written, pending).await;
            let asked = patch_of(&self.asked, &replicas.resource, &name);
            edge.lagging.note(&self.caller, asked, &behind, Instant::now());
            behind
        } else if let Some(before) = &self.versions {
            edge.fanouts
                .forget_versions(&self.forward, replicas, before, pending)
                .await
        } else {
            Vec::new()
        };
        let kind = replicas.resource.kind();
        let warnings: Vec<String> = behind.iter().map(|behind| behind.warning(&kind, &name)).collect();
        warn(&mut response, &warnings);
        response
    }
}
