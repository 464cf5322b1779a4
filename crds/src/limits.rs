//! Which objects of a resource a shard's limits leave.
//!
//! All limits that name a resource must hold: their selectors are ANDed, so a further limit narrows and never widens.
//! A union could not be said as one selector, and "the first one counts" would let a later, narrower limit be ignored.

use crate::selector::Selector;
use crate::sharding::{ObjectLimiter, ResourceGroup, ShardingConfigSpec};

/// What in `apiGroups` or `resources` means all of them.
pub const WILDCARD: &str = "*";

/// The selector that objects of `resource` in `group` ("" is core) must match to belong to the shard; `None` if no limit
/// narrows that resource. Subresources follow their resource: ask for `pods`, not `pods/status`.
///
/// ```
/// use portolan_crds::{Selector, ShardingConfigSpec, effective_limit};
///
/// let spec: ShardingConfigSpec = serde_yaml_ng::from_str(
///     "
///     limits:
///     - relateResources: [{apiGroups: [''], resources: [pods]}]
///       selector: {matchLabels: {tier: web}}
///     ",
/// )?;
/// assert_eq!(effective_limit(&spec, "", "pods"), Selector::parse("tier=web").ok());
/// assert_eq!(effective_limit(&spec, "", "secrets"), None);
/// # Ok::<(), serde_yaml_ng::Error>(())
/// ```
///
/// A selector that cannot be read selects nothing: validation refuses such a spec, and if one gets here all the same it
/// must not widen the shard.
pub fn effective_limit(spec: &ShardingConfigSpec, group: &str, resource: &str) -> Option<Selector> {
    let limits = spec.limits.iter().filter(|limit| limit.names(group, resource));
    limits
        .filter_map(|limit| limit.selector.as_ref())
        .map(|selector| Selector::from_label_selector(selector).unwrap_or(Selector::nothing()))
        .reduce(|before, selector| before.and(&selector))
        .filter(|selector| !selector.is_everything())
}

impl ObjectLimiter {
    /// Whether it is about `resource` of `group`. Without `relateResources` it is about every resource.
    pub fn names(&self, group: &str, resource: &str) -> bool {
        self.relate_resources.is_empty() || self.relate_resources.iter().any(|rule| rule.names(group, resource))
    }
}

impl ResourceGroup {
    /// Whether `resource` of `group` is among them.
    pub fn names(&self, group: &str, resource: &str) -> bool {
        let among = |list: &[String], word: &str| list.iter().any(|item| item == WILDCARD || item == word);
        among(&self.api_groups, group) && among(&self.resources, resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(yaml: &str, group: &str, resource: &str) -> Option<String> {
        let spec: ShardingConfigSpec = serde_yaml_ng::from_str(yaml).unwrap();
        effective_limit(&spec, group, resource).map(|selector| selector.to_string())
    }

    #[test]
    fn wildcards_name_groups_and_resources() {
        let yaml = "limits: [{relateResources: [{apiGroups: ['*'], resources: [pods, services]}], selector: {matchLabels: {app: foo}}}]";
        assert_eq!(limit(yaml, "", "pods").as_deref(), Some("app=foo"));
        assert_eq!(limit(yaml, "metrics.k8s.io", "pods").as_deref(), Some("app=foo"));
        assert_eq!(limit(yaml, "", "configmaps"), None);
        let yaml =
            "limits: [{relateResources: [{apiGroups: [apps], resources: ['*']}], selector: {matchLabels: {app: foo}}}]";
        assert_eq!(limit(yaml, "apps", "deployments").as_deref(), Some("app=foo"));
        assert_eq!(limit(yaml, "", "pods"), None);
    }

    #[test]
    fn every_limit_on_a_resource_holds() {
        let yaml = "
limits:
- selector: {matchLabels: {tier: web}}
- {relateResources: [{apiGroups: [''], resources: [pods]}], selector: {matchExpressions: [{key: app, operator: In, values: [a, b]}]}}
- {relateResources: [{apiGroups: [''], resources: ['*']}], selector: {matchLabels: {app: a}}}
- {relateResources: [{apiGroups: [''], resources: [pods]}]}
";
        assert_eq!(limit(yaml, "", "pods").as_deref(), Some("app=a,tier=web"));
        assert_eq!(limit(yaml, "", "secrets").as_deref(), Some("app=a,tier=web"));
        assert_eq!(limit(yaml, "apps", "deployments").as_deref(), Some("tier=web"));
    }

    #[test]
    fn what_cannot_be_read_selects_nothing() {
        let yaml = "limits: [{selector: {matchExpressions: [{key: a, operator: Near}]}}]";
        let spec: ShardingConfigSpec = serde_yaml_ng::from_str(yaml).unwrap();
        assert!(effective_limit(&spec, "", "pods").is_some_and(|selector| selector.is_nothing()));
        assert_eq!(limit("limits: [{selector: {}}]", "", "pods"), None);
    }
}
