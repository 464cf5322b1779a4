//! Aggregated discovery (`apidiscovery.k8s.io`): its documents, the union of several members' ([`union`]) and what API
//! servers answer from it ([`render`]).
//!
//! Pure. The router's `discovery` reads members' documents with [`parse`] and asks [`union::unite`] again whenever one of
//! them has changed. v2 and v2beta1 differ in nothing but their name.

pub mod protobuf;
pub mod render;
pub mod union;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

/// `APIGroupDiscovery`. The core group has no name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Group {
    /// The group's metadata, of which only the name is used.
    #[serde(default)]
    pub metadata: Named,
    /// The group's versions in order of preference.
    #[serde(default)]
    pub versions: Vec<Version>,
}

/// The part of `ObjectMeta` that groups have.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Named {
    /// Name of the group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// `APIVersionDiscovery`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Version {
    /// The version's name, for instance `v1`.
    pub version: String,
    /// The version's resources in the server's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<Resource>,
    /// `Current` or `Stale`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub freshness: String,
}

/// `APIResourceDiscovery`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// Plural name of the resource.
    pub resource: String,
    /// The kind that the resource answers with; none for resources that exist for their subresources only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_kind: Option<ResponseKind>,
    /// `Namespaced` or `Cluster`.
    #[serde(default)]
    pub scope: String,
    /// Singular name of the resource.
    #[serde(default)]
    pub singular_resource: String,
    /// Verbs of the resource: `get`, `list` …
    #[serde(default, deserialize_with = "nullable")]
    pub verbs: Vec<String>,
    /// Short names, for instance `po`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub short_names: Vec<String>,
    /// Categories, for instance `all`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// Subresources: `status`, `scale` …
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subresources: Vec<Subresource>,
}

/// `APISubresourceDiscovery`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subresource {
    /// The subresource's name, for instance `status`.
    pub subresource: String,
    /// The kind that the subresource answers with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_kind: Option<ResponseKind>,
    /// The kinds that the subresource takes, if they are others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted_types: Vec<ResponseKind>,
    /// Verbs of the subresource: `get`, `update` …
    #[serde(default, deserialize_with = "nullable")]
    pub verbs: Vec<String>,
}

/// A group, version and kind. An empty group or version is that of the document around it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ResponseKind {
    /// API group; always written by API servers, also when empty.
    #[serde(default)]
    pub group: String,
    /// API version; always written.
    #[serde(default)]
    pub version: String,
    /// Kind; always written.
    #[serde(default)]
    pub kind: String,
}

/// Go writes an empty list as `null`.
fn nullable<'de, D: serde::Deserializer<'de>>(source: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(source)?.unwrap_or_default())
}

/// Reads an `APIGroupDiscoveryList`. `None` if it is something else.
pub fn parse(body: &[u8]) -> Option<Vec<Group>> {
    #[derive(Deserialize)]
    struct List {
        kind: String,
        #[serde(default)]
        items: Option<Vec<Group>>,
    }
    let list: List = serde_json::from_slice(body).ok()?;
    (list.kind == "APIGroupDiscoveryList").then(|| list.items.unwrap_or_default())
}
