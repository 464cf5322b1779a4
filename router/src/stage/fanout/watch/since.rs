//! From which view of the shard a watch goes on: a cursor of an older one begins as a watch of then, which is told of the
//! view of now before its first event, as a running one is.

use std::sync::Arc;

use portolan_merge::cursor::View;
use portolan_merge::query::CollectionQuery;

use crate::decision::plan::{FanOut, Plan, Replan, Rule, plan_as_of};
use crate::stage::fanout::Fan;
use crate::value::fault::Fault;

/// Why a cursor of an older view cannot be gone on with.
pub(super) const UNKNOWN: &str = "too old resource version: what was the shard's then, or became of it, cannot be told";

/// What a watch begins as.
pub(super) struct Since {
    /// As of the client's position.
    pub(super) plan: Arc<FanOut>,
    /// As of now, if that is another view.
    pub(super) now: Option<Arc<FanOut>>,
    /// In the client's view there was nothing to ask for: all that is there has come since.
    pub(super) nothing: bool,
}

/// `None`: what was whose in the client's view is not known, or what became of it cannot be told.
pub(super) fn since(fan: &Fan, query: &CollectionQuery) -> Option<Since> {
    let now = fan.plan.clone();
    let Some(View::Older(revision)) = query.view(&now.universe) else {
        return Some(Since {
            plan: Arc::new(now),
            now: None,
            nothing: false,
        });
    };
    let (asking, routing) = (&fan.asking, &fan.routing);
    let then = plan_as_of(
        &asking.caller,
        &asking.asked,
        &routing.snapshot,
        &routing.kinds,
        revision,
    )?;
    match then.plan {
        Plan::FanOut(mut before) if before.left.is_none() && before.unowned.is_none() => {
            // What is another member's now cannot be told of one that need not be there to be asked.
            let asked = |cluster| now.clusters().any(|other| other == cluster);
            if !before.clusters().all(asked) {
                return None;
            }
            before.universe = Arc::new(now.universe.at(revision));
            match now.after(&before) {
                Replan::Changed(now) | Replan::Renewed(now) => Some(Since {
                    plan: Arc::new(*before),
                    now: Some(Arc::new(now)),
                    nothing: false,
                }),
                Replan::Same | Replan::Anew | Replan::Withdrawn => None,
            }
        }
        Plan::FanOut(_) | Plan::Refuse(_) if is_of_nothing(then.rule) => Some(Since {
            plan: Arc::new(now),
            now: None,
            nothing: true,
        }),
        // A refusal for another reason, a cordon of today, says nothing of what the client was told.
        _ => None,
    }
}

/// Whether a plan by this rule asked for nothing that is the shard's.
fn is_of_nothing(rule: Rule) -> bool {
    matches!(rule, Rule::HandedOver | Rule::OutsideRefused | Rule::UnownedNamespace)
}

/// Who stands behind the moment when a namespace left the shard has been told that nothing is in it.
pub(in crate::stage::fanout) fn refuse_left(plan: &FanOut, query: &CollectionQuery) -> Result<(), Fault> {
    let Some(left) = &plan.left else { return Ok(()) };
    let told = match query.view(&plan.universe) {
        Some(View::Same) => true,
        Some(View::Older(revision)) => revision >= left.revision,
        Some(View::Newer(_)) | None => false,
    };
    if told {
        return Err(Fault::Forbidden(left.message.clone()));
    }
    Ok(())
}
