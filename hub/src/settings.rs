//! Hub-wide settings that agents and routers must agree on: label keys, buckets, kinds to label.
//!
//! Pure. `args` builds it from flags, `compile` renders it into what is sent.

use std::time::Duration;

use portolan_crds::{Bucketing, GroupResource, LabelKeys};
use thiserror::Error;

/// Kinds that agents label unless told otherwise: namespaced built-in kinds that operators commonly watch. Not among
/// them: Secrets (an agent would have to read them all), Events and Leases (short-lived and many), EndpointSlices (they
/// copy their Service's labels). Kinds that accepted limits name are added by themselves; custom kinds by `--label-kinds`.
pub(crate) const DEFAULT_LABEL_KINDS: &str = "pods,services,configmaps,serviceaccounts,persistentvolumeclaims,\
    deployments.apps,statefulsets.apps,daemonsets.apps,replicasets.apps,jobs.batch,cronjobs.batch,\
    ingresses.networking.k8s.io,networkpolicies.networking.k8s.io,poddisruptionbudgets.policy,\
    horizontalpodautoscalers.autoscaling";

/// Checked settings.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) keys: LabelKeys,
    pub(crate) bucketing: Bucketing,
    pub(crate) label_kinds: Vec<GroupResource>,
    /// For longer no leader lock is held without a renewal.
    pub(crate) longest_lease: Duration,
}

/// OpenShift's operators hold theirs for 137 s, client-go's default is 15 s.
pub(crate) const DEFAULT_LONGEST_LEASE_SECONDS: u64 = 180;

impl Default for Settings {
    fn default() -> Self {
        Self {
            keys: LabelKeys::default(),
            bucketing: Bucketing::default(),
            label_kinds: parse_kinds(DEFAULT_LABEL_KINDS).expect("the default list is well-formed"),
            longest_lease: Duration::from_secs(DEFAULT_LONGEST_LEASE_SECONDS),
        }
    }
}

/// A kind that cannot be read.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is no kind: write resource or resource.group, as in pods or deployments.apps; * stands for all")]
pub(crate) struct KindError(String);

/// Reads `pods,deployments.apps,*.example.com,*`, as kubectl writes resources. A lone `*` is everything.
pub(crate) fn parse_kinds(text: &str) -> Result<Vec<GroupResource>, KindError> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    words.map(parse_kind).collect()
}

fn parse_kind(word: &str) -> Result<GroupResource, KindError> {
    let (resource, group) = word
        .split_once('.')
        .unwrap_or((word, if word == "*" { "*" } else { "" }));
    let plain = |part: &str, more: &str| {
        part == "*"
            || part
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || more.contains(c))
    };
    if resource.is_empty() || word.ends_with('.') || !plain(resource, "-") || !plain(group, "-.") {
        return Err(KindError(word.to_owned()));
    }
    Ok(GroupResource::new(group, resource))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_written_as_kubectl_does() {
        let kind = GroupResource::new;
        let read = parse_kinds("pods, deployments.apps,*.example.com,*,").unwrap();
        assert_eq!(
            read,
            [
                kind("", "pods"),
                kind("apps", "deployments"),
                kind("example.com", "*"),
                kind("*", "*")
            ]
        );
        for bad in ["Pods", "pods.", ".apps", "a b", "pods/status"] {
            assert_eq!(parse_kinds(bad), Err(KindError(bad.to_owned())), "{bad}");
        }
        assert!(!Settings::default().label_kinds.is_empty());
    }
}
