//! A shard of the wire → a [`Shard`]. What this router does not know must neither open anything nor leave anything out.

use std::collections::hash_map::Entry;
use std::fmt::Write as _;
use std::sync::Arc;

use portolan_crds::labels::LabelKeys;
use portolan_crds::labels::system_namespace;
use portolan_crds::names::{ShardName, is_dns_label, lease_name};
use portolan_crds::selector::Selector;
use portolan_crds::shard::{BucketAlgorithm, Bucketing};
use portolan_merge::cursor::Format;
use portolan_wire::v1;

use super::{BuildError, bad, cluster};
use crate::value::hashed::HashMap;
use crate::value::snapshot::{
    CursorIdentity, Departed, Enforcement, Grant, GrantState, LeaseName, Limit, Lock, LockPlace, LockState, MadeOf,
    Member, Ownership, Pair, Shard, Unavailable, reach,
};

/// Whether the rules name "the home cluster", so that each of those has a shard of its own.
pub(super) fn is_of_home(wire: &v1::Shard) -> bool {
    wire.primary_cluster.is_empty() || wire.members.iter().any(|member| member.cluster.is_empty())
}

/// The name of the shard, if its rules can be served.
pub(super) fn check(wire: &Arc<v1::Shard>) -> Result<ShardName, BuildError> {
    let made_of = MadeOf {
        rules: wire.clone(),
        owned: vec![None; wire.members.len()],
        elsewhere: Vec::new(),
    };
    Ok(shard(made_of, "home")?.config)
}

/// Rules, joined with what the shard owns in each of their members. `home`: the cluster of its callers.
pub(super) fn shard(made_of: MadeOf, home: &str) -> Result<Shard, BuildError> {
    let wire = &*made_of.rules;
    let config: ShardName = wire.name.parse().map_err(|error| bad("name", error))?;
    let label_keys = LabelKeys::new(&wire.label_prefix).map_err(|error| bad("label_prefix", error))?;
    let (members, namespaces) = members(wire, home, &made_of.owned)?;
    let reaches = reach::reaches(&members, &namespaces, &label_keys);
    let limits: Vec<Limit> = wire.limits.iter().map(limit).collect::<Result<_, _>>()?;
    Ok(Shard {
        identity: identity(&made_of, &limits),
        config_generation: wire.config_generation,
        primary_cluster: cluster_or("primary_cluster", &wire.primary_cluster, home)?,
        lease: lease(&wire.leader_election_name, &config)?,
        lock_resource: lock_resource(&wire.lock_resource)?,
        lock: lock(wire, &config)?,
        explicit_view: wire.explicit_view,
        enforcement: match v1::Enforcement::try_from(wire.enforcement) {
            Ok(v1::Enforcement::Audit) => Enforcement::Audit,
            // What this router does not know must not open anything.
            Ok(v1::Enforcement::Enforce | v1::Enforcement::Unspecified) | Err(_) => Enforcement::Enforce,
        },
        members,
        limits,
        bucketing: bucketing(wire.bucketing)?,
        unavailable: match v1::Unavailable::try_from(wire.unavailable) {
            Ok(v1::Unavailable::PartialStart) => Unavailable::PartialStart,
            // What this router does not know must not leave anything out.
            Ok(v1::Unavailable::Hold | v1::Unavailable::Unspecified) | Err(_) => Unavailable::Hold,
        },
        write_fence: v1::WriteFence::try_from(wire.write_fence) != Ok(v1::WriteFence::Disabled),
        replicated: replicated(wire),
        name: wire.name.as_str().into(),
        config,
        label_keys,
        namespaces,
        reaches,
        made_of,
    })
}

fn replicated(wire: &v1::Shard) -> Vec<(String, String)> {
    let kinds = wire.replicated.iter();
    kinds.map(|kind| (kind.group.clone(), kind.resource.clone())).collect()
}

