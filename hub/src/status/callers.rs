//! How far a shard's callers are served by its present version: `status.callers` and condition Distributed. Pure; called
//! by `shard`.
//!
//! A Pod that several shards select is served by none (`docs/semantics.md#identity`). Both may be right by themselves, and
//! the Pod may come long after either: so no spec is refused for it, but the status of each tells.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use portolan_crds::selector::digest_of;
use portolan_crds::{
    CallerReplica, CallersStatus, ConditionReason, ConditionType, Finding, STATUS_REPLICAS_MAX, ShardName,
    ShardingConfigSpec,
};
use portolan_wire::protocol::LABELS_MAX_BYTES;
use portolan_wire::subscription::{CallerPod, Subscription};
use portolan_wire::v1::CallerView;
use portolan_wire::v1::resource::Body;

use super::finding::nothing_in_force;
use super::{Routers, Sources};
use crate::acks::RouterState;
use crate::compile::{Accepted, AgentOrders, Ref, World, caller_selector, some_of};
use crate::facts::Facts;

const TYPE: ConditionType = ConditionType::Distributed;

/// How far the callers have come. A caller is current when every connected router serves it by its present view, and by
/// what its shard is and owns at present. Each caller is compared with the routers that serve all callers, and with its own alone.
pub(super) fn callers(world: &World, name: &ShardName, routers: &Routers) -> CallersStatus {
    let parts = parts(world, name);
    let different = different(connected(routers, name));
    let served = ServedBy::new(different.map(|router| Served::by(router, name, &parts)));
    let mut replicas: Vec<_> = views(world, name)
        .map(|(view, version, body)| replica(view, version, body, &served.serving(body)))
        .collect();
    let current = replicas.iter().filter(|(current, _)| *current).count();
    // Those that are not current first; the list is cut.
    replicas.sort_by(|a, b| (a.0, &a.1.cluster, &a.1.pod).cmp(&(b.0, &b.1.cluster, &b.1.pod)));
    CallersStatus {
        total: i64::try_from(replicas.len()).unwrap_or(i64::MAX),
        current: i64::try_from(current).unwrap_or(i64::MAX),
        replicas: replicas
            .into_iter()
            .map(|(_, replica)| replica)
            .take(STATUS_REPLICAS_MAX)
            .collect(),
    }
}

/// Routers that may be told of the shard.
fn connected<'a>(routers: &'a Routers, name: &ShardName) -> impl Iterator<Item = &'a RouterState> {
    let told = |router: &&RouterState| match &router.subscription {
        Subscription::Everything | Subscription::Caller(_) => true,
        Subscription::Shards(shards) => shards.contains(name),
    };
    routers.values().filter(|router| router.left.is_none()).filter(told)
}

/// Of routers that hold just the same, and have refused nothing, one stands for all.
fn different<'a>(routers: impl Iterator<Item = &'a RouterState>) -> impl Iterator<Item = &'a RouterState> {
    let mut seen = BTreeSet::new();
    routers.filter(move |router| {
        let is_of_a_caller = matches!(router.subscription, Subscription::Caller(_));
        is_of_a_caller || !router.rejected.is_empty() || seen.insert(Arc::as_ptr(router.held.common()))
    })
}

/// A resource's name and its present version.
type Part<'a> = (Ref, &'a String);

/// What all callers of a shard are served by: the shard, and what it owns in each of its members.
fn parts<'a>(world: &'a World, name: &ShardName) -> Vec<Part<'a>> {
    let shard = Ref::Shard(name.clone());
    let Some(compiled) = world.resources.get(&shard) else {
        return Vec::new();
    };
    let members = match &compiled.resource.body {
        Some(Body::Shard(shard)) => shard.members.as_slice(),
        _ => &[],
    };
    let owned = members.iter().filter_map(|member| {
        let owned = Ref::Ownership {
            cluster: member.cluster.clone(),
            shard: name.clone(),
        };
        let version = world.resources.get(&owned)?.version();
        Some((owned, version))
    });
    std::iter::once((shard, compiled.version())).chain(owned).collect()
}

