//! Conditions WebhookServed and RulesServed: which parts of an accepted object this version does not serve. Pure; called by
//! `shard`, `root` and `policies`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use portolan_crds::{ConditionReason, ConditionType, Finding, Problem, ShardingConfigSpec};

use crate::compile::some_of;

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

/// Takes a condition away that says nothing of the present spec.
pub(super) fn clear(conditions: &mut Vec<Condition>, type_: ConditionType) {
    let type_ = type_.to_string();
    conditions.retain(|condition| condition.type_ != type_);
}
