//! The conjunction of requirements about one label, reduced to the fewest that say the same.

use std::collections::BTreeSet;

use super::{Operator, Requirement};

/// Everything that is known about one label while a conjunction is reduced.
#[derive(Default)]
pub(super) struct Facts {
    allowed: Option<BTreeSet<String>>,
    denied: BTreeSet<String>,
    exists: bool,
    absent: bool,
    above: Option<i64>,
    below: Option<i64>,
}

impl Facts {
    pub(super) fn add(&mut self, requirement: Requirement) {
        let bound = requirement.bound();
        match requirement.operator {
            Operator::In => {
                self.allowed = Some(match self.allowed.take() {
                    Some(allowed) => allowed.intersection(&requirement.values).cloned().collect(),
                    None => requirement.values,
                });
            }
            Operator::NotIn => self.denied.extend(requirement.values),
            Operator::Exists => self.exists = true,
            Operator::DoesNotExist => self.absent = true,
            Operator::GreaterThan => self.above = self.above.max(bound),
            Operator::LessThan => self.below = self.below.into_iter().chain(bound).min(),
        }
    }

    /// The fewest requirements that say the same; `None` if no label can satisfy them.
    pub(super) fn reduce(self, key: &str) -> Option<Vec<Requirement>> {
        let bounded = self.above.is_some() || self.below.is_some();
        let requirement = |operator, values| Requirement {
            key: key.to_owned(),
            operator,
            values,
        };
        if self.absent {
            let contradicted = self.exists || self.allowed.is_some() || bounded;
            return (!contradicted).then(|| vec![requirement(Operator::DoesNotExist, BTreeSet::new())]);
        }
        let within = |number: i64| {
            self.above.is_none_or(|above| number > above) && self.below.is_none_or(|below| number < below)
        };
        if let Some(mut allowed) = self.allowed {
            allowed.retain(|value| !self.denied.contains(value) && (!bounded || value.parse().is_ok_and(within)));
            return (!allowed.is_empty()).then(|| vec![requirement(Operator::In, allowed)]);
        }
        let lowest = self.above.map_or(Some(i64::MIN), |above| above.checked_add(1));
        if bounded && !lowest.is_some_and(within) {
            return None;
        }
        let mut reduced = Vec::new();
        if !self.denied.is_empty() {
            reduced.push(requirement(Operator::NotIn, self.denied));
        }
        if self.exists && !bounded {
            reduced.push(requirement(Operator::Exists, BTreeSet::new()));
        }
        for (operator, bound) in [(Operator::GreaterThan, self.above), (Operator::LessThan, self.below)] {
            reduced.extend(bound.map(|bound| requirement(operator, BTreeSet::from([bound.to_string()]))));
        }
        Some(reduced)
    }
}
