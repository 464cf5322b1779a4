//! What a shard's namespaces and limits mean for one request: the selector to inject, or to judge an object by.

use portolan_crds::names::{NAMESPACED_GROUPS, WILDCARD};
use portolan_crds::selector::Selector;
use portolan_crds::shard::Bucketing;
use portolan_merge::filter::{NamespaceFilter, NamespaceLabels};

use crate::value::classify::ResourceRequest;
use crate::value::kinds::Scope;
use crate::value::snapshot::{Coverage, Limit, Shard, Unlabelled};

/// Groups of Events.
const EVENT_GROUPS: [&str; 2] = ["", "events.k8s.io"];

/// Cluster-scoped kinds of Kubernetes itself, which the path of a collection does not tell from namespaced ones. All other
/// kinds are known from what members say; without that, what else is in these groups is taken to have namespaces.
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

/// Where objects of the group's kinds live if no member has said so: kinds of Kubernetes that no table here names have
/// namespaces, as far as is known.
pub(super) fn scope_by_group(group: &str) -> Option<Scope> {
    let known = CLUSTER_SCOPED.iter().any(|(known, _)| *known == group);
    (known || NAMESPACED_GROUPS.contains(&group)).then_some(Scope::Namespaced)
}

/// Whether objects of the kind have no namespace in any cluster, whatever it has said.
pub(super) fn never_namespaced(resource: &ResourceRequest) -> bool {
    let (group, name) = (resource.group.as_str(), resource.resource.as_str());
    CLUSTER_SCOPED
        .iter()
        .any(|(known, kinds)| *known == group && kinds.contains(&name))
}

/// What the limits demand of objects of this resource. `None`: nothing is limited.
pub(super) fn limits(shard: &Shard, resource: &ResourceRequest) -> Option<Selector> {
    let named = shard.limits.iter().filter(|limit| names(limit, resource));
    let all = named
        .map(|limit| limit.selector.clone())
        .reduce(|all, next| all.and(&next))?;
    (!all.is_everything()).then_some(all)
}

/// What the limits demand of objects whose namespace is known: agents' labels follow from it and are not asked for again.
pub(super) fn limits_within(shard: &Shard, resource: &ResourceRequest, namespace: &str) -> Option<Selector> {
    let all = limits(shard, resource)?;
    if !agents_labels(shard, &all).fits(namespace) {
        return Some(Selector::nothing());
    }
    let finer = finer(shard, &all);
    (!finer.is_everything()).then_some(finer)
}

/// The part of a selector that follows from the namespace.
pub(super) fn agents_labels(shard: &Shard, selector: &Selector) -> NamespaceLabels {
    NamespaceLabels::of(selector, &shard.label_keys, shard.bucketing)
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

/// Which Events are of objects that have no namespace, as a field selector.
pub(super) fn without_namespace(events: &ResourceRequest) -> &'static str {
    if events.group.is_empty() {
        "involvedObject.namespace="
    } else {
        "regarding.namespace="
    }
}

/// The field of Events that says of what kind their object is, and the one that says its name.
pub(super) fn object_of(events: &ResourceRequest) -> [&'static str; 2] {
    if events.group.is_empty() {
        ["involvedObject.kind", "involvedObject.name"]
    } else {
        ["regarding.kind", "regarding.name"]
    }
}

/// The part of a selector that only an object's own labels can tell.
pub(super) fn finer(shard: &Shard, selector: &Selector) -> Selector {
    if selector.is_nothing() {
        return Selector::nothing();
    }
    let reserved = shard.label_keys.reserved();
    let own = selector
        .requirements()
        .iter()
        .filter(|one| !reserved.contains(&one.key()));
    Selector::from_requirements(own.cloned())
}

/// Why a selector over the agent's labels would miss objects of the kind in the namespaces of `share`; `None`: it misses
/// nothing. Labels of another rule (the hub was started anew with another prefix, say) would miss everything.
pub(super) fn unlabelled(shard: &Shard, coverage: Option<&Coverage>, share: &NamespaceFilter) -> Option<Unlabelled> {
    let Some(coverage) = by_rule(shard, coverage) else {
        return Some(Unlabelled::Untold);
    };
    if !coverage.complete {
        let (labelled, total) = (coverage.labelled, coverage.total);
        return Some(Unlabelled::Incomplete { labelled, total });
    }
    unconfirmed(coverage, share).map(Unlabelled::Unconfirmed)
}

/// Whether objects of the kind get and keep their labels by that rule: those that have none yet are sent to who watches by
/// label when they have. Where admission is seen not to label, an update takes an object out of such a watch, as if deleted;
/// and of a namespace that was made anew it is not known when.
pub(super) fn labelling(shard: &Shard, coverage: Option<&Coverage>, share: &NamespaceFilter) -> bool {
    by_rule(shard, coverage)
        .is_some_and(|coverage| coverage.at_admission != Some(false) && unconfirmed(coverage, share).is_none())
}

fn unconfirmed(coverage: &Coverage, share: &NamespaceFilter) -> Option<String> {
    coverage.unconfirmed.iter().find(|name| share.admits(name)).cloned()
}

/// What is known of labels by the shard's own rule.
fn by_rule<'a>(shard: &Shard, coverage: Option<&'a Coverage>) -> Option<&'a Coverage> {
    let same = |(prefix, bucketing): &(String, Bucketing)| {
        prefix == shard.label_keys.prefix() && *bucketing == shard.bucketing
    };
    coverage.filter(|coverage| coverage.rule.as_ref().is_some_and(same))
}
