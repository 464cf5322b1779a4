//! Aggregated discovery (`apidiscovery.k8s.io`): its documents, the union of several members' ([`union`]) and what API
//! servers answer from it ([`render`]).
//!
//! Pure. The router's `discovery` reads members' documents with [`parse`] and asks [`union::unite`] again whenever one of
//! them has changed. v2 and v2beta1 differ in nothing but their name.

pub mod render;
pub mod union;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

/// `APIGroupDiscovery`. The core group has no name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Group {
    /// Only the name is used.
    #[serde(default)]
    pub metadata: Named,
    /// In order of preference.
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
    /// `v1`.
    pub version: String,
    /// In the server's order.
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
    /// Plural name.
    pub resource: String,
    /// Without a kind for resources that exist for their subresources only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_kind: Option<ResponseKind>,
    /// `Namespaced` or `Cluster`.
    #[serde(default)]
    pub scope: String,
    /// Singular name.
    #[serde(default)]
    pub singular_resource: String,
    /// `get`, `list` …
    #[serde(default, deserialize_with = "nullable")]
    pub verbs: Vec<String>,
    /// `po`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub short_names: Vec<String>,
    /// `all`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// `status`, `scale` …
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subresources: Vec<Subresource>,
}

/// `APISubresourceDiscovery`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subresource {
    /// `status`.
    pub subresource: String,
    /// What it answers with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_kind: Option<ResponseKind>,
    /// What it takes, if that is something else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted_types: Vec<ResponseKind>,
    /// `get`, `update` …
    #[serde(default, deserialize_with = "nullable")]
    pub verbs: Vec<String>,
}

/// A group, version and kind. An empty group or version is that of the document around it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ResponseKind {
    /// Always written by API servers, also when empty.
    #[serde(default)]
    pub group: String,
    /// Always written.
    #[serde(default)]
    pub version: String,
    /// Always written.
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
