//! A transaction of the hub and the previous snapshot → the next snapshot. Pure; nothing is served before all of it is
//! checked.
//!
//! Every entry is checked by itself: a bad one keeps its own last good, all others come in
//! (`docs/semantics.md#distribution`). Then callers are
//! joined with their shards and those with what they own, see [`join`]. What did not change is shared with the previous
//! snapshot, so that pointers tell what did. Called by `subscribe` for each Commit and, with what the state file kept, at
//! start.

mod join;
mod member;
mod past;
mod policy;
mod shard;

use std::hash::Hash;
use std::sync::Arc;

use portolan_crds::labels::GATEWAY_ACCOUNT;
use portolan_crds::names::{ShardName, is_dns_label, is_dns_subdomain};
use portolan_wire::v1;
use portolan_wire::v1::ResourceKind;
use portolan_wire::v1::resource::Body;
use thiserror::Error;

use super::{Binding, CallerKey, CallerView, HeldElsewhere, Map, Snapshot};
use crate::value::policy::Policy;

/// What arrived between two Commits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Transaction {
    /// New and changed resources.
    pub(crate) upserted: Vec<v1::Resource>,
    /// Resources that are gone.
    pub(crate) removed: Vec<v1::ResourceRef>,
}

/// What became of a transaction.
#[derive(Debug, Clone)]
pub(crate) struct Applied {
    /// What to serve now.
    pub(crate) snapshot: Snapshot,
    /// The entries that were refused, for the NACK; empty means ACK. Everything else is in `snapshot`.
    pub(crate) rejected: Vec<v1::Rejected>,
}

/// Why one resource cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {problem}")]
pub(crate) struct BuildError {
    field: &'static str,
    problem: String,
}

fn bad(field: &'static str, problem: impl ToString) -> BuildError {
    BuildError {
        field,
        problem: problem.to_string(),
    }
}

/// Applies a transaction.
pub(crate) fn apply(previous: &Snapshot, transaction: &Transaction) -> Applied {
    let mut next = previous.clone();
    let mut rejected = Vec::new();
    for removed in &transaction.removed {
        next.remove(removed);
    }
    for resource in &transaction.upserted {
        // One of a kind that this version does not know is ignored.
        let Some(reference) = resource.reference() else {
            continue;
        };
        if let Err(error) = next.insert(resource) {
            rejected.push(v1::Rejected {
                r#ref: Some(reference),
                version: resource.version.clone(),
                reason: error.to_string(),
            });
        }
    }
    next.join(previous);
    next.hold_callers(previous);
    next.generation += 1;
    Applied {
        snapshot: next,
        rejected,
    }
}

/// A policy, if it could be served.
pub(crate) fn check_policy(wire: &v1::Policy) -> Result<Policy, BuildError> {
    policy::policy(wire)
}

impl Snapshot {
    fn remove(&mut self, reference: &v1::ResourceRef) {
        let name = reference.name.as_str();
        match ResourceKind::try_from(reference.kind) {
            Ok(ResourceKind::Target) => {
                remove(&mut self.targets, name);
                self.set_withdrawn(name, false);
            }
            Ok(ResourceKind::MemberIdentity) => remove(&mut self.identities, name),
            Ok(ResourceKind::Coverage) => remove(&mut self.coverage, name),
            Ok(ResourceKind::Nodes) => remove(&mut self.nodes, name),
            Ok(ResourceKind::Credential) => {
                if let Some((cluster, GATEWAY_ACCOUNT)) = name.split_once('/') {
                    remove(&mut self.credentials, cluster);
                }
            }
            Ok(ResourceKind::Shard) => {
                if let Ok(name) = name.parse() {
                    remove::<ShardName, _, _>(&mut self.rules, &name);
                }
            }
            Ok(ResourceKind::Ownership) => {
                if let Some((cluster, Ok(shard))) =
                    name.split_once('/').map(|(cluster, shard)| (cluster, shard.parse()))
                {
                    self.remove_ownership(cluster, &shard);
                }
            }
            Ok(ResourceKind::CallerView) => {
                if let Some((home, uid)) = name.split_once('/') {
                    let key = CallerKey {
                        home_cluster: home.into(),
                        pod_uid: uid.into(),
                    };
                    remove(&mut self.callers, &key);
                }
            }
            Ok(ResourceKind::Policy) => remove(&mut self.policies, name),
            Ok(ResourceKind::Unspecified) | Err(_) => {}
        }
    }

    fn set_withdrawn(&mut self, cluster: &str, withdrawn: bool) {
        if self.withdrawn.contains(cluster) == withdrawn {
            return;
        }
        let all = Arc::make_mut(&mut self.withdrawn);
        if withdrawn {
            all.insert(cluster.into());
        } else {
            all.remove(cluster);
        }
    }

    fn remove_ownership(&mut self, cluster: &str, shard: &ShardName) {
        let all = Arc::make_mut(&mut self.ownership);
        if let Some(of_cluster) = all.get_mut(cluster) {
            Arc::make_mut(of_cluster).remove(shard);
            if of_cluster.is_empty() {
                all.remove(cluster);
            }
        }
    }

