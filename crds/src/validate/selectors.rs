//! Label selectors and limits: what both a spec's own fields and `root` contain.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::Problems;
use crate::names::{REQUIREMENTS_MAX, VALUES_MAX, WILDCARD, is_dns_label, is_dns_subdomain};
use crate::selector::Selector;
use crate::sharding::{ObjectLimiter, ResourceGroup};

/// Checks a selector part by part, so that each problem names its own field.
pub(super) fn check_selector(problems: &mut Problems, field: &str, selector: &LabelSelector) {
    let found = problems.0.len();
    let labels = selector.match_labels.as_ref().map_or(0, BTreeMap::len);
    problems.at_most(&format!("{field}.matchLabels"), labels, REQUIREMENTS_MAX);
    let expressions = selector.match_expressions.as_deref().unwrap_or_default();
    problems.at_most(
        &format!("{field}.matchExpressions"),
        expressions.len(),
        REQUIREMENTS_MAX,
    );
    for (key, value) in selector.match_labels.iter().flatten() {
        let one = LabelSelector {
            match_labels: Some([(key.clone(), value.clone())].into()),
            match_expressions: None,
        };
        if let Err(error) = Selector::from_label_selector(&one) {
            problems.invalid(format!("{field}.matchLabels[{key}]"), error);
        }
    }
    for (index, expression) in expressions.iter().enumerate() {
        let values = expression.values.as_ref().map_or(0, Vec::len);
        problems.at_most(&format!("{field}.matchExpressions[{index}].values"), values, VALUES_MAX);
        let one = LabelSelector {
            match_expressions: Some(vec![expression.clone()]),
            match_labels: None,
        };
        if let Err(error) = Selector::from_label_selector(&one) {
            problems.invalid(format!("{field}.matchExpressions[{index}]"), error);
        }
    }
    let readable = problems.0.len() == found;
    if readable && Selector::from_label_selector(selector).is_ok_and(|selector| selector.is_nothing()) {
        problems.invalid(
            field,
            "its requirements contradict each other, so it matches nothing: remove one of them",
        );
    }
}

/// Checks limits one by one and against each other.
pub(super) fn check_limits(problems: &mut Problems, field: &str, limits: &[ObjectLimiter]) {
    for (index, limit) in limits.iter().enumerate() {
        for (group, rule) in limit.relate_resources.iter().enumerate() {
            check_resources(problems, &format!("{field}[{index}].relateResources[{group}]"), rule);
        }
        if let Some(selector) = &limit.selector {
            check_selector(problems, &format!("{field}[{index}].selector"), selector);
        }
    }
    check_contradictions(problems, field, limits);
}

fn check_resources(problems: &mut Problems, field: &str, rule: &ResourceGroup) {
    if rule.api_groups.is_empty() {
        let message = "name at least one API group: \"\" is the core group, \"*\" is every group";
        problems.required(format!("{field}.apiGroups"), message);
    }
    if rule.resources.is_empty() {
        problems.required(
            format!("{field}.resources"),
            "name at least one resource, such as \"pods\"; \"*\" is every resource",
        );
    }
    for (index, group) in rule.api_groups.iter().enumerate() {
        if !group.is_empty() && group != WILDCARD && !is_dns_subdomain(group) {
            let message = format!(
                "{group:?} is no API group: write \"apps\" without a version, \"\" for the core group or \"*\""
            );
            problems.invalid(format!("{field}.apiGroups[{index}]"), message);
        }
    }
    for (index, resource) in rule.resources.iter().enumerate() {
        if resource != WILDCARD && !is_dns_label(resource) {
            let message = format!(
                "{resource:?} is no resource: write its plural name in lower case, such as \"pods\", without a subresource"
            );
            problems.invalid(format!("{field}.resources[{index}]"), message);
        }
    }
}

/// Limits on one resource must all hold. Two that cannot would silently hide every object of it.
fn check_contradictions(problems: &mut Problems, field: &str, limits: &[ObjectLimiter]) {
    let mut before = Vec::<(usize, Selector, Vec<Named<'_>>)>::new();
    for (index, limit) in limits.iter().enumerate() {
        let Some(Ok(selector)) = limit.selector.as_ref().map(Selector::from_label_selector) else {
            continue;
        };
        if selector.is_nothing() {
            continue;
        }
        let named = Named::by(limit);
        let overlaps = |theirs: &[Named<'_>]| named.iter().any(|ours| theirs.iter().any(|theirs| ours.meets(theirs)));
        let contradicted = before
            .iter()
            .find(|(_, other, theirs)| other.and(&selector).is_nothing() && overlaps(theirs));
        if let Some((earlier, ..)) = contradicted {
            let message = format!(
                "contradicts {field}[{earlier}] on a resource that both name, and limits on one resource must all hold: merge them into one, or name different resources"
            );
            problems.invalid(format!("{field}[{index}].selector"), message);
        }
        before.push((index, selector, named));
    }
}

/// What one rule of a limit names, as sets.
struct Named<'a> {
    groups: BTreeSet<&'a str>,
    resources: BTreeSet<&'a str>,
}

impl<'a> Named<'a> {
    fn by(limit: &'a ObjectLimiter) -> Vec<Self> {
        let set = |list: &'a [String]| list.iter().map(String::as_str).collect();
        let rule = |rule: &'a ResourceGroup| Named {
            groups: set(&rule.api_groups),
            resources: set(&rule.resources),
        };
        if limit.relate_resources.is_empty() {
            vec![Named {
                groups: BTreeSet::from([WILDCARD]),
                resources: BTreeSet::from([WILDCARD]),
            }]
        } else {
            limit.relate_resources.iter().map(rule).collect()
        }
    }

    fn meets(&self, other: &Self) -> bool {
        let common = |a: &BTreeSet<&str>, b: &BTreeSet<&str>| {
            let wild = |list: &BTreeSet<&str>| list.contains(WILDCARD);
            (wild(a) && !b.is_empty()) || (wild(b) && !a.is_empty()) || !a.is_disjoint(b)
        };
        common(&self.groups, &other.groups) && common(&self.resources, &other.resources)
    }
}
