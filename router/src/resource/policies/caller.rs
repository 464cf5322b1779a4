//! The limits of one caller: a state for each that a request has met, kept over swaps for rules that stay the same.
//!
//! A rule is the same if the policy's object is (by uid), its name is and all that it says is. One that nobody has met
//! has no state: it is as it begins. Rules of a policy that holds the caller no more are laid aside for a while: leaving a
//! selection and coming back brings no tokens, and closes nothing. Owner: `policies`, which locks it.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::aside::{ASIDE, MOST_ASIDE};
use super::deferred::{Deferred, Own, State};
use super::shared::{SharedRules, is_same};
use crate::decision::policy::{Judged, Met, RuleState, Tick, judge};
use crate::value::policy::{CallerPolicies, Limit, Policy, Rows};

/// All limits of one caller.
#[derive(Debug)]
pub(super) struct CallerRules {
    /// The policies that hold it.
    pub(super) of: Arc<CallerPolicies>,
    /// Of the snapshot that said so: a request that was planned by an older one is judged by these all the same.
    pub(super) generation: u64,
    /// By id of the limit.
    states: Vec<State>,
    deferred: Deferred,
    aside: Vec<Aside>,
    /// When it was asked last. Threads read the clock before they have the lock: time does not go back here.
    latest: Tick,
    /// All rules are as if nobody had met them, and nobody has asked since.
    idle: bool,
}

/// A rule that was met, of a policy that holds the caller no more.
#[derive(Debug)]
struct Aside {
    uid: Arc<str>,
    limit: Arc<Limit>,
    state: Box<RuleState>,
    until: Tick,
}

impl CallerRules {
    pub(super) fn new(of: Arc<CallerPolicies>, generation: u64) -> Self {
        let states = of.limits().map(|_| None).collect();
        Self {
            of,
            generation,
            states,
            deferred: Deferred::default(),
            aside: Vec::new(),
            latest: Tick::default(),
            idle: false,
        }
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
        self.bring();
        let now = self.not_before(now);
        let mut next = Self::new(of.clone(), generation);
        next.latest = now;
        let mut before = self.known(now);
        let mut closed = false;
        for ((policy, limit), state) in of.limits().zip(&mut next.states) {
            let Some(mut kept) = before.remove(&(policy.uid.clone(), limit.name.clone())) else {
                continue;
            };
            if !is_same(&kept.limit, limit) {
                continue;
            }
            if let Some(at) = policy.closed_at(&limit.name) {
                closed |= kept.state.close_by_hand(at, now);
            }
            *state = Some(kept.state);
        }
        // An edit that takes a rule out of its policy ends it.
        let holds = |aside: &Aside| of.policies().iter().any(|policy| policy.uid == aside.uid);
        let left = before.into_values().filter(|aside| !holds(aside));
        next.aside = left.collect();
        // Those that were met last are kept: names that come and go push out none of them.
        next.aside.sort_by_key(|aside| Reverse(aside.until));
        next.aside.truncate(MOST_ASIDE);
        *self = next;
        closed
    }

    /// All rules that were met, those that are laid aside too; they are as they are known over edits.
    fn known(&mut self, now: Tick) -> HashMap<(Arc<str>, Box<str>), Aside> {
        let until = now.after(ASIDE);
        let states = self.of.limits().zip(&mut self.states);
        let met = states.filter_map(|((policy, limit), state)| {
            Some(Aside {
                uid: policy.uid.clone(),
                limit: limit.clone(),
                state: state.take()?,
                until,
            })
        });
        let aside = std::mem::take(&mut self.aside).into_iter();
        let all = aside.filter(|aside| now < aside.until).chain(met);
        let worth = all.filter_map(|mut one| {
            let untouched = one.state.stands(&one.limit, now).untouched;
            (!untouched).then(|| ((one.uid.clone(), one.limit.name.clone()), one))
        });
        worth.collect()
    }

    /// Whether there is nothing to be kept of a caller that no policy holds.
    pub(super) fn is_over(&mut self, now: Tick) -> bool {
        self.aside.retain(|aside| now < aside.until);
        self.states.is_empty() && self.aside.is_empty()
    }

    /// Takes the tokens that a request of this verb costs, of all limits of its rows, or says which refuses it.
    pub(super) fn judge(&mut self, rows: &Rows, verb: &str, shared: &Mutex<SharedRules>, now: Tick) -> Judged {
        let now = self.not_before(now);
        self.idle = false;
        let mut own = Own {
            of: &self.of,
            states: &mut self.states,
        };
        let id = self.deferred.kind(rows, &mut own, now);
        let kind = self.deferred.get(id);
        let mut open = OpenRules {
            of: &self.of,
            states: &mut self.states,
            shared: kind.shares.then(|| shared.lock()),
            now,
        };
        // Limits that are written to later let it pass in any case.
        let judged = judge(&mut open, &kind.at_once, verb, now);
        drop(open);
        if judged.denied.is_none() {
            self.deferred.passed(id, now);
        }
        judged
    }

    /// Each limit that was met, with its state.
    pub(super) fn met(&mut self) -> impl Iterator<Item = (&Arc<Policy>, &Arc<Limit>, &mut RuleState)> {
        self.bring();
        let all = self.of.limits().zip(&mut self.states);
        all.filter_map(|((policy, limit), state)| Some((policy, limit, &mut **state.as_mut()?)))
    }

    /// Whether one of these is shared with other callers.
    pub(super) fn shares(&self, ids: &[usize]) -> bool {
        ids.iter()
            .any(|id| self.of.limit(*id).is_some_and(|(_, limit)| limit.shared))
    }

    /// The rules to look at. `shared`: needed if one of them is.
    pub(super) fn open<'a>(&'a mut self, shared: Option<MutexGuard<'a, SharedRules>>, now: Tick) -> OpenRules<'a> {
        self.bring();
        self.idle = false;
        let now = self.not_before(now);
        OpenRules {
            of: &self.of,
            states: &mut self.states,
            shared,
            now,
        }
    }

    /// Nobody has asked since all rules were found to be as if nobody had met them.
    pub(super) fn is_idle(&self) -> bool {
        self.idle
    }

    /// All rules are as if nobody had met them.
    pub(super) fn set_idle(&mut self) {
        self.idle = true;
    }

    fn bring(&mut self) {
        let mut own = Own {
            of: &self.of,
            states: &mut self.states,
        };
        self.deferred.bring(&mut own);
    }

    fn not_before(&mut self, now: Tick) -> Tick {
        self.latest = self.latest.max(now);
        self.latest
    }
}

/// The caller's rules, with those that it shares with others, locked.
pub(super) struct OpenRules<'a> {
    of: &'a CallerPolicies,
    states: &'a mut [State],
    shared: Option<MutexGuard<'a, SharedRules>>,
    now: Tick,
}

impl Met for OpenRules<'_> {
    fn rule(&mut self, id: usize) -> (&Limit, &mut RuleState) {
        let (policy, limit) = self.of.limit(id).expect("ids are of these rules");
        if let Some(shared) = self.shared.as_deref_mut().filter(|_| limit.shared) {
            return shared.rule(policy, limit, self.now);
        }
        (limit, Own::begin((policy, limit), &mut self.states[id], self.now))
    }
}
