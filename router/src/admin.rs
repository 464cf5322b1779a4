//! The router's own pages on the admin server: `/configz` (what is routed where, without a secret), `/explain` (the plan of
//! a request and why), `/endpoints` (which of a member's API servers get its requests), `/watches` (open merged watches and
//! their legs), and `/policies` (limits and breakers of callers). Callers: `app`; `portolanctl explain` and `watch-state` read `/explain` and `/watches`.

mod faults;
mod policies;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{HeaderMap, Method, Uri};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::decision::plan::{FanLeg, FanOut, Forward, LocalAnswer, Need, Plan, Planned, plan};
use crate::resource::routing::RoutingStore;
use crate::resource::subscribe::HubMetrics;
use crate::stage::discovery::page::page;
use crate::stage::fanout::open::OpenWatches;
use crate::value::check::Check;
use crate::value::classify::{ApiRequest, View, classify};
use crate::value::snapshot::{Caller, CallerId, CallerKey, CallerView, Snapshot};

/// Callers named when the one asked for is unknown.
const SUGGESTIONS: usize = 10;

/// What the pages read.
#[derive(Clone)]
pub(crate) struct Pages {
    pub(crate) routing: Arc<RoutingStore>,
    pub(crate) hub: HubMetrics,
    pub(crate) open: Arc<OpenWatches>,
    /// The configuration's `Debug`: it holds paths of secrets only.
    pub(crate) config: String,
}

impl Pages {
    /// `/configz`.
    pub(crate) fn configz(&self) -> Value {
        let routing = self.routing.load();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "config": self.config,
            "hubConnected": self.hub.is_connected(),
            "snapshot": routing.snapshot.configz(),
            "breakers": self.breakers(),
            "endpoints": self.endpoints(),
            "policies": routing.policies.page(&routing.snapshot),
        })
    }

    /// Routes beside those every program has.
    pub(crate) fn routes(self) -> Router {
        Router::new()
            .route("/explain", get(explain))
            .route(
                "/breakers",
                get(|State(pages): State<Self>| async move { Json(pages.breakers()) }),
            )
            .route(
                "/endpoints",
                get(|State(pages): State<Self>| async move { Json(pages.endpoints()) }),
            )
            .route(
                "/kinds",
                get(|State(pages): State<Self>| async move { Json(pages.kinds()) }),
            )
            .route(
                "/watches",
                get(|State(pages): State<Self>| async move { Json(pages.open.describe()) }),
            )
            .route("/policies", get(policies::policies))
            .route(
                "/policies/try",
                post(policies::try_policy).layer(DefaultBodyLimit::max(policies::MOST_BYTES)),
            )
            .with_state(self)
    }

    fn kinds(&self) -> Value {
        let routing = self.routing.load();
        page(&routing.kinds, &routing.snapshot)
    }

    fn endpoints(&self) -> Value {
        let endpoint = |status: crate::resource::upstream::EndpointStatus| {
            let addresses = status.addresses.iter();
            json!({
                "cluster": &*status.cluster,
                "endpoint": status.endpoint,
                "authority": status.authority.as_str(),
                "state": status.health.state.as_str(),
                "ejectionsByReason": status.health.ejections,
                "connectionsByAddress": addresses.map(|(address, open)| (address.to_string(), json!(open))).collect::<serde_json::Map<_, _>>(),
            })
        };
        let all = self.routing.load().upstreams.endpoints();
        all.into_iter().map(endpoint).collect()
    }

    fn breakers(&self) -> Value {
        let breaker = |status: crate::resource::upstream::BreakerStatus| {
            json!({
                "cluster": &*status.cluster,
                "class": status.class.as_str(),
                "state": status.report.state.as_str(),
                "reason": status.report.reason,
                "transitions": status.report.transitions.values().sum::<u64>(),
                "transitionsByReason": status.report.transitions,
                "refusedCallers": status.callers.iter().map(|(caller, state)| match caller {
                    CallerId::Pod(key) => json!({"cluster": &*key.home_cluster, "podUid": &*key.pod_uid, "state": state.as_str()}),
                    CallerId::Person(user) => json!({"user": user, "state": state.as_str()}),
                }).collect::<Vec<_>>(),
            })
        };
        self.routing
            .load()
            .upstreams
            .breakers()
            .into_iter()
            .map(breaker)
            .collect()
    }
}

