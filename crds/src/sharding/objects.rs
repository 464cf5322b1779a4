//! Which objects a shard has: limits, and kinds without namespaces that one shard works on for all.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

use super::ShardingConfigSpec;
use crate::names::GroupResource;
#[cfg(feature = "schema")]
use crate::schema::{self, GROUP_OR_RESOURCE};

/// Narrows resources to the objects that a selector matches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ObjectLimiter {
    /// Which resources. Absent or empty: every resource.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic")))]
    pub relate_resources: Vec<ResourceGroup>,
    /// Which objects of them, by their labels. Absent: all, so the limit does not narrow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::label_selector"))]
    pub selector: Option<LabelSelector>,
}

/// Resources: each of the groups with each of the resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceGroup {
    /// API groups; "" is the core group, "*" is every group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(max = 64), inner(length(max = 253), regex(pattern = GROUP_OR_RESOURCE)),
        extend("x-kubernetes-list-type" = "atomic"),
    ))]
    pub api_groups: Vec<String>,
    /// Plural names of resources, such as "pods"; "*" is every resource. Subresources follow their resource.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(
        length(max = 256), inner(length(min = 1, max = 253), regex(pattern = GROUP_OR_RESOURCE)),
        extend("x-kubernetes-list-type" = "atomic"),
    ))]
    pub resources: Vec<String>,
}

/// Kinds without namespaces that one shard of an operator works on for all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClusterScoped {
    /// Which kinds, each by its group and its plural name, without "*". The operator's other shards see no object of them. A root
    /// gives them to its first child beside the canary.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic")))]
    pub resources: Vec<ResourceGroup>,
}

impl ResourceGroup {
    /// Each of the groups with each of the resources.
    pub fn kinds(&self) -> impl Iterator<Item = GroupResource> {
        let groups = self.api_groups.iter();
        groups.flat_map(|group| {
            let resources = self.resources.iter();
            resources.map(move |resource| GroupResource::new(group, resource))
        })
    }
}

impl ShardingConfigSpec {
    /// The kinds without namespaces that this shard alone of its operator sees.
    pub fn single_kinds(&self) -> &[ResourceGroup] {
        self.cluster_scoped
            .as_ref()
            .map_or(&[], |kinds| kinds.resources.as_slice())
    }
}
