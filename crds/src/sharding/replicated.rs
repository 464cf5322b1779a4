//! `replicated`: kinds without namespace of which every member of the shard has the same objects.

use serde::{Deserialize, Serialize};

use super::ShardingConfigSpec;
#[cfg(feature = "schema")]
use crate::schema::{DNS_LABEL, rules};

/// A cluster-scoped kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = rules([
    ("self.group != ''", "kinds of the core group are each of one member and are never replicated: remove the entry"),
]))))]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedKind {
    /// API group, such as "apiextensions.k8s.io".
    #[cfg_attr(feature = "schema", schemars(length(max = 253)))]
    pub group: String,
    /// Plural name of the resource, such as "customresourcedefinitions".
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 63), regex(pattern = DNS_LABEL)))]
    pub resource: String,
}

/// Group and resource of CustomResourceDefinitions, which are replicated unless a spec says otherwise.
pub const DEFINITIONS: (&str, &str) = ("apiextensions.k8s.io", "customresourcedefinitions");

/// Kinds that are never replicated, each with why.
const NEVER: [(&str, &str, &str); 10] = [
    (
        "",
        "namespaces",
        "each is of one member, which the shard's rules choose",
    ),
    ("", "nodes", "each is a machine of one member"),
    ("", "persistentvolumes", "each is a volume of one member"),
    ("storage.k8s.io", "csinodes", "each is of a Node of one member"),
    (
        "storage.k8s.io",
        "volumeattachments",
        "each is of a Node and a volume of one member",
    ),
    (
        "certificates.k8s.io",
        "certificatesigningrequests",
        "each is answered once, by the member that it was made in",
    ),
    (
        "apiregistration.k8s.io",
        "apiservices",
        "each says where in one member a server is reached",
    ),
    (
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        "webhook configurations are not replicated yet",
    ),
    (
        "admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
        "webhook configurations are not replicated yet",
    ),
    (
        "ctrlmesh.kusionstack.io",
        "memberclusters",
        "they are of the hub, and of no member",
    ),
];

impl ReplicatedKind {
    /// Why the kind cannot be replicated; `None` if it can.
    pub fn refused(&self) -> Option<&'static str> {
        let never = NEVER
            .iter()
            .find(|(group, resource, _)| self.group == *group && self.resource == *resource);
        never.map(|(_, _, why)| *why)
    }
}

impl ShardingConfigSpec {
    /// The kinds in force: as written, else CustomResourceDefinitions.
    pub fn replicated_kinds(&self) -> Vec<ReplicatedKind> {
        let default = || {
            let (group, resource) = DEFINITIONS;
            vec![ReplicatedKind {
                group: group.to_owned(),
                resource: resource.to_owned(),
            }]
        };
        self.replicated.clone().unwrap_or_else(default)
    }
}
