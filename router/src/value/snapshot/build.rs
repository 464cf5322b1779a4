//! A transaction of the hub and the previous snapshot → the next snapshot. Pure; nothing is served before all of it is
//! checked.
//!
//! What a mistake costs is design 8's rule: a bad CallerView keeps that caller's last good view and lets the rest in, a
//! bad Target or Credential rejects the transaction, because every caller of that member depends on it. Called by
//! `subscribe` for each Commit and, with what the state file kept, at start.

mod shard;

use std::sync::Arc;

use portolan_crds::names::{is_dns_label, is_dns_subdomain};
use portolan_runtime::Secret;
use portolan_wire::v1;
use thiserror::Error;

use self::shard::shard;
use super::keys::{self, KeyIndex};
use super::{Binding, CallerKey, CallerView, Coverage, Credential, Endpoint, Snapshot, Target};

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
    /// What to serve now. Equal to the previous one, generation included, when nothing was applied.
    pub(crate) snapshot: Snapshot,
    /// The entries that were refused, for the NACK; empty means ACK.
    pub(crate) rejected: Vec<v1::Rejected>,
    /// Whether everything else of the transaction is in `snapshot`.
    pub(crate) rest_applied: bool,
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

/// The name of a resource; `None` if it has no body.
pub(crate) fn resource_ref(resource: &v1::Resource) -> Option<v1::ResourceRef> {
    use v1::resource::Body;
    let (kind, name) = match resource.body.as_ref()? {
        Body::Target(target) => (v1::ResourceKind::Target, target.cluster.clone()),
        Body::CallerView(view) => (
            v1::ResourceKind::CallerView,
            format!("{}/{}", view.home_cluster, view.pod_uid),
        ),
        Body::Credential(credential) => (v1::ResourceKind::Credential, credential.cluster.clone()),
    };
    Some(v1::ResourceRef {
        kind: kind.into(),
        name,
    })
}

/// Applies a transaction.
pub(crate) fn apply(previous: &Snapshot, transaction: &Transaction) -> Applied {
    let mut next = previous.clone();
    let mut rejected = Vec::new();
    let mut fatal = false;
    for removed in &transaction.removed {
        next.remove(removed);
    }
    for resource in &transaction.upserted {
        let reference = resource_ref(resource);
        let of_caller = reference
            .as_ref()
            .is_some_and(|r| r.kind == i32::from(v1::ResourceKind::CallerView));
        match next.insert(resource) {
            Ok(()) => {
                if let Some(reference) = reference {
                    next.versions.insert(reference, resource.version.clone());
                }
            }
            Err(error) => {
                fatal |= !of_caller;
                let reason = error.to_string();
                rejected.push(v1::Rejected {
                    r#ref: reference,
                    version: resource.version.clone(),
                    reason,
                });
            }
        }
    }
    if fatal {
        return Applied {
            snapshot: previous.clone(),
            rejected,
            rest_applied: false,
        };
    }
    next.keys = Arc::new(KeyIndex::new(next.targets.values()));
    next.generation += 1;
    Applied {
        snapshot: next,
        rejected,
        rest_applied: true,
    }
}

impl Snapshot {
    fn remove(&mut self, reference: &v1::ResourceRef) {
        match v1::ResourceKind::try_from(reference.kind) {
            Ok(v1::ResourceKind::Target) => drop(self.targets.remove(reference.name.as_str())),
            Ok(v1::ResourceKind::Credential) => drop(self.credentials.remove(reference.name.as_str())),
            Ok(v1::ResourceKind::CallerView) => {
                if let Some((home, uid)) = reference.name.split_once('/') {
                    self.callers.remove(&CallerKey {
                        home_cluster: home.into(),
                        pod_uid: uid.into(),
                    });
                }
            }
            Ok(v1::ResourceKind::Unspecified) | Err(_) => {}
        }
        self.versions.remove(reference);
    }