/// A router, as far as one shard is concerned.
struct Served<'a> {
    router: &'a RouterState,
    /// Whether it holds all present parts of the shard.
    present: bool,
    /// The version of the shard that it holds.
    version: Option<&'a String>,
    /// Why it refused one of the present parts.
    refused: Option<String>,
}

impl<'a> Served<'a> {
    fn by(router: &'a RouterState, name: &ShardName, parts: &[Part<'_>]) -> Self {
        Self {
            router,
            present: parts
                .iter()
                .all(|(part, version)| router.held.get(part) == Some(*version)),
            version: router.held.get(&Ref::Shard(name.clone())),
            refused: parts.iter().find_map(|(part, version)| refusal(router, part, version)),
        }
    }
}

/// Routers by the callers that they serve.
#[derive(Default)]
struct ServedBy<'a> {
    /// Those that serve all callers of the shard.
    all: Vec<Served<'a>>,
    /// Those of one caller.
    own: BTreeMap<CallerPod, Vec<Served<'a>>>,
}

impl<'a> ServedBy<'a> {
    fn new(routers: impl Iterator<Item = Served<'a>>) -> Self {
        let mut by = Self::default();
        for served in routers {
            match &served.router.subscription {
                Subscription::Everything | Subscription::Shards(_) => by.all.push(served),
                Subscription::Caller(pod) => by.own.entry(pod.clone()).or_default().push(served),
            }
        }
        by
    }

    fn serving(&self, body: &CallerView) -> Vec<&Served<'a>> {
        let pod = CallerPod {
            cluster: body.home_cluster.clone(),
            namespace: body.namespace.clone(),
            pod: body.pod.clone(),
        };
        self.all
            .iter()
            .chain(self.own.get(&pod).into_iter().flatten())
            .collect()
    }
}

/// Why a router refused this version.
fn refusal(router: &RouterState, name: &Ref, version: &String) -> Option<String> {
    let (refused, reason) = router.rejected.get(name)?;
    (refused == version).then(|| reason.clone())
}

/// Name, version and content of the present view of each caller of the shard.
fn views<'a>(world: &'a World, name: &ShardName) -> impl Iterator<Item = (&'a Ref, &'a String, &'a CallerView)> {
    let views = world.callers.get(name).into_iter().flatten();
    views.filter_map(|view| {
        let resource = &world.resources.get(view)?.resource;
        match &resource.body {
            Some(Body::CallerView(body)) => Some((view, &resource.version, body)),
            _ => None,
        }
    })
}

