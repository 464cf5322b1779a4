//! What a shard's namespaces and limits mean for one request: the selector to inject, or to judge an object by.

use std::collections::BTreeMap;

use portolan_crds::limits::WILDCARD;
use portolan_crds::selector::Selector;

use super::{Refusal, Rule};
use crate::classify::ResourceRequest;
use crate::fault::Fault;
use crate::snapshot::{Limit, Shard, Target};

/// Seconds after which a request that the labels are not ready for may come again. Labelling takes seconds to minutes.
const LABELS_RETRY_SECONDS: u32 = 5;

/// Groups of Events.
const EVENT_GROUPS: [&str; 2] = ["", "events.k8s.io"];

/// Cluster-scoped kinds of Kubernetes itself, which the path of a collection does not tell from namespaced ones.
/// Cluster-scoped custom resources are recognised by nothing yet (discovery will tell): their collections are refused like
/// those of kinds without labels.
const CLUSTER_SCOPED: [(&str, &[&str]); 13] = [
    ("", &["componentstatuses", "namespaces", "nodes", "persistentvolumes"]),
    (
        "admissionregistration.k8s.io",
        &[
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
            "mutatingwebhookconfigurations",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
            "validatingwebhookconfigurations",
        ],
    ),
    ("apiextensions.k8s.io", &["customresourcedefinitions"]),
    ("apiregistration.k8s.io", &["apiservices"]),
    (
        "certificates.k8s.io",
        &["certificatesigningrequests", "clustertrustbundles"],
    ),
    (
        "flowcontrol.apiserver.k8s.io",
        &["flowschemas", "prioritylevelconfigurations"],
    ),
    ("internal.apiserver.k8s.io", &["storageversions"]),
    ("networking.k8s.io", &["ingressclasses", "ipaddresses", "servicecidrs"]),
    ("node.k8s.io", &["runtimeclasses"]),
    ("rbac.authorization.k8s.io", &["clusterrolebindings", "clusterroles"]),
    (
        "resource.k8s.io",
        &["deviceclasses", "devicetaintrules", "resourceslices"],
    ),
    ("scheduling.k8s.io", &["priorityclasses"]),
    (
        "storage.k8s.io",
        &[
            "csidrivers",
            "csinodes",
            "storageclasses",
            "volumeattachments",
            "volumeattributesclasses",
        ],
    ),
];

/// Whether the kind is known to have no namespace.
pub(super) fn cluster_scoped(resource: &ResourceRequest) -> bool {
    let in_group = CLUSTER_SCOPED.iter().find(|(group, _)| *group == resource.group);
    in_group.is_some_and(|(_, kinds)| kinds.contains(&resource.resource.as_str()))
}

/// What the limits demand of objects of this resource, the namespace of the request taken into account: what it already
/// settles is not asked of the labels again. `None`: nothing is limited.
pub(super) fn limits(shard: &Shard, resource: &ResourceRequest, namespace: Option<&str>) -> Option<Selector> {
    let named = shard.limits.iter().filter(|limit| names(limit, resource));
    let selector = named
        .map(|limit| limit.selector.clone())
        .reduce(|all, next| all.and(&next))?;
    let selector = match namespace {
        Some(namespace) => settle(&selector, shard.label_keys.namespace(), namespace),
        None => selector,
    };
    (!selector.is_everything()).then_some(selector)
}

fn names(limit: &Limit, resource: &ResourceRequest) -> bool {
    let among = |list: &[String], word: &str| list.iter().any(|item| item == WILDCARD || item == word);
    let in_group = |groups: &[String]| {
        if is_event(resource) {
            EVENT_GROUPS.iter().any(|group| among(groups, group))
        } else {
            among(groups, &resource.group)
        }
    };
    let mut rules = limit.resources.iter();
    limit.resources.is_empty() || rules.any(|(groups, kinds)| in_group(groups) && among(kinds, &resource.resource))
}

/// Whether it is the one kind that has two groups and one store.
pub(super) fn is_event(resource: &ResourceRequest) -> bool {
    EVENT_GROUPS.iter().any(|group| resource.is(group, "events"))
}

/// The selector for objects whose label `key` is known to be `value`.
fn settle(selector: &Selector, key: &str, value: &str) -> Selector {
    if selector.is_nothing() {
        return Selector::nothing();
    }
    let known = BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let (about, rest): (Vec<_>, Vec<_>) = selector
        .requirements()
        .iter()
        .cloned()
        .partition(|one| one.key() == key);
    if Selector::from_requirements(about).matches(&known) {
        Selector::from_requirements(rest)
    } else {
        Selector::nothing()
    }
}

/// The part of a selector that a client can be held to: admission in the member overwrites the labels that agents write.
pub(super) fn without_reserved(shard: &Shard, selector: &Selector) -> Selector {
    if selector.is_nothing() {
        return Selector::nothing();
    }
    let reserved = shard.label_keys.reserved();
    Selector::from_requirements(
        selector
            .requirements()
            .iter()
            .filter(|one| !reserved.contains(&one.key()))
            .cloned(),
    )
}

/// Whether the selector can only be trusted once the agent has labelled everything.
fn needs_labels(shard: &Shard, selector: &Selector) -> bool {
    let reserved = shard.label_keys.reserved();
    selector.requirements().iter().any(|one| reserved.contains(&one.key()))
}

/// Refuses a selector over labels that are not complete: the answer would miss objects without saying so.
pub(super) fn require_labels(
    shard: &Shard,
    target: &Target,
    resource: &ResourceRequest,
    selector: &Selector,
) -> Result<(), Refusal> {
    if !needs_labels(shard, selector) {
        return Ok(());
    }
    let (kind, cluster) = (resource.kind(), &target.cluster);
    let message = match target
        .coverage
        .get(&(resource.group.clone(), resource.resource.clone()))
    {
        Some(coverage) if coverage.complete => return Ok(()),
        Some(coverage) => format!(
            "the labels of {kind} in member cluster {cluster} are not complete yet ({} of {} objects)",
            coverage.labelled, coverage.total
        ),
        None => format!(
            "{kind} in member cluster {cluster} have no shard labels (yet): is the kind among the hub's --label-kinds? Ask namespace by namespace meanwhile"
        ),
    };
    let cluster = Some(cluster.to_string());
    let fault = Fault::TooManyRequests {
        message,
        retry_after_seconds: LABELS_RETRY_SECONDS,
        cluster,
    };
    Err(Refusal {
        rule: Rule::LabelsIncomplete,
        fault,
    })
}
