//! Shards → what routers must know of each: its rules, and what it has in each member.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_crds::ledger::CursorFormat;
use portolan_crds::{
    Enforcement, ExplicitView, ObjectLimiter, ReplicatedKind, Selector, ShardName, ShardingConfigSpec, Unavailable,
    WriteFence,
};
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;

use super::reference::Earlier;
use super::{Accepted, Ledger, Ref, State, Wanted, World, locks};
use crate::settings::Settings;

/// Adds the rules of each shard in force, and for each member what the ledger says that a shard has there, or had. What of the
/// world before can be nothing else is taken from there.
pub(super) fn render(world: &mut World, settings: &Settings, earlier: Earlier<'_>) {
    let mut resources = Vec::new();
    let same = Same::as_in(earlier, &world.state);
    let accepted = world.state.accepted.keys();
    let all: BTreeSet<_> = accepted.chain(world.state.ledger.owners()).collect();
    for name in all {
        if let Some(last) = same.of(name, world) {
            let known = last.resources.get_key_value(&Ref::Shard(name.clone()));
            let known = known.into_iter().chain(last.owned_by(name));
            resources.extend(known.map(|(reference, compiled)| (reference.clone(), compiled.clone())));
            continue;
        }
        let bodies = bodies(world, settings, name).into_iter();
        resources.extend(bodies.map(|(reference, body)| {
            let compiled = earlier.compiled(&reference, body);
            (reference, compiled)
        }));
    }
    world.resources.extend(resources);
}

/// The world before, and of which shards what it says may be something else by now.
struct Same<'a> {
    last: Option<&'a World>,
    touched: BTreeSet<&'a ShardName>,
}

impl<'a> Same<'a> {
    fn as_in(earlier: Earlier<'a>, state: &'a State) -> Self {
        let is_like = |last: &&World| {
            last.state.incarnation == state.incarnation && last.state.cursor_format == state.cursor_format
        };
        let last = earlier.0.filter(is_like);
        let touched = last.map(|last| state.ledger.touched_since(&last.state.ledger));
        Self {
            last,
            touched: touched.unwrap_or_default(),
        }
    }

    /// The world before, if it says of the shard just what this one is to say.
    fn of(&self, name: &ShardName, world: &World) -> Option<&'a World> {
        let last = self.last.filter(|_| !self.touched.contains(name))?;
        let wanted = |world: &World| world.shards.get(name).map(|verdict| Arc::as_ptr(&verdict.wanted));
        let is_same = last.state.accepted.get(name) == world.state.accepted.get(name) && wanted(last) == wanted(world);
        is_same.then_some(last)
    }
}

/// What a shard has in each member.
type Owned<'a> = BTreeMap<&'a str, Vec<v1::NamespaceGrant>>;

/// What is told of one shard: of one that is not in force, what it lets go of.
fn bodies(world: &World, settings: &Settings, name: &ShardName) -> Vec<(Ref, Body)> {
    let state = &world.state;
    let mut owned = owned(&state.ledger, name);
    let mut bodies = Vec::new();
    // A root is told to no router: its children are.
    let accepted = state.accepted.get(name).filter(|accepted| accepted.spec.root.is_none());
    if let Some(accepted) = accepted {
        let wanted = world.shards.get(name).map(|verdict| &verdict.wanted);
        let wanted = wanted.filter(|_| !accepted.spec.clusters.is_empty());
        let members = wanted.map_or_else(|| vec![home()], |wanted| members(wanted, &mut owned));
        for cluster in state.ledger.departed_clusters(name) {
            owned.entry(cluster).or_default();
        }
        let body = v1::Shard {
            operator: state.ledger.operator(name, &accepted.spec).to_string(),
            ..shard(settings, state.cursor_format, name, accepted, members)
        };
        bodies.push((Ref::Shard(name.clone()), Body::Shard(body)));
    }
    for (cluster, namespaces) in owned {
        let reference = Ref::Ownership {
            cluster: cluster.to_owned(),
            shard: name.clone(),
        };
        bodies.push((reference, Body::Ownership(ownership(state, cluster, name, namespaces))));
    }
    bodies
}

fn owned<'a>(ledger: &'a Ledger, name: &ShardName) -> Owned<'a> {
    let mut owned = Owned::new();
    for (cluster, namespace, entry) in ledger.held_by(name) {
        let state = match entry.releasing_since {
            None => v1::GrantState::Granted,
            Some(_) => v1::GrantState::Releasing,
        };
        owned.entry(cluster).or_default().push(v1::NamespaceGrant {
            namespace: namespace.to_owned(),
            owner_count: entry.owner_count,
            state: state.into(),
            view_revision: entry.view_revision,
            fenced: entry.is_fenced(),
            vacant: entry.vacant_from.is_some(),
        });
    }
    owned
}