/// `served`: by the routers that serve this caller.
fn replica(view: &Ref, version: &String, body: &CallerView, served: &[&Served<'_>]) -> (bool, CallerReplica) {
    let is_told = |served: &Served<'_>| served.router.held.get(view) == Some(version);
    let is_present = |served: &&Served<'_>| served.present && is_told(served);
    let everywhere = !served.is_empty() && served.iter().all(is_present);
    // Of several routers the one that lags is told of.
    let lagging = served.iter().find(|served| !is_present(served)).or(served.first());
    let refused = served
        .iter()
        .find_map(|served| refusal(served.router, view, version).or_else(|| served.refused.clone()));
    let several = is_in_several(body).then(|| in_several(body));
    let replica = CallerReplica {
        cluster: body.home_cluster.clone(),
        namespace: body.namespace.clone(),
        pod: body.pod.clone(),
        uid: body.pod_uid.clone(),
        // By a view of several shards a router serves nothing; one that lags still serves by an earlier.
        version: lagging
            .filter(|served| served.router.held.contains_key(view) && (several.is_none() || !is_told(served)))
            .and_then(|served| served.version.cloned()),
        nack: several.clone().or(refused),
    };
    (everywhere && several.is_none(), replica)
}

fn is_in_several(body: &CallerView) -> bool {
    body.shards.len() > 1
}

/// Why a Pod that several shards select is not served, in the words of the router's answer to it.
fn in_several(body: &CallerView) -> String {
    format!(
        "it belongs to {} shards, which must be one: {}; routers answer 403 to it until spec.selector of all but one is \
         narrowed",
        body.shards.len(),
        some_of(&body.shards, ", ")
    )
}

/// Which of the shard's callers other shards select too; `None` if none.
fn shared(world: &World, name: &ShardName) -> Option<String> {
    let own = name.to_string();
    let (mut pods, mut others) = (Vec::new(), BTreeSet::new());
    for (_, _, body) in views(world, name).filter(|(_, _, body)| is_in_several(body)) {
        pods.push(format!("{}/{} in {}", body.namespace, body.pod, body.home_cluster));
        others.extend(body.shards.iter().map(String::as_str).filter(|shard| *shard != own));
    }
    (!pods.is_empty()).then(|| {
        format!(
            "routers answer 403 to Pod {}: also selected by ShardingConfig {}, and a Pod must belong to one shard; narrow \
             spec.selector here or there",
            some_of(pods, ", "),
            some_of(others, ", ")
        )
    })
}

/// Where not all Pods that the shard's selector matches are known, and why.
fn not_all_known(sources: Sources<'_>, name: &ShardName, accepted: &Accepted) -> Option<(ConditionReason, String)> {
    let Sources { facts, world, .. } = sources;
    let selector = caller_selector(accepted)?.to_string();
    let mut orders = world.agent_configs.iter();
    if let Some((cluster, _)) = orders.find(|(_, orders)| orders.left_out().has_selector(name, &selector)) {
        let message = format!(
            "spec.selector is not looked for in {cluster}: the ShardingConfigs of namespace {} ask for more selectors there than \
             one namespace may: shorten them, or delete some",
            name.namespace()
        );
        return Some((ConditionReason::TooMuch, message));
    }
    let mut in_namespace = facts
        .agents
        .iter()
        .flat_map(|(cluster, agent)| agent.excess.iter().map(move |excess| (cluster, excess)))
        .filter(|(_, excess)| excess.namespace == name.namespace())
        .peekable();
    // Few are: of most shards no text is made a digest of.
    in_namespace.peek()?;
    let digest = digest_of(&selector);
    let (cluster, excess) = in_namespace.find(|(_, excess)| excess.digest == digest)?;
    Some(if excess.fault.is_empty() {
        let message = format!(
            "spec.selector matches {} Pods in {cluster}, and only the {} oldest are known to routers: narrow it, or delete Pods",
            excess.matched, excess.told
        );
        (ConditionReason::TooManyCallers, message)
    } else {
        let message = format!(
            "the agent of {cluster} cannot list the Pods that spec.selector matches, so new ones are not known to routers: {}",
            excess.fault
        );
        (ConditionReason::CallersUnknown, message)
    })
}

/// What of the shard's wishes is left out although it is in force, in words; empty: nothing.
fn left_out(world: &World, name: &ShardName, accepted: &Accepted) -> String {
    let mut told = String::new();
    if let Some(pods) = world.not_admitted.get(name) {
        let _ = write!(
            told,
            "; matched by spec.selector, but no callers by spec.serviceAccounts: {}",
            some_of(pods, ", ")
        );
    }
    if let Some(pods) = world.unread_pods.get(name.namespace()) {
        let _ = write!(
            told,
            "; Pods of this namespace with more than {LABELS_MAX_BYTES} bytes of labels, which no selector matches: {}",
            some_of(pods, ", ")
        );
    }
    let kinds = |orders: &AgentOrders| orders.left_out().kinds(name.namespace());
    let orders = world.agent_configs.iter().filter(|_| !accepted.spec.limits.is_empty());
    let most = orders.map(|(cluster, orders)| (kinds(orders), cluster)).max();
    if let Some((count, cluster)) = most.filter(|(count, _)| *count > 0) {
        let _ = write!(
            told,
            "; the limits of ShardingConfigs of this namespace name up to {count} kinds more than are labelled for one in {cluster}: of \
             those routers choose objects by namespace"
        );
    }
    told
}

pub(super) fn distributed(sources: Sources<'_>, name: &ShardName, callers: &CallersStatus) -> Finding {
    let Sources {
        facts, world, routers, ..
    } = sources;
    let Some(accepted) = world.state.accepted.get(name) else {
        return nothing_in_force(TYPE);
    };
    if let Some(shared) = shared(world, name) {
        let message = format!("{}; {shared}", progress(callers));
        return Finding::fails(TYPE, ConditionReason::CallersInSeveralShards, message);
    }
    if let Some((reason, why)) = not_all_known(sources, name, accepted) {
        return Finding::fails(TYPE, reason, format!("{}; {why}", progress(callers)));
    }
    if let Some(unsaved) = unsaved(world, name, routers) {
        let message = format!("{}; {unsaved}", progress(callers));
        return Finding::fails(TYPE, ConditionReason::Progressing, message);
    }
    let silent = silent_homes(facts, name, &accepted.spec);
    let mut found = served(callers, connected(routers, name).count(), &silent);
    found.message.push_str(&left_out(world, name, accepted));
    found
}

/// Which routers cannot write down what the shard is now: as long as they run it is in force there. None of those that have it on disk.
fn unsaved(world: &World, name: &ShardName, routers: &Routers) -> Option<String> {
    let parts = parts(world, name);
    let views: Vec<_> = views(world, name).map(|(view, version, _)| (view, version)).collect();
    let lags = |router: &RouterState| {
        let shard = parts.iter().map(|(part, version)| (part, *version));
        let mut all = shard.chain(views.iter().copied());
        all.any(|(part, version)| router.held.get(part) != Some(version))
    };
    let here = routers
        .iter()
        .filter(|(_, state)| state.left.is_none() && state.unsaved);
    let lagging = here.filter(|(_, state)| state.may_serve(name) && lags(state));
    let names: Vec<_> = lagging.map(|(name, _)| name.as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "in force but not on disk in router {}: it cannot write its state folder, and without the hub a restart would undo this; \
             give it room (its log says what fails)",
            some_of(names, ", ")
        )
    })
}

