//! Another `spec.operator` than before: only while no callers run.

use portolan_crds::{ConditionReason, ShardName, ShardingConfigSpec};

use super::{Given, Refusal};
use crate::compile::Accepted;
use crate::compile::callers::running;

/// Whether a shard may become one of another operator. Under the other name it has nothing before all is released that it has: whoever
/// runs would lose everything meanwhile.
pub(super) fn judge(
    given: Given<'_>,
    name: &ShardName,
    accepted: &Accepted,
    spec: &ShardingConfigSpec,
) -> Result<(), Refusal> {
    let ledger = &given.before.ledger;
    let (before, after) = (ledger.operator(name, &accepted.spec), ledger.operator(name, spec));
    let Some(caller) = (before != after)
        .then(|| running(given.facts, name, accepted))
        .flatten()
    else {
        return Ok(());
    };
    Err(Refusal {
        reason: ConditionReason::Invalid,
        message: format!(
            "spec.operator: it is {}, and changing it to {} while callers run ({caller}) would take from them all that they work \
             on, until it is released under the one name and claimed under the other: scale the operator to 0 first, and set \
             spec.accept of the MemberCluster to false where one is lost with its callers",
            said(accepted.spec.operator.as_deref()),
            said(spec.operator.as_deref()),
        ),
    })
}

/// As messages have it.
pub(super) fn said(operator: Option<&str>) -> String {
    operator.map_or_else(|| "absent".to_owned(), |operator| format!("{operator:?}"))
}