fn ownership(state: &State, cluster: &str, name: &ShardName, namespaces: Vec<v1::NamespaceGrant>) -> v1::Ownership {
    let ledger = &state.ledger;
    let departed = ledger
        .departures(cluster, name)
        .map(|(namespace, departure)| v1::DepartedNamespace {
            namespace: namespace.to_owned(),
            view_revision: departure.view_revision,
            left_unix_seconds: departure.unix_seconds,
        });
    v1::Ownership {
        cluster: cluster.to_owned(),
        shard: name.to_string(),
        namespaces,
        departed: departed.collect(),
        departed_dropped_up_to: ledger.departures_dropped_up_to(cluster, name),
        incarnation: state.incarnation.clone(),
        operator: ledger.operator_of(cluster, name).to_string(),
    }
}

/// The member of a shard without clusters: wherever a caller runs, all of it.
fn home() -> v1::ShardMember {
    v1::ShardMember {
        cluster: String::new(),
        all_namespaces: true,
        namespace_rules: None,
    }
}

/// The members in the spec's order, those that the shard merely lets go of last. Each gets an entry in `owned`: a member
/// of which a router is told nothing is not served.
fn members<'a>(wanted: &'a Wanted, owned: &mut Owned<'a>) -> Vec<v1::ShardMember> {
    let ordered: Vec<_> = wanted.members.iter().map(|member| member.cluster.as_str()).collect();
    let left: Vec<_> = owned
        .keys()
        .filter(|cluster| !ordered.contains(cluster))
        .copied()
        .collect();
    for cluster in &ordered {
        owned.entry(cluster).or_default();
    }
    let member = |cluster: &str| v1::ShardMember {
        cluster: cluster.to_owned(),
        all_namespaces: false,
        namespace_rules: Some(namespace_rules(wanted, cluster)),
    };
    ordered.into_iter().chain(left).map(member).collect()
}

/// Of a member that the shard merely lets go of: none.
fn namespace_rules(wanted: &Wanted, cluster: &str) -> v1::NamespaceRules {
    let member = wanted.members.iter().find(|member| member.cluster == cluster);
    let rules = member.map(|member| member.rules.clone()).unwrap_or_default();
    v1::NamespaceRules {
        names: rules.names.into_iter().collect(),
        selectors: rules.selectors.into_iter().collect(),
        default_for_new: rules.default,
    }
}

fn shard(
    settings: &Settings,
    cursor_format: CursorFormat,
    name: &ShardName,
    accepted: &Accepted,
    members: Vec<v1::ShardMember>,
) -> v1::Shard {
    let spec = &accepted.spec;
    let enforcement = match spec.enforcement() {
        Enforcement::Enforce => v1::Enforcement::Enforce,
        Enforcement::Audit => v1::Enforcement::Audit,
    };
    let unavailable = match spec.unavailable {
        Unavailable::Hold => v1::Unavailable::Hold,
        Unavailable::PartialStart => v1::Unavailable::PartialStart,
    };
    let write_fence = match spec.write_fence {
        WriteFence::Enabled => v1::WriteFence::Enabled,
        WriteFence::Disabled => v1::WriteFence::Disabled,
    };
    v1::Shard {
        name: name.to_string(),
        config_generation: accepted.generation,
        primary_cluster: spec.primary_cluster().unwrap_or_default().to_owned(),
        leader_election_name: spec.leader_election_name().unwrap_or_default().to_owned(),
        lock: locks::told(accepted),
        lock_resource: spec.resource_lock().core_resource().unwrap_or_default().to_owned(),
        explicit_view: spec.explicit_view == ExplicitView::Allow,
        enforcement: enforcement.into(),
        members,
        limits: spec.limits.iter().chain(&accepted.withheld).filter_map(limit).collect(),
        label_prefix: settings.keys.prefix().to_owned(),
        bucketing: Some(settings.bucketing.into()),
        unavailable: unavailable.into(),
        write_fence: write_fence.into(),
        uid: accepted.uid.clone(),
        cursor_format: match cursor_format {
            CursorFormat::One => 1,
            CursorFormat::Two => 2,
        },
        replicated: replicated(spec),
        operator: String::new(),
    }
}

fn replicated(spec: &ShardingConfigSpec) -> Vec<v1::ReplicatedKind> {
    let kinds = spec.replicated_kinds().into_iter();
    let kind = |ReplicatedKind { group, resource }| v1::ReplicatedKind { group, resource };
    kinds.map(kind).collect()
}

/// A limit without selector does not narrow. One without resources is about all.
fn limit(limit: &ObjectLimiter) -> Option<v1::Limit> {
    let selector = Selector::from_label_selector(limit.selector.as_ref()?).unwrap_or(Selector::nothing());
    let rule = |api_groups: &[String], resources: &[String]| v1::ResourceRule {
        api_groups: api_groups.to_vec(),
        resources: resources.to_vec(),
    };
    let resources = if limit.relate_resources.is_empty() {
        let all = [portolan_crds::names::WILDCARD.to_owned()];
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
