//! What a look at the world says of conditions, and how that becomes `status.conditions`. Used by every part of a status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use portolan_crds::{ConditionReason, ConditionType, Finding, set_condition};

/// What is said of shards without clusters.
pub(super) const NOT_ARBITRATED: &str = "spec.clusters is absent, so limits alone say what the shard has: whether another shard has some of it too is not looked \
     into, and nothing is handed over when limits change; name clusters to have it judged";

/// What is said of those whose limits are held against each other.
pub(super) const BY_LIMITS: &str = "no other shard of its operator has anything of what its limits say; a write that arrives late, after a change of \
     limits, is not fenced off";

/// The finding for a condition about the spec in force, where there is none.
pub(super) fn nothing_in_force(type_: ConditionType) -> Finding {
    let message = "no spec is in force, see Accepted";
    Finding::unknown(type_, ConditionReason::Invalid, message)
}

/// Sets what was found of an object's `generation`.
pub(super) fn set(
    conditions: &mut Vec<Condition>,
    findings: impl IntoIterator<Item = Finding>,
    generation: i64,
    now: Timestamp,
) {
    for finding in findings {
        set_condition(conditions, finding, generation, &whole_seconds(now));
    }
}

/// The API server keeps whole seconds; anything finer would look like a change when it comes back.
pub(super) fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}
