//! Whether the callers of a shard that ask by label to be pointed at a gateway are: condition CallersInjected, which is there only while
//! one is not. New Pods of that kind are refused by their member; those that were there before are not. Pure; called by `shard`.

use portolan_crds::labels::LABEL_ENABLE_PROXY;
use portolan_crds::{ConditionReason, ConditionType, Finding, ShardName};
use portolan_wire::v1::CallerFact;

use crate::compile::{Accepted, is_caller, runs_in, some_of};
use crate::facts::{AgentReport, Facts};

pub(super) fn callers_injected(facts: &Facts, name: &ShardName, accepted: Option<&Accepted>) -> Option<Finding> {
    let accepted = accepted?;
    let homes = facts.agents.iter().filter(|(home, _)| runs_in(accepted, home));
    let pods = homes.flat_map(|(home, agent)| {
        let callers = agent.callers.iter().flat_map(|callers| callers.values());
        let unheard = callers.filter(|pod| pod.pointed == Some(false) && asks(agent, pod));
        unheard
            .filter(|pod| is_caller(name, accepted, pod))
            .map(move |pod| format!("{}/{} in {home}", pod.namespace, pod.pod))
    });
    let pods: Vec<_> = pods.collect();
    (!pods.is_empty()).then(|| {
        let message = format!(
            "by label {LABEL_ENABLE_PROXY} these Pods ask to be pointed at a gateway, and are not: they go past it to their API server, \
             with all that it lets them; create them anew: {}",
            some_of(&pods, ", ")
        );
        Finding::fails(ConditionType::CallersInjected, ConditionReason::NotInjected, message)
    })
}

/// Whether all Pods are known that may be callers of the shard.
pub(super) fn is_known(facts: &Facts, name: &ShardName, accepted: Option<&Accepted>) -> bool {
    let mut homes = facts.members.keys();
    let is_known = |home: &String| facts.knows_callers(home, name.namespace());
    accepted.is_none_or(|accepted| homes.all(|home| !runs_in(accepted, home) || is_known(home)))
}

/// Whether a Pod asks for a gateway, by its own label, or by its namespace's where it has none.
fn asks(agent: &AgentReport, pod: &CallerFact) -> bool {
    let of_namespace = || {
        let namespace = agent.namespaces.as_ref()?.get(&pod.namespace)?;
        namespace.labels.get(LABEL_ENABLE_PROXY)
    };
    pod.labels
        .get(LABEL_ENABLE_PROXY)
        .or_else(of_namespace)
        .is_some_and(|asks| asks == "true")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_crds::ShardingConfigSpec;
    use serde_json::json;

    use super::*;
    use crate::facts::Namespace;

    fn pod(name: &str, label: Option<&str>, pointed: Option<bool>) -> (String, CallerFact) {
        let mut labels = [("app".to_owned(), "op".to_owned())].to_vec();
        labels.extend(label.map(|value| (LABEL_ENABLE_PROXY.to_owned(), value.to_owned())));
        let fact = CallerFact {
            namespace: "ops".to_owned(),
            pod: name.to_owned(),
            phase: "Running".to_owned(),
            labels: labels.into_iter().collect(),
            pointed,
            ..CallerFact::default()
        };
        (name.to_owned(), fact)
    }

    /// What is said of these Pods of east, in a namespace that asks or does not.
    fn said(pods: &[(String, CallerFact)], namespace_asks: bool) -> Option<String> {
        let name = ShardName::new("ops", "s").unwrap();
        let mut namespace = Namespace::default();
        if namespace_asks {
            namespace
                .labels
                .insert(LABEL_ENABLE_PROXY.to_owned(), "true".to_owned());
        }
        let agent = AgentReport {
            callers: Some(pods.iter().cloned().collect()),
            namespaces: Some([("ops".to_owned(), namespace)].into()).into(),
            ..AgentReport::default()
        };
        let mut facts = Facts::default();
        facts.agents.insert("east".to_owned(), agent.clone());
        facts.agents.insert("west".to_owned(), agent);
        let spec = json!({"selector": {"matchLabels": {"app": "op"}}, "callerClusters": ["east"], "clusters": [{"name": "east"}]});
        let accepted = Accepted {
            spec: Arc::new(serde_json::from_value::<ShardingConfigSpec>(spec).unwrap()),
            ..Accepted::default()
        };
        callers_injected(&facts, &name, Some(&accepted)).map(|finding| finding.message)
    }

    #[test]
    fn who_asks_and_is_not_pointed_at_a_gateway_is_named() {
        let pods = [
            pod("late", Some("true"), Some(false)),
            pod("declines", Some("false"), Some(false)),
            pod("silent", None, Some(false)),
            pod("served", Some("true"), Some(true)),
            pod("of-an-older-agent", Some("true"), None),
        ];
        let named = |namespace_asks| said(&pods, namespace_asks).unwrap();
        assert!(named(false).ends_with(": ops/late in east"), "{}", named(false));
        assert!(
            named(true).ends_with(": ops/late in east, ops/silent in east"),
            "{}",
            named(true)
        );
        assert_eq!(said(&pods[3..], true), None);
    }
}
