//! ShardingConfig: which callers own which (cluster, namespace) pairs, and which objects in them.
//!
//! Fields of the original keep their names and meaning, so an existing manifest applies unchanged. What this version does
//! not serve yet is accepted by the schema and reported by [`crate::validate_sharding`], never ignored. Numbers are wide
//! on purpose: an object that an older schema let in must still be readable, to be refused by name.

mod claims;
mod force;
mod objects;
mod replicated;
mod root;
mod status;
mod weight;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::{Deserialize, Serialize};

pub use claims::Claim;
pub use force::{FORCED_MAX, ForcedRelease};
pub use objects::{ClusterScoped, ObjectLimiter, ResourceGroup};
pub use replicated::{DEFINITIONS, ReplicatedKind};
pub use root::{Auto, Balance, Canary, Root};
pub use status::{
    AcceptedSpec, CallerReplica, CallersStatus, ClusterShardStatus, LockStatus, ReleaseStatus, STATUS_NAMESPACES_MAX,
    STATUS_RELEASES_MAX, STATUS_REPLICAS_MAX, ShardingConfigStatus,
};
pub use weight::{AUTHOR_BYTES_MAX, json_bytes};

use crate::labels::{LabelKeys, system_namespace};
use crate::names::GroupResource;
#[cfg(feature = "schema")]
use crate::schema::{self, DNS_LABEL, DNS_SUBDOMAIN, rules};
use crate::selector::{Operator, Requirement, Selector};
use crate::shard::{BucketSet, BucketSetError, Bucketing};

