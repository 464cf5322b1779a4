//! Condition OneLeader: whether a shard's callers, of all clusters, elect one leader (`docs/semantics.md#leader-election`).
//! Pure; called by `shard`.

use std::collections::BTreeSet;

use jiff::Timestamp;
use portolan_crds::{ConditionReason, ConditionType, Finding, ShardName};

use super::Routers;
use super::finding::nothing_in_force;
use crate::compile::{Accepted, some_of};
use crate::facts::Facts;

const TYPE: ConditionType = ConditionType::OneLeader;
/// How long a renewal counts, in seconds: leases are for less.
const RENEWED_SECONDS: i64 = 120;

pub(super) fn one_leader(
    facts: &Facts,
    name: &ShardName,
    accepted: Option<&Accepted>,
    routers: &Routers,
    now: Timestamp,
) -> Finding {
    let Some(accepted) = accepted else {
        return nothing_in_force(TYPE);
    };
    let Some(lease) = accepted.spec.leader_election_name() else {
        let message = "spec.controller names no Lease: every caller works, or elects in its own cluster";
        return Finding::holds(TYPE, message);
    };
    let namespace = name.namespace();
    if let Some(primary) = accepted.spec.primary_cluster() {
        let reported = facts.agents.get(primary).and_then(|agent| agent.namespaces.as_ref());
        let Some(namespaces) = reported else {
            let message = format!("the inventory of {primary}, the primary cluster, has not been reported yet");
            return Finding::unknown(TYPE, ConditionReason::WaitingForAgent, message);
        };
        if !namespaces.contains_key(namespace) {
            let message = format!(
                "namespace {namespace}, in which Lease {lease} is kept, does not exist in {primary}, the primary cluster: \
                 create it there, else nobody can lead"
            );
            return Finding::fails(TYPE, ConditionReason::NamespaceMissing, message);
        }
    }
    let others = renewed(name, routers, now);
    if others.is_empty() {
        return Finding::holds(TYPE, format!("callers elect their leader by Lease {namespace}/{lease}"));
    }
    let message = format!(
        "callers renew Lease {} of namespace {namespace}, and are to elect their leader by {lease}: let the operator use \
         that name, or correct spec.controller.leaderElectionName",
        some_of(&others, ", ")
    );
    Finding::fails(TYPE, ConditionReason::OtherLease, message)
}

/// Leases that callers of the shard have renewed of late beside the election's.
fn renewed<'a>(name: &ShardName, routers: &'a Routers, now: Timestamp) -> BTreeSet<&'a str> {
    let connected = routers.values().filter(|router| router.left.is_none());
    let told = connected.flat_map(|router| &router.reported.other_leases);
    let late = told.filter(|((shard, _), at)| shard == name && now.as_second() - **at <= RENEWED_SECONDS);
    late.map(|((_, lease), _)| lease.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use portolan_crds::ShardingConfigSpec;
    use serde_json::json;

    use super::*;
    use crate::acks::{Reported, RouterState};
    use crate::facts::{AgentReport, Namespace};

    fn found(namespaces: Option<&[&str]>, lease: Option<(&str, i64)>) -> (Option<bool>, ConditionReason) {
        let spec: ShardingConfigSpec = serde_json::from_value(json!({
            "selector": {}, "callerClusters": ["east", "west"], "primaryCluster": "east",
            "controller": {"leaderElectionName": "op"},
        }))
        .unwrap();
        let accepted = Accepted {
            uid: String::new(),
            generation: 1,
            spec: Arc::new(spec),
            ..Accepted::default()
        };
        let named = |names: &[&str]| {
            let all = names.iter().map(|name| ((*name).to_owned(), Namespace::default()));
            all.collect::<BTreeMap<_, _>>()
        };
        let agent = AgentReport {
            namespaces: namespaces.map(named).into(),
            ..AgentReport::default()
        };
        let facts = Facts {
            agents: [("east".to_owned(), agent)].into(),
            ..Facts::default()
        };
        let shard = ShardName::new("ops", "blue").unwrap();
        let other_leases = lease.map(|(shard, at)| ((shard.parse().unwrap(), "other".to_owned()), at));
        let router = RouterState {
            reported: Reported {
                other_leases: other_leases.into_iter().collect(),
                ..Reported::default()
            }
            .into(),
            ..RouterState::new(1, BTreeMap::new())
        };
        let routers = Routers::from([("r".to_owned(), router)]);
        let now = Timestamp::from_second(1_000).unwrap();
        let finding = one_leader(&facts, &shard, Some(&accepted), &routers, now);
        (finding.status, finding.reason)
    }

    #[test]
    fn the_callers_namespace_is_needed_in_the_primary() {
        assert_eq!(found(None, None), (None, ConditionReason::WaitingForAgent));
        assert_eq!(
            found(Some(&["a"]), None),
            (Some(false), ConditionReason::NamespaceMissing)
        );
        assert_eq!(found(Some(&["a", "ops"]), None), (Some(true), ConditionReason::Ok));
    }

    #[test]
    fn a_lease_of_another_name_is_told_while_it_is_renewed() {
        let with = |shard: &str, at: i64| found(Some(&["ops"]), Some((shard, at)));
        assert_eq!(with("ops/blue", 900), (Some(false), ConditionReason::OtherLease));
        assert_eq!(with("ops/blue", 800), (Some(true), ConditionReason::Ok));
        assert_eq!(with("ops/green", 900), (Some(true), ConditionReason::Ok));
    }
}
