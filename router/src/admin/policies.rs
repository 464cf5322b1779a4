//! Pages about traffic policies: `/policies` (how rules stand), `POST /policies/try` (what a CircuitBreaker would have
//! refused of late), and what `/explain` says of them. `portolanctl` reads them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;
use portolan_wire::v1;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Pages, Refusal, faults, name_of, refuse};
use crate::decision::plan::Plan;
use crate::decision::policy::{Reach, asked};
use crate::resource::policies::Judging;
use crate::resource::routing::Routing;
use crate::value::classify::{ApiRequest, Verb};
use crate::value::policy::{Policy, PolicySpec};
use crate::value::snapshot::build::check_policy;
use crate::value::snapshot::{Caller, CallerView, Snapshot};

/// Of a manifest: an API server takes a megabyte and a half.
pub(super) const MOST_BYTES: usize = 2 << 20;
/// The one kind that can be tried.
const KIND: &str = "CircuitBreaker";

/// `/policies`.
pub(super) async fn policies(State(pages): State<Pages>) -> Json<Value> {
    let routing = pages.routing.load();
    Json(routing.policies.page(&routing.snapshot))
}

/// What a request meets of the policies that hold its caller; nothing where none is asked.
pub(super) fn explain(routing: &Routing, caller: &Caller, request: &ApiRequest, plan: &Plan) -> Value {
    let (Caller::Pod(view), false) = (caller, matches!(plan, Plan::Local(_) | Plan::Refuse(_))) else {
        return Value::Null;
    };
    let reach = Reach::of(plan);
    let clusters: Vec<&str> = reach.clusters.iter().map(|cluster| &**cluster).collect();
    // Of which Lease it is its body would tell: it is told what others meet.
    let election = reach.election.unwrap_or(false);
    let asked = asked(request, &clusters, election);
    let faults = faults::explain(view, &asked, request.verb == Verb::Watch, Timestamp::now());
    let mut told = routing.policies.explain(&Judging {
        view,
        asked,
        generation: routing.snapshot.generation,
    });
    told["faults"] = faults.into();
    told
}

/// A CircuitBreaker as it would be applied, and whose requests it is tried on: `<home cluster>/<namespace>/<pod>` or
/// `<home cluster>/<pod uid>`.
#[derive(Debug, Deserialize)]
pub(super) struct Manifest {
    #[serde(default)]
    kind: String,
    metadata: Metadata,
    spec: Value,
    callers: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    namespace: String,
}

/// `POST /policies/try`.
pub(super) async fn try_policy(
    State(pages): State<Pages>,
    Json(manifest): Json<Manifest>,
) -> Result<Json<Value>, Refusal> {
    let routing = pages.routing.load();
    let policy = checked(&manifest).map_err(|why| refuse(StatusCode::UNPROCESSABLE_ENTITY, why))?;
    let callers = match &manifest.callers {
        Some(names) => named(names, &routing.snapshot)?,
        None => selected(&policy, &manifest.metadata.namespace, &routing.snapshot),
    };
    let of_namespace = manifest.callers.is_none();
    let replay = move || routing.policies.try_policy(policy, &callers);
    // Blocking: some ten thousand requests are judged.
    let mut outcome = tokio::task::spawn_blocking(replay)
        .await
        .map_err(|error| refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    if of_namespace {
        outcome["note"] = json!(
            "tried on all callers of the namespace in spec.callerClusters: routers do not know the labels that spec.selector selects by"
        );
    }
    Ok(Json(outcome))
}

/// By the functions that webhook and hub use.
fn checked(manifest: &Manifest) -> Result<Policy, String> {
    if !matches!(&*manifest.kind, "" | KIND) {
        return Err(format!("kind {:?} cannot be tried, only {KIND}", manifest.kind));
    }
    let Metadata { name, namespace } = &manifest.metadata;
    let wire = v1::Policy {
        name: format!("{KIND}/{namespace}/{name}"),
        uid: "tried".to_owned(),
        spec_json: manifest.spec.to_string(),
        ..v1::Policy::default()
    };
    check_policy(&wire).map_err(|error| error.to_string())
}

fn named(names: &[String], snapshot: &Snapshot) -> Result<Vec<Arc<CallerView>>, Refusal> {
    let find = |name: &String| {
        let is_it = |view: &&Arc<CallerView>| {
            name_of(view) == *name || format!("{}/{}", view.key.home_cluster, view.key.pod_uid) == *name
        };
        let found = snapshot.callers.values().find(is_it).cloned();
        found.ok_or_else(|| {
            refuse(
                StatusCode::NOT_FOUND,
                format!("no caller {name:?} in this router's snapshot"),
            )
        })
    };
    names.iter().map(find).collect()
}

fn selected(policy: &Policy, namespace: &str, snapshot: &Snapshot) -> Vec<Arc<CallerView>> {
    let clusters = match &policy.spec {
        PolicySpec::CircuitBreaker(spec) => &*spec.caller_clusters,
        PolicySpec::FaultInjection(..) => &[],
    };
    let of = |view: &&Arc<CallerView>| {
        let home = clusters.is_empty() || clusters.iter().any(|cluster| **cluster == *view.key.home_cluster);
        home && &*view.namespace == namespace
    };
    snapshot.callers.values().filter(of).cloned().collect()
}