/// What one group of callers owns: pairs of member cluster and namespace, narrowed to objects by limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(kube::CustomResource, schemars::JsonSchema))]
#[cfg_attr(
    feature = "schema",
    allow(clippy::duplicated_attributes, reason = "print columns repeat their keys"),
    kube(
        group = "ctrlmesh.kusionstack.io",
        version = "v1alpha1",
        kind = "ShardingConfig",
        namespaced,
        shortname = "shard",
        category = "portolan",
        status = "ShardingConfigStatus",
        derive = "PartialEq",
        doc = "What one group of an operator's replicas owns: pairs of member cluster and namespace, narrowed to objects by limits.",
        printcolumn(
            name = "Accepted",
            type_ = "string",
            json_path = r#".status.conditions[?(@.type=="Accepted")].status"#
        ),
        printcolumn(
            name = "Distributed",
            type_ = "string",
            json_path = r#".status.conditions[?(@.type=="Distributed")].status"#
        ),
        printcolumn(name = "Callers", type_ = "integer", json_path = ".status.callers.total"),
        printcolumn(name = "Current", type_ = "integer", json_path = ".status.callers.current"),
        printcolumn(name = "Primary", type_ = "string", json_path = ".spec.primaryCluster"),
        printcolumn(
            name = "Reason",
            type_ = "string",
            json_path = r#".status.conditions[?(@.type=="Accepted")].reason"#
        ),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )
)]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = rules([
    ("has(self.selector) || has(self.root)", "selector is required: say by their labels which Pods are this shard's callers"),
    ("!has(self.clusters) || has(self.callerClusters)",
     "callerClusters is required with clusters: name the member cluster where this shard's operator runs"),
    ("!has(self.callerClusters) || self.callerClusters.size() < 2 || has(self.primaryCluster)",
     "primaryCluster is required with more than one callerCluster: name the member cluster that holds the leases"),
    ("!has(self.callerClusters) || self.callerClusters.size() < 2 || has(self.controller)",
     "controller.leaderElectionName is required with more than one callerCluster, or each elects a leader of its own: name the operator's Lease, or set controller.leaderElection: Disabled if it elects none"),
    ("!has(self.primaryCluster) || (has(self.callerClusters) && self.primaryCluster in self.callerClusters) || (has(self.clusters) && self.clusters.exists(c, has(c.selector) || (has(c.name) && c.name == self.primaryCluster)))",
     "primaryCluster must be one of clusters[].name or callerClusters"),
    ("!has(self.clusters) || self.clusters.all(c, !has(c.name) || has(c.buckets) || self.clusters.exists_one(d, has(d.name) && d.name == c.name))",
     "each member cluster may be named by one entry of clusters only, or by several that all have buckets of their own: merge the entries' namespaces, or say which buckets each has"),
    ("!has(self.clusters) || self.clusters.filter(c, has(c.default) && c.default).size() < 2",
     "default may be true on one entry of clusters only: it takes new Namespaces that several could take"),
]))))]
#[serde(rename_all = "camelCase")]
pub struct ShardingConfigSpec {
    /// Which Pods are this shard's callers. They are looked for in the namespace of this object's own name, in every caller cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::label_selector"))]
    pub selector: Option<LabelSelector>,
    /// Names of the ServiceAccounts whose Pods may be callers: a Pod that selector matches and that runs as another is no
    /// caller, because whoever may create Pods chooses their labels. Absent: Pods of all ServiceAccounts of the namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(min = 1, max = 64),
        inner(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN)),
        extend("x-kubernetes-list-type" = "set"),
    ))]
    pub service_accounts: Vec<String>,
    /// Which program the callers are copies of, where several programs that are sharded work in the same namespaces: only
    /// ShardingConfigs of one namespace and one operator contend for member clusters' namespaces. Children have what their root
    /// has. Absent is a value of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 63), regex(pattern = DNS_LABEL)))]
    pub operator: Option<String>,
    /// Settings of the operator's controllers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerConfig>,
    /// Settings of the operator's webhook server. Not served yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookConfig>,
    /// Which objects of a resource belong to the shard, within its clusters and namespaces. Limits that name the same
    /// resource must all hold. Resources that no limit names are not narrowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic")))]
    pub limits: Vec<ObjectLimiter>,
    /// Generates child ShardingConfigs, which share out what clusters and limits say. A root itself owns nothing and has no callers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<Root>,
    /// Names of the member clusters where this shard's operator runs. Required with clusters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(min = 1, max = 128),
        inner(length(min = 1, max = 63), regex(pattern = DNS_LABEL)),
        extend("x-kubernetes-list-type" = "set"),
    ))]
    pub caller_clusters: Vec<String>,
    /// Which member clusters and namespaces the shard owns. Absent: the caller's home cluster only. Where two members have
    /// a namespace of the same name, the shard has the one that was there first, of new ones the first in this order; the
    /// others are shadowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128), extend("x-kubernetes-list-type" = "atomic")))]
    pub clusters: Vec<ClusterEntry>,
    /// Name of the member cluster that holds the shard's leases and what belongs to no member in particular. Required
    /// with more than one callerCluster; otherwise the callerCluster by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 63), regex(pattern = DNS_LABEL)))]
    pub primary_cluster: Option<String>,
    /// Whether callers may use `/clusters/<name>` of the shard's members, which is unfiltered there. Deny: the merged view
    /// only. Allow: both.
    #[serde(default)]
    pub explicit_view: ExplicitView,
    /// What a merged LIST does while a member is unreachable. Hold: it answers 429 until the member is back. PartialStart:
    /// a first list goes without the member and says so in a Warning header; its objects arrive as added once it is back.
    /// First are lists of callers whose Pod was created after the member was last heard of by any router.
    #[serde(default)]
    pub unavailable: Unavailable,
    /// What happens to single-object requests outside the shard. Enforce: 403. Audit: forwarded within the shard's members
    /// and counted. Default: Enforce with clusters, Audit without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Enforcement>,
    /// Whether the answer to a write waits until the caller's own open watch on that resource and member has brought it,
    /// at most 250 ms. Enabled: it does, so that what a client reads from its cache right after its write includes the
    /// write, although the resourceVersions of several members have no common order. Disabled: answers are not held back.
    #[serde(default)]
    pub write_fence: WriteFence,
    /// Cluster-scoped kinds that mean the same in every member: what callers write at the primary is applied to the others, as
    /// the same ServiceAccount. Absent: CustomResourceDefinitions. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic")))]
    pub replicated: Option<Vec<ReplicatedKind>>,
    /// What this shard alone of its operator sees of kinds without namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_scoped: Option<ClusterScoped>,
}

