//! The kinds that a member serves, read from its discovery documents. Caller: `cache`.

use portolan_merge::discovery::Group;

use crate::value::kinds::{Kind, MemberKinds, Scope};

/// What an API server says of a version whose backend did not tell it what it serves, or not of late.
const STALE: &str = "Stale";

/// The kinds that one member serves, as its aggregated discovery documents say.
pub(super) fn kinds_of<'a>(groups: impl Iterator<Item = &'a Group>) -> MemberKinds {
    let mut kinds = MemberKinds::default();
    for group in groups {
        for version in &group.versions {
            if version.freshness == STALE {
                kinds.mark_stale(&group.metadata.name, &version.version);
            }
            for resource in &version.resources {
                let scope = if resource.scope == "Namespaced" {
                    Scope::Namespaced
                } else {
                    Scope::Cluster
                };
                let kind = Kind {
                    scope,
                    kind: resource
                        .response_kind
                        .as_ref()
                        .map(|kind| kind.kind.clone())
                        .unwrap_or_default(),
                    versions: vec![version.version.clone()],
                    verbs: resource.verbs.iter().cloned().collect(),
                };
                kinds.add(&group.metadata.name, &resource.resource, kind);
            }
        }
    }
    kinds
}
