//! Conditions WebhookServed, RulesServed and OperatorSeparate: which parts of an object this version, or its ledger, does not serve. Pure; called by
//! `shard`, `root` and `policies`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use portolan_crds::{ConditionReason, ConditionType, Finding, Problem, ShardingConfigSpec};

use crate::compile::{World, some_of};
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