    fn insert(&mut self, resource: &v1::Resource) -> Result<(), BuildError> {
        match &resource.body {
            Some(Body::Target(wire)) if wire.withdrawn => {
                let cluster = cluster("cluster", &wire.cluster)?;
                remove(&mut self.targets, &*cluster);
                self.set_withdrawn(&cluster, true);
            }
            Some(Body::Target(wire)) => {
                let target = member::target(wire, &resource.version)?;
                self.set_withdrawn(&target.cluster, false);
                insert(&mut self.targets, target.cluster.clone(), target);
            }
            Some(Body::MemberIdentity(wire)) => {
                let cluster = cluster("cluster", &wire.cluster)?;
                insert(&mut self.identities, cluster.clone(), member::identity(wire)?);
            }
            Some(Body::Coverage(wire)) => {
                let cluster = cluster("cluster", &wire.cluster)?;
                insert(&mut self.coverage, cluster, member::coverage(wire));
            }
            Some(Body::Nodes(wire)) => {
                let cluster = cluster("cluster", &wire.cluster)?;
                insert(&mut self.nodes, cluster, member::nodes(wire));
            }
            Some(Body::Credential(wire)) => {
                let credential = member::credential(wire)?;
                // As whom else a router may act no hub of this protocol says.
                if *credential.identity == *GATEWAY_ACCOUNT {
                    insert(&mut self.credentials, credential.cluster.clone(), credential);
                }
            }
            Some(Body::Ownership(wire)) => {
                let owned = shard::ownership(wire)?;
                let all = Arc::make_mut(&mut self.ownership);
                let of_cluster = all.entry(owned.cluster.clone()).or_default();
                insert(of_cluster, owned.shard.clone(), owned);
            }
            // Of any other an Ownership was made.
            Some(Body::OwnershipChange(wire)) => {
                let problem = format!("version {} of it is not what this router holds", wire.from);
                return Err(bad("from", problem));
            }
            Some(Body::Shard(wire)) => {
                let rules = Arc::new(wire.clone());
                Arc::make_mut(&mut self.rules).insert(shard::check(&rules)?, rules);
            }
            Some(Body::CallerView(wire)) => {
                let view = caller_view(wire)?;
                insert(&mut self.callers, view.key.clone(), view);
            }
            Some(Body::Policy(wire)) => {
                let told = policy::policy(wire)?;
                // The same as before stays the same value: what callers have is not made anew for it.
                if self.policies.get(&told.name).is_none_or(|before| **before != told) {
                    insert(&mut self.policies, told.name.clone(), told);
                }
            }
            None => {}
        }
        Ok(())
    }
}

fn insert<K: Eq + Hash + Clone, V>(map: &mut Map<K, V>, key: K, value: V) {
    Arc::make_mut(map).insert(key, Arc::new(value));
}

fn remove<K, Q, V>(map: &mut Map<K, V>, key: &Q)
where
    K: Eq + Hash + Clone + std::borrow::Borrow<Q>,
    Q: Eq + Hash + ?Sized,
{
    Arc::make_mut(map).remove(key);
}

fn cluster(field: &'static str, name: &str) -> Result<Arc<str>, BuildError> {
    if is_dns_label(name) {
        Ok(name.into())
    } else {
        Err(bad(field, format!("{name:?} is not a cluster name")))
    }
}

/// Not joined with its shard and its policies yet.
fn caller_view(wire: &v1::CallerView) -> Result<CallerView, BuildError> {
    let key = CallerKey {
        home_cluster: cluster("home_cluster", &wire.home_cluster)?,
        pod_uid: wire.pod_uid.as_str().into(),
    };
    if wire.pod_uid.is_empty() || wire.pod_uid.contains('/') {
        return Err(bad("pod_uid", format!("{:?} is not a uid", wire.pod_uid)));
    }
    if !is_dns_label(&wire.namespace) {
        return Err(bad("namespace", format!("{:?} is not a namespace", wire.namespace)));
    }
    if !is_dns_subdomain(&wire.service_account) {
        return Err(bad(
            "service_account",
            format!("{:?} is not a ServiceAccount", wire.service_account),
        ));
    }
    let binding = match wire.shards.as_slice() {
        [] => Binding::None,
        [config] => Binding::Unknown {
            config: config.parse().map_err(|error| bad("shards", error))?,
            missing: String::new(),
        },
        several => Binding::Several(several.to_vec()),
    };
    Ok(CallerView {
        key,
        namespace: wire.namespace.as_str().into(),
        pod: wire.pod.clone(),
        service_account: wire.service_account.clone(),
        user: CallerView::user_of(&wire.namespace, &wire.service_account),
        created_unix_seconds: wire.created_unix_seconds,
        binding,
        held_elsewhere: wire.writes_closed.as_ref().map(|closed| HeldElsewhere {
            until_unix_seconds: closed.until_unix_seconds,
            reason: closed.reason.as_str().into(),
        }),
        policy_names: policy::names(&wire.policies),
        policies: None,
    })
}