    fn insert(&mut self, resource: &v1::Resource) -> Result<(), BuildError> {
        use v1::resource::Body;
        match resource.body.as_ref().ok_or_else(|| bad("body", "is missing"))? {
            Body::Target(wire) => {
                let target = target(wire, &resource.version)?;
                self.targets.insert(target.cluster.clone(), Arc::new(target));
            }
            Body::CallerView(wire) => {
                let view = caller_view(wire)?;
                self.callers.insert(view.key.clone(), Arc::new(view));
            }
            Body::Credential(wire) => {
                let credential = credential(wire)?;
                self.credentials
                    .insert(credential.cluster.clone(), Arc::new(credential));
            }
        }
        Ok(())
    }
}

fn cluster(field: &'static str, name: &str) -> Result<Arc<str>, BuildError> {
    if is_dns_label(name) {
        Ok(name.into())
    } else {
        Err(bad(field, format!("{name:?} is not a cluster name")))
    }
}

fn target(wire: &v1::Target, version: &str) -> Result<Target, BuildError> {
    let endpoints = wire.endpoints.iter().map(endpoint).collect::<Result<Vec<_>, _>>()?;
    if endpoints.is_empty() {
        return Err(bad("endpoints", "at least one is needed"));
    }
    for key in &wire.signing_keys {
        keys::check(key).map_err(|error| bad("signing_keys", error))?;
    }
    let breaker = wire.breaker.unwrap_or_default();
    if !(0.0..=1.0).contains(&breaker.failure_ratio) {
        return Err(bad(
            "breaker.failure_ratio",
            format!("{} is not between 0 and 1", breaker.failure_ratio),
        ));
    }
    let coverage = wire.coverage.iter().map(|kind| {
        let facts = Coverage {
            complete: kind.complete,
            labelled: kind.labelled,
            total: kind.total,
            rule: kind.rule.as_ref().and_then(shard::label_rule),
            at_admission: kind.at_admission,
        };
        ((kind.group.clone(), kind.resource.clone()), facts)
    });
    Ok(Target {
        cluster: cluster("cluster", &wire.cluster)?,
        version: version.to_owned(),
        cluster_uid: wire.cluster_uid.clone(),
        endpoints,
        ca_pem: wire.ca_pem.clone(),
        cordoned: wire.cordoned,
        breaker,
        signing_keys: wire.signing_keys.clone(),
        allowed_service_accounts: wire.allowed_service_accounts.iter().cloned().collect(),
        allowed_users: wire.allowed_users.iter().cloned().collect(),
        coverage: coverage.collect(),
        namespace_owners: wire.namespace_owners.clone(),
    })
}

fn endpoint(wire: &v1::Endpoint) -> Result<Endpoint, BuildError> {
    if wire.url.contains('@') {
        // Not repeated: what stands before the '@' is a password.
        return Err(bad("endpoints[].url", "must not carry user information"));
    }
    let refuse = |problem: &str| bad("endpoints[].url", format!("{:?} {problem}", wire.url));
    let url: http::Uri = wire.url.parse().map_err(|_| refuse("is not a URL"))?;
    if url.scheme_str() != Some("https") || url.host().is_none_or(str::is_empty) {
        return Err(refuse("must be https://host[:port]"));
    }
    if !matches!(url.path(), "" | "/") || url.query().is_some() {
        return Err(refuse("must not have a path or query"));
    }
    let name = &wire.tls_server_name;
    Ok(Endpoint {
        url,
        tls_server_name: (!name.is_empty()).then(|| name.clone()),
    })
}

fn credential(wire: &v1::Credential) -> Result<Credential, BuildError> {
    // A token that cannot stand in a header would fail every request of that member.
    if wire.token.is_empty() || !wire.token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(bad("token", "is empty or cannot stand in an HTTP header"));
    }
    Ok(Credential {
        cluster: cluster("cluster", &wire.cluster)?,
        token: Secret::from(wire.token.as_str()),
        expires_unix_seconds: wire.expires_unix_seconds,
    })
}

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
    let binding = match (wire.shards.as_slice(), &wire.shard) {
        ([], _) => Binding::None,
        ([config], Some(wire)) => Binding::One(Arc::new(shard(config, wire)?)),
        ([_], None) => return Err(bad("shard", "is missing although exactly one ShardingConfig matches")),
        (several, _) => Binding::Several(several.to_vec()),
    };
    Ok(CallerView {
        key,
        namespace: wire.namespace.as_str().into(),
        pod: wire.pod.clone(),
        service_account: wire.service_account.clone(),
        binding,
    })
}