impl ShardingConfigSpec {
    /// The enforcement in force: as written, else `Enforce` with `clusters` and `Audit` without, so that an original
    /// manifest keeps its meaning.
    pub fn enforcement(&self) -> Enforcement {
        let default = if self.clusters.is_empty() {
            Enforcement::Audit
        } else {
            Enforcement::Enforce
        };
        self.enforcement.unwrap_or(default)
    }

    /// The primary cluster in force: as written, else the only caller cluster. `None` means the caller's home cluster.
    pub fn primary_cluster(&self) -> Option<&str> {
        match (&self.primary_cluster, self.caller_clusters.as_slice()) {
            (Some(primary), _) => Some(primary),
            (None, [only]) => Some(only),
            (None, _) => None,
        }
    }

    /// What carries the lock by which the operator elects its leader.
    pub fn resource_lock(&self) -> ResourceLock {
        let controller = self.controller.as_ref();
        controller
            .and_then(|controller| controller.leader_election_resource_lock)
            .unwrap_or_default()
    }

    /// The lease that the operator elects its leader by, if this shard has one.
    pub fn leader_election_name(&self) -> Option<&str> {
        self.controller.as_ref()?.leader_election_name.as_deref()
    }

    /// The root that generates children; `None` also of one that is disabled, which takes them back.
    pub fn active_root(&self) -> Option<&Root> {
        self.root.as_ref().filter(|root| root.disable != Some(true))
    }

    /// The member clusters that the spec names, each with the path of its field.
    pub fn named_clusters(&self) -> Vec<(String, &str)> {
        let entries = self.clusters.iter().enumerate();
        let entries = entries.filter_map(|(index, entry)| {
            let name = entry.name.as_deref()?;
            Some((format!("spec.clusters[{index}].name"), name))
        });
        let callers = self.caller_clusters.iter().enumerate();
        let callers = callers.map(|(index, name)| (format!("spec.callerClusters[{index}]"), name.as_str()));
        let primary = self.primary_cluster.iter();
        let primary = primary.map(|name| ("spec.primaryCluster".to_owned(), name.as_str()));
        entries.chain(callers).chain(primary).collect()
    }

    /// Whether Pods that run as this ServiceAccount may be callers.
    pub fn admits_account(&self, name: &str) -> bool {
        self.service_accounts.is_empty() || self.service_accounts.iter().any(|admitted| admitted == name)
    }

    /// The kinds that the limits name, with `*` as it is written.
    pub fn limited_kinds(&self) -> impl Iterator<Item = GroupResource> {
        let rules = self.limits.iter().flat_map(|limit| &limit.relate_resources);
        rules.flat_map(ResourceGroup::kinds)
    }
}

impl ClusterEntry {
    /// Tells of MemberClusters, by name and labels, whether the entry chooses them.
    pub fn cluster_filter(&self) -> impl Fn(&str, &BTreeMap<String, String>) -> bool {
        let selector = self.selector.as_ref();
        let selector = selector.and_then(|selector| Selector::from_label_selector(selector).ok());
        move |name, labels| match (&self.name, &selector) {
            (Some(wanted), _) => wanted == name,
            (None, Some(selector)) => selector.matches(labels),
            (None, None) => false,
        }
    }

