//! The snapshot as JSON for `/configz`: what is routed where, without a single secret.

use portolan_crds::names::service_account_of;
use portolan_merge::cursor::Format;
use serde_json::{Value, json};

use super::{Binding, CallerView, Enforcement, GrantState, MemberIdentity, Ownership, Shard, Snapshot, Target};

impl Snapshot {
    /// Everything an administrator may see. Tokens appear by their expiry only.
    pub(crate) fn configz(&self) -> Value {
        let mut callers: Vec<_> = self.callers.values().collect();
        callers.sort_by(|a, b| a.key.cmp(&b.key));
        let mut targets: Vec<_> = self.targets.values().collect();
        targets.sort_by(|a, b| a.cluster.cmp(&b.cluster));
        let mut credentials: Vec<_> = self.credentials.values().collect();
        credentials.sort_by(|a, b| (&a.cluster, &a.identity).cmp(&(&b.cluster, &b.identity)));
        json!({
            "generation": self.generation,
            "targets": targets.into_iter().map(|target| self.target(target)).collect::<Vec<_>>(),
            "callers": callers.into_iter().map(|caller| caller.configz()).collect::<Vec<_>>(),
            "credentials": credentials.into_iter().map(|credential| json!({
                "cluster": &*credential.cluster,
                "identity": &*credential.identity,
                "expiresUnixSeconds": credential.expires_unix_seconds,
            })).collect::<Vec<_>>(),
            "conflictingSigningKeys": self.keys.conflicts().collect::<Vec<_>>(),
        })
    }

    fn target(&self, target: &Target) -> Value {
        let identity = self.identities.get(&target.cluster).map(|identity| identity.configz());
        let groups = self
            .coverage
            .get(&target.cluster)
            .into_iter()
            .flat_map(|kinds| kinds.iter());
        let kinds =
            groups.flat_map(|(group, kinds)| kinds.iter().map(move |(resource, facts)| ((group, resource), facts)));
        let mut coverage: Vec<_> = kinds.collect();
        coverage.sort_by_key(|(kind, _)| *kind);
        let unconfirmed = coverage.first().map(|(_, facts)| &*facts.unconfirmed);
        json!({
            "cluster": &*target.cluster,
            "version": target.version,
            "clusterUID": target.cluster_uid,
            "endpoints": target.endpoints.iter().map(|endpoint| json!({
                "url": endpoint.url.to_string(),
                "tlsServerName": endpoint.tls_server_name,
            })).collect::<Vec<_>>(),
            "cordoned": target.cordoned,
            "identity": identity,
            "unconfirmedNamespaces": unconfirmed,
            "nodes": self.nodes.get(&target.cluster).map(|names| json!({
                "names": names.digests.len(),
                "more": names.more,
            })),
            "coverage": coverage.into_iter().map(|((group, resource), facts)| json!({
                "group": group,
                "resource": resource,
                "complete": facts.complete,
                "labelled": facts.labelled,
                "total": facts.total,
            })).collect::<Vec<_>>(),
        })
    }
}

impl MemberIdentity {
    fn configz(&self) -> Value {
        let account = |user: &String| service_account_of(user).map(|(namespace, name)| format!("{namespace}/{name}"));
        let mut accounts: Vec<_> = self.allowed.iter().filter_map(account).collect();
        accounts.sort();
        let mut users: Vec<_> = self.allowed.iter().filter(|user| account(user).is_none()).collect();
        users.sort();
        json!({
            "signingKeys": self.signing_keys.len(),
            "allowedServiceAccounts": accounts,
            "allowedUsers": users,
        })
    }
}

impl CallerView {
    fn configz(&self) -> Value {
        let (shards, shard) = match &self.binding {
            Binding::None => (vec![], None),
            Binding::One(shard) => (vec![shard.config.to_string()], Some(shard.configz())),
            Binding::Unknown { config, missing } => (vec![config.to_string()], Some(json!({"missing": missing}))),
            Binding::Several(configs) => (configs.clone(), None),
        };
        json!({
            "homeCluster": &*self.key.home_cluster,
            "podUID": &*self.key.pod_uid,
            "namespace": &*self.namespace,
            "pod": self.pod,
            "serviceAccount": self.service_account,
            "createdUnixSeconds": self.created_unix_seconds,
            "shards": shards,
            "writesClosed": self.held_elsewhere.as_ref().map(|held| json!({
                "untilUnixSeconds": held.until_unix_seconds,
                "reason": &*held.reason,
            })),
            "policies": self.policy_names.iter().map(|name| &**name).collect::<Vec<_>>(),
            "shard": shard,
        })
    }
}

impl Shard {
    fn configz(&self) -> Value {
        let members = self.members.iter().enumerate().map(|(index, member)| {
            let mut owned: Vec<_> = self
                .namespaces
                .iter()
                .filter(|(_, grant)| grant.member == index)
                .collect();
            owned.sort_by_key(|(name, _)| *name);
            json!({
                "cluster": &*member.cluster,
                "allNamespaces": member.all_namespaces,
                "namespaces": owned.into_iter().map(|(name, grant)| json!({
                    "name": &**name,
                    "ownerCount": grant.pair.owner_count,
                    "viewRevision": grant.pair.view_revision,
                    "state": match grant.pair.state {
                        GrantState::Granted => "Granted",
                        GrantState::Releasing => "Releasing",
                    },
                    "vacant": grant.pair.vacant,
                })).collect::<Vec<_>>(),
                "departed": self.made_of.owned.get(index).and_then(Option::as_ref).map(|owned| owned.departures()),
            })
        });
        json!({
            "config": self.config.to_string(),
            "configGeneration": self.config_generation,
            "left": self.made_of.elsewhere.iter().map(|owned| json!({
                "cluster": &*owned.cluster,
                "departed": owned.departures(),
            })).collect::<Vec<_>>(),
            "primaryCluster": &*self.primary_cluster,
            "lease": self.lease.as_ref().map(|lease| json!({"client": lease.client, "member": lease.member})),
            "lockResource": self.lock_resource,
            "explicitView": self.explicit_view,
            "enforcement": match self.enforcement {
                Enforcement::Enforce => "Enforce",
                Enforcement::Audit => "Audit",
            },
            "members": members.collect::<Vec<_>>(),
            "limits": self.limits.iter().map(|limit| json!({
                "resources": limit.resources,
                "selector": limit.selector.to_string(),
            })).collect::<Vec<_>>(),
            "labelPrefix": self.label_keys.prefix(),
            "bucketing": {
                "algorithm": format!("{:?}", self.bucketing.algorithm()),
                "buckets": self.bucketing.buckets(),
            },
            "unavailable": format!("{:?}", self.unavailable),
            "writeFence": self.write_fence,
            "replicated": self.replicated,
            "cursors": self.identity.as_ref().map(|identity| json!({
                "format": match identity.writes {
                    Format::One => 1,
                    Format::Two => 2,
                },
                "viewRevision": identity.view_revision,
            })),
        })
    }
}

impl Ownership {
    fn departures(&self) -> Value {
        let departed = self.departed.iter().map(|departed| {
            json!({
                "name": &*departed.namespace,
                "viewRevision": departed.view_revision,
                "leftUnixSeconds": departed.left_unix_seconds,
            })
        });
        json!({
            "namespaces": departed.collect::<Vec<_>>(),
            "droppedUpTo": self.departed_dropped_up_to,
        })
    }
}
