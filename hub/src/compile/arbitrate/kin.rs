//! Roots and children in arbitration.
//!
//! A root is accepted or refused for all of its children: in force, it reserves what they are to have, and they are not refused
//! for what others have. A child is in force as long as its root in force generates it, and by the spec that it generates.
//! A new spec of a root that has something in force waits until the objects of all its children are there: only then does
//! everything change at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_crds::partition::Child;
use portolan_crds::validate::summary;
use portolan_crds::{ConditionReason, ShardName, ShardingConfigSpec, accepted_reason};

use super::{Draft, Outcome, Refusal, Refused, some_of};
use crate::compile::Accepted;
use crate::compile::roots::{Children, Generated, Generator};
use crate::facts::ShardObject;

/// Whose child a shard is, and what it generates.
#[derive(Debug, Default)]
pub(super) struct Kin<'a> {
    /// The root of a child.
    root: Option<&'a ShardName>,
    /// What the accepted spec of a root generates, as far as it is known.
    in_force: Option<Arc<Generated>>,
    /// Why that is not what it says by now.
    problem: Option<String>,
    /// What the present spec generates.
    present: Option<Arc<Generated>>,
    /// Children of the present spec that are not there yet, while something else is in force.
    missing: Vec<String>,
}

/// What a root in force generates.
enum Brood<'a> {
    Nothing,
    /// It is not known; what is there stays.
    Unknown,
    Known(&'a Generated),
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
        if accepted.generation == object.generation {
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

impl Draft<'_> {
    /// What it generates, if its present spec was refused or not.
    fn brood(&self, refused: bool) -> Brood<'_> {
        let Some(spec) = self.in_force(refused) else {
            return Brood::Unknown;
        };
        if spec.active_root().is_none() {
            return Brood::Nothing;
        }
        let is_present = self.present.is_ok() && !refused && !self.kin.is_pending();
        let generated = if is_present {
            &self.kin.present
        } else {
            &self.kin.in_force
        };
        generated.as_deref().map_or(Brood::Unknown, Brood::Known)
    }
}

/// The children that no root in force generates.
pub(super) fn discarded<'a>(drafts: &[Draft<'a>], refused: &Refused) -> BTreeSet<&'a ShardName> {
    let by_name: BTreeMap<_, _> = drafts.iter().map(|draft| (draft.name, draft)).collect();
    let children = drafts.iter().filter_map(|draft| Some((draft.name, draft.kin.root?)));
    let discarded = children.filter(|(name, root)| {
        // A root that is being deleted has no draft.
        let Some(root) = by_name.get(root) else { return true };
        match root.brood(refused.contains_key(root.name)) {
            Brood::Nothing => true,
            Brood::Unknown => false,
            Brood::Known(generated) => generated.child(name.name()).is_none(),
        }
    });
    discarded.map(|(name, _)| name).collect()
}

/// Adds what roots generate to the outcome. A child that is to be in force soon is kept.
pub(super) fn finish(outcome: &mut Outcome, drafts: &[Draft<'_>]) {
    for draft in drafts {
        let refused = match outcome.verdicts.get(draft.name) {
            Some(verdict) => verdict.refusal.is_some(),
            None => continue,
        };
        let is_pending = draft.kin.is_pending() && draft.present.is_ok();
        let in_force = match draft.brood(refused) {
            Brood::Nothing if !is_pending => continue,
            Brood::Unknown if !is_pending && draft.in_force(refused).is_none() => continue,
            Brood::Known(_) if !refused => draft.kin.present.clone(),
            Brood::Known(_) => draft.kin.in_force.clone(),
            Brood::Nothing | Brood::Unknown => None,
        };
        // A spec that is refused for what others have is not coming.
        let conflicts = outcome
            .verdicts
            .get(draft.name)
            .is_some_and(|verdict| !verdict.conflicts.is_empty());
        let children = Children {
            in_force,
            coming: draft
                .kin
                .present
                .clone()
                .filter(|_| is_pending && (draft.settled || !conflicts)),
            problem: draft.kin.problem.clone(),
        };
        outcome.roots.insert(draft.name.clone(), children);
    }
    let children = drafts.iter().filter_map(|draft| Some((draft.name, draft.kin.root?)));
    for (name, root) in children {
        let expected = outcome
            .roots
            .get(root)
            .is_some_and(|children| children.expect(name.name()));
        if let Some(verdict) = outcome.verdicts.get_mut(name).filter(|_| expected) {
            verdict.discarded = false;
        }
    }
}