/// `verb`: an HTTP method or a verb of Kubernetes. `as`: `<home cluster>/<namespace>/<pod>`, or `user:<name>`.
#[derive(Debug, Deserialize)]
struct Question {
    verb: String,
    path: String,
    #[serde(rename = "as")]
    caller: String,
    /// Comma separated, for `user:`.
    #[serde(default)]
    groups: String,
}

type Refusal = (StatusCode, Json<Value>);

fn refuse(code: StatusCode, message: impl Into<String>) -> Refusal {
    (code, Json(json!({"error": message.into()})))
}

async fn explain(State(pages): State<Pages>, Query(question): Query<Question>) -> Result<Json<Value>, Refusal> {
    let routing = pages.routing.load();
    let snapshot = &routing.snapshot;
    let caller = find_caller(&question, snapshot)?;
    let (method, watch) = method_of(&question.verb)
        .ok_or_else(|| refuse(StatusCode::BAD_REQUEST, format!("verb {:?} is unknown", question.verb)))?;
    let uri = uri_of(&question.path, watch)
        .ok_or_else(|| refuse(StatusCode::BAD_REQUEST, format!("path {:?} is not /…", question.path)))?;
    let request = match classify(&method, &uri, &HeaderMap::new()) {
        Ok(request) => request,
        Err(fault) => {
            return Ok(Json(json!({
                "caller": describe_caller(&caller),
                "request": {"method": method.as_str(), "path": question.path},
                "plan": {"refuse": fault.to_string()},
                "why": ["the request cannot be read"],
            })));
        }
    };
    let planned = plan(&caller, &request, snapshot, &routing.kinds);
    Ok(Json(json!({
        "caller": describe_caller(&caller),
        "request": describe_request(&request),
        "plan": describe_plan(&planned),
        "why": planned.why(),
        "policies": policies::explain(&routing, &caller, &request, &planned.plan),
        "generation": snapshot.generation,
    })))
}

fn find_caller(question: &Question, snapshot: &Snapshot) -> Result<Caller, Refusal> {
    if let Some(user) = question.caller.strip_prefix("user:") {
        let groups = question
            .groups
            .split(',')
            .filter(|group| !group.is_empty())
            .map(str::to_owned)
            .collect();
        return Ok(Caller::Person {
            user: user.to_owned(),
            groups,
        });
    }
    let named = |view: &&Arc<CallerView>| name_of(view) == question.caller;
    let by_uid = question.caller.split_once('/').and_then(|(home, uid)| {
        snapshot.callers.get(&CallerKey {
            home_cluster: home.into(),
            pod_uid: uid.into(),
        })
    });
    match by_uid.or_else(|| snapshot.callers.values().find(named)) {
        Some(view) => Ok(Caller::Pod(view.clone())),
        None => Err(refuse(StatusCode::NOT_FOUND, nobody(&question.caller, snapshot))),
    }
}

fn nobody(asked: &str, snapshot: &Snapshot) -> String {
    let mut known: Vec<_> = snapshot.callers.values().map(|view| name_of(view)).collect();
    known.sort_unstable();
    known.truncate(SUGGESTIONS);
    let known = if known.is_empty() {
        "none yet".to_owned()
    } else {
        known.join(", ")
    };
    format!(
        "no caller {asked:?} in this router's snapshot; name one as <home cluster>/<namespace>/<pod> or user:<name>; \
         callers: {known}"
    )
}

fn name_of(view: &CallerView) -> String {
    format!("{}/{}/{}", view.key.home_cluster, view.namespace, view.pod)
}

/// The HTTP method, and whether the query must say `watch`.
fn method_of(verb: &str) -> Option<(Method, bool)> {
    let method = match verb.to_ascii_lowercase().as_str() {
        "get" | "list" => Method::GET,
        "watch" => return Some((Method::GET, true)),
        "create" | "post" => Method::POST,
        "update" | "put" => Method::PUT,
        "patch" => Method::PATCH,
        "delete" | "deletecollection" => Method::DELETE,
        "head" => Method::HEAD,
        "options" => Method::OPTIONS,
        _ => return None,
    };
    Some((method, false))
}

fn uri_of(path: &str, watch: bool) -> Option<Uri> {
    let asks_already = path
        .split_once('?')
        .is_some_and(|(_, query)| query.split('&').any(|pair| pair.starts_with("watch")));
    let path = match (watch && !asks_already, path.contains('?')) {
        (false, _) => path.to_owned(),
        (true, true) => format!("{path}&watch=true"),
        (true, false) => format!("{path}?watch=true"),
    };
    path.starts_with('/').then(|| path.parse().ok()).flatten()
}

