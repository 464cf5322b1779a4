//! The limits of one caller: a state for each that a request has met, kept over swaps for rules that stay the same.
//!
//! A rule is the same if the policy's object is (by uid), its name is and all that it says is. One that nobody has met
//! has no state: it is as it begins. Owner: `policies`, which locks it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::shared::{SharedRules, is_same};
use crate::decision::policy::{Met, RuleState, Tick};
use crate::value::policy::{CallerPolicies, Limit, Policy};

/// All limits of one caller.
#[derive(Debug)]
pub(super) struct CallerRules {
    /// The policies that hold it.
    pub(super) of: Arc<CallerPolicies>,
    /// Of the snapshot that said so: a request that was planned by an older one is judged by these all the same.
    pub(super) generation: u64,
    /// By id of the limit; `None`: not met yet, or shared with other callers. Boxed: of many rules few are met.
    states: Vec<Option<Box<RuleState>>>,
}

impl CallerRules {
    pub(super) fn new(of: Arc<CallerPolicies>, generation: u64) -> Self {
        let states = of.limits().map(|_| None).collect();
        Self { of, generation, states }
    }

    /// Whether a request may be judged by these policies of its snapshot. State that has moved on is not moved back: if not, it
    /// is judged by the newer ones, all of them. And whether a person closed one that was opened.
    pub(super) fn is_current(&mut self, of: &Arc<CallerPolicies>, generation: u64, now: Tick) -> (bool, bool) {
        let closed = generation > self.generation && self.follow(of, generation, now);
        (Arc::ptr_eq(&self.of, of), closed)
    }

    /// Follows to the policies of another snapshot; true if a person closed one that was opened.
    pub(super) fn follow(&mut self, of: &Arc<CallerPolicies>, generation: u64, now: Tick) -> bool {
        self.generation = generation;
        if Arc::ptr_eq(&self.of, of) {
            return false;
        }
        let mut next = Self::new(of.clone(), generation);
        let before = self.of.limits().zip(&mut self.states);
        let mut before: HashMap<_, _> = before
            .filter_map(|((policy, limit), state)| Some((key(policy, limit), (limit, state.take()?))))
            .collect();
        let mut closed = false;
        for ((policy, limit), state) in of.limits().zip(&mut next.states) {
            let Some((was, mut kept)) = before.remove(&key(policy, limit)) else {
                continue;
            };
            if !is_same(was, limit) {
                continue;
            }
            if let Some(at) = policy.closed_at(&limit.name) {
                closed |= kept.close_by_hand(at, now);
            }
            *state = Some(kept);
        }
        drop(before);
        *self = next;
        closed
    }

    /// Each limit that was met, with its state.
    pub(super) fn met(&mut self) -> impl Iterator<Item = (&Arc<Policy>, &Arc<Limit>, &mut RuleState)> {
        let all = self.of.limits().zip(&mut self.states);
        all.filter_map(|((policy, limit), state)| Some((policy, limit, &mut **state.as_mut()?)))
    }

    /// Whether one of these is shared with other callers.
    pub(super) fn shares(&self, ids: &[usize]) -> bool {
        ids.iter()
            .any(|id| self.of.limit(*id).is_some_and(|(_, limit)| limit.shared))
    }

    /// The rules to judge by. `shared`: needed if one of them is.
    pub(super) fn open<'a>(&'a mut self, shared: Option<MutexGuard<'a, SharedRules>>, now: Tick) -> OpenRules<'a> {
        OpenRules {
            of: &self.of,
            states: &mut self.states,
            shared,
            now,
        }
    }
}

/// By what a rule is known over edits.
fn key<'a>(policy: &'a Policy, limit: &'a Limit) -> (&'a str, &'a str) {
    (&policy.uid, &limit.name)
}

/// The caller's rules, with those that it shares with others, locked.
pub(super) struct OpenRules<'a> {
    of: &'a CallerPolicies,
    states: &'a mut [Option<Box<RuleState>>],
    shared: Option<MutexGuard<'a, SharedRules>>,
    now: Tick,
}

impl Met for OpenRules<'_> {
    fn rule(&mut self, id: usize) -> (&Limit, &mut RuleState) {
        let (policy, limit) = self.of.limit(id).expect("ids are of these rules");
        if let Some(shared) = self.shared.as_deref_mut().filter(|_| limit.shared) {
            return shared.rule(policy, limit, self.now);
        }
        let begin = || Box::new(RuleState::own(limit, policy.closed_at(&limit.name), self.now));
        (limit, self.states[id].get_or_insert_with(begin))
    }
}
