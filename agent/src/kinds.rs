//! Which kinds of the member are labelled: the configured rules against what its discovery serves.
//!
//! A kind is labelled if a rule names it, it is namespaced, it can be listed, watched and patched, and it is not
//! excluded. Excluded, even when named, is what changes too often to be worth a label or belongs to a controller that
//! rewrites its labels: see [`EXCLUDED`]. Roles and their bindings only when their group is named: see
//! [`ONLY_BY_NAME`]. Callers: `sweep`, `uninstall`.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use kube::api::ApiResource;
use kube::discovery::{ApiGroup, Discovery, Scope, verbs};
use portolan_crds::GroupResource;

/// (group, resource) never labelled, `*` for all resources of a group.
///
/// Events, Leases and metrics are written all the time and no operator shards by them; Endpoints and EndpointSlices
/// get their labels from their Service by a controller that would remove ours again; the rest are requests, not
/// objects.
pub(crate) const EXCLUDED: [(&str, &str); 12] = [
    ("", "events"),
    ("events.k8s.io", "events"),
    ("", "endpoints"),
    ("discovery.k8s.io", "endpointslices"),
    ("coordination.k8s.io", "*"),
    ("metrics.k8s.io", "*"),
    ("custom.metrics.k8s.io", "*"),
    ("external.metrics.k8s.io", "*"),
    ("authentication.k8s.io", "*"),
    ("authorization.k8s.io", "*"),
    ("", "bindings"),
    // ShardingConfigs and their kin say who owns what: no shard owns them.
    (portolan_crds::labels::GROUP, "*"),
];

/// Groups whose kinds no wildcard covers. The API server lets only those write a Role or a binding, labels included, who
/// hold all that it grants: to label them the agent would need `bind` and `escalate`, which is for a person to decide.
pub(crate) const ONLY_BY_NAME: [&str; 1] = ["rbac.authorization.k8s.io"];

/// One kind as discovery describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiscoveredKind {
    pub(crate) resource: ApiResource,
    pub(crate) namespaced: bool,
    /// Whether objects of the kind can be listed, watched and patched.
    pub(crate) labelable: bool,
}

/// Whether the kind is left alone whatever the rules say.
pub(crate) fn is_excluded(group: &str, resource: &str) -> bool {
    EXCLUDED
        .iter()
        .any(|(g, r)| *g == group && (*r == "*" || *r == resource))
}

/// Whether a rule, of which either part may be `*`, names exactly one kind.
pub(crate) fn is_exact(rule: &GroupResource) -> bool {
    rule.group != "*" && rule.resource != "*"
}

fn matches(rule: &GroupResource, kind: &ApiResource) -> bool {
    let any_group = rule.group == "*" && !ONLY_BY_NAME.contains(&kind.group.as_str());
    (any_group || rule.group == kind.group) && (rule.resource == "*" || rule.resource == kind.plural)
}

/// The kinds to label, and, for the log, the exactly named rules that label nothing with the reason.
pub(crate) fn select<'a>(
    rules: &'a BTreeSet<GroupResource>,
    served: &[DiscoveredKind],
) -> (
    BTreeMap<GroupResource, ApiResource>,
    Vec<(&'a GroupResource, &'static str)>,
) {
    let mut chosen = BTreeMap::new();
    for kind in served.iter().filter(|kind| refusal(kind).is_none()) {
        if rules.iter().any(|rule| matches(rule, &kind.resource)) {
            let ApiResource { group, plural, .. } = &kind.resource;
            let key = GroupResource::new(group, plural);
            chosen.entry(key).or_insert_with(|| kind.resource.clone());
        }
    }
    let unmet = rules.iter().filter(|rule| is_exact(rule)).filter_map(|rule| {
        let kind = served.iter().find(|kind| matches(rule, &kind.resource));
        let reason = kind.map_or(Some("the member does not serve it"), refusal)?;
        Some((rule, reason))
    });
    (chosen, unmet.collect())
}

fn refusal(kind: &DiscoveredKind) -> Option<&'static str> {
    if is_excluded(&kind.resource.group, &kind.resource.plural) {
        Some("it is never labelled: too short-lived, or its labels belong to a controller")
    } else if !kind.namespaced {
        Some("it is cluster-scoped: shards own namespaces")
    } else if kind.labelable {
        None
    } else {
        Some("it cannot be listed, watched and patched")
    }
}

/// What the member serves now: each kind in the version its group recommends, and those that this version lacks in their
/// most stable one; the first of a kind is the one to use. Servers without aggregated discovery are asked group by group.
pub(crate) async fn discover(client: Client) -> kube::Result<Vec<DiscoveredKind>> {
    let discovery = match Discovery::new(client.clone()).run_aggregated().await {
        Ok(discovery) if discovery.groups().next().is_some() => discovery,
        _ => Discovery::new(client).run().await?,
    };
    Ok(of_groups(discovery.groups()))
}

