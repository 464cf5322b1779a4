//! Label selectors and limits: what both a spec's own fields and `root` contain.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::Problems;
use crate::names::{REQUIREMENTS_MAX, SELECTOR_URL_MAX, VALUES_MAX, WILDCARD, is_dns_label, is_dns_subdomain};
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

/// Checks a selector by which members are asked: it has to fit into a URL.
pub(super) fn check_asked(problems: &mut Problems, field: &str, selector: &LabelSelector) {
    check_selector(problems, field, selector);
    let bytes = Selector::from_label_selector(selector).map_or(0, |selector| selector.url_bytes());
    if bytes > SELECTOR_URL_MAX {
        let message = format!(
            "has {bytes} bytes as part of a URL, by which API servers are asked, and {SELECTOR_URL_MAX} fit: name fewer \
             values, or give what it is to select one label of its own"
        );
        problems.invalid(field, message);
    }
}

/// Checks limits one by one and against each other.
pub(super) fn check_limits(problems: &mut Problems, field: &str, limits: &[ObjectLimiter]) {
    for (index, limit) in limits.iter().enumerate() {
        for (group, rule) in limit.relate_resources.iter().enumerate() {
            check_resources(problems, &format!("{field}[{index}].relateResources[{group}]"), rule);
        }
        if let Some(selector) = &limit.selector {
            check_asked(problems, &format!("{field}[{index}].selector"), selector);
        }
    }
    check_contradictions(problems, field, limits);
}

pub(super) fn check_resources(problems: &mut Problems, field: &str, rule: &ResourceGroup) {
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
    let rules = Rules::of(limits);
    let mut before = Vec::<(usize, Selector)>::new();
    for (index, limit) in limits.iter().enumerate() {
        let Some(Ok(selector)) = limit.selector.as_ref().map(Selector::from_label_selector) else {
            continue;
        };
        if selector.is_nothing() {
            continue;
        }
        let met = rules.limits_met_by(index, limit);
        let contradicted = before
            .iter()
            .find(|(earlier, other)| met.contains(earlier) && other.and(&selector).is_nothing());
        if let Some((earlier, _)) = contradicted {
            let message = format!(
                "contradicts {field}[{earlier}] on a resource that both name, and limits on one resource must all hold: merge them into one, or name different resources"
            );
            problems.invalid(format!("{field}[{index}].selector"), message);
        }
        before.push((index, selector));
    }
}

/// Which rules of limits name each word. Read word by word: of rules compared with each other there are half a million, with
/// hundreds of words each.
#[derive(Default)]
struct Rules<'a> {
    /// The limit of each rule.
    limits: Vec<usize>,
    groups: Named<'a>,
    resources: Named<'a>,
}

/// Rules by the words that they name.
#[derive(Default)]
struct Named<'a> {
    by_word: HashMap<&'a str, Vec<usize>>,
    /// Those that name any.
    any: Vec<usize>,
}

/// A limit without resources is about all of them.
const ALL: [&str; 1] = [WILDCARD];

impl<'a> Rules<'a> {
    fn of(limits: &'a [ObjectLimiter]) -> Self {
        let mut rules = Self::default();
        for (index, limit) in limits.iter().enumerate() {
            for (groups, resources) in words_of(limit) {
                rules.groups.add(rules.limits.len(), groups);
                rules.resources.add(rules.limits.len(), resources);
                rules.limits.push(index);
            }
        }
        rules
    }

    /// The limits before `index`, which is that of `limit`, that name a resource which it names too.
    fn limits_met_by(&self, index: usize, limit: &'a ObjectLimiter) -> BTreeSet<usize> {
        let mut met = BTreeSet::new();
        for (groups, resources) in words_of(limit) {
            let count = self.limits.len();
            let (by_group, by_resource) = (
                self.groups.met_by(groups, count),
                self.resources.met_by(resources, count),
            );
            let both = by_group.into_iter().zip(by_resource).zip(&self.limits);
            let both = both.filter(|((group, resource), limit)| *group && *resource && **limit < index);
            met.extend(both.map(|(_, limit)| *limit));
        }
        met
    }
}

impl<'a> Named<'a> {
    fn add(&mut self, rule: usize, words: Vec<&'a str>) {
        if !words.is_empty() {
            self.any.push(rule);
        }
        for word in words {
            let rules = self.by_word.entry(word).or_default();
            if rules.last() != Some(&rule) {
                rules.push(rule);
            }
        }
    }

    /// Of each rule, whether it names one of `words`; the wildcard stands for any.
    fn met_by(&self, words: Vec<&str>, count: usize) -> Vec<bool> {
        let mut met = vec![false; count];
        let is_any = words.contains(&WILDCARD);
        let wild = self.by_word.get(WILDCARD).filter(|_| !words.is_empty());
        let named = words.iter().filter_map(|word| self.by_word.get(*word));
        let any = Some(&self.any).filter(|_| is_any);
        for rule in named.chain(wild).chain(any).flatten() {
            met[*rule] = true;
        }
        met
    }
}

/// Groups and resources of each rule of a limit.
fn words_of(limit: &ObjectLimiter) -> Vec<(Vec<&str>, Vec<&str>)> {
    if limit.relate_resources.is_empty() {
        return vec![(ALL.to_vec(), ALL.to_vec())];
    }
    let rules = limit.relate_resources.iter();
    rules
        .map(|rule| (words(&rule.api_groups), words(&rule.resources)))
        .collect()
}

fn words(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}
