//! Namespaces and kinds that come while they are asked for: no request is refused for a grant that the hub has given already,
//! or for a kind that a member serves already, and the answer to who makes a Namespace waits until this router serves it
//! (`docs/semantics.md#namespaces`).
//!
//! Caller: `call`.

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http::header::WARNING;
use tokio::time::Instant;

use super::Edge;
use super::bounds::patience;
use crate::decision::plan::{self, Planned};
use crate::decision::rewrite;
use crate::resource::grants;
use crate::resource::routing::Routing;
use crate::resource::upstream::Body;
use crate::stage::fanout::fence;
use crate::stage::fanout::replicate::WITHIN;
use crate::stage::replan;
use crate::value::classify::ApiRequest;
use crate::value::snapshot::Caller;

/// For the body of an answer that is small.
const READ_WITHIN: Duration = Duration::from_secs(2);

/// What a request was planned with, and how.
pub(super) struct Basis {
    pub(super) routing: Arc<Routing>,
    pub(super) caller: Caller,
    pub(super) planned: Planned,
}

/// The plan; where it lacks a grant that the hub has given meanwhile, or a kind that a member has, the one with that. A kind whose
/// definition is being written is waited for, as the client of that write waits.
pub(super) async fn planned(
    edge: &Edge,
    asked: &ApiRequest,
    (routing, caller): (Arc<Routing>, Caller),
    deadline: Instant,
) -> Basis {
    let mut basis = None;
    if edge.lagging.defines(&caller, asked) {
        let until = patience(asked, deadline).min(Instant::now() + WITHIN);
        // A box: hardly a request waits for this.
        Box::pin(edge.lagging.defined(&caller, asked, until)).await;
        basis = anew(edge, asked, &caller);
    }
    let Basis {
        routing,
        caller,
        planned,
    } = basis.unwrap_or_else(|| Basis {
        planned: plan::plan(&caller, asked, &routing.snapshot, &routing.kinds),
        routing,
        caller,
    });
    // Within a namespace the member is the same, whatever the kind.
    let unknown = asked.resource.as_ref().filter(|resource| resource.namespace.is_none());
    if let (true, Some(resource)) = (planned.unknown_kind, unknown)
        && edge.parts.discovery.learn(resource).await
        && let Some(anew) = anew(edge, asked, &caller)
    {
        return anew;
    }
    let lacking = asked.resource.as_ref().and_then(|resource| resource.namespace.as_ref());
    if let (true, Caller::Pod(view), Some(namespace)) = (planned.lacks_grant, &caller, lacking) {
        let store = &edge.parts.routing;
        if edge.grants.ask(store, view, namespace).await
            && let Some(anew) = anew(edge, asked, &caller)
        {
            return anew;
        }
    }
    Basis {
        routing,
        caller,
        planned,
    }
}

/// The plan by what is known now; `None` if the caller is gone.
fn anew(edge: &Edge, asked: &ApiRequest, caller: &Caller) -> Option<Basis> {
    let routing = edge.parts.routing.load();
    let mut caller = replan::current(caller, &routing.snapshot)?;
    if !asked.is_read() {
        caller = edge.parts.routing.writing(caller);
    }
    let planned = plan::plan(&caller, asked, &routing.snapshot, &routing.kinds);
    Some(Basis {
        routing,
        caller,
        planned,
    })
}

/// The answer to who made a Namespace in `cluster`, once this router serves it; with a `Warning` if that takes long.
pub(super) async fn once_served(
    edge: &Edge,
    asked: &ApiRequest,
    caller: &Caller,
    cluster: &str,
    response: Response<Body>,
) -> Response<Body> {
    let Caller::Pod(view) = caller else { return response };
    if !response.status().is_success() || asked.query.first("dryRun").is_some() {
        return response;
    }
    let (name, mut response) = fence::name_of(response, Instant::now() + READ_WITHIN).await;
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return response;
    };
    if !grants::served(&edge.parts.routing, view, cluster, &name).await {
        let text = format!(
            "Namespace {name} is made in member cluster {cluster}; this router does not know yet that it is the shard's"
        );
        if let Some(warning) = rewrite::warning(&text) {
            response.headers_mut().append(WARNING, warning);
        }
    }
    response
}
