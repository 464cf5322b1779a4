//! The limits of one caller: a state for each that a request has met, kept over swaps for rules that stay the same.
//!
//! A rule is the same if the policy's object is (by uid), its name is and all that it says is. One that nobody has met
//! has no state: it is as it begins. Rules of a policy that holds the caller no more are laid aside for a while: leaving a
//! selection and coming back brings no tokens, and closes nothing. Owner: `policies`, which locks it.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::Judging;
use super::aside::{ASIDE, MOST_ASIDE};
use super::deferred::{Deferred, Own, State};
use super::shared::{SharedRules, is_same};
use crate::decision::policy::{Judged, Met, Passed, RuleState, Tick, judge};
use crate::value::policy::{Asked, CallerPolicies, Limit, Policy, Rows};
use crate::value::snapshot::CallerKey;

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

/// What a request meets; all of one version, which does not change as long as this is held.
pub(super) struct Meets<'a> {
    kind: usize,
    shared: Option<MutexGuard<'a, SharedRules>>,
    /// A person closed a rule that had opened.
    pub(super) closed: bool,
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

    /// What a request meets. `rows`: by the policies of its snapshot. State that has moved on is not moved back: then it meets
    /// the newer ones, all of them; and who meets shared rules meets its own of the snapshot that those have followed to.
    pub(super) fn meets<'a>(
        &mut self,
        request: &Judging<'_>,
        (of, rows): (&Arc<CallerPolicies>, Rows),
        shared: &'a Mutex<SharedRules>,
        now: Tick,
    ) -> Meets<'a> {
        let newer = request.generation > self.generation;
        let mut closed = newer && self.follow(of, request.generation, now);
        let rows = if Arc::ptr_eq(&self.of, of) {
            rows
        } else {
            self.of.limit_rows(&request.asked)
        };
        let mut kind = self.kind(&rows, now);
        let shared = self.deferred.get(kind).shares.then(|| shared.lock());
        if let Some(shared) = &shared
            && shared.newer_than(self.generation, &request.view.key).is_some()
        {
            closed |= self.keep_up(&request.view.key, shared, now);
            kind = self.kind(&self.of.limit_rows(&request.asked), now);
        }
        Meets { kind, shared, closed }
    }

    /// Follows to the snapshot that shared rules have followed to, if that is newer; true if a person closed one that was opened.
    pub(super) fn keep_up(&mut self, caller: &CallerKey, shared: &SharedRules, now: Tick) -> bool {
        let Some((of, generation)) = shared.newer_than(self.generation, caller) else {
            return false;
        };
        match of {
            Some(of) => self.follow(of, generation, now),
            None => self.follow(&Arc::new(CallerPolicies::new(Vec::new())), generation, now),
        }
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

    /// The kind of requests with these rows, one of which comes now.
    fn kind(&mut self, rows: &Rows, now: Tick) -> usize {
        let now = self.not_before(now);
        let mut own = Own {
            of: &self.of,
            generation: self.generation,
            states: &mut self.states,
        };
        self.deferred.kind(rows, &mut own, now)
    }

    /// Takes the tokens that a request of this verb costs, of all limits that it meets, or says which refuses it.
    pub(super) fn judge(&mut self, meets: Meets<'_>, verb: &str, now: Tick) -> Judged {
        let now = self.not_before(now);
        self.idle = false;
        let mut open = OpenRules {
            of: &self.of,
            generation: self.generation,
            states: &mut self.states,
            shared: meets.shared,
            now,
        };
        // Limits that are written to later let it pass in any case.
        let judged = judge(&mut open, &self.deferred.get(meets.kind).at_once, verb, now);
        drop(open);
        if judged.denied.is_none() {
            self.deferred.passed(meets.kind, now);
        }
        judged
    }

    /// A request goes no further that passed by these rules and took tokens of all that it met: each rule that has been the same
    /// since gets them back, as far as nothing came in their place.
    pub(super) fn give_back(
        &mut self,
        (of, passed): (&Arc<CallerPolicies>, Passed),
        asked: &Asked<'_>,
        shared: &Mutex<SharedRules>,
        now: Tick,
    ) {
        self.bring();
        self.idle = false;
        // Others may be in force only if a swap came while it waited.
        let same = Arc::ptr_eq(of, &self.of);
        for id in of.limits_met(asked) {
            let Some((policy, limit)) = of.limit(id) else { continue };
            let cost = limit.cost(asked.verb);
            if limit.shared {
                shared.lock().give_back((policy, limit), cost, passed, now);
                continue;
            }
            let is_it =
                |(other, named): (&Arc<Policy>, &Arc<Limit>)| other.uid == policy.uid && named.name == limit.name;
            let here = if same {
                Some(id)
            } else {
                self.of.limits().position(is_it)
            };
            let here = here.and_then(|id| self.states[id].as_deref_mut());
            let mut aside = self.aside.iter_mut();
            let mut aside = || aside.find(|aside| aside.uid == policy.uid && aside.limit.name == limit.name);
            if let Some(state) = here.or_else(|| Some(&mut *aside()?.state)) {
                state.give_back(limit, cost, passed, now);
            }
        }
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

    /// The rules to look at.
    pub(super) fn open<'a>(&'a mut self, shared: MutexGuard<'a, SharedRules>, now: Tick) -> OpenRules<'a> {
        self.bring();
        self.idle = false;
        let now = self.not_before(now);
        OpenRules {
            of: &self.of,
            generation: self.generation,
            states: &mut self.states,
            shared: Some(shared),
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
            generation: self.generation,
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
    generation: u64,
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
        let state = Own::begin((policy, limit), self.generation, &mut self.states[id], self.now);
        (limit, state)
    }
}
