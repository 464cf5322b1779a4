//! The objects that have a status of the hub's, and how one is written: by server-side apply under a field manager of its
//! own. Caller: `status`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::{Client, Resource};
use portolan_crds::circuit_breaker::TargetStatus;
use portolan_crds::fault_injection::InjectedStatus;
use portolan_crds::labels::MANAGER_HUB_STATUS;
use portolan_crds::{
    MemberCluster, MemberClusterStatus, Router, RouterStatus, ShardName, ShardingConfig, ShardingConfigStatus,
};
use serde_json::{Value, json};

use crate::facts::{Facts, PolicyName, PolicyStatus};

/// The object that a status is of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Object {
    Member(String),
    Shard(ShardName),
    Router(String),
    Policy(PolicyName),
}

impl Object {
    /// The figures of each object are written at times of its own, or an API server would have all of them at once: the number of
    /// the `period` that `at` is in.
    pub(super) fn turn(&self, at: Duration, period: Duration) -> u128 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        let phase = u128::from(hasher.finish()) % period.as_nanos();
        (at.as_nanos() + phase) / period.as_nanos()
    }

    /// The namespace of the hub of whoever writes it; `None`: it is the fleet's.
    pub(super) fn author(&self) -> Option<&str> {
        match self {
            Self::Shard(name) => Some(name.namespace()),
            Self::Policy(name) => Some(&name.namespace),
            Self::Member(_) | Self::Router(_) => None,
        }
    }

    /// Of the object that has the name now, if there is one.
    pub(super) fn uid<'a>(&self, facts: &'a Facts) -> Option<&'a String> {
        match self {
            Self::Member(name) => facts.members.get(name).map(|object| &object.uid),
            Self::Shard(name) => facts.shards.get(name).map(|object| &object.uid),
            Self::Router(name) => facts.routers.get(name).map(|object| &object.uid),
            Self::Policy(name) => facts.policies.get(name).map(|object| &object.uid),
        }
    }
}

/// A status of any of the kinds.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Status {
    Member(Box<MemberClusterStatus>),
    Shard(Box<ShardingConfigStatus>),
    Router(Box<RouterStatus>),
    Policy(Box<PolicyStatus>),
}

impl Status {
    /// Without what changes all the time.
    pub(super) fn material(&self) -> Self {
        match self {
            Self::Member(status) => {
                let mut status = status.clone();
                status.last_heartbeat = None;
                status.api_latency_milliseconds = None;
                status.labelled_objects = None;
                status.total_objects = None;
                // Of a thousand routers some token is renewed every few seconds.
                status.token_expiry = None;
                Self::Member(status)
            }
            Self::Router(status) => {
                let mut status = status.clone();
                status.last_seen = None;
                Self::Router(status)
            }
            Self::Policy(status) => Self::Policy(Box::new(without_figures(status))),
            Self::Shard(_) => self.clone(),
        }
    }
}

fn without_figures(status: &PolicyStatus) -> PolicyStatus {
    let mut status = status.clone();
    match &mut status {
        PolicyStatus::Breaker(status) => {
            let targets = status.target_status.iter_mut();
            for snapshot in targets.flat_map(|target| &mut target.limiting_snapshots) {
                (snapshot.refused_last_minute, snapshot.refused_total, snapshot.tokens) = (0, 0, None);
            }
            // In the order of what changes all the time.
            let name = |target: &TargetStatus| (target.router.clone(), target.cluster.clone(), target.pod_name.clone());
            status.target_status.sort_by_key(name);
            for target in &mut status.target_status {
                target.limiting_snapshots.sort_by(|a, b| a.name.cmp(&b.name));
            }
        }
        PolicyStatus::Fault(status) => {
            for hit in &mut status.target_status {
                (hit.injected_last_minute, hit.injected_total) = (0, 0);
            }
            let name = |hit: &InjectedStatus| {
                let caller = (hit.router.clone(), hit.cluster.clone(), hit.pod_name.clone());
                (caller, hit.name.clone())
            };
            status.target_status.sort_by_key(name);
        }
    }
    status
}

/// Applies a status by the object's uid, so that another object of the same name does not get it. `namespace`: the hub's own.
pub(super) async fn write(
    client: &Client,
    namespace: &str,
    object: Object,
    uid: String,
    status: Status,
) -> kube::Result<()> {
    let params = PatchParams::apply(MANAGER_HUB_STATUS).force();
    match (&object, &status) {
        (Object::Member(name), Status::Member(status)) => {
            let api = Api::<MemberCluster>::all(client.clone());
            let patch = patch::<MemberCluster>(json!({"name": name, "uid": uid}), json!(status));
            api.patch_status(name, &params, &Patch::Apply(patch)).await.map(drop)
        }
        (Object::Shard(name), Status::Shard(status)) => {
            let api = Api::<ShardingConfig>::namespaced(client.clone(), name.namespace());
            let metadata = json!({"name": name.name(), "namespace": name.namespace(), "uid": uid});
            let patch = patch::<ShardingConfig>(metadata, json!(status));
            api.patch_status(name.name(), &params, &Patch::Apply(patch))
                .await
                .map(drop)
        }
        (Object::Router(name), Status::Router(status)) => {
            let api = Api::<Router>::namespaced(client.clone(), namespace);
            let metadata = json!({"name": name, "namespace": namespace, "uid": uid});
            let patch = patch::<Router>(metadata, json!(status));
            api.patch_status(name, &params, &Patch::Apply(patch)).await.map(drop)
        }
        (Object::Policy(name), Status::Policy(status)) => write_policy(client, &params, name, uid, status).await,
        _ => Ok(()),
    }
}

async fn write_policy(
    client: &Client,
    params: &PatchParams,
    name: &PolicyName,
    uid: String,
    status: &PolicyStatus,
) -> kube::Result<()> {
    let resource = name.kind.resource();
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), &name.namespace, &resource);
    let status = match status {
        PolicyStatus::Breaker(status) => json!(status),
        PolicyStatus::Fault(status) => json!(status),
    };
    let patch = json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name.name, "namespace": name.namespace, "uid": uid},
        "status": status,
    });
    api.patch_status(&name.name, params, &Patch::Apply(patch))
        .await
        .map(drop)
}

fn patch<K: Resource<DynamicType = ()>>(metadata: Value, status: Value) -> Value {
    json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": metadata,
        "status": status,
    })
}
