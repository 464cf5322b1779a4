//! What follows from one member's answer before the client has it: its write is waited for by the caller's watches, a lock
//! that it renews is noted, rows of a Table say whose they are. Caller: `call`.

use std::sync::Arc;

use http::header::CONTENT_ENCODING;
use http::{HeaderMap, Response};
use portolan_crds::HeldLock;

use super::EdgeParts;
use crate::decision::lease;
use crate::decision::plan::Forward;
use crate::resource::held::Renewal;
use crate::resource::upstream::{Body, gather};
use crate::stage::fanout::fence::{self, Write};
use crate::stage::fanout::table;
use crate::value::classify::{ApiRequest, Verb, View};
use crate::value::fault::Fault;
use crate::value::media::content_type;
use crate::value::snapshot::{Binding, Caller, CallerKey};

/// A ConfigMap that carries a lock may have data as well. API servers store no larger object.
const MAX_LOCK_BYTES: usize = 8 << 20;

/// What follows from a member's answer to one request.
pub(super) struct After {
    write: Option<Write>,
    renews: Option<Renews>,
    /// Whose rows a Table has.
    lists: Option<Arc<str>>,
}

impl After {
    pub(super) fn of(caller: &Caller, asked: &ApiRequest, headers: &HeaderMap, forward: &Forward) -> Self {
        let cluster = &forward.target.cluster;
        Self {
            write: Write::of(caller, asked, cluster),
            renews: Renews::of(caller, asked, forward),
            lists: table::is_wanted(asked, headers).then(|| cluster.clone()),
        }
    }

    pub(super) async fn answered(
        self,
        edge: &EdgeParts,
        mut response: Response<Body>,
    ) -> Result<Response<Body>, Fault> {
        if let Some(renews) = self.renews.filter(|_| response.status().is_success()) {
            response = Box::pin(renews.answered(edge, response)).await?;
        }
        if let Some(cluster) = self.lists {
            response = Box::pin(table::with_cluster(&cluster, response)).await?;
        }
        Ok(match self.write {
            Some(write) => Box::pin(fence::hold(&edge.open, &write, response)).await,
            None => response,
        })
    }
}

/// A lock or another Lease in its caller's own namespace, which the answer says more of.
struct Renews {
    caller: CallerKey,
    renewal: Renewal,
    /// Which kind carries it.
    is_lease: bool,
}

impl Renews {
    /// What makes it or renews it in the merged view, and is carried out.
    fn of(caller: &Caller, asked: &ApiRequest, forward: &Forward) -> Option<Self> {
        let Caller::Pod(view) = caller else { return None };
        let Binding::One(shard) = &view.binding else {
            return None;
        };
        let writes = matches!(asked.verb, Verb::Create | Verb::Update | Verb::Patch);
        if !writes || asked.view != View::Merged || asked.query.first("dryRun").is_some() {
            return None;
        }
        let resource = asked
            .resource
            .as_ref()
            .filter(|resource| resource.subresource.is_none())?;
        let own = resource.namespace.as_deref() == Some(&*view.namespace);
        let names = forward.rewrite.lease.as_ref();
        if !own || names.is_none() && !resource.is_leases() {
            return None;
        }
        let name = names.map_or_else(|| resource.name.clone(), |names| Some(names.member.clone()));
        Some(Self {
            caller: view.key.clone(),
            renewal: Renewal {
                lock: HeldLock {
                    cluster: forward.target.cluster.to_string(),
                    resource: resource.resource.clone(),
                    name: name.unwrap_or_default(),
                    of_election: names.is_some(),
                },
                shard: shard.name.clone(),
                shard_uid: shard.uid().into(),
                is_beside: shard.lease.is_some() && names.is_none() && asked.verb != Verb::Create,
                lasts: None,
                is_released: false,
            },
            is_lease: resource.is_leases(),
        })
    }

    /// The answer, once it is known what it says of the lock.
    async fn answered(mut self, edge: &EdgeParts, response: Response<Body>) -> Result<Response<Body>, Fault> {
        let (head, body) = response.into_parts();
        let is_plain = !head.headers.contains_key(CONTENT_ENCODING);
        let body = gather(body, MAX_LOCK_BYTES).await.map_err(|error| Fault::Unavailable {
            message: format!("{error}; the request may have run"),
            cluster: Some(self.renewal.lock.cluster.clone()),
            sent: true,
        })?;
        let record = is_plain.then(|| lease::record(content_type(&head.headers), &body, self.is_lease));
        // What cannot be read may be held for as long as anything.
        if let Some(record) = record.flatten() {
            if self.renewal.lock.name.is_empty() {
                self.renewal.lock.name = record.name;
            }
            self.renewal.is_released = !record.is_held;
            self.renewal.lasts = record.lasts;
        }
        edge.routing.held.renewed(self.caller, self.renewal);
        Ok(Response::from_parts(head, Body::from(body)))
    }
}
