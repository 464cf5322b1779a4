//! Condition Divided of CircuitBreakers: whether all of the limits that routers have together goes where it is asked for. Pure;
//! called by `policies`.

use portolan_crds::{ConditionReason, ConditionType, Finding};

use crate::compile::{SharedLimit, World, some_of};
use crate::facts::PolicyName;
use crate::shares::{Why, Withheld};

const TYPE: ConditionType = ConditionType::Divided;
/// Millionths of a bucket in a percent of it.
const PERCENT: u32 = 10_000;

/// `None`: it has no such limit in force.
pub(super) fn divided(world: &World, name: &PolicyName, withheld: &[Withheld]) -> Option<Finding> {
    let first = SharedLimit {
        policy: name.clone(),
        uid: String::new(),
        rule: String::new(),
    };
    let (limit, _) = world.shared_limits.range(first..).next()?;
    if limit.policy != *name {
        return None;
    }
    if withheld.is_empty() {
        return Some(Finding::holds(
            TYPE,
            "each router has its share of what routers have together",
        ));
    }
    let kept: Vec<_> = withheld.iter().map(kept).collect();
    let message = format!("so much less passes: {}", some_of(&kept, "; "));
    Some(Finding::fails(TYPE, ConditionReason::SharesWithheld, message))
}

fn kept(withheld: &Withheld) -> String {
    let Withheld { rule, router, why, .. } = withheld;
    let percent = withheld.share.div_ceil(PERCENT);
    match why {
        Why::NotHeard => format!(
            "rule {rule:?}: router {router} has not been heard since the hub began and may have up to {percent} %; if it is \
             gone: portolanctl router forget {router}"
        ),
        Why::Away => format!(
            "rule {rule:?}: router {router} is cut off and keeps {percent} %; if it is gone: portolanctl router forget {router}"
        ),
        Why::Unconfirmed => format!(
            "rule {rule:?}: router {router} does not say that it has let go of {percent} %: see its log, or whether it is to \
             be trusted"
        ),
    }
}
