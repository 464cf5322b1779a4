//! What CircuitBreakers and FaultInjections have in common: callers, names of rules, requests, lengths of time.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration as StdDuration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::selectors::check_selector;
use super::{Problems, Reason};
use crate::circuit_breaker::{RESOURCE_RULES_MAX, RESOURCE_RULES_TOTAL_MAX, RULE_WORDS_MAX, ResourceRule};
use crate::duration::{format_duration, parse_go_duration};
use crate::names::{GO_DURATION_MAX, RULE_NAME_MAX, VERBS, WILDCARD, is_dns_label, is_dns_subdomain};

/// Most member clusters that a list of them names.
const CLUSTERS_MAX: usize = 128;
/// Longest time that rules speak of: what lasts longer is no traffic.
pub(super) const RULE_TIME_MAX: StdDuration = StdDuration::from_hours(720);
/// More than nothing, and no more than [`RULE_TIME_MAX`].
pub(super) const SOME_TIME: RangeInclusive<StdDuration> = StdDuration::from_nanos(1)..=RULE_TIME_MAX;
/// Where it is not waited for.
pub(super) const ANY_TIME: RangeInclusive<StdDuration> = StdDuration::ZERO..=RULE_TIME_MAX;
/// What stands beside names of rules: in a cause, in an annotation twice, before a breaker's cluster.
const BESIDE_NAMES: [char; 4] = ['/', ',', '=', '@'];

/// Whom the policy holds. Without a selector it holds nobody, which its condition says.
pub(super) fn check_callers(problems: &mut Problems, selector: Option<&LabelSelector>, clusters: &[String]) {
    if let Some(selector) = selector {
        check_selector(problems, "spec.selector", selector);
    }
    check_clusters(problems, "spec.callerClusters", clusters);
}

/// Names of MemberClusters, each once.
pub(super) fn check_clusters(problems: &mut Problems, field: &str, clusters: &[String]) {
    problems.at_most(field, clusters.len(), CLUSTERS_MAX);
    for (index, cluster) in clusters.iter().enumerate() {
        if !is_dns_label(cluster) {
            let message = format!("{cluster:?} is no name of a member cluster: leave the list out for all of them");
            problems.invalid(format!("{field}[{index}]"), message);
        }
    }
    problems.duplicates(field, clusters);
}

/// The names of an object's rules, by which their state is kept, each with the path of its rule.
#[derive(Default)]
pub(super) struct RuleNames(BTreeMap<String, String>);

impl RuleNames {
    /// `rule`: the path of the one that has this name.
    pub(super) fn check(&mut self, problems: &mut Problems, rule: &str, name: &str) {
        check_name(problems, &format!("{rule}.name"), name);
        if let Some(other) = self.0.get(name) {
            let message =
                format!("{name:?} is the name of {other} already: give each rule its own, by which its state is kept");
            problems.add(format!("{rule}.name"), Reason::Duplicate, message);
        } else {
            self.0.insert(name.to_owned(), rule.to_owned());
        }
    }
}

fn check_name(problems: &mut Problems, field: &str, name: &str) {
    if name.is_empty() {
        return problems.required(field, "name the rule: its state is kept by that name");
    }
    if name.len() > RULE_NAME_MAX {
        problems.invalid(field, format!("has more than {RULE_NAME_MAX} characters: shorten it"));
    }
    let printable = |c: char| c == ' ' || c.is_ascii_graphic();
    if !name.chars().all(printable) || name.contains(BESIDE_NAMES) || name != name.trim() {
        let message = format!(
            "{name:?} is no name of a rule, although the original took it: it travels in headers and annotations, so use printable ASCII without '/', ',', '=' and '@', and no space at its ends"
        );
        problems.invalid(field, message);
    }
}

/// All the rules of an object that say which requests it means; counted together, as routers compile them together.
#[derive(Default)]
pub(super) struct ResourceRules {
    count: usize,
}

impl ResourceRules {
    /// `whole`: an empty list of groups, resources, verbs or namespaces stands for all; else it is refused.
    pub(super) fn check(&mut self, problems: &mut Problems, field: &str, rules: &[ResourceRule], whole: bool) {
        problems.at_most(field, rules.len(), RESOURCE_RULES_MAX);
        self.count += rules.len();
        for (index, rule) in rules.iter().enumerate() {
            check_rule(problems, &format!("{field}[{index}]"), rule, whole);
        }
    }

