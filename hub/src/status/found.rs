//! What a look at the world says of one condition. Used by every part of a status.

use portolan_crds::{ConditionReason, ConditionType};

/// Which condition; whether it holds, why, and why for people.
pub(super) type Found = (ConditionType, (Option<bool>, ConditionReason, String));

/// Message of conditions about a spec that there is not.
pub(super) const NOTHING_IN_FORCE: &str = "no spec is in force, see Accepted";
