//! The rules of `clusterScoped`: kinds without namespaces, each by its name. Which kinds a member has cannot be known here; those that
//! every cluster has can.

use super::Problems;
use super::selectors::check_resources;
use crate::names::{NAMESPACED_GROUPS, WILDCARD};
use crate::sharding::ResourceGroup;

const FIELD: &str = "spec.clusterScoped.resources";
/// Kinds that one shard may have for all.
const MOST_KINDS: usize = 64;
/// The kinds of the core group that have none.
const OF_CORE: [&str; 3] = ["componentstatuses", "nodes", "persistentvolumes"];

pub(super) fn check_cluster_scoped(problems: &mut Problems, rules: &[ResourceGroup]) {
    let mut kinds = 0_usize;
    for (index, rule) in rules.iter().enumerate() {
        let field = format!("{FIELD}[{index}]");
        check_resources(problems, &field, rule);
        kinds = kinds.saturating_add(rule.api_groups.len().saturating_mul(rule.resources.len()));
        for (list, words) in [("apiGroups", &rule.api_groups), ("resources", &rule.resources)] {
            if words.iter().any(|word| word == WILDCARD) {
                let message = "\"*\" would take kinds that have namespaces from the operator's other shards: name each";
                problems.invalid(format!("{field}.{list}"), message);
            }
        }
        for group in &rule.api_groups {
            let namespaced = |resource: &&String| match group.as_str() {
                "" => !OF_CORE.contains(&resource.as_str()) && *resource != WILDCARD,
                group => NAMESPACED_GROUPS.contains(&group),
            };
            if let Some(resource) = rule.resources.iter().find(namespaced) {
                let message = if group.is_empty() && resource == "namespaces" {
                    "a Namespace belongs to whoever has it by spec.clusters: remove namespaces".to_owned()
                } else {
                    format!("{resource} of group {group:?} have namespaces, and are shared out by those: remove them")
                };
                problems.invalid(format!("{field}.resources"), message);
            }
        }
    }
    if kinds > MOST_KINDS {
        problems.invalid(FIELD, format!("{kinds} kinds are more than {MOST_KINDS}: name fewer"));
    }
}
