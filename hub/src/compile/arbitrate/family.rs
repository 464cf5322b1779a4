//! Roots and children in arbitration.
//!
//! A root is accepted or refused for all of its children: in force, it reserves what they are to have, and they are not refused
//! for what others have. A child is in force as long as its root in force generates it, and by the spec that it generates.
//! A new spec of a root that has something in force waits until the objects of all its children are there: only then does
//! everything change at once.

use std::collections::{BTreeMap, BTreeSet};

use portolan_crds::ShardName;

use super::draft::Draft;
use super::{Outcome, Refused};
use crate::compile::roots::{Children, Generated};

/// What a root in force generates.
enum Brood<'a> {
    Nothing,
    /// It is not known; what is there stays.
    Unknown,
    Known(&'a Generated),
}

/// What a root generates, if its present spec was refused or not.
fn brood<'a>(draft: &'a Draft<'_>, refused: bool) -> Brood<'a> {
    let Some(spec) = draft.in_force(refused) else {
        return Brood::Unknown;
    };
    if spec.active_root().is_none() {
        return Brood::Nothing;
    }
    let is_present = draft.present.is_ok() && !refused && !draft.kin.is_pending();
    let generated = if is_present {
        &draft.kin.present
    } else {
        &draft.kin.in_force
    };
    generated.as_deref().map_or(Brood::Unknown, Brood::Known)
}

/// The children that no root in force generates.
pub(super) fn discarded<'a>(drafts: &[Draft<'a>], refused: &Refused) -> BTreeSet<&'a ShardName> {
    let by_name: BTreeMap<_, _> = drafts.iter().map(|draft| (draft.name, draft)).collect();
    let children = drafts.iter().filter_map(|draft| Some((draft.name, draft.kin.root?)));
    let discarded = children.filter(|(name, root)| {
        // A root that is being deleted has no draft.
        let Some(root) = by_name.get(root) else { return true };
        match brood(root, refused.contains_key(root.name)) {
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
        let in_force = match brood(draft, refused) {
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