    /// Which namespaces it chooses by their labels, beside those that it names: never [system ones](system_namespace).
    /// `None`: by name alone. Buckets narrow it.
    pub fn by_labels(&self) -> Option<Selector> {
        match &self.namespace_selector {
            Some(selector) => Some(Selector::from_label_selector(selector).unwrap_or(Selector::nothing())),
            None => (self.namespaces.is_empty() || self.buckets.is_some()).then(Selector::everything),
        }
    }

    /// The buckets that what [`Self::by_labels`] chooses is narrowed to; `None`: all.
    pub fn bucket_set(&self) -> Result<Option<BucketSet>, BucketSetError> {
        let text = |item: &IntOrString| match item {
            IntOrString::Int(bucket) => bucket.to_string(),
            IntOrString::String(text) => text.clone(),
        };
        let buckets = self.buckets.as_ref().map(|items| items.iter().map(text));
        buckets.map(BucketSet::parse).transpose()
    }

    /// Those of an inventory (names and labels) that [`Self::by_labels`] chooses, in its buckets.
    pub fn chosen_by_labels<'a>(
        &self,
        inventory: impl IntoIterator<Item = (&'a String, &'a BTreeMap<String, String>)>,
        bucketing: Bucketing,
    ) -> Vec<String> {
        let selector = self.by_labels().unwrap_or(Selector::nothing());
        // Buckets that cannot be read are refused; nobody has them.
        let buckets = self.bucket_set().unwrap_or_else(|_| Some(BucketSet::default()));
        let in_buckets = |name: &str| {
            let buckets = buckets.as_ref();
            buckets.is_none_or(|buckets| buckets.contains(bucketing.bucket_of(name)))
        };
        let all = inventory.into_iter();
        let chosen =
            all.filter(|(name, labels)| !system_namespace(name) && in_buckets(name) && selector.matches(labels));
        chosen.map(|(name, _)| name.clone()).collect()
    }

    /// What [`Self::by_labels`] chooses, in its buckets, as one selector of the labels that a Namespace has once an agent has
    /// labelled it. `None`: nothing.
    pub fn labelled(&self, keys: &LabelKeys) -> Option<Selector> {
        let selector = self.by_labels()?;
        let Some(buckets) = self.bucket_set().unwrap_or_else(|_| Some(BucketSet::default())) else {
            return Some(selector);
        };
        let values = buckets.iter().map(|bucket| bucket.to_string());
        // Without a bucket it is a statement without a value, which there is not: nothing.
        let in_buckets = Requirement::new(keys.sharding_hash(), Operator::In, values).ok()?;
        Some(selector.and(&Selector::from_requirements([in_buckets])))
    }
}

/// Settings of the operator's controllers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = rules([
    ("has(self.leaderElectionName) != (has(self.leaderElection) && self.leaderElection == 'Disabled')",
     "set leaderElectionName to the name of the operator's Lease, or leaderElection: Disabled if it elects no leader, not both"),
    ("!has(self.leaderElectionResourceLock) || has(self.leaderElectionName)",
     "leaderElectionResourceLock says what leaderElectionName names: set that too, or remove it"),
]))))]
#[serde(rename_all = "camelCase")]
pub struct ControllerConfig {
    /// Name of the Lease that the operator elects its leader by. Each shard gets a lease of its own in the primary cluster,
    /// `<leaderElectionName>---<name of this object>`; all other Leases of the callers' namespace are the primary cluster's
    /// too. Required with more than one callerCluster, unless leaderElection is Disabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN)))]
    pub leader_election_name: Option<String>,
    /// What carries the lock, in the words of client-go. Leases are the shard's in any case; configmaps and configmapsleases
    /// give it the ConfigMap of that name too, endpoints and endpointsleases the Endpoints, so the operator must not use an
    /// object of that name and kind for anything else. Absent: leases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_election_resource_lock: Option<ResourceLock>,
    /// Whether the operator elects a leader among its replicas. Disabled: all of them work, and Leases of the callers'
    /// namespace are each caller's own cluster's.
    #[serde(default)]
    pub leader_election: LeaderElection,
}

