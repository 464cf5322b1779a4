//! What each shard asks for before anybody else was asked, and whether it may.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_crds::ledger::LockInForce;
use portolan_crds::{ConditionReason, ShardName, ShardingConfigSpec};

use super::kin::Kin;
use super::members::{check_buckets, check_count, check_members};
use super::{Given, Pair, Refusal, lease, rename};
use crate::compile::ledger::Field;
use crate::compile::locks;
use crate::compile::roots::Generator;
use crate::compile::wanted::{Known, Wanted};
use crate::compile::{Accepted, by_age};
use crate::facts::ShardObject;

/// What a shard asks for before anybody else was asked.
pub(super) struct Draft<'a> {
    pub(super) name: &'a ShardName,
    pub(super) object: &'a ShardObject,
    /// The present spec, or why not.
    pub(super) present: Result<(Arc<ShardingConfigSpec>, Arc<Wanted>), Refusal>,
    /// The leader lock under the present spec.
    pub(super) lock: LockInForce,
    /// The present spec is the accepted one: no longer up for refusal.
    pub(super) settled: bool,
    /// The accepted spec, if there is one.
    pub(super) accepted: Option<(Accepted, Arc<Wanted>)>,
    pub(super) kin: Kin<'a>,
}

impl Draft<'_> {
    /// What the shard asks for if its present spec is accepted, or if it was refused.
    pub(super) fn wants(&self, refused: bool) -> Option<&Wanted> {
        match (&self.present, &self.accepted) {
            (Ok((_, wanted)), _) if !refused && !self.kin.is_pending() => Some(wanted),
            (_, accepted) => accepted.as_ref().map(|(_, wanted)| &**wanted),
        }
    }

    /// What the shard asks for in these fields whether its present spec is accepted or not.
    pub(super) fn surely_wants(&self, is_in: impl Fn(Field<'_>) -> bool) -> impl Iterator<Item = Pair<'_>> {
        let (wanted, and) = match (self.settled, self.accepted.is_some()) {
            (true, _) => (self.wants(false), None),
            (false, true) => (self.wants(false), Some(self.wants(true))),
            (false, false) => (None, None),
        };
        let pairs = wanted
            .into_iter()
            .flat_map(move |wanted| wanted.pairs_in(&is_in).collect::<Vec<_>>());
        pairs.filter(move |pair| and.is_none_or(|and| and.is_some_and(|and| and.has(*pair))))
    }

    /// The spec in force, if the present one was refused or not.
    pub(super) fn in_force(&self, refused: bool) -> Option<&Arc<ShardingConfigSpec>> {
        match (&self.present, &self.accepted) {
            (Ok((spec, _)), _) if !refused && !self.kin.is_pending() => Some(spec),
            (_, accepted) => accepted.as_ref().map(|(accepted, _)| &accepted.spec),
        }
    }

    pub(super) fn may_be_root(&self) -> bool {
        let mut specs = [true, false].into_iter().filter_map(|refused| self.in_force(refused));
        specs.any(|spec| spec.root.is_some())
    }

    /// The shard's present spec as the one in force.
    pub(super) fn accept(&self, spec: &Arc<ShardingConfigSpec>) -> Accepted {
        let before = self.accepted.as_ref().map(|(accepted, _)| accepted.generation);
        Accepted {
            uid: self.object.uid.clone(),
            generation: before.unwrap_or_default().max(self.object.generation),
            spec: spec.clone(),
            bytes: self.object.bytes,
            lock: self.lock.clone(),
            withheld: Vec::new(),
        }
    }
}

/// The spec of an object that may be in force, as far as no other object is needed to tell.
fn flawless(object: &ShardObject) -> Result<Arc<ShardingConfigSpec>, Refusal> {
    match (&object.spec, &object.flaw) {
        (Ok(spec), None) => Ok(spec.clone()),
        (_, Some(flaw)) => Err(Refusal {
            reason: flaw.reason,
            message: flaw.message.clone(),
        }),
        (Err(message), None) => Err(Refusal {
            reason: ConditionReason::Invalid,
            message: format!("spec: {message}"),
        }),
    }
}

/// What drafts are made of.
pub(super) struct Drafting<'a> {
    pub(super) known: Known<'a>,
    pub(super) generator: Generator<'a>,
    /// The root of each child.
    pub(super) roots: BTreeMap<&'a ShardName, &'a ShardName>,
    pub(super) given: Given<'a>,
}

