//! What follows from one member's answer before the client has it: its write is waited for by the caller's watches, a Lease is
//! noted for the hub, rows of a Table say whose they are. Caller: `call`.

use std::sync::Arc;

use http::{HeaderMap, Response};

use super::EdgeParts;
use crate::resource::other_leases::OtherLease;
use crate::resource::upstream::Body;
use crate::stage::fanout::fence::{self, Write};
use crate::stage::fanout::table;
use crate::value::classify::{ApiRequest, Verb, View};
use crate::value::fault::Fault;
use crate::value::snapshot::{Binding, Caller, CallerKey};

/// What follows from a member's answer to one request.
pub(super) struct After {
    write: Option<Write>,
    renewal: Option<(CallerKey, OtherLease)>,
    /// Whose rows a Table has.
    lists: Option<Arc<str>>,
}

impl After {
    pub(super) fn of(caller: &Caller, asked: &ApiRequest, headers: &HeaderMap, cluster: &Arc<str>) -> Self {
        Self {
            write: Write::of(caller, asked, cluster),
            renewal: other_lease(caller, asked),
            lists: table::is_wanted(asked, headers).then(|| cluster.clone()),
        }
    }

    pub(super) async fn answered(
        self,
        edge: &EdgeParts,
        mut response: Response<Body>,
    ) -> Result<Response<Body>, Fault> {
        if let Some((caller, lease)) = self.renewal.filter(|_| response.status().is_success()) {
            edge.routing.other_leases.renewed(caller, lease);
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

/// Who renews a Lease that is not its election's, and which.
fn other_lease(caller: &Caller, asked: &ApiRequest) -> Option<(CallerKey, OtherLease)> {
    let Caller::Pod(view) = caller else { return None };
    let Binding::One(shard) = &view.binding else {
        return None;
    };
    let (names, resource) = (shard.lease.as_ref()?, asked.resource.as_ref()?);
    let former = shard.lock.as_ref().and_then(|lock| lock.former.as_ref());
    let mut of_election = [names].into_iter().chain(former);
    let name = resource.name.as_ref()?;
    if of_election.any(|names| names.client == *name) {
        return None;
    }
    let renews = asked.view == View::Merged && matches!(asked.verb, Verb::Update | Verb::Patch);
    let own = resource.namespace.as_deref() == Some(&*view.namespace);
    let other = renews && own && resource.is_leases();
    let lease = || OtherLease {
        shard: shard.config.to_string(),
        name: name.clone(),
    };
    other.then(|| (view.key.clone(), lease()))
}
