//! Of many rules the worst of each policy: a report is bounded, and no policy's rules push those of others out of it. Pure; called
//! by `report`.

use std::cmp::Reverse;
use std::collections::HashMap;

use portolan_wire::v1;

use super::Clock;
use super::found::{Found, Told};

/// Rules that are held until it is settled which of them are told, for each that is.
const HELD: usize = 2;

/// The worst of some rules. First comes the worst rule of each policy, then the second worst of each, and so on.
pub(super) struct Worst {
    most: usize,
    clock: Clock,
    told: Vec<Told>,
    of: HashMap<Box<str>, Of>,
}

/// What of one policy was found.
#[derive(Default)]
struct Of {
    opened: u64,
    /// The worst rule that is not told: nor are any that are milder.
    left_out: Option<Told>,
}

impl Worst {
    pub(super) fn new(most: usize, clock: Clock) -> Self {
        Self {
            most,
            clock,
            told: Vec::new(),
            of: HashMap::new(),
        }
    }

    pub(super) fn add(&mut self, found: &Found<'_>) {
        if !self.of.contains_key(found.name.policy) {
            self.of.insert(found.name.policy.into(), Of::default());
        }
        let Some(of) = self.of.get_mut(found.name.policy) else {
            return;
        };
        of.opened += u64::from(!found.rank.closed);
        if of.left_out.as_ref().is_some_and(|worst| found.is_milder(worst)) {
            return;
        }
        self.told.push(Told::of(found, self.clock));
        if self.told.len() >= self.most.saturating_mul(HELD) {
            self.settle();
        }
    }

    /// The worst first; and of how many rules that refuse all nothing is told, by policy, the most first.
    pub(super) fn all(mut self) -> (Vec<v1::RuleState>, Vec<v1::RulesLeftOut>) {
        self.settle();
        for told in self.told.iter().filter(|told| !told.rank.closed) {
            if let Some(of) = self.of.get_mut(&*told.name.policy) {
                of.opened -= 1;
            }
        }
        let left_out = self.of.into_iter().filter(|(_, of)| of.opened > 0);
        let left_out = left_out.map(|(policy, of)| v1::RulesLeftOut {
            policy: policy.into(),
            opened: of.opened,
        });
        let mut left_out: Vec<_> = left_out.collect();
        left_out.sort_by(|one, other| (Reverse(one.opened), &one.policy).cmp(&(Reverse(other.opened), &other.policy)));
        self.told.sort();
        (self.told.into_iter().map(Into::into).collect(), left_out)
    }

    /// What is left out now stays so: more rules put it further back, and nothing in front of it.
    fn settle(&mut self) {
        if self.told.len() <= self.most {
            return;
        }
        self.told
            .sort_by(|one, other| (&one.name.policy, one).cmp(&(&other.name.policy, other)));
        let mut by_place: Vec<(usize, Told)> = Vec::with_capacity(self.told.len());
        for told in self.told.drain(..) {
            let place = match by_place.last() {
                Some((place, before)) if is_same_policy(before, &told) => place + 1,
                _ => 0,
            };
            by_place.push((place, told));
        }
        by_place.sort();
        for (_, told) in by_place.drain(self.most..) {
            let Some(of) = self.of.get_mut(&*told.name.policy) else {
                continue;
            };
            if of.left_out.as_ref().is_none_or(|worst| told < *worst) {
                of.left_out = Some(told);
            }
        }
        self.told.extend(by_place.into_iter().map(|(_, told)| told));
    }
}

fn is_same_policy(one: &Told, other: &Told) -> bool {
    one.name.policy == other.name.policy
}

#[cfg(test)]
mod tests;
