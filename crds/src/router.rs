//! Router: an enrolled router of the hub, the keys that are its own and what it may see.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use crate::schema;

/// A router that enrolled, as long as it may go on: the hub serves no router without this object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(kube::CustomResource, schemars::JsonSchema))]
#[cfg_attr(
    feature = "schema",
    allow(clippy::duplicated_attributes, reason = "print columns repeat their keys"),
    kube(
        group = "ctrlmesh.kusionstack.io",
        version = "v1alpha1",
        kind = "Router",
        namespaced,
        shortname = "rt",
        category = "portolan",
        status = "RouterStatus",
        derive = "PartialEq",
        doc = "A router that enrolled at the hub, which makes this object. Deleted (by portolanctl router forget, or with the router's Pod) its certificate is refused and its tokens in the members are taken back.",
        printcolumn(
            name = "Connected",
            type_ = "string",
            json_path = r#".status.conditions[?(@.type=="Connected")].status"#
        ),
        printcolumn(name = "Sees", type_ = "string", json_path = ".spec.subscription"),
        printcolumn(name = "Last-Seen", type_ = "date", json_path = ".status.lastSeen"),
        printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
        printcolumn(name = "Key", type_ = "string", priority = 1, json_path = ".spec.keyHashes[0]"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )
)]
#[serde(rename_all = "camelCase")]
pub struct RouterSpec {
    /// SHA-256 of the public keys that are the router's own, in hex: the one that was certified last, and the one before it
    /// until the router has shown the last one. A certificate of another key is refused, whatever name it carries.
    #[serde(default)]
    #[cfg_attr(
        feature = "schema",
        schemars(length(max = 2), inner(regex(pattern = r"^[0-9a-f]{64}$")), extend("x-kubernetes-list-type" = "atomic"))
    )]
    pub key_hashes: Vec<String>,
    /// What it may be told, as its certificate says: everything, shard:NAMESPACE/NAME (several), or one
    /// caller:CLUSTER/NAMESPACE/POD.
    #[serde(default)]
    #[cfg_attr(
        feature = "schema",
        schemars(length(max = 1024), inner(length(max = 600)), extend("x-kubernetes-list-type" = "atomic"))
    )]
    pub subscription: Vec<String>,
    /// Where it runs, if it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<RouterPod>,
}

/// The Pod of a router.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RouterPod {
    /// The member cluster whose agent vouched for it, or portolan-hub, whose API server did; absent of a Pod in the hub's own namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 63)))]
    pub cluster: Option<String>,
    /// Its name.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 253)))]
    pub name: String,
    /// Its uid.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 128)))]
    pub uid: String,
}

/// What the hub knows of a router.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RouterStatus {
    /// metadata.generation that the rest of the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Connected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::conditions"))]
    pub conditions: Vec<Condition>,
    /// When its stream was open last, to the minute; of one that is connected, to some minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "schema::time"))]
    pub last_seen: Option<Time>,
    /// Version of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Which start of the program the hub takes at its word about writes of starts before it. The next hub that leads goes by it;
    /// absent: it is doubted, as its state folder may be a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 128)))]
    pub process: Option<String>,
}
