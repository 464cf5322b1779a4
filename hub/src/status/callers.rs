//! How far a shard's callers are served by its present version: `status.callers` and condition Distributed. Pure; called
//! by `shard`.
//!
//! A Pod that several shards select is served by none (`docs/semantics.md#identity`). Both may be right by themselves, and
//! the Pod may come long after either: so no spec is refused for it, but the status of each tells.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use portolan_crds::{
    CallerReplica, CallersStatus, ConditionReason, ConditionType, Finding, STATUS_REPLICAS_MAX, ShardName,
    ShardingConfigSpec,
};
use portolan_wire::subscription::Subscription;
use portolan_wire::v1::resource::Body;
use portolan_wire::v1::{CallerView, ExcessSelector, ResourceKind};

use super::finding::nothing_in_force;
use super::{Routers, Sources};
use crate::acks::RouterState;
use crate::compile::{Accepted, Ref, World, caller_selector, some_of};
use crate::facts::Facts;

const TYPE: ConditionType = ConditionType::Distributed;

/// How far the callers have come. A caller is current when every connected router serves it by its present view, and by
/// what its shard is and owns at present.
pub(super) fn callers(world: &World, name: &ShardName, routers: &Routers) -> CallersStatus {
    let parts = parts(world, name);
    let served = connected(routers, name).map(|router| Served::by(router, name, &parts));
    let served: Vec<_> = served.collect();
    let mut replicas: Vec<_> = views(world, name)
        .map(|(view, version, body)| replica(view, version, body, &served))
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

/// Whether a router that is told of its shard serves this caller too.
fn serves(router: &RouterState, body: &CallerView) -> bool {
    match &router.subscription {
        Subscription::Everything | Subscription::Shards(_) => true,
        Subscription::Caller(pod) => {
            pod.cluster == body.home_cluster && pod.namespace == body.namespace && pod.pod == body.pod
        }
    }
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

fn replica(view: &Ref, version: &String, body: &CallerView, served: &[Served<'_>]) -> (bool, CallerReplica) {
    let is_told = |served: &Served<'_>| served.router.held.get(view) == Some(version);
    let served: Vec<_> = served.iter().filter(|served| serves(served.router, body)).collect();
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

/// Where the shard's selector matches more Pods than the agent tells.
fn too_many(facts: &Facts, name: &ShardName, accepted: &Accepted) -> Option<String> {
    let selector = caller_selector(accepted)?.to_string();
    let of_shard = |excess: &&ExcessSelector| excess.namespace == name.namespace() && excess.selector == selector;
    facts.agents.iter().find_map(|(cluster, agent)| {
        let excess = agent.excess.iter().find(of_shard)?;
        Some(format!(
            "spec.selector matches {} Pods in {cluster}, and only the {} oldest are known to routers: narrow it, or delete Pods",
            excess.matched, excess.told
        ))
    })
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
    if let Some(excess) = too_many(facts, name, accepted) {
        let message = format!("{}; {excess}", progress(callers));
        return Finding::fails(TYPE, ConditionReason::TooManyCallers, message);
    }
    let silent = silent_homes(world, &accepted.spec);
    let mut found = served(callers, connected(routers, name).count(), &silent);
    if let Some(pods) = world.not_admitted.get(name) {
        let _ = write!(
            found.message,
            "; matched by spec.selector, but no callers by spec.serviceAccounts: {}",
            some_of(pods, ", ")
        );
    }
    found
}

fn progress(callers: &CallersStatus) -> String {
    format!(
        "{} of {} callers are served by the present version",
        callers.current, callers.total
    )
}

/// Caller clusters whose agents have not told this process of any Pods.
fn silent_homes<'a>(world: &World, spec: &'a ShardingConfigSpec) -> Vec<&'a str> {
    let homes = spec.caller_clusters.iter().map(String::as_str);
    homes
        .filter(|home| world.is_unknown(ResourceKind::CallerView, home))
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
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use portolan_wire::v1;

    use super::*;
    use crate::acks::Acks;
    use crate::compile::{Accepted, Compiled};

    fn shard_name(name: &str) -> ShardName {
        ShardName::new("ops", name).unwrap()
    }

    fn view(pod: &str) -> Ref {
        Ref::View {
            home: "east".to_owned(),
            pod_uid: format!("uid-{pod}"),
        }
    }

    fn owned(name: &str) -> Ref {
        Ref::Ownership {
            cluster: "west".to_owned(),
            shard: shard_name(name),
        }
    }

    fn compiled(version: &str, body: Option<Body>) -> Compiled {
        let version = version.to_owned();
        Compiled {
            resource: Arc::new(v1::Resource { version, body }),
            provisional: false,
        }
    }

    /// Views by version, and both shards with what they own in west by the present one.
    fn holding(views: &[(&str, &str)]) -> BTreeMap<Ref, String> {
        let views = views.iter().map(|(pod, version)| (view(pod), *version));
        let shards = ["a", "b"].into_iter();
        let parts = shards.flat_map(|name| [(Ref::Shard(shard_name(name)), "s2"), (owned(name), "s2")]);
        let held = views.chain(parts);
        held.map(|(name, version)| (name, version.to_owned())).collect()
    }

    /// Shards a and b are in force by version s2; views have version 2.
    fn world(pods: &[(&str, &[&str])]) -> World {
        let mut world = World::default();
        for name in ["a", "b"] {
            let accepted = Accepted {
                uid: name.to_owned(),
                generation: 1,
                spec: Arc::default(),
            };
            world.state.accepted.insert(shard_name(name), accepted);
            let members = vec![v1::ShardMember {
                cluster: "west".to_owned(),
                ..v1::ShardMember::default()
            }];
            let rules = v1::Shard {
                members,
                ..v1::Shard::default()
            };
            for (name, body) in [
                (Ref::Shard(shard_name(name)), Some(Body::Shard(rules))),
                (owned(name), None),
            ] {
                world.resources.insert(name, compiled("s2", body));
            }
        }
        for (pod, shards) in pods {
            let body = CallerView {
                home_cluster: "east".to_owned(),
                namespace: "ops".to_owned(),
                pod: (*pod).to_owned(),
                pod_uid: format!("uid-{pod}"),
                shards: shards.iter().map(|shard| format!("ops/{shard}")).collect(),
                ..CallerView::default()
            };
            let compiled = compiled("2", Some(Body::CallerView(body)));
            world.resources.insert(view(pod), compiled);
            for shard in *shards {
                world.callers.entry(shard_name(shard)).or_default().insert(view(pod));
            }
        }
        world
    }

    /// What the shard tells while one router holds these versions.
    fn told(world: &World, name: &str, held: &[(&str, &str)]) -> (CallersStatus, Finding) {
        told_with(&Facts::default(), world, name, held)
    }

    fn told_with(facts: &Facts, world: &World, name: &str, held: &[(&str, &str)]) -> (CallersStatus, Finding) {
        let acks = Acks::default();
        acks.connected("gateway", RouterState::new(1, holding(held)));
        acks.read(|routers| {
            let name = shard_name(name);
            let callers = callers(world, &name, routers);
            let sources = Sources {
                facts,
                world,
                routers,
                now: jiff::Timestamp::UNIX_EPOCH,
            };
            let found = distributed(sources, &name, &callers);
            (callers, found)
        })
    }

    #[test]
    fn a_shard_whose_selector_matches_too_many_pods_is_told_and_others_are_not() {
        let mut world = world(&[("p", &["a"]), ("q", &["b"])]);
        let labels = serde_json::json!({"selector": {"matchLabels": {"app": "flood"}}});
        let accepted = world.state.accepted.get_mut(&shard_name("a")).unwrap();
        accepted.spec = Arc::new(serde_json::from_value(labels).unwrap());
        let mut facts = Facts::default();
        let excess = ExcessSelector {
            namespace: "ops".to_owned(),
            selector: "app=flood".to_owned(),
            matched: 5_001,
            told: 500,
        };
        facts.agents.entry("east".to_owned()).or_default().excess = vec![excess];
        let found = |shard| told_with(&facts, &world, shard, &[("p", "2"), ("q", "2")]).1;
        let flooded = found("a");
        assert_eq!(flooded.reason, ConditionReason::TooManyCallers);
        assert!(
            flooded.message.contains("matches 5001 Pods in east"),
            "{}",
            flooded.message
        );
        assert_ne!(found("b").reason, ConditionReason::TooManyCallers);
    }

    #[test]
    fn callers_are_as_present_as_what_their_shard_owns() {
        let world = world(&[("p", &["a"]), ("q", &["a"])]);
        let acks = Acks::default();
        acks.connected("gateway", RouterState::new(1, holding(&[("p", "2"), ("q", "2")])));
        let current = || acks.read(|routers| callers(&world, &shard_name("a"), routers));
        assert_eq!(current().current, 2);
        acks.update("gateway", 1, |router| {
            router.held.insert(owned("b"), "s1".to_owned());
        });
        assert_eq!(current().current, 2, "that of another shard");
        acks.update("gateway", 1, |router| {
            router.held.insert(owned("a"), "s1".to_owned());
            router.rejected.insert(owned("a"), ("s2".to_owned(), "no".to_owned()));
        });
        let callers = current();
        assert_eq!((callers.current, callers.total), (0, 2));
        assert!(
            callers
                .replicas
                .iter()
                .all(|replica| replica.nack.as_deref() == Some("no"))
        );
    }

    #[test]
    fn a_pod_in_two_shards_is_told_of_by_both() {
        let world = world(&[("own", &["a"]), ("both", &["a", "b"])]);
        for (name, other, progress) in [("a", "b", "1 of 2"), ("b", "a", "0 of 1")] {
            let (callers, found) = told(&world, name, &[("own", "2"), ("both", "2")]);
            assert_eq!(
                (found.status, found.reason),
                (Some(false), ConditionReason::CallersInSeveralShards)
            );
            assert_eq!(
                found.message,
                format!(
                    "{progress} callers are served by the present version; routers answer 403 to Pod ops/both in east: \
                     also selected by ShardingConfig ops/{other}, and a Pod must belong to one shard; narrow \
                     spec.selector here or there"
                )
            );
            let first = &callers.replicas[0];
            assert_eq!((first.pod.as_str(), first.version.as_deref()), ("both", None));
            let why = first.nack.as_deref().unwrap();
            assert!(why.contains("2 shards, which must be one: ops/a, ops/b;"), "{why}");
            assert!(callers.replicas[1..].iter().all(|replica| replica.nack.is_none()));
        }
    }

    #[test]
    fn shards_with_pods_of_their_own_say_nothing_of_each_other() {
        let world = world(&[("one", &["a"]), ("other", &["b"])]);
        for name in ["a", "b"] {
            let (callers, found) = told(&world, name, &[("one", "2"), ("other", "2")]);
            assert_eq!((callers.current, callers.total), (1, 1));
            assert_eq!((found.status, found.reason), (Some(true), ConditionReason::Ok));
        }
    }

    #[test]
    fn a_router_that_has_not_heard_of_the_second_shard_serves_by_the_earlier_view() {
        let (callers, found) = told(&world(&[("both", &["a", "b"])]), "a", &[("both", "1")]);
        assert_eq!(
            (callers.current, callers.replicas[0].version.as_deref()),
            (0, Some("s2"))
        );
        assert_eq!(found.reason, ConditionReason::CallersInSeveralShards);
    }

    #[test]
    fn pods_of_other_accounts_are_told_of() {
        let mut world = world(&[("p", &["a"])]);
        let pods = ["q in east (default)".to_owned()];
        world.not_admitted.insert(shard_name("a"), pods.into());
        let (_, found) = told(&world, "a", &[("p", "2")]);
        assert_eq!((found.status, found.reason), (Some(true), ConditionReason::Ok));
        assert!(
            found
                .message
                .ends_with("no callers by spec.serviceAccounts: q in east (default)"),
            "{}",
            found.message
        );
    }

    #[test]
    fn of_many_pods_a_few_are_named() {
        let pods: Vec<_> = (0..STATUS_REPLICAS_MAX + 50)
            .map(|number| format!("p-{number:03}"))
            .collect();
        let both: &[&str] = &["a", "b"];
        let pods: Vec<_> = pods.iter().map(|pod| (pod.as_str(), both)).collect();
        let (callers, Finding { message, .. }) = told(&world(&pods), "a", &[]);
        assert_eq!(callers.replicas.len(), STATUS_REPLICAS_MAX);
        assert!(message.contains("ops/p-009 in east and 240 more: also"), "{message}");
        assert!(!message.contains("p-010"), "{message}");
    }
}