/// `None` if the hub does not tell UIDs, or what it tells is of two lives of its ledger.
fn identity(made_of: &MadeOf, limits: &[Limit]) -> Option<CursorIdentity> {
    let wire = &made_of.rules;
    if wire.uid.is_empty() {
        return None;
    }
    let mut shard = wire.uid.clone();
    for limit in limits {
        let _ = write!(shard, "/{:?}/{}", limit.resources, limit.selector);
    }
    let mut members: Vec<&str> = wire.members.iter().map(|member| member.cluster.as_str()).collect();
    let ranks = format!("/{members:?}/{}", wire.primary_cluster);
    // Home and primary have a place in every cursor, member or not.
    members.sort_unstable();
    let _ = write!(shard, "/{members:?}/{}/{:?}", wire.label_prefix, wire.bucketing);
    let mut lives = made_of.all_owned().map(|owned| &owned.incarnation);
    let hub_incarnation = lives.next().cloned().unwrap_or_default();
    if lives.any(|other| *other != hub_incarnation) {
        return None;
    }
    let revisions = made_of.all_owned().map(|owned| owned.view_revision());
    Some(CursorIdentity {
        shard,
        ranks,
        hub_incarnation,
        view_revision: revisions.max().unwrap_or_default(),
        writes: if wire.cursor_format == 2 {
            Format::Two
        } else {
            Format::One
        },
    })
}

fn cluster_or(field: &'static str, name: &str, home: &str) -> Result<Arc<str>, BuildError> {
    cluster(field, if name.is_empty() { home } else { name })
}

/// A hub that does not say uses the default. A rule this router does not know would filter wrongly, so it is refused.
/// `None` for one that no shard of this version can have.
pub(super) fn label_rule(wire: &v1::LabelRule) -> Option<(String, Bucketing)> {
    Some((wire.prefix.clone(), bucketing(wire.bucketing).ok()?))
}

fn bucketing(wire: Option<v1::Bucketing>) -> Result<Bucketing, BuildError> {
    const FIELD: &str = "bucketing";
    let Some(wire) = wire else {
        return Ok(Bucketing::default());
    };
    let algorithm = match v1::BucketAlgorithm::try_from(wire.algorithm) {
        Ok(v1::BucketAlgorithm::Xxh3) => BucketAlgorithm::Xxh3,
        Ok(v1::BucketAlgorithm::Legacy) => BucketAlgorithm::Legacy,
        Ok(v1::BucketAlgorithm::Unspecified) | Err(_) => {
            let problem = format!(
                "algorithm {} is unknown: this router is older than its hub",
                wire.algorithm
            );
            return Err(bad(FIELD, problem));
        }
    };
    let buckets = u16::try_from(wire.buckets).unwrap_or(u16::MAX);
    Bucketing::new(algorithm, buckets).map_err(|error| bad(FIELD, error))
}

fn lease(leader_election_name: &str, config: &ShardName) -> Result<Option<LeaseName>, BuildError> {
    if leader_election_name.is_empty() {
        return Ok(None);
    }
    let member = lease_name(leader_election_name, config).map_err(|error| bad("leader_election_name", error))?;
    Ok(Some(LeaseName {
        client: leader_election_name.to_owned(),
        member,
    }))
}

/// One that this router does not know would be kept where it is: each cluster would elect a leader of its own.
fn lock_resource(wire: &str) -> Result<Option<&'static str>, BuildError> {
    let known = ["configmaps", "endpoints"].into_iter().find(|known| *known == wire);
    if known.is_none() && !wire.is_empty() {
        return Err(bad("lock_resource", format!("{wire} cannot carry a leader lock")));
    }
    Ok(known)
}

fn lock(wire: &v1::Shard, config: &ShardName) -> Result<Option<Lock>, BuildError> {
    let Some(lock) = &wire.lock else { return Ok(None) };
    let from = lock.from.as_ref().map(|from| {
        Ok(LockPlace {
            cluster: cluster("lock.from.cluster", &from.cluster)?,
            member: lease_name(&from.leader_election_name, config).map_err(|error| bad("lock.from", error))?,
            resource: lock_resource(&from.lock_resource)?,
        })
    });
    let from = from.transpose()?;
    let state = match (v1::LockState::try_from(lock.state), from) {
        (Ok(v1::LockState::Open), _) => LockState::Open,
        (Ok(v1::LockState::Bringing), Some(from)) => LockState::Bringing(from),
        // What this router does not know must not make a second leader.
        (_, from) => LockState::Closed(from),
    };
    let present = lease(&wire.leader_election_name, config)?;
    let former = present.filter(|present| !lock.former_name.is_empty() && lock.former_name != present.client);
    Ok(Some(Lock {
        generation: lock.generation,
        state,
        former: former.map(|present| LeaseName {
            client: lock.former_name.clone(),
            member: present.member,
        }),
    }))
}

