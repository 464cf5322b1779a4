//! Conditions WebhookServed, RulesServed and OperatorSeparate: which parts of an object this version, or its ledger, does not serve. Pure; called by
//! `shard`, `root` and `policies`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use portolan_crds::{ConditionReason, ConditionType, Contention, Finding, Problem, ResourceGroup, ShardingConfigSpec};

use crate::compile::{Accepted, World, lacks_kinds, some_of};
use crate::facts::ShardObject;

/// Condition WebhookServed of a ShardingConfig. `None`: the spec in force has no `webhook`.
pub(super) fn webhook_served(spec: Option<&ShardingConfigSpec>) -> Option<Finding> {
    spec?.webhook.as_ref()?;
    let message = "spec.webhook: this version does not serve webhooks by shard: API servers go on reaching the operator's \
                   webhook server directly, whichever shard an object is in; all else of the spec is in force";
    Some(Finding::fails(
        ConditionType::WebhookServed,
        ConditionReason::NotImplemented,
        message,
    ))
}

/// Condition ClusterScopedServed of a ShardingConfig. `None`: the spec in force names no kinds. `callers`: how many there are.
pub(super) fn cluster_scoped_served(accepted: &Accepted, contention: Contention, callers: i64) -> Option<Finding> {
    const TYPE: ConditionType = ConditionType::ClusterScopedServed;
    let rules = accepted.spec.single_kinds().iter();
    let kinds: Vec<_> = rules
        .flat_map(ResourceGroup::kinds)
        .map(|kind| kind.to_string())
        .collect();
    if kinds.is_empty() {
        return None;
    }
    let kinds = some_of(&kinds, ", ");
    Some(if contention.is_fleet() {
        let message = format!(
            "{kinds} are seen by all shards: the ledger does not tell operators apart, see portolanctl shards separate"
        );
        Finding::fails(TYPE, ConditionReason::NotArbitrated, message)
    } else if lacks_kinds(accepted) {
        let message = format!("waiting for {kinds}: seen here once every router has let go of them elsewhere");
        Finding::fails(TYPE, ConditionReason::HandoverPending, message)
    } else if callers == 0 {
        let message = format!("nobody works on {kinds}: this shard alone of its operator sees them, and has no caller");
        Finding::fails(TYPE, ConditionReason::NoCallers, message)
    } else {
        Finding::holds(TYPE, format!("this shard alone of its operator sees {kinds}"))
    })
}

/// Condition RulesServed of a CircuitBreaker. `None`: all rules of the spec are served.
pub(super) fn rules_served(problems: &[Problem]) -> Option<Finding> {
    let unserved: Vec<_> = problems.iter().filter(|problem| !problem.refuses()).collect();
    if unserved.is_empty() {
        return None;
    }
    Some(Finding::fails(
        ConditionType::RulesServed,
        ConditionReason::NotImplemented,
        some_of(&unserved, "; "),
    ))
}

/// Condition OperatorSeparate of a ShardingConfig. `None`: it contends with those of its operator alone, or names none.
pub(super) fn separate(world: &World, object: &ShardObject) -> Option<Finding> {
    let is_named = object.spec.as_ref().is_ok_and(|spec| spec.operator.is_some());
    let waits = is_named && world.state.ledger.contention().is_fleet();
    let message = "spec.operator waits: the hub's ledger is one of before there were operators, in which each namespace has one owner, \
                   whatever they are, until somebody runs portolanctl shards separate";
    waits.then(|| Finding::fails(ConditionType::OperatorSeparate, ConditionReason::NotSeparated, message))
}

/// Takes a condition away that says nothing of the present spec.
pub(super) fn clear(conditions: &mut Vec<Condition>, type_: ConditionType) {
    let type_ = type_.to_string();
    conditions.retain(|condition| condition.type_ != type_);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    #[test]
    fn the_kinds_of_one_shard_are_served_by_somebody() {
        let kinds = json!([{"apiGroups": ["shop.example"], "resources": ["fleets"]}]);
        let spec = json!({"clusterScoped": {"resources": kinds}});
        let nothing = json!([{"key": "nothing", "operator": "Exists"}, {"key": "nothing", "operator": "DoesNotExist"}]);
        let mut accepted = Accepted {
            spec: Arc::new(serde_json::from_value(spec).unwrap()),
            ..Accepted::default()
        };
        let said = |accepted: &Accepted, contention, callers| {
            let found = cluster_scoped_served(accepted, contention, callers).unwrap();
            assert!(found.message.contains("fleets.shop.example"), "{}", found.message);
            (found.status == Some(true), found.reason)
        };
        assert_eq!(said(&accepted, Contention::Operator, 1), (true, ConditionReason::Ok));
        assert_eq!(
            said(&accepted, Contention::Operator, 0),
            (false, ConditionReason::NoCallers)
        );
        assert_eq!(
            said(&accepted, Contention::Fleet, 1),
            (false, ConditionReason::NotArbitrated)
        );
        let limit = json!({"relateResources": kinds, "selector": {"matchExpressions": nothing}});
        accepted.withheld = vec![serde_json::from_value(limit).unwrap()];
        assert_eq!(
            said(&accepted, Contention::Operator, 1),
            (false, ConditionReason::HandoverPending)
        );
        assert_eq!(
            cluster_scoped_served(&Accepted::default(), Contention::Operator, 1),
            None
        );
    }
}
