//! Whose child a shard is, and what it generates, as far as that is known before anybody is asked.

use std::sync::Arc;

use portolan_crds::partition::Child;
use portolan_crds::validate::summary;
use portolan_crds::{ConditionReason, ShardName, ShardingConfigSpec, accepted_reason};

use super::{Refusal, some_of};
use crate::compile::Accepted;
use crate::compile::roots::{Generated, Generator};
use crate::facts::ShardObject;

/// Whose child a shard is, and what it generates.
#[derive(Debug, Default)]
pub(super) struct Kin<'a> {
    /// The root of a child.
    pub(super) root: Option<&'a ShardName>,
    /// What the accepted spec of a root generates, as far as it is known.
    pub(super) in_force: Option<Arc<Generated>>,
    /// Why that is not what it says by now.
    pub(super) problem: Option<String>,
    /// What the present spec generates.
    pub(super) present: Option<Arc<Generated>>,
    /// Children of the present spec that are not there yet, while something else is in force.
    missing: Vec<String>,
}

impl<'a> Kin<'a> {
    pub(super) fn new(
        generator: &Generator<'_>,
        (name, object): (&ShardName, &ShardObject),
        accepted: Option<&Accepted>,
        root: Option<&'a ShardName>,
    ) -> Self {
        let mut kin = Self {
            root,
            ..Self::default()
        };
        let Some(accepted) = accepted.filter(|accepted| accepted.spec.active_root().is_some()) else {
            return kin;
        };
        match generator.generate(name, object, &accepted.spec) {
            Ok(generated) => kin.in_force = Some(generated),
            Err(problems) => {
                kin.in_force = generator.last(name, &object.uid).cloned();
                kin.problem = Some(summary(&problems));
            }
        }
        if accepted.generation >= object.generation {
            kin.present.clone_from(&kin.in_force);
        }
        kin
    }

    /// What a new spec of the root generates.
    pub(super) fn generate(
        &mut self,
        generator: &Generator<'_>,
        (name, object): (&ShardName, &ShardObject),
        spec: &Arc<ShardingConfigSpec>,
    ) -> Result<(), Refusal> {
        let generated = generator.generate(name, object, spec).map_err(|problems| Refusal {
            reason: accepted_reason(&problems),
            message: some_of(&problems, "; "),
        })?;
        let accepted = generator.before.accepted.get(name);
        if accepted.is_some_and(|accepted| accepted.uid == object.uid) {
            let is_there = |child: &&Child| {
                let child = ShardName::new(name.namespace(), child.name.as_str()).ok();
                let child = child.and_then(|child| generator.facts.shards.get(&child));
                child.is_some_and(|child| !child.deleting && child.root.as_ref() == Some(&object.uid))
            };
            let children = generated.expansion.children.iter();
            let missing = children.filter(|child| !is_there(child));
            self.missing = missing.map(|child| child.name.clone()).collect();
        }
        self.present = Some(generated);
        Ok(())
    }

    /// The root of a child.
    pub(super) fn root(&self) -> Option<&'a ShardName> {
        self.root
    }

    pub(super) fn is_pending(&self) -> bool {
        !self.missing.is_empty()
    }

    /// Why the root's present spec is not in force yet, although it could be.
    pub(super) fn pending(&self) -> Option<Refusal> {
        self.is_pending().then(|| Refusal {
            reason: ConditionReason::Progressing,
            message: format!(
                "spec.root: comes into force once all of its children are there; ShardingConfig {} {} being made",
                some_of(&self.missing, ", "),
                if self.missing.len() == 1 { "is" } else { "are" },
            ),
        })
    }

    /// Whether a new spec of a child is one that its root, which this is, generates: nobody else edits children.
    pub(super) fn check_child(
        &self,
        root: &ShardName,
        name: &ShardName,
        spec: &ShardingConfigSpec,
    ) -> Result<(), Refusal> {
        let generated = self.in_force.iter().chain(&self.present);
        let mut children = generated.filter_map(|generated| generated.child(name.name()));
        if children.any(|child| child.spec == *spec) {
            return Ok(());
        }
        Err(Refusal {
            reason: ConditionReason::Invalid,
            message: format!("spec: is not what root {root} generates, and is taken back: edit the root"),
        })
    }

    /// Why a child has nothing.
    pub(super) fn discard(&self) -> Refusal {
        let root = self.root.map(ToString::to_string).unwrap_or_default();
        Refusal {
            reason: ConditionReason::Disabled,
            message: format!("metadata.ownerReferences: root {root} does not have this child"),
        }
    }
}