type Namespaces = HashMap<Arc<str>, Grant>;

fn members(
    wire: &v1::Shard,
    home: &str,
    owned: &[Option<Arc<Ownership>>],
) -> Result<(Vec<Member>, Namespaces), BuildError> {
    let mut members: Vec<Member> = Vec::with_capacity(wire.members.len());
    let mut namespaces = Namespaces::default();
    for (index, (member, owned)) in wire.members.iter().zip(owned).enumerate() {
        let cluster = cluster_or("members[].cluster", &member.cluster, home)?;
        if members.iter().any(|member| member.cluster == cluster) {
            return Err(bad("members[].cluster", format!("{cluster} is listed twice")));
        }
        for (name, pair) in owned.iter().flat_map(|owned| &owned.namespaces) {
            let grant = Grant {
                member: index,
                pair: *pair,
                exact: true,
            };
            match namespaces.entry(name.clone()) {
                Entry::Vacant(free) => drop(free.insert(grant)),
                // Where it is, and not where it was.
                Entry::Occupied(mut earlier) if earlier.get().pair.vacant && !pair.vacant => {
                    earlier.insert(grant);
                }
                Entry::Occupied(_) => {}
            }
        }
        members.push(Member {
            cluster,
            all_namespaces: member.all_namespaces,
            namespaces: 0,
            unlabelled: None,
        });
    }
    for (name, grant) in &namespaces {
        let member = &mut members[grant.member];
        member.namespaces += 1;
        let is_first = member.unlabelled.as_ref().is_none_or(|first| name < first);
        if system_namespace(name) && is_first {
            member.unlabelled = Some(name.clone());
        }
    }
    Ok((members, namespaces))
}

pub(super) fn ownership(wire: &v1::Ownership) -> Result<Ownership, BuildError> {
    let mut namespaces = HashMap::default();
    namespaces.reserve(wire.namespaces.len());
    for grant in &wire.namespaces {
        let pair = Pair {
            owner_count: grant.owner_count,
            view_revision: grant.view_revision,
            state: grant_state(grant.state),
            fenced: grant.fenced,
            vacant: grant.vacant,
        };
        namespaces.insert(namespace("namespaces", &grant.namespace)?, pair);
    }
    let departed = wire.departed.iter().map(|departed| {
        Ok(Departed {
            namespace: namespace("departed", &departed.namespace)?,
            view_revision: departed.view_revision,
            left_unix_seconds: departed.left_unix_seconds,
        })
    });
    Ok(Ownership {
        cluster: cluster("cluster", &wire.cluster)?,
        shard: wire.shard.parse().map_err(|error| bad("shard", error))?,
        departed: departed.collect::<Result<_, _>>()?,
        departed_dropped_up_to: wire.departed_dropped_up_to,
        incarnation: wire.incarnation.as_str().into(),
        operator: wire.operator.as_str().into(),
        namespaces,
    })
}

fn namespace(field: &'static str, name: &str) -> Result<Arc<str>, BuildError> {
    if is_dns_label(name) {
        Ok(name.into())
    } else {
        Err(bad(field, format!("{name:?} is not a namespace")))
    }
}

fn grant_state(wire: i32) -> GrantState {
    match v1::GrantState::try_from(wire) {
        Ok(v1::GrantState::Granted) => GrantState::Granted,
        // An unknown state must not let a write through.
        Ok(v1::GrantState::Releasing | v1::GrantState::Unspecified) | Err(_) => GrantState::Releasing,
    }
}

fn limit(wire: &v1::Limit) -> Result<Limit, BuildError> {
    let selector = Selector::parse(&wire.selector).map_err(|error| bad("limits[].selector", error))?;
    let resources = wire
        .resources
        .iter()
        .map(|rule| (rule.api_groups.clone(), rule.resources.clone()));
    Ok(Limit {
        resources: resources.collect(),
        selector,
    })
}
