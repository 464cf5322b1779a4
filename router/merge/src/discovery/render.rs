//! The documents that API servers answer from their discovery: aggregated lists and the legacy ones, as JSON.
//!
//! The legacy `storageVersionHash` is not given: it is one server's word about its own etcd, and there are several.

use serde::Serialize;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_128;

use super::{Group, Resource, ResponseKind, Subresource};

/// Version of the aggregated format. The same fields, two names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `v2`, since Kubernetes 1.30.
    V2,
    /// `v2beta1`, since Kubernetes 1.26; gone from 1.36's API server, still asked for by older clients.
    V2beta1,
}

impl Format {
    /// The format's name in `v=` and `apiVersion`.
    pub fn version(self) -> &'static str {
        match self {
            Self::V2 => "v2",
            Self::V2beta1 => "v2beta1",
        }
    }
}

/// `APIGroupDiscoveryList` of `/api` (the core group alone) or `/apis` (all others).
pub fn aggregated(groups: &[Group], core: bool, format: Format) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct List<'a> {
        kind: &'static str,
        api_version: String,
        metadata: Value,
        items: Vec<&'a Group>,
    }
    let list = List {
        kind: "APIGroupDiscoveryList",
        api_version: format!("apidiscovery.k8s.io/{}", format.version()),
        metadata: json!({}),
        items: groups
            .iter()
            .filter(|group| group.metadata.name.is_empty() == core)
            .collect(),
    };
    // Strings and lists only: this cannot fail.
    serde_json::to_vec(&list).unwrap_or_default()
}

/// `APIVersions` of `/api`. `address`: where the client found this server, so that it does not look for another.
pub fn core_versions(groups: &[Group], address: &str) -> Value {
    let core = groups.iter().find(|group| group.metadata.name.is_empty());
    let versions: Vec<_> = core
        .iter()
        .flat_map(|core| &core.versions)
        .map(|version| &version.version)
        .collect();
    json!({
        "kind": "APIVersions",
        "versions": versions,
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// `APIGroupList` of `/apis`.
pub fn group_list(groups: &[Group]) -> Value {
    let named = groups.iter().filter(|group| !group.metadata.name.is_empty());
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": named.map(group_fields).collect::<Vec<_>>()})
}

/// `APIGroup` of `/apis/<group>`; `None` if there is no such group.
pub fn group(groups: &[Group], name: &str) -> Option<Value> {
    let found = groups.iter().find(|group| group.metadata.name == name)?;
    let mut fields = group_fields(found);
    fields["kind"] = "APIGroup".into();
    fields["apiVersion"] = "v1".into();
    Some(fields)
}

fn group_fields(group: &Group) -> Value {
    let name = &group.metadata.name;
    let versions = group.versions.iter();
    let versions: Vec<_> = versions
        .map(|version| json!({"groupVersion": format!("{name}/{}", version.version), "version": version.version}))
        .collect();
    json!({"name": name, "preferredVersion": versions.first(), "versions": versions})
}

/// `APIResourceList` of `/api/v1` (the core group has no name) or `/apis/<group>/<version>`; `None` if there is none.
pub fn resources(groups: &[Group], group: &str, version: &str) -> Option<Value> {
    let found = groups.iter().find(|one| one.metadata.name == group)?;
    let found = found.versions.iter().find(|one| one.version == version)?;
    // Empty is "as around it".
    let within = |kind: &ResponseKind| {
        (kind.group.is_empty() || kind.group == group) && (kind.version.is_empty() || kind.version == version)
    };
    let mut all = Vec::new();
    for resource in &found.resources {
        // What is there for its subresources only is no resource in this document.
        if resource
            .response_kind
            .as_ref()
            .is_some_and(|kind| !kind.kind.is_empty())
        {
            all.push(resource_fields(resource, within));
        }
        let subresources = resource.subresources.iter();
        all.extend(subresources.map(|sub| subresource_fields(resource, sub, within)));
    }
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    let mut list = json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": all});
    if !group.is_empty() {
        // The core group's list has none: it is older than the field.
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

fn resource_fields(resource: &Resource, within: impl Fn(&ResponseKind) -> bool) -> Value {
    let mut fields = json!({
        "name": resource.resource,
        "singularName": resource.singular_resource,
        "namespaced": resource.scope == "Namespaced",
        "verbs": resource.verbs,
    });
    kind_fields(&mut fields, resource.response_kind.as_ref(), within);
    for (key, words) in [
        ("shortNames", &resource.short_names),
        ("categories", &resource.categories),
    ] {
        if !words.is_empty() {
            fields[key] = words.clone().into();
        }
    }
    fields
}

fn subresource_fields(resource: &Resource, sub: &Subresource, within: impl Fn(&ResponseKind) -> bool) -> Value {
    let mut fields = json!({
        "name": format!("{}/{}", resource.resource, sub.subresource),
        "singularName": "",
        "namespaced": resource.scope == "Namespaced",
        "verbs": sub.verbs,
    });
    // What a subresource takes is what the legacy document names: `pods/eviction` is an Eviction of policy/v1.
    kind_fields(
        &mut fields,
        sub.accepted_types.first().or(sub.response_kind.as_ref()),
        within,
    );
    fields
}

/// Group and version only where they are not the document's own.
fn kind_fields(fields: &mut Value, kind: Option<&ResponseKind>, within: impl Fn(&ResponseKind) -> bool) {
    let Some(kind) = kind else {
        fields["kind"] = "".into();
        return;
    };
    fields["kind"] = kind.kind.clone().into();
    if within(kind) {
        return;
    }
    for (key, word) in [("group", &kind.group), ("version", &kind.version)] {
        if !word.is_empty() {
            fields[key] = word.clone().into();
        }
    }
}

/// The hash of a document, as it stands in `ETag` between quotes and in `hash=`.
pub fn etag(document: &[u8]) -> String {
    format!("{:032X}", xxh3_128(document))
}
