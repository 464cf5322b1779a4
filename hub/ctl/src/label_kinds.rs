//! `--label-kind` of join: RBAC in the member for kinds that its agent labels beyond those of every member.
//!
//! A grant of the member's, like `--allow`: the hub may ask for any kind, the agent touches those that are named here.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule};
use kube::Client;
use kube::api::Api;
use portolan_crds::names::WILDCARD;
use portolan_crds::{GroupResource, ShardingConfig, labels};

use crate::grant::{managed, put, role_ref, service_account, widen};

/// ClusterRole and ClusterRoleBinding in the member.
pub(crate) const ROLE: &str = "portolan-agent-kinds";

/// Resources by API group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LabelKinds(BTreeMap<String, BTreeSet<String>>);

impl LabelKinds {
    /// `RESOURCE` or `RESOURCE.GROUP`, as kubectl writes kinds. Stars are refused: they would include subresources, and
    /// with them a shell in every Pod.
    pub(crate) fn parse(texts: &[String]) -> anyhow::Result<Self> {
        let mut kinds = Self::default();
        for text in texts {
            let (resource, group) = text.split_once('.').unwrap_or((text, ""));
            let group_ok = group.is_empty() || portolan_crds::names::is_dns_subdomain(group);
            if !portolan_crds::names::is_dns_label(resource) || !group_ok {
                bail!("--label-kind {text:?} is not RESOURCE.GROUP, as in greetings.example.com: name each kind");
            }
            kinds.add(group, resource);
        }
        Ok(kinds)
    }

    /// What the limits of ShardingConfigs name: those objects are filtered by their labels. Stars are left out, as
    /// [`Self::parse`] refuses them, and returned.
    pub(crate) fn of_limits(configs: &[ShardingConfig]) -> (Self, BTreeSet<String>) {
        let (mut kinds, mut stars) = (Self::default(), BTreeSet::new());
        for GroupResource { group, resource } in configs.iter().flat_map(|config| config.spec.limited_kinds()) {
            if group == WILDCARD || resource == WILDCARD {
                stars.insert(format!("{group}/{resource}"));
            } else {
                kinds.add(&group, &resource);
            }
        }
        (kinds, stars)
    }

    fn add(&mut self, group: &str, resource: &str) {
        self.0.entry(group.to_owned()).or_default().insert(resource.to_owned());
    }

    /// Adds the kinds to those the member has.
    pub(crate) async fn install(&self, member: &Client) -> anyhow::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let roles: Api<ClusterRole> = Api::all(member.clone());
        widen(&roles, ROLE, |role| &mut role.rules, |before| self.rules(before)).await?;
        let binding = ClusterRoleBinding {
            metadata: managed(ROLE),
            role_ref: role_ref("ClusterRole", ROLE),
            subjects: Some(vec![service_account(
                labels::SYSTEM_NAMESPACE,
                labels::SERVICE_ACCOUNT_AGENT,
            )]),
        };
        put(&Api::all(member.clone()), &binding).await
    }

    fn rules(&self, before: &[PolicyRule]) -> Vec<PolicyRule> {
        let mut all = self.clone();
        for rule in before {
            for group in rule.api_groups.iter().flatten() {
                for resource in rule.resources.iter().flatten() {
                    all.add(group, resource);
                }
            }
        }
        let rule = |(group, resources): (String, BTreeSet<String>)| PolicyRule {
            api_groups: Some(vec![group]),
            resources: Some(resources.into_iter().collect()),
            verbs: ["list", "watch", "patch"].map(str::to_owned).to_vec(),
            ..Default::default()
        };
        all.0.into_iter().map(rule).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> anyhow::Result<LabelKinds> {
        LabelKinds::parse(&[text.to_owned()])
    }

    #[test]
    fn kinds_are_named_one_by_one() {
        for bad in [
            "*",
            "*.example.com",
            "pods/exec",
            "pods/exec.example.com",
            "",
            ".example.com",
            "Pods",
            "a.b_c",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse("secrets").is_ok() && parse("greetings.example.com").is_ok());
    }

    #[test]
    fn stars_of_limits_are_granted_to_nobody() {
        let relate = serde_json::json!([
            {"apiGroups": ["", "*"], "resources": ["secrets"]},
            {"apiGroups": ["apps"], "resources": ["*", "deployments"]},
        ]);
        let spec = serde_json::json!({"limits": [{"relateResources": relate}]});
        let config = ShardingConfig::new("a", serde_json::from_value(spec).unwrap());
        let (kinds, stars) = LabelKinds::of_limits(&[config]);
        let granted = LabelKinds::parse(&["secrets".to_owned(), "deployments.apps".to_owned()]).unwrap();
        assert_eq!(kinds, granted);
        assert_eq!(stars, ["*/secrets".to_owned(), "apps/*".to_owned()].into());
    }

    #[test]
    fn what_was_granted_stays() {
        let before = parse("secrets").unwrap().rules(&[]);
        let rules = parse("endpoints").unwrap().rules(&before);
        assert_eq!(rules.len(), 1);
        assert_eq!(rules[0].resources.as_ref().unwrap(), &["endpoints", "secrets"]);
        assert_eq!(rules[0].verbs, ["list", "watch", "patch"]);
    }
}
