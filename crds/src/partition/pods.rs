//! Which Pods of the root's StatefulSet serve which child: ordinals in order, the canary's first.

use std::ops::Range;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::canary::canary;
use super::invalid;
use crate::selector::{LABEL_MAX, Selector};
use crate::sharding::{Root, ShardingConfigSpec};
use crate::validate::Problem;

/// Label of a StatefulSet's Pods: the Pod's name.
const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
/// Label of a StatefulSet's Pods: the ordinal.
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// The Pods of a StatefulSet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ordinals {
    /// `spec.ordinals.start`.
    pub start: u32,
    /// `spec.replicas`.
    pub replicas: u32,
}

/// The ordinals of the child with this number: 0 is the canary.
pub(super) fn ordinals(root: &Root, pods: Option<Ordinals>, number: usize) -> Range<u32> {
    let start = pods.map_or(0, |pods| pods.start);
    let count = |count: i32| u32::try_from(count).unwrap_or(0);
    let canary = canary(root).and_then(|canary| canary.replicas).map_or(0, count);
    let each = root.auto.as_ref().map_or(0, |auto| count(auto.every_shard_replicas));
    match u32::try_from(number).unwrap_or(u32::MAX).checked_sub(1) {
        None => start..start.saturating_add(canary),
        Some(before) => {
            let first = start.saturating_add(canary).saturating_add(each.saturating_mul(before));
            first..first.saturating_add(each)
        }
    }
}

/// The root's selector, and of the StatefulSet's Pods only those.
pub(super) fn selector(spec: &ShardingConfigSpec, root: &Root, ordinals: Range<u32>) -> LabelSelector {
    let mut selector = spec.selector.clone().unwrap_or_default();
    let names = ordinals.map(|ordinal| pod_name(root, ordinal)).collect();
    let these = LabelSelectorRequirement {
        key: POD_NAME.to_owned(),
        operator: "In".to_owned(),
        values: Some(names),
    };
    selector.match_expressions.get_or_insert_default().push(these);
    selector
}

fn pod_name(root: &Root, ordinal: u32) -> String {
    format!("{}-{ordinal}", root.target_stateful_set)
}

/// Why the Pods up to `last` cannot be shared out as the root says.
pub(super) fn problems(
    spec: &ShardingConfigSpec,
    root: &Root,
    pods: Option<Ordinals>,
    all: Range<u32>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    let last = pod_name(root, all.end.saturating_sub(1));
    if last.len() > LABEL_MAX {
        let message = format!(
            "its Pod {last:?} would have a longer name than the {LABEL_MAX} characters of a label, so it never runs: use a StatefulSet of a shorter name"
        );
        problems.push(invalid("spec.root.targetStatefulSet", message));
    }
    let canary = canary(root).and_then(|canary| canary.replicas);
    let canary = canary.and_then(|replicas| u32::try_from(replicas).ok());
    if let (Some(canary), Some(pods)) = (canary, pods)
        && canary > pods.replicas
    {
        let (name, replicas) = (&root.target_stateful_set, pods.replicas);
        let message = format!(
            "StatefulSet {name:?} has {replicas} Pods and the canary would take {canary}: scale it up, or give the canary fewer"
        );
        problems.push(invalid("spec.root.canary.replicas", message));
    }
    problems.extend(pinned(spec, root, all));
    problems
}

/// A selector that leaves out some of the Pods that are shared out, such as one that names a single Pod.
fn pinned(spec: &ShardingConfigSpec, root: &Root, mut all: Range<u32>) -> Option<Problem> {
    let selector = Selector::from_label_selector(spec.selector.as_ref()?).ok()?;
    let requirements = || selector.requirements().iter();
    let pins = requirements().find(|requirement| [POD_NAME, POD_INDEX].contains(&requirement.key()))?;
    let refused = all.find(|ordinal| {
        let refuses = |key: &str, value: &str| {
            requirements().any(|requirement| requirement.key() == key && !requirement.accepts(Some(value)))
        };
        refuses(POD_NAME, &pod_name(root, *ordinal)) || refuses(POD_INDEX, &ordinal.to_string())
    })?;
    let (key, pod) = (pins.key(), pod_name(root, refused));
    let message = format!(
        "leaves out Pod {pod:?} by label {key:?}, and some child would be without Pods: remove that label, the root chooses Pods by their ordinals itself"
    );
    Some(invalid("spec.selector", message))
}