    /// Once all were checked.
    pub(super) fn check_total(&self, problems: &mut Problems) {
        if self.count > RESOURCE_RULES_TOTAL_MAX {
            let message = format!(
                "has {} resource rules in all, at most {RESOURCE_RULES_TOTAL_MAX}: merge rules, or split the object",
                self.count
            );
            problems.invalid("spec", message);
        }
    }
}

fn check_rule(problems: &mut Problems, field: &str, rule: &ResourceRule, whole: bool) {
    let lists: [(&str, &[String], Word); 5] = [
        ("apiGroups", &rule.api_groups, check_group),
        ("resources", &rule.resources, check_resource),
        ("verbs", &rule.verbs, check_verb),
        ("namespaces", &rule.namespaces, check_namespace),
        ("clusters", &rule.clusters, check_cluster),
    ];
    for (name, words, check) in lists {
        let field = format!("{field}.{name}");
        if words.is_empty() && !whole && name != "clusters" {
            problems.required(&field, "is empty and would match nothing: write \"*\" for all of them");
        }
        problems.at_most(&field, words.len(), RULE_WORDS_MAX);
        for (index, word) in words.iter().enumerate().filter(|(_, word)| *word != WILDCARD) {
            if let Err(message) = check(word) {
                problems.invalid(format!("{field}[{index}]"), message);
            }
        }
    }
}

/// Whether a word may stand in a list of a rule; it is not `*`.
type Word = fn(&str) -> Result<(), String>;

fn check_group(group: &str) -> Result<(), String> {
    let good = group.is_empty() || is_dns_subdomain(group);
    good.then_some(()).ok_or_else(|| {
        format!("{group:?} is no API group: write \"apps\" without a version, \"\" for the core group or \"*\"")
    })
}

fn check_resource(resource: &str) -> Result<(), String> {
    let (main, sub) = resource.split_once('/').unwrap_or((resource, WILDCARD));
    let good = |part: &str| part == WILDCARD || is_dns_label(part);
    if resource == "*/*" {
        return Err("\"*/*\" is \"*\", which has all subresources: write that".to_owned());
    }
    (good(main) && good(sub)).then_some(()).ok_or_else(|| {
        format!(
            "{resource:?} is no resource: write its plural name in lower case, such as \"pods\", with a subresource \"pods/exec\", \"*/scale\", or \"*\""
        )
    })
}

fn check_verb(verb: &str) -> Result<(), String> {
    let message = || {
        let verbs = VERBS.join(", ");
        format!("{verb:?} is no verb of an API server and would match nothing: there are {verbs} and \"*\"")
    };
    VERBS.contains(&verb).then_some(()).ok_or_else(message)
}

fn check_namespace(namespace: &str) -> Result<(), String> {
    let good = namespace.is_empty() || is_dns_label(namespace);
    let message = || format!("{namespace:?} is no namespace: write its name, \"\" for what has none, or \"*\"");
    good.then_some(()).ok_or_else(message)
}

fn check_cluster(cluster: &str) -> Result<(), String> {
    let message =
        || format!("{cluster:?} is no name of a member cluster: write its name, or leave the list out for all");
    is_dns_label(cluster).then_some(()).ok_or_else(message)
}

/// A length of time that must be in `range`.
pub(super) fn check_time(problems: &mut Problems, field: &str, text: &str, range: RangeInclusive<StdDuration>) {
    if text.chars().count() > GO_DURATION_MAX {
        problems.invalid(
            field,
            format!("has more than {GO_DURATION_MAX} characters: write it shorter"),
        );
        return;
    }
    match parse_go_duration(text) {
        Ok(time) if range.contains(&time) => {}
        Ok(time) if time < *range.start() => {
            problems.invalid(field, format!("{text:?} must be longer than nothing, such as 1s"));
        }
        Ok(_) => {
            let most = format_duration(*range.end());
            problems.invalid(field, format!("{text:?} must be at most {most}"));
        }
        Err(error) => problems.invalid(field, error),
    }
}
