//! Who asks: replicas of operators with their shards, and people.

use std::sync::Arc;

use portolan_crds::names::{ShardName, service_account_user};

use super::Shard;
use crate::value::policy::CallerPolicies;

/// Who asks. Found by `identify`, judged by `plan`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Caller {
    /// A replica of an operator.
    Pod(Arc<CallerView>),
    /// A person, by a client certificate of the hub CA.
    Person {
        /// The certificate's CN.
        user: String,
        /// The certificate's Os.
        groups: Vec<String>,
    },
}

impl Caller {
    /// The tenant that all Pods are of which belong to no shard.
    pub(crate) const NO_SHARD: &str = "no shard";

    /// With whom it shares what it takes of the router: its shard; a person with nobody.
    pub(crate) fn tenant(&self) -> Arc<str> {
        match self {
            Self::Pod(view) => view.shard().cloned().unwrap_or_else(|| Self::NO_SHARD.into()),
            Self::Person { user, .. } => format!("person {user}").into(),
        }
    }
}

/// Tells callers apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum CallerId {
    Pod(CallerKey),
    Person(String),
}

impl CallerId {
    pub(crate) fn of(caller: &Caller) -> Self {
        match caller {
            Caller::Pod(view) => Self::Pod(view.key.clone()),
            Caller::Person { user, .. } => Self::Person(user.clone()),
        }
    }

    /// Whether it is this caller's.
    pub(crate) fn is_of(&self, caller: &Caller) -> bool {
        match (self, caller) {
            (Self::Pod(key), Caller::Pod(view)) => *key == view.key,
            (Self::Person(name), Caller::Person { user, .. }) => name == user,
            _ => false,
        }
    }
}

/// A caller: one replica of an operator.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CallerKey {
    /// The member cluster in which its Pod runs.
    pub(crate) home_cluster: Arc<str>,
    /// Uid of that Pod.
    pub(crate) pod_uid: Arc<str>,
}

/// What one caller is and may do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CallerView {
    /// Home cluster and Pod uid.
    pub(crate) key: CallerKey,
    /// Namespace of its Pod, in the home cluster.
    pub(crate) namespace: Arc<str>,
    /// Name of its Pod.
    pub(crate) pod: String,
    /// Name of its ServiceAccount, without namespace.
    pub(crate) service_account: String,
    /// The user that members know it as; see [`Self::user_of`].
    pub(crate) user: Arc<str>,
    /// Since when its Pod exists, by the clock of its home cluster; `None`: nobody has told.
    pub(crate) created_unix_seconds: Option<i64>,
    /// The shard it belongs to.
    pub(crate) binding: Binding,
    /// It may take itself for the leader of another shard: its writes are refused.
    pub(crate) held_elsewhere: Option<HeldElsewhere>,
    /// Names of the policies that hold it, sorted.
    pub(crate) policy_names: Arc<[Arc<str>]>,
    /// Those of them that this router knows; `None`: none.
    pub(crate) policies: Option<Arc<CallerPolicies>>,
}

impl CallerView {
    /// The user of a ServiceAccount.
    pub(crate) fn user_of(namespace: &str, service_account: &str) -> Arc<str> {
        service_account_user(namespace, service_account).into()
    }

    /// Whether the same requests of both are planned the same: which policies hold a caller is nothing to where they go.
    pub(crate) fn is_planned_as(&self, other: &Self) -> bool {
        let Self {
            key,
            namespace,
            pod,
            service_account,
            user: _,
            created_unix_seconds,
            binding,
            // Reads are planned the same.
            held_elsewhere: _,
            policy_names: _,
            policies: _,
        } = self;
        (key, namespace, pod) == (&other.key, &other.namespace, &other.pod)
            && (service_account, created_unix_seconds) == (&other.service_account, &other.created_unix_seconds)
            && *binding == other.binding
    }

    /// The ShardingConfig of its one shard, `namespace/name`.
    pub(crate) fn shard(&self) -> Option<&Arc<str>> {
        match &self.binding {
            Binding::One(shard) => Some(&shard.name),
            Binding::None | Binding::Unknown { .. } | Binding::Several(_) => None,
        }
    }

    /// The operator of that, as in [`Shard::operator`](super::Shard::operator).
    pub(crate) fn operator(&self) -> &str {
        match &self.binding {
            Binding::One(shard) => shard.operator(),
            Binding::None | Binding::Unknown { .. } | Binding::Several(_) => "",
        }
    }
}

/// A lock that a caller may hold and that is not its present shard's (`docs/semantics.md#leader-election`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeldElsewhere {
    /// From then on it does not count any more.
    pub(crate) until_unix_seconds: i64,
    /// Half a sentence about the caller.
    pub(crate) reason: Arc<str>,
}

/// How many shards claim a caller.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Binding {
    /// None: refused.
    None,
    /// Exactly one: served.
    One(Arc<Shard>),
    /// Exactly one, of which the hub has not told enough yet: refused, saying so.
    Unknown {
        /// Its ShardingConfig.
        config: ShardName,
        /// What the hub has not told, or not so that it can be served.
        missing: String,
    },
    /// Several ShardingConfigs, `namespace/name`: refused, naming them.
    Several(Vec<String>),
}
