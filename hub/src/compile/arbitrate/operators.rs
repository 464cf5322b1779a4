//! Of one hub namespace there are so many operators at most.
//!
//! What is in force stays, however many they are; a new spec is refused if with it the namespace would have more than that.

use std::collections::{BTreeMap, HashMap};

use portolan_crds::{ConditionReason, OPERATORS_MAX, ShardName, ShardingConfigSpec};

use super::Refusal;
use super::draft::Draft;
use super::rename::said;

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
