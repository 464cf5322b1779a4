//! Callers → views: which Pods are callers of which shards, and what each may see.

use std::collections::BTreeMap;

use portolan_crds::{Enforcement, ExplicitView, ObjectLimiter, Selector, ShardName, Unavailable, WriteFence};
use portolan_wire::v1;

use super::resources::versioned;
use super::{Accepted, Compiled, Ref, Wanted, World};
use crate::facts::Facts;
use crate::settings::Settings;

/// Pods in these phases run nothing any more.
const ENDED: [&str; 2] = ["Succeeded", "Failed"];

/// Adds a view for each caller that agents have reported, and says of which members none have been.
pub(super) fn print(world: &mut World, facts: &Facts, settings: &Settings) {
    for (cluster, _) in facts.members.iter().filter(|(_, member)| member.accept) {
        let callers = facts.agents.get(cluster).and_then(|agent| agent.callers.as_ref());
        let Some(callers) = callers else {
            world.unknown.homes.insert(cluster.clone());
            continue;
        };
        if facts.joined(cluster).is_none() {
            continue;
        }
        for caller in callers
            .values()
            .filter(|caller| !ENDED.contains(&caller.phase.as_str()))
        {
            add_view(world, settings, cluster, caller);
        }
    }
}

/// A caller that a shard has by the spec in force, or may have: of a member that an agent has not told about since this
/// process started, nobody knows.
pub(super) fn running(facts: &Facts, name: &ShardName, accepted: &Accepted) -> Option<String> {
    let selector = caller_selector(accepted)?;
    let mut untold = None;
    for cluster in facts.members.keys().filter(|cluster| runs_in(accepted, cluster)) {
        if facts.joined(cluster).is_none() {
            continue;
        }
        let Some(callers) = facts.agents.get(cluster).and_then(|agent| agent.callers.as_ref()) else {
            untold.get_or_insert_with(|| format!("those in {cluster} are not known yet"));
            continue;
        };
        let found = callers.values().find(|caller| {
            caller.namespace == name.namespace()
                && !ENDED.contains(&caller.phase.as_str())
                && selector.matches(&labels_of(caller))
        });
        if let Some(caller) = found {
            return Some(format!("{cluster}/{}/{}", caller.namespace, caller.pod));
        }
    }
    untold
}

