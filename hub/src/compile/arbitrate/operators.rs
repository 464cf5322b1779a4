//! Which `spec.operator` a new spec may have: another one than before only while no callers run, and of one hub namespace so many at most.
//!
//! What is in force stays, however many it are; a new spec is refused if with it the namespace would have more operators than that.

use std::collections::{BTreeMap, HashMap};

use portolan_crds::{ConditionReason, OPERATORS_MAX, ShardName, ShardingConfigSpec};

use super::draft::Draft;
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

fn said(operator: Option<&str>) -> String {
    operator.map_or_else(|| "absent".to_owned(), |operator| format!("{operator:?}"))
}

/// How many shards of one hub namespace have each operator; absent is one, too.
#[derive(Debug, Default)]
struct Names(BTreeMap<Option<String>, usize>);

impl Names {
    fn add(&mut self, spec: &ShardingConfigSpec) {
        *self.0.entry(spec.operator.clone()).or_default() += 1;
    }

    /// How many operators there are once a shard has `after`. `before`: the spec in its place that goes then.
    fn with(&self, before: Option<&ShardingConfigSpec>, after: &ShardingConfigSpec) -> usize {
        if self.0.contains_key(&after.operator) {
            return self.0.len();
        }
        let is_last = before.is_some_and(|before| self.0.get(&before.operator) == Some(&1));
        self.0.len() + usize::from(!is_last)
    }
}

/// Refuses what would be one operator too many of its hub namespace, oldest first. Children have what their root has.
pub(super) fn count(drafts: &mut [Draft<'_>]) {
    let mut namespaces = HashMap::<&str, Names>::new();
    let is_grown = |draft: &&mut Draft<'_>| draft.kin.root().is_none();
    for draft in drafts.iter_mut().filter(is_grown) {
        if let Some((accepted, _)) = &draft.accepted {
            namespaces
                .entry(draft.name.namespace())
                .or_default()
                .add(&accepted.spec);
        }
    }
    for draft in drafts.iter_mut().filter(is_grown).filter(|draft| !draft.settled) {
        let Ok((spec, _)) = &draft.present else { continue };
        let names = namespaces.entry(draft.name.namespace()).or_default();
        let before = draft.accepted.as_ref().map(|(accepted, _)| &*accepted.spec);
        if before.is_some_and(|before| before.operator == spec.operator) {
            continue;
        }
        let count = names.with(before, spec);
        // Who has a name that is there is let in, also where there are too many since a time before they were counted.
        if count > OPERATORS_MAX && !names.0.contains_key(&spec.operator) {
            draft.present = Err(too_many(draft.name, spec, count));
        } else {
            // If it is refused for something else, what is in force goes on counting.
            names.add(spec);
        }
    }
}

fn too_many(name: &ShardName, spec: &ShardingConfigSpec, count: usize) -> Refusal {
    Refusal {
        reason: ConditionReason::TooMuch,
        message: format!(
            "spec.operator: with {} the ShardingConfigs of namespace {:?} would be of {count} operators, and {OPERATORS_MAX} are \
             the most, where absent counts as one: name one that is there, delete what is not needed, or put it into another \
             namespace",
            said(spec.operator.as_deref()),
            name.namespace(),
        ),
    }
}