/// The kinds of objects that carry an operator's leader lock, in the words of client-go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ResourceLock {
    /// A Lease.
    #[default]
    Leases,
    /// A ConfigMap, by an annotation.
    ConfigMaps,
    /// An Endpoints, by an annotation.
    Endpoints,
    /// Both, on the way from one to the other.
    ConfigMapsLeases,
    /// Both, on the way from one to the other.
    EndpointsLeases,
}

impl ResourceLock {
    /// The resource of the core group that carries the lock beside or instead of a Lease.
    pub fn core_resource(self) -> Option<&'static str> {
        match self {
            Self::Leases => None,
            Self::ConfigMaps | Self::ConfigMapsLeases => Some("configmaps"),
            Self::Endpoints | Self::EndpointsLeases => Some("endpoints"),
        }
    }
}

/// Whether an operator elects a leader among its replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum LeaderElection {
    /// It does, by the Lease that `leaderElectionName` names.
    #[default]
    Enabled,
    /// It does not.
    Disabled,
}

/// Settings of the operator's webhook server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WebhookConfig {
    /// Directory of the serving certificate in the operator's container.
    #[cfg_attr(feature = "schema", schemars(length(max = 4096)))]
    pub cert_dir: String,
    /// TCP port the operator's webhook server listens on.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 65535)))]
    pub port: i32,
}

/// Member clusters and the namespaces in them that the shard owns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = rules([
    ("has(self.name) != has(self.selector)", "set exactly one of name and selector"),
]))))]
#[serde(rename_all = "camelCase")]
pub struct ClusterEntry {
    /// Name of one MemberCluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 63), regex(pattern = DNS_LABEL)))]
    pub name: Option<String>,
    /// MemberClusters by the labels of their metadata; among themselves they rank by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::label_selector"))]
    pub selector: Option<LabelSelector>,
    /// Exact names of namespaces, beside those that namespaceSelector chooses. Absent, with no namespaceSelector either:
    /// every namespace but the system ones (kube-system, kube-public, kube-node-lease, portolan-system, portolan-routers),
    /// which must be named here to be owned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(min = 1, max = 1024), inner(length(min = 1, max = 63), regex(pattern = DNS_LABEL)),
        extend("x-kubernetes-list-type" = "set"),
    ))]
    pub namespaces: Vec<String>,
    /// Namespaces by their labels in the member cluster, the system ones excepted. All but those: {}.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::label_selector"))]
    pub namespace_selector: Option<LabelSelector>,
    /// Buckets and ranges of buckets, such as 17 and "0-15": of the namespaces that namespaceSelector chooses, or of all but
    /// the system ones where there is none, only those of these buckets. Empty: none of them. Absent: whatever their bucket
    /// is. What namespaces names is owned beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::buckets"))]
    pub buckets: Option<Vec<IntOrString>>,
    /// Whether a Namespace that callers create, and that several entries could take, goes here. At most one entry.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,
}

/// Whether callers may use the explicit view of the shard's members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ExplicitView {
    /// Merged view only.
    #[default]
    Deny,
    /// `/clusters/<name>/…` too, with no shard filter.
    Allow,
}

/// What a merged LIST does while a member is unreachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Unavailable {
    /// Answers 429 until the member is back: a list is whole or not at all.
    #[default]
    Hold,
    /// A first list is answered without the member, with a warning; its objects arrive later.
    PartialStart,
}

/// Whether the answer to a write waits for the caller's own watch: `docs/semantics.md#write-fence`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum WriteFence {
    /// A write waits, at most 250 ms, until open watches have seen it.
    #[default]
    Enabled,
    /// A write is answered at once.
    Disabled,
}

/// What happens to single-object requests outside the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Enforcement {
    /// Refused with 403.
    Enforce,
    /// Forwarded within the shard's members, counted, and answered with a warning.
    Audit,
}
