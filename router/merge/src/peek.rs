//! What an object is, read without decoding it: type, name, version and the initial-events marker.
//!
//! For frames of watches and items of lists, JSON or protobuf. Strings are borrowed where they stand. Broken input is
//! `None`; nothing recurses by what it finds. `watch` and `list` call it.

use std::borrow::Cow;

/// An object's head. Empty where the object does not say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Head<'a> {
    /// Empty in items of lists.
    pub kind: Cow<'a, str>,
    /// Empty in items of lists.
    pub api_version: Cow<'a, str>,
    /// `metadata.name`
    pub name: Cow<'a, str>,
    /// `metadata.namespace`
    pub namespace: Cow<'a, str>,
    /// `metadata.uid`
    pub uid: Cow<'a, str>,
    /// `metadata.resourceVersion`
    pub resource_version: Cow<'a, str>,
    /// Annotated `k8s.io/initial-events-end: "true"`.
    pub initial_events_end: bool,
}

/// Of a JSON object.
pub fn json(_object: &[u8]) -> Option<Head<'_>> {
    None
}

/// Of an object in Kubernetes' protobuf envelope (`k8s\0` first).
pub fn protobuf(_envelope: &[u8]) -> Option<Head<'_>> {
    None
}

/// Of a protobuf object without envelope, as it stands in a list: type unknown.
pub fn protobuf_object(_object: &[u8]) -> Option<Head<'_>> {
    None
}