fn of_groups<'a>(groups: impl Iterator<Item = &'a ApiGroup>) -> Vec<DiscoveredKind> {
    let all = groups.flat_map(|group| [group.recommended_resources(), group.resources_by_stability()].concat());
    let served = all.map(|(resource, capabilities)| DiscoveredKind {
        resource,
        namespaced: capabilities.scope == Scope::Namespaced,
        labelable: [verbs::LIST, verbs::WATCH, verbs::PATCH]
            .iter()
            .all(|verb| capabilities.supports_operation(verb)),
    });
    served.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::GroupVersionKind;
    use serde_json::{Value, json};

    fn served(group: &str, plural: &str, namespaced: bool, labelable: bool) -> DiscoveredKind {
        let gvk = GroupVersionKind::gvk(group, "v1", plural);
        DiscoveredKind {
            resource: ApiResource::from_gvk_with_plural(&gvk, plural),
            namespaced,
            labelable,
        }
    }

    fn member() -> Vec<DiscoveredKind> {
        vec![
            served("", "pods", true, true),
            served("", "services", true, true),
            served("", "nodes", false, true),
            served("", "events", true, true),
            served("", "bindings", true, false),
            served("apps", "deployments", true, true),
            served("demo.example.com", "widgets", true, true),
            served("metrics.k8s.io", "pods", true, true),
            served("rbac.authorization.k8s.io", "roles", true, true),
            served("discovery.k8s.io", "endpointslices", true, true),
            served("readonly.example.com", "views", true, false),
        ]
    }

    fn chosen(rules: &[(&str, &str)]) -> (Vec<String>, Vec<(String, &'static str)>) {
        let rules: BTreeSet<_> = rules.iter().map(|(g, r)| GroupResource::new(*g, *r)).collect();
        let (chosen, unmet) = select(&rules, &member());
        let unmet = unmet
            .into_iter()
            .map(|(rule, why)| (rule.resource.clone(), why))
            .collect();
        (chosen.keys().map(ToString::to_string).collect(), unmet)
    }

    /// A server that answers aggregated discovery, or only that of each group and version.
    fn member_api(aggregated: bool) -> Client {
        let resource = |name: &str, kind: &str| {
            json!({"name": name, "resource": name, "singularName": "", "kind": kind, "responseKind": {"kind": kind},
                "namespaced": true, "scope": "Namespaced", "verbs": ["list", "watch", "patch"]})
        };
        let (widget, gadget) = (resource("widgets", "Widget"), resource("gadgets", "Gadget"));
        let versions = json!([
            {"version": "v1", "groupVersion": "example.com/v1", "resources": [widget]},
            {"version": "v1beta1", "groupVersion": "example.com/v1beta1", "resources": [widget, gadget]},
        ]);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let list = |version: &Value| json!({"kind": "APIResourceList", "groupVersion": version["groupVersion"], "resources": version["resources"]});
            let answer = match (request.uri().path(), aggregated) {
                ("/apis", true) => json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
                    "items": [{"metadata": {"name": "example.com"}, "versions": versions}]}),
                ("/api", true) => {
                    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": []})
                }
                ("/apis", false) => json!({"kind": "APIGroupList", "groups": [
                    {"name": "example.com", "versions": versions, "preferredVersion": versions[0]},
                ]}),
                ("/api", false) => json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
                ("/api/v1", _) => json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": []}),
                ("/apis/example.com/v1", _) => list(&versions[0]),
                (_, _) => list(&versions[1]),
            };
            let body = kube::client::Body::from(answer.to_string().into_bytes());
            async { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn kinds_of_other_versions_and_older_servers_are_seen() {
        for aggregated in [true, false] {
            let served = discover(member_api(aggregated)).await.unwrap();
            let rules = [GroupResource::new("example.com", "*")].into();
            let (kinds, _) = select(&rules, &served);
            let versions = kinds.values().map(|one| (one.plural.as_str(), one.version.as_str()));
            assert_eq!(
                versions.collect::<Vec<_>>(),
                [("gadgets", "v1beta1"), ("widgets", "v1")],
                "{aggregated}"
            );
        }
    }

    #[test]
    fn wildcards_take_what_can_be_labelled() {
        assert_eq!(
            chosen(&[("*", "*")]).0,
            ["pods", "services", "deployments.apps", "widgets.demo.example.com"]
        );
        assert_eq!(chosen(&[("*", "pods")]).0, ["pods"]);
        assert_eq!(
            chosen(&[("apps", "*"), ("", "services")]).0,
            ["services", "deployments.apps"]
        );
        assert_eq!(chosen(&[]).0, [""; 0]);
        assert_eq!(
            chosen(&[("rbac.authorization.k8s.io", "*")]).0,
            ["roles.rbac.authorization.k8s.io"]
        );
    }

    #[test]
    fn a_rule_that_labels_nothing_is_named_with_its_reason() {
        for (group, resource, word) in [
            ("", "nodes", "cluster-scoped"),
            ("", "events", "never labelled"),
            ("readonly.example.com", "views", "patched"),
            ("gone.example.com", "things", "does not serve"),
        ] {
            let (kinds, unmet) = chosen(&[(group, resource)]);
            assert!(kinds.is_empty());
            assert!(unmet[0].0 == resource && unmet[0].1.contains(word), "{unmet:?}");
        }
        assert!(chosen(&[("*", "*")]).1.is_empty());
    }
}
