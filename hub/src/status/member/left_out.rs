//! What of a member is not told, or not labelled, although shards ask for it: too much of one author, or of one object. Those who own
//! it are told by their ShardingConfigs; here whoever looks after the member sees all of it. Pure.

use portolan_crds::{ConditionReason, ConditionType, Finding};

use crate::compile::{AgentOrders, some_of};
use crate::facts::AgentReport;

const TYPE: ConditionType = ConditionType::NothingLeftOut;

/// The finding, of what the agent was asked and of what it said.
pub(super) fn left_out(agent: Option<&AgentReport>, orders: Option<&AgentOrders>) -> Finding {
    let Some(agent) = agent else {
        let message = "the agent has told nothing since the hub started";
        return Finding::unknown(TYPE, ConditionReason::WaitingForAgent, message);
    };
    let parts = [
        orders.map(not_asked).unwrap_or_default(),
        without_labels("Namespaces", &namespaces(agent)),
        without_labels("Pods", &pods(agent)),
        not_told(agent),
    ];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    if parts.is_empty() {
        return Finding::holds(TYPE, "the agent tells and labels all that shards ask for");
    }
    Finding::fails(TYPE, ConditionReason::TooMuch, parts.join("; "))
}

/// By namespace of the hub, what its ShardingConfigs ask for beyond what one namespace may.
fn not_asked(orders: &AgentOrders) -> String {
    let authors = orders.left_out().by_author();
    let each = authors
        .iter()
        .map(|(author, (kinds, selectors))| match (kinds, selectors) {
            (kinds, 0) => format!("{kinds} kinds of limits of namespace {author} are not labelled"),
            (0, selectors) => format!("{selectors} selectors of callers of namespace {author} are not looked for"),
            (kinds, selectors) => {
                format!("{kinds} kinds of limits and {selectors} selectors of callers of namespace {author}")
            }
        });
    listed(
        "more is asked for than is done for one namespace of the hub",
        each.collect(),
    )
}

fn namespaces(agent: &AgentReport) -> Vec<String> {
    let namespaces = agent.namespaces.iter().flatten();
    let fat = namespaces.filter(|(_, namespace)| namespace.labels_cut > 0);
    fat.map(|(name, namespace)| format!("{name} ({} bytes)", namespace.labels_cut))
        .collect()
}

fn pods(agent: &AgentReport) -> Vec<String> {
    let callers = agent.callers.iter().flat_map(|callers| callers.values());
    let fat = callers.filter(|caller| caller.labels_cut > 0);
    fat.map(|caller| format!("{}/{} ({} bytes)", caller.namespace, caller.pod, caller.labels_cut))
        .collect()
}

fn without_labels(what: &str, names: &[String]) -> String {
    listed(
        &format!("too many labels to be told, so that no selector matches these {what}"),
        names.to_vec(),
    )
}

/// Selectors of callers of which not all Pods are told.
fn not_told(agent: &AgentReport) -> String {
    let each = agent.excess.iter().map(|excess| {
        if excess.fault.is_empty() {
            format!(
                "{} of {} in namespace {}",
                excess.told, excess.matched, excess.namespace
            )
        } else {
            format!(
                "those in namespace {}, which cannot be listed: {}",
                excess.namespace, excess.fault
            )
        }
    });
    listed("of some selectors not all Pods are told", each.collect())
}

fn listed(what: &str, names: Vec<String>) -> String {
    if names.is_empty() {
        return String::new();
    }
    format!("{what}: {}", some_of(names, ", "))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use portolan_wire::v1;

    use super::*;
    use crate::facts::Namespace;

    #[test]
    fn what_is_left_out_of_a_member_is_told_with_its_owner() {
        let mut agent = AgentReport::default();
        let unknown = left_out(None, None);
        assert_eq!(
            (unknown.status, unknown.reason),
            (None, ConditionReason::WaitingForAgent)
        );
        assert_eq!(left_out(Some(&agent), None).status, Some(true));
        let fat = Namespace {
            labels_cut: 70_000,
            ..Namespace::default()
        };
        let namespaces = BTreeMap::from([("fat".to_owned(), fat), ("thin".to_owned(), Namespace::default())]);
        agent.namespaces = Some(namespaces).into();
        let caller = |pod: &str, labels_cut| v1::CallerFact {
            namespace: "ops".to_owned(),
            pod: pod.to_owned(),
            labels_cut,
            ..v1::CallerFact::default()
        };
        let callers = [
            ("a".to_owned(), caller("heavy", 1 << 20)),
            ("b".to_owned(), caller("light", 0)),
        ];
        agent.callers = Some(callers.into());
        let excess = |namespace: &str, fault: &str| v1::ExcessSelector {
            namespace: namespace.to_owned(),
            matched: 900,
            told: 500,
            fault: fault.to_owned(),
            ..v1::ExcessSelector::default()
        };
        agent.excess = vec![excess("many", ""), excess("slow", "timed out")];
        let found = left_out(Some(&agent), None);
        assert_eq!((found.status, found.reason), (Some(false), ConditionReason::TooMuch));
        for words in [
            "Namespaces: fat (70000 bytes)",
            "Pods: ops/heavy (1048576 bytes)",
            "500 of 900 in namespace many",
            "in namespace slow, which cannot be listed: timed out",
        ] {
            assert!(found.message.contains(words), "{words}: {}", found.message);
        }
        assert!(
            !found.message.contains("thin") && !found.message.contains("light"),
            "{}",
            found.message
        );
    }
}