impl<'a> Drafting<'a> {
    /// Of all that are not being deleted, oldest first; those of roots before those of their children.
    pub(super) fn drafts(&self) -> Vec<Draft<'a>> {
        let mut drafts = Vec::<Draft<'a>>::new();
        let mut at = BTreeMap::new();
        for (name, object) in by_age(self.known.facts, &self.roots) {
            if object.deleting {
                continue;
            }
            let root = self.roots.get(name);
            let root = root.map(|root| (*root, at.get(root).map(|index: &usize| &drafts[*index])));
            let draft = self.draft(name, object, root);
            at.insert(name, drafts.len());
            drafts.push(draft);
        }
        drafts
    }

    /// `root`: the child's, with its draft unless it is being deleted.
    fn draft(
        &self,
        name: &'a ShardName,
        object: &'a ShardObject,
        root: Option<(&'a ShardName, Option<&Draft<'a>>)>,
    ) -> Draft<'a> {
        let accepted = self.generator.before.accepted.get(name);
        let accepted = accepted.filter(|accepted| accepted.uid == object.uid);
        // An object that is older than what was accepted of it is no edit: it was read from a cache that is behind.
        let settled = accepted.is_some_and(|accepted| accepted.generation >= object.generation);
        let present = match accepted.filter(|_| settled) {
            Some(accepted) => Ok(accepted.spec.clone()),
            None => flawless(object).and_then(|spec| match root {
                Some((_, Some(root))) => root.kin.check_child(root.name, name, &spec).map(|()| spec),
                _ => Ok(spec),
            }),
        };
        let mut kin = Kin::new(&self.generator, (name, object), accepted, root.map(|(root, _)| root));
        let mut lock = accepted.map_or_else(locks::new, |accepted| accepted.lock.clone());
        let present = present.and_then(|spec| {
            if settled {
                let wanted = self.known.shared_wanted(name, &spec);
                return Ok((spec, wanted));
            }
            if spec.active_root().is_some() {
                kin.generate(&self.generator, (name, object), &spec)?;
            }
            if let Some(accepted) = accepted {
                lock = lease::judge(self.given, name, accepted, &spec)?;
                if root.is_none() {
                    rename::judge(self.given, name, accepted, &spec)?;
                }
            }
            let wanted = self.check_surroundings(name, &spec)?;
            Ok((spec, wanted))
        });
        let in_force = |accepted: &Accepted| {
            // One spec asks for one thing, and most are in force as they are.
            let same = present
                .as_ref()
                .ok()
                .filter(|_| settled)
                .map(|(_, wanted)| wanted.clone());
            let wanted = same.unwrap_or_else(|| self.known.shared_wanted(name, &accepted.spec));
            (accepted.clone(), wanted)
        };
        let accepted = accepted.map(in_force);
        Draft {
            name,
            object,
            present,
            lock,
            settled,
            accepted,
            kin,
        }
    }

    /// What a new spec asks for, if it may be in force in these surroundings.
    fn check_surroundings(&self, name: &ShardName, spec: &Arc<ShardingConfigSpec>) -> Result<Arc<Wanted>, Refusal> {
        check_buckets(self.known.settings.bucketing, spec)?;
        let wanted = self.known.shared_wanted(name, spec);
        check_count(spec, &wanted)?;
        let root = self.roots.get(name).copied().unwrap_or(name);
        let family = self
            .roots
            .iter()
            .filter(|(_, of)| **of == root)
            .map(|(child, _)| *child);
        let family: Vec<_> = family.chain([name, root]).collect();
        check_members(&self.known, &family, &wanted)?;
        Ok(wanted)
    }
}
