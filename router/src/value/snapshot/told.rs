//! What a hub tells, as tests say it: a member, or a caller with its shard, each in one piece, told as the resources that
//! the wire splits it into.

use std::collections::BTreeSet;

use portolan_crds::labels::GATEWAY_ACCOUNT;
use portolan_crds::names::name_digest;
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;

use super::Snapshot;
use super::build::{Applied, Transaction, apply};

/// All of one member but the token.
#[derive(Debug, Clone, Default)]
pub(crate) struct Target {
    pub(crate) cluster: String,
    pub(crate) cluster_uid: String,
    pub(crate) endpoints: Vec<v1::Endpoint>,
    pub(crate) ca_pem: String,
    pub(crate) cordoned: bool,
    pub(crate) breaker: Option<v1::Breaker>,
    pub(crate) signing_keys: Vec<String>,
    pub(crate) allowed_service_accounts: Vec<String>,
    pub(crate) allowed_users: Vec<String>,
    pub(crate) coverage: Vec<v1::KindCoverage>,
    /// Names of its Nodes; none: it has not told.
    pub(crate) nodes: Vec<String>,
    pub(crate) unconfirmed: Vec<String>,
}

/// A caller and, where there is exactly one, its shard.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallerView {
    pub(crate) home_cluster: String,
    pub(crate) pod_uid: String,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) service_account: String,
    pub(crate) shards: Vec<String>,
    pub(crate) policies: Vec<String>,
    pub(crate) created_unix_seconds: Option<i64>,
    pub(crate) writes_closed: Option<v1::WritesClosed>,
    pub(crate) shard: Option<Shard>,
}

/// Rules, under the name that the caller says, and what is owned.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shard {
    pub(crate) rules: v1::Shard,
    pub(crate) members: Vec<MemberGrant>,
}

/// What is owned in one member.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemberGrant {
    pub(crate) cluster: String,
    pub(crate) all_namespaces: bool,
    pub(crate) namespaces: Vec<v1::NamespaceGrant>,
    pub(crate) namespace_rules: Option<v1::NamespaceRules>,
}

impl std::ops::Deref for Shard {
    type Target = v1::Shard;

    fn deref(&self) -> &v1::Shard {
        &self.rules
    }
}

impl std::ops::DerefMut for Shard {
    fn deref_mut(&mut self) -> &mut v1::Shard {
        &mut self.rules
    }
}

impl Target {
    pub(crate) fn bodies(&self) -> Vec<Body> {
        let told = self.clone();
        let digests: Vec<u64> = self.nodes.iter().map(|name| name_digest(name)).collect();
        let nodes = (!digests.is_empty()).then(|| {
            Body::Nodes(v1::Nodes {
                cluster: told.cluster.clone(),
                names: Some(v1::NodeNames { digests, more: false }),
            })
        });
        let always = [
            Body::Target(v1::Target {
                cluster: told.cluster.clone(),
                cluster_uid: told.cluster_uid,
                endpoints: told.endpoints,
                ca_pem: told.ca_pem,
                cordoned: told.cordoned,
                withdrawn: false,
                breaker: told.breaker,
            }),
            Body::MemberIdentity(v1::MemberIdentity {
                cluster: told.cluster.clone(),
                signing_keys: told.signing_keys,
                allowed_service_accounts: told.allowed_service_accounts,
                allowed_users: told.allowed_users,
                clock_agrees: true,
            }),
            Body::Coverage(v1::Coverage {
                cluster: told.cluster,
                kinds: told.coverage,
                unconfirmed: told.unconfirmed,
            }),
        ];
        always.into_iter().chain(nodes).collect()
    }
}

impl CallerView {
    pub(crate) fn bodies(&self) -> Vec<Body> {
        let told = self.clone();
        let mut bodies = Vec::new();
        if let (Some(shard), Some(name)) = (&self.shard, self.shards.first()) {
            bodies.extend(shard.bodies(name));
        }
        bodies.push(Body::CallerView(v1::CallerView {
            home_cluster: told.home_cluster,
            pod_uid: told.pod_uid,
            namespace: told.namespace,
            pod: told.pod,
            service_account: told.service_account,
            shards: told.shards,
            created_unix_seconds: told.created_unix_seconds,
            policies: told.policies,
            writes_closed: told.writes_closed,
        }));
        bodies
    }
}

impl Shard {
    pub(crate) fn bodies(&self, name: &str) -> Vec<Body> {
        let member = |member: &MemberGrant| v1::ShardMember {
            cluster: member.cluster.clone(),
            all_namespaces: member.all_namespaces,
            namespace_rules: member.namespace_rules.clone(),
        };
        let rules = v1::Shard {
            name: name.to_owned(),
            members: self.members.iter().map(member).collect(),
            ..self.rules.clone()
        };
        let mut seen = BTreeSet::new();
        let owned = self.members.iter().filter(|member| seen.insert(&member.cluster));
        let owned = owned.map(|member| {
            Body::Ownership(v1::Ownership {
                cluster: member.cluster.clone(),
                shard: name.to_owned(),
                operator: self.rules.operator.clone(),
                namespaces: member.namespaces.clone(),
                ..v1::Ownership::default()
            })
        });
        std::iter::once(Body::Shard(rules)).chain(owned).collect()
    }
}

pub(crate) fn credential(cluster: &str, token: &str) -> v1::Credential {
    v1::Credential {
        cluster: cluster.to_owned(),
        identity: GATEWAY_ACCOUNT.to_owned(),
        token: token.to_owned(),
        expires_unix_seconds: 7,
    }
}

pub(crate) fn resources(version: &str, bodies: impl IntoIterator<Item = Body>) -> Vec<v1::Resource> {
    let resource = |body| v1::Resource {
        version: version.to_owned(),
        body: Some(body),
    };
    bodies.into_iter().map(resource).collect()
}

/// A transaction of these, all of one version.
pub(crate) fn upsert(previous: &Snapshot, version: &str, bodies: impl IntoIterator<Item = Body>) -> Applied {
    let transaction = Transaction {
        upserted: resources(version, bodies),
        removed: Vec::new(),
    };
    apply(previous, &transaction)
}

/// The one that tests order faults by.
pub(crate) const FAULT_INJECTION: &str = "FaultInjection/ops/fj";

/// That one, with this spec.
pub(crate) fn fault_injection(spec: &serde_json::Value) -> Body {
    Body::Policy(v1::Policy {
        name: FAULT_INJECTION.to_owned(),
        uid: "fj-uid".to_owned(),
        generation: 1,
        spec_json: spec.to_string(),
        closed: Vec::new(),
    })
}

/// The one that tests hold callers by.
pub(crate) const CIRCUIT_BREAKER: &str = "CircuitBreaker/ops/cb";

/// That one, with this spec.
pub(crate) fn circuit_breaker(spec: &serde_json::Value) -> Body {
    Body::Policy(v1::Policy {
        name: CIRCUIT_BREAKER.to_owned(),
        uid: "cb-uid".to_owned(),
        generation: 1,
        spec_json: spec.to_string(),
        closed: Vec::new(),
    })
}