fn describe_caller(caller: &Caller) -> Value {
    match caller {
        Caller::Pod(view) => json!({
            "homeCluster": &*view.key.home_cluster,
            "namespace": &*view.namespace,
            "pod": view.pod,
            "serviceAccount": view.service_account,
            "binding": match &view.binding {
                crate::value::snapshot::Binding::None => json!(null),
                crate::value::snapshot::Binding::One(shard) => json!(shard.config.to_string()),
                crate::value::snapshot::Binding::Unknown { config, .. } => json!(config.to_string()),
                crate::value::snapshot::Binding::Several(configs) => json!(configs),
            },
        }),
        Caller::Person { user, groups } => json!({"user": user, "groups": groups}),
    }
}

fn describe_request(request: &ApiRequest) -> Value {
    let resource = request.resource.as_ref().map(|resource| {
        json!({
            "group": resource.group,
            "version": resource.version,
            "resource": resource.resource,
            "subresource": resource.subresource,
            "namespace": resource.namespace,
            "name": resource.name,
        })
    });
    json!({
        "view": match &request.view {
            View::Merged => "merged".to_owned(),
            View::Explicit(cluster) => format!("explicit: {cluster}"),
        },
        "method": request.method.as_str(),
        "verb": request.verb.as_str(),
        "path": request.path,
        "resource": resource,
    })
}

fn describe_plan(planned: &Planned) -> Value {
    let (kind, detail) = match &planned.plan {
        Plan::Forward(forward) => ("forward", describe_forward(forward)),
        Plan::FanOut(fan) => ("fanOut", describe_fan_out(fan)),
        Plan::Choose(choose) => {
            let each = choose.candidates.iter().map(|one| describe_forward(&one.forward));
            ("choose", each.collect())
        }
        Plan::DeleteEach(parts) => {
            let each = parts.iter().map(|part| describe_forward(&part.forward));
            ("deleteEach", each.collect())
        }
        Plan::Review(clusters) => ("review", clusters.iter().map(|cluster| json!(&**cluster)).collect()),
        Plan::Discovery(wanted) => {
            let members = wanted.members.iter().map(|one| json!(&*one.cluster));
            ("discovery", members.collect())
        }
        Plan::Local(LocalAnswer::Live) => ("local", json!("live")),
        Plan::Local(LocalAnswer::Ready) => ("local", json!("ready")),
        Plan::Refuse(fault) => ("refuse", json!(fault.to_string())),
    };
    json!({ kind: detail })
}

fn describe_fan_out(fan: &FanOut) -> Value {
    let leg = |leg: &FanLeg| {
        let mut described = describe_forward(&leg.forward);
        described["slot"] = json!(leg.slot);
        described["filter"] = json!(leg.filter.as_ref().map(ToString::to_string));
        described["held"] = json!(leg.held);
        described
    };
    json!({
        "watch": fan.watch,
        "unavailable": format!("{:?}", fan.unavailable),
        "unique": fan.unique,
        "legs": fan.legs.iter().map(leg).collect::<Vec<_>>(),
    })
}

fn describe_forward(forward: &Forward) -> Value {
    json!({
        "cluster": &*forward.target.cluster,
        "class": forward.traffic.class.as_str(),
        "actAs": forward.act_as.user,
        "groups": forward.act_as.groups,
        "selector": forward.rewrite.selector.as_ref().map(ToString::to_string),
        "lease": forward.rewrite.lease.as_ref().map(|lease| json!({"client": lease.client, "member": lease.member})),
        "needs": forward.needs.iter().map(describe_need).collect::<Vec<_>>(),
        "warning": forward.warning,
    })
}

fn describe_need(need: &Need) -> Value {
    match need {
        Need::Access(Check::HubProxy { user, cluster, .. }) => {
            json!({"access": format!("hub: may {user} use member {cluster}?")})
        }
        Need::Access(Check::Impersonate {
            cluster, user, wanted, ..
        }) => json!({"access": format!("member {cluster}: may {user} act as {}?", wanted.user)}),
        Need::Access(Check::Resource { cluster, user, wanted }) => {
            json!({"access": format!("member {cluster}: may {} {} {}?", user.user, wanted.verb, wanted.resource)})
        }
        Need::Owners => json!("owners"),
        Need::Copies(_) => json!("copies"),
        Need::Labels(check) => json!({"labels": check.selector.to_string()}),
        Need::Body(rule) => json!({"body": rule.selector.to_string()}),
        Need::Lock(moved) => json!({"lockOf": &*moved.from.0}),
    }
}