fn progress(callers: &CallersStatus) -> String {
    format!(
        "{} of {} callers are served by the present version",
        callers.current, callers.total
    )
}

/// Caller clusters whose agents have not told this process of all Pods in the shard's namespace.
fn silent_homes<'a>(facts: &Facts, name: &ShardName, spec: &'a ShardingConfigSpec) -> Vec<&'a str> {
    let homes = spec.caller_clusters.iter().map(String::as_str);
    let accepted = |home: &str| facts.members.get(home).is_some_and(|member| member.accept);
    homes
        .filter(|home| accepted(home) && !facts.knows_callers(home, name.namespace()))
        .collect()
}

/// How far callers that are in no other shard are served. `silent`: see [`silent_homes`].
fn served(callers: &CallersStatus, connected: usize, silent: &[&str]) -> Finding {
    let mut refused = callers.replicas.iter();
    let refused = refused.find_map(|replica| Some((replica, replica.nack.as_ref()?)));
    let progress = progress(callers);
    if let Some((replica, reason)) = refused {
        let message = format!(
            "{progress}; a router refused that of Pod {}/{} in {}: {reason}",
            replica.namespace, replica.pod, replica.cluster
        );
        Finding::fails(TYPE, ConditionReason::Rejected, message)
    } else if callers.total == 0 && !silent.is_empty() {
        let message = format!(
            "the agent of {} has not reported its Pods since the hub started: routers go on with the callers they have",
            silent.join(", ")
        );
        Finding::unknown(TYPE, ConditionReason::WaitingForAgent, message)
    } else if callers.total == 0 {
        let message = "no running Pod in this namespace of the caller clusters matches spec.selector";
        Finding::fails(TYPE, ConditionReason::NoCallers, message)
    } else if connected == 0 {
        let message = format!("{progress}: no router is connected to the hub");
        Finding::fails(TYPE, ConditionReason::Progressing, message)
    } else if callers.current < callers.total {
        Finding::fails(TYPE, ConditionReason::Progressing, progress)
    } else {
        Finding::holds(TYPE, format!("{progress}, on {connected} routers"))
    }
}

#[cfg(test)]
mod tests;