fn labels_of(caller: &v1::CallerFact) -> BTreeMap<String, String> {
    let labels = caller.labels.iter();
    labels.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn add_view(world: &mut World, settings: &Settings, cluster: &str, caller: &v1::CallerFact) {
    let shards: Vec<ShardName> = shards_of(world, cluster, caller);
    let view = Ref::View {
        home: cluster.to_owned(),
        pod_uid: caller.uid.clone(),
    };
    if shards.is_empty() {
        return;
    }
    let shard = match shards.as_slice() {
        [name] => {
            let accepted = world.state.accepted.get(name);
            accepted.map(|accepted| shard(world, settings, (name, accepted), cluster))
        }
        _ => None,
    };
    let body = v1::CallerView {
        home_cluster: cluster.to_owned(),
        pod_uid: caller.uid.clone(),
        namespace: caller.namespace.clone(),
        pod: caller.pod.clone(),
        service_account: caller.service_account.clone(),
        shards: shards.iter().map(ToString::to_string).collect(),
        shard,
    };
    for name in shards {
        world.callers.entry(name).or_default().insert(view.clone());
    }
    let resource = versioned(v1::resource::Body::CallerView(body));
    let compiled = Compiled {
        resource,
        provisional: false,
    };
    world.resources.insert(view, compiled);
}

/// Shards in force whose selector matches the Pod, in the namespace of the same name, in their caller clusters.
fn shards_of(world: &World, cluster: &str, caller: &v1::CallerFact) -> Vec<ShardName> {
    let labels = labels_of(caller);
    let matches = |name: &ShardName, accepted: &Accepted| {
        name.namespace() == caller.namespace
            && runs_in(accepted, cluster)
            && caller_selector(accepted).is_some_and(|selector| selector.matches(&labels))
    };
    let shards = world
        .state
        .accepted
        .iter()
        .filter(|(name, accepted)| matches(name, accepted));
    shards.map(|(name, _)| name.clone()).collect()
}

/// Whether the shard's operator may run in `cluster`. An original manifest does not say where.
pub(super) fn runs_in(accepted: &Accepted, cluster: &str) -> bool {
    let clusters = &accepted.spec.caller_clusters;
    clusters.is_empty() || clusters.iter().any(|name| name == cluster)
}

/// Which Pods are callers; `None` for a spec without selector, which has none.
pub(super) fn caller_selector(accepted: &Accepted) -> Option<Selector> {
    Selector::from_label_selector(accepted.spec.selector.as_ref()?).ok()
}

fn shard(world: &World, settings: &Settings, (name, accepted): (&ShardName, &Accepted), home: &str) -> v1::Shard {
    let spec = &accepted.spec;
    let enforcement = match spec.enforcement() {
        Enforcement::Enforce => v1::Enforcement::Enforce,
        Enforcement::Audit => v1::Enforcement::Audit,
    };
    let wanted = world.shards.get(name).map(|verdict| &verdict.wanted);
    let members = if spec.clusters.is_empty() {
        vec![v1::MemberGrant {
            cluster: home.to_owned(),
            all_namespaces: true,
            namespaces: Vec::new(),
        }]
    } else {
        wanted.map(|wanted| grants(world, name, wanted)).unwrap_or_default()
    };
    v1::Shard {
        name: name.name().to_owned(),
        config_generation: accepted.generation,
        primary_cluster: spec.primary_cluster().unwrap_or(home).to_owned(),
        leader_election_name: spec.leader_election_name().unwrap_or_default().to_owned(),
        explicit_view: spec.explicit_view == ExplicitView::Allow,
        enforcement: enforcement.into(),
        members,
        limits: spec.limits.iter().filter_map(limit).collect(),
        label_prefix: settings.keys.prefix().to_owned(),
        bucketing: Some(settings.wire_bucketing()),
        unavailable: unavailable(spec.unavailable).into(),
        write_fence: write_fence(spec.write_fence).into(),
    }
}

fn unavailable(unavailable: Unavailable) -> v1::Unavailable {
    match unavailable {
        Unavailable::Hold => v1::Unavailable::Hold,
        Unavailable::PartialStart => v1::Unavailable::PartialStart,
    }
}

fn write_fence(fence: WriteFence) -> v1::WriteFence {
    match fence {
        WriteFence::Enabled => v1::WriteFence::Enabled,
        WriteFence::Disabled => v1::WriteFence::Disabled,
    }
}

/// What the ledger says that `shard` holds, member by member in the spec's order; members that it merely lets go of last.
fn grants(world: &World, shard: &ShardName, wanted: &Wanted) -> Vec<v1::MemberGrant> {
    let ordered = wanted.members.iter().map(|member| member.cluster.as_str());
    let ledger = &world.state.ledger;
    let others = ledger
        .clusters()
        .filter(|cluster| wanted.members.iter().all(|member| member.cluster != *cluster));
    let grants = ordered
        .map(|cluster| (cluster, true))
        .chain(others.map(|cluster| (cluster, false)));
    grants
        .filter_map(|(cluster, member)| {
            let mine = ledger
                .in_cluster(cluster)
                .filter(|(_, entry)| entry.owner.as_ref() == Some(shard));
            let namespaces: Vec<_> = mine
                .map(|(namespace, entry)| {
                    let state = match entry.releasing_since {
                        None => v1::GrantState::Granted,
                        Some(_) => v1::GrantState::Releasing,
                    };
                    v1::NamespaceGrant {
                        namespace: namespace.to_owned(),
                        generation: entry.generation,
                        state: state.into(),
                    }
                })
                .collect();
            (member || !namespaces.is_empty()).then(|| v1::MemberGrant {
                cluster: cluster.to_owned(),
                all_namespaces: false,
                namespaces,
            })
        })
        .collect()
}

/// A limit without selector does not narrow. One without resources is about all.
fn limit(limit: &ObjectLimiter) -> Option<v1::Limit> {
    let selector = Selector::from_label_selector(limit.selector.as_ref()?).unwrap_or(Selector::nothing());
    let rule = |api_groups: &[String], resources: &[String]| v1::ResourceRule {
        api_groups: api_groups.to_vec(),
        resources: resources.to_vec(),
    };
    let resources = if limit.relate_resources.is_empty() {
        let all = [portolan_crds::limits::WILDCARD.to_owned()];
        vec![rule(&all, &all)]
    } else {
        limit
            .relate_resources
            .iter()
            .map(|group| rule(&group.api_groups, &group.resources))
            .collect()
    };
    Some(v1::Limit {
        resources,
        selector: selector.to_string(),
    })
}
