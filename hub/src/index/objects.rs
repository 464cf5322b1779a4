//! Reads MemberClusters, ShardingConfigs and Routers out of untyped objects, so that a malformed one is an entry with a problem
//! and never an error of the watch that brought it.

use std::sync::Arc;

use jiff::Timestamp;
use kube::api::DynamicObject;
use portolan_crds::labels::{FINALIZER_SHARD, FORCE_RELEASE, GROUP};
use portolan_crds::{MemberClusterSpec, Problem, Reason, RouterSpec, ShardName, ShardingConfigSpec, validate_member};
use portolan_wire::subscription::Subscription;
use serde::de::DeserializeOwned;

use crate::facts::{MemberObject, RouterObject, ShardObject};

/// Reads a MemberCluster. `before`: the entry it replaces, whose good spec stays in force if this one is bad.
pub(crate) fn member_from(object: &DynamicObject, before: Option<&MemberObject>) -> MemberObject {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let uid = object.metadata.uid.clone().unwrap_or_default();
    let generation = object.metadata.generation.unwrap_or_default();
    let before = before.filter(|before| before.uid == uid);
    let (spec, problems) = match section::<MemberClusterSpec>(object, "spec") {
        Ok(spec) => {
            let problems = validate_member(name, &spec);
            (Some(Arc::new(spec)), problems)
        }
        Err(message) => (None, vec![unreadable(message)]),
    };
    let good = spec.filter(|_| problems.is_empty());
    MemberObject {
        accept: object.data["spec"]["accept"].as_bool().unwrap_or_default(),
        labels: object.metadata.labels.clone().unwrap_or_default(),
        in_force: good.or_else(|| before.and_then(|before| before.in_force.clone())),
        status: section(object, "status").unwrap_or_default(),
        uid,
        generation,
        problems,
    }
}

/// Name of a ShardingConfig; `None` if it is not usable.
pub(super) fn shard_name(object: &DynamicObject) -> Option<ShardName> {
    let metadata = &object.metadata;
    ShardName::new(metadata.namespace.clone()?, metadata.name.clone()?).ok()
}

/// Reads a ShardingConfig; `None` for an object without a usable name. `before`: the entry it replaces, whose spec is not read again if
/// it is this one's.
pub(crate) fn shard_from(object: &DynamicObject, before: Option<&ShardObject>) -> Option<(ShardName, ShardObject)> {
    let name = shard_name(object)?;
    let mut shard = without_spec(object);
    let is_same = |before: &&ShardObject| {
        before.uid == shard.uid && before.generation == shard.generation && shard.generation > 0
    };
    match before.filter(is_same) {
        Some(before) => shard.keep_spec_of(before),
        None => shard.take_spec(&name, section::<ShardingConfigSpec>(object, "spec").map(Arc::new)),
    }
    Some((name, shard))
}

/// All of a ShardingConfig but its spec.
pub(super) fn without_spec(object: &DynamicObject) -> ShardObject {
    let metadata = &object.metadata;
    let annotations = metadata.annotations.as_ref();
    ShardObject {
        uid: metadata.uid.clone().unwrap_or_default(),
        generation: metadata.generation.unwrap_or_default(),
        created: metadata
            .creation_timestamp
            .as_ref()
            .map_or(Timestamp::MIN, |time| time.0),
        deleting: metadata.deletion_timestamp.is_some(),
        has_finalizer: has_finalizer(object),
        root: root_of(object),
        spec: Err("was not read yet".to_owned()),
        flaw: None,
        bytes: 0,
        forced: annotations.and_then(|all| Some(all.get(FORCE_RELEASE)?.parse())),
        status: section(object, "status").unwrap_or_default(),
    }
}

/// Reads a Router; `None` for one that is being deleted: it was forgotten, whoever still has a finalizer on it.
pub(crate) fn router_from(object: &DynamicObject) -> Option<(String, RouterObject)> {
    let metadata = &object.metadata;
    let name = metadata
        .name
        .clone()
        .filter(|_| metadata.deletion_timestamp.is_none())?;
    // One that cannot be read has no key, so that nobody is it.
    let spec = section::<RouterSpec>(object, "spec").unwrap_or_default();
    let router = RouterObject {
        uid: metadata.uid.clone().unwrap_or_default(),
        generation: metadata.generation.unwrap_or_default(),
        subscription: Subscription::from_scopes(spec.subscription.iter().map(String::as_str)).ok(),
        key_hashes: spec.key_hashes,
        status: section(object, "status").unwrap_or_default(),
    };
    Some((name, router))
}

fn root_of(object: &DynamicObject) -> Option<String> {
    let owners = object.metadata.owner_references.iter().flatten();
    let mut roots = owners.filter(|owner| {
        let group = owner.api_version.split_once('/').map(|(group, _)| group);
        owner.controller == Some(true) && owner.kind == "ShardingConfig" && group == Some(GROUP)
    });
    roots.next().map(|root| root.uid.clone())
}

fn has_finalizer(object: &DynamicObject) -> bool {
    let finalizers = object.metadata.finalizers.iter().flatten();
    finalizers.into_iter().any(|one| one == FINALIZER_SHARD)
}

/// A spec that is not even of the right types. The API server's schema refuses such objects; older schemas may not have.
pub(crate) fn unreadable(message: String) -> Problem {
    Problem {
        field: "spec".to_owned(),
        reason: Reason::Invalid,
        message,
    }
}

pub(super) fn section<T: DeserializeOwned + Default>(object: &DynamicObject, name: &str) -> Result<T, String> {
    match object.data.get(name) {
        None => Ok(T::default()),
        Some(value) => T::deserialize(value).map_err(|error| format!("cannot be read: {error}")),
    }
}
