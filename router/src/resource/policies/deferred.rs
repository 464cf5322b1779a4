//! Which limits the requests of a caller meet, and tokens they took that their buckets have not been told of yet.
//!
//! Requests are told apart by the rows they meet alone, so what they meet is worked out once. A limit that has tokens for
//! many requests lets each of them pass whatever time brings; so these are written down, once for all such limits, and brought to
//! the buckets (`decision::policy::Takes`) when the tokens that were certain are used up, when many are written down, and before
//! anybody looks. By the other limits that it meets a request is judged at once. Owner: `caller`.

use crate::decision::policy::{RuleState, Takes, Tick};
use crate::value::policy::{CallerPolicies, Limit, Policy, Rows};

/// Kinds of requests that are known at a time: a bit each. An operator's verbs and resources seldom make more.
#[cfg(not(test))]
const MOST_KINDS: usize = 32;
/// Tests have few verbs.
#[cfg(test)]
const MOST_KINDS: usize = 4;
/// Requests that are written down at most: some kilobytes.
const MOST_WRITTEN: u32 = 128;
/// A limit with tokens for fewer requests is judged at once: everything would be brought to its bucket all the time.
const WORTH_WRITING: u32 = 8;

/// Of one caller.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    kinds: Vec<Kind>,
    /// The kind that makes room for another one next.
    oldest: usize,
    /// By id of the limit; empty as long as no kind is known.
    limits: Vec<Meets>,
    /// Limits that requests of some kind meet, in order.
    met: Vec<usize>,
    /// When requests passed, and the bit of their kind.
    written: Vec<(Tick, u32)>,
    /// Requests that may come before all limits are looked at again.
    room: u32,
}

/// Requests that meet the same limits.
#[derive(Debug)]
pub(super) struct Kind {
    rows: Rows,
    /// Limits that each is judged by at once.
    pub(super) at_once: Vec<usize>,
    /// Whether it meets one that is shared with other callers.
    pub(super) shares: bool,
    /// Whether it meets one that it is not judged by at once.
    defers: bool,
}

/// What is known of one limit.
#[derive(Debug, Clone, Copy, Default)]
struct Meets {
    /// The kinds of requests that meet it, a bit each.
    kinds: u32,
    /// Takes of it are written down first.
    deferred: bool,
}

/// A caller's limits, each with the state that it has once it was met; a shared one has none here.
pub(super) struct Own<'a> {
    pub(super) of: &'a CallerPolicies,
    /// Of the rules.
    pub(super) generation: u64,
    pub(super) states: &'a mut [State],
}

/// Of a limit; `None`: nobody has met it, or it is shared. Boxed: of many limits few are met.
pub(super) type State = Option<Box<RuleState>>;

impl Own<'_> {
    /// The state of a limit, which begins now if nobody has met it.
    pub(super) fn begin<'a>(
        (policy, limit): (&Policy, &Limit),
        generation: u64,
        state: &'a mut State,
        now: Tick,
    ) -> &'a mut RuleState {
        let begin = || {
            let state = RuleState::own(limit, policy.closed_at(&limit.name), now);
            Box::new(state.began_with(generation))
        };
        state.get_or_insert_with(begin)
    }

    fn get(&mut self, id: usize) -> ((&Policy, &Limit), &mut State) {
        let (policy, limit) = self.of.limit(id).expect("ids are of these rules");
        ((policy, limit), &mut self.states[id])
    }
}

impl Deferred {
    /// The kind of requests with these rows, one of which comes now.
    pub(super) fn kind(&mut self, rows: &Rows, own: &mut Own<'_>, now: Tick) -> usize {
        let known = self.kinds.iter().position(|kind| kind.rows == *rows);
        let kind = known.unwrap_or_else(|| self.add(rows, own));
        if known.is_none() || self.room == 0 {
            self.look(own, now);
        }
        self.room = self.room.saturating_sub(1);
        kind
    }

    pub(super) fn get(&self, kind: usize) -> &Kind {
        &self.kinds[kind]
    }

    /// A request of this kind has passed.
    pub(super) fn passed(&mut self, kind: usize, now: Tick) {
        if self.kinds[kind].defers {
            self.written.push((now, 1 << kind));
        }
    }

    /// Brings what is written down to the buckets.
    pub(super) fn bring(&mut self, own: &mut Own<'_>) {
        if self.written.is_empty() {
            return;
        }
        // Limits stand in few ways to the kinds, and those of one way took the same.
        let mut taken: Vec<(u32, Option<Takes>)> = Vec::new();
        for id in &self.met {
            let (meets, ((_, limit), state)) = (self.limits[*id], own.get(*id));
            let Some(state) = state.as_mut().filter(|_| meets.deferred) else {
                continue;
            };
            let of = taken.iter().position(|(kinds, _)| *kinds == meets.kinds);
            let of = of.unwrap_or_else(|| {
                let those = self.written.iter().rev().filter(|(_, kind)| meets.kinds & kind != 0);
                taken.push((meets.kinds, Takes::at(those.map(|(at, _)| *at))));
                taken.len() - 1
            });
            if let Some(takes) = &taken[of].1 {
                state.passed(limit, takes);
            }
        }
        self.written.clear();
    }

    /// One more kind, instead of the oldest if there are many.
    fn add(&mut self, rows: &Rows, own: &mut Own<'_>) -> usize {
        self.bring(own);
        self.limits.resize(own.states.len(), Meets::default());
        let kind = Kind {
            rows: rows.clone(),
            at_once: Vec::new(),
            shares: false,
            defers: false,
        };
        let place = if self.kinds.len() < MOST_KINDS {
            self.kinds.push(kind);
            self.kinds.len() - 1
        } else {
            let place = self.oldest;
            self.oldest = (place + 1) % MOST_KINDS;
            self.kinds[place] = kind;
            for meets in &mut self.limits {
                meets.kinds &= !(1 << place);
            }
            place
        };
        own.of.each_limit_of(rows, |id| self.limits[id].kinds |= 1 << place);
        let met = self.limits.iter().enumerate().filter(|(_, meets)| meets.kinds != 0);
        self.met = met.map(|(id, _)| id).collect();
        place
    }

    /// Says of each limit anew whether requests are judged by it at once.
    fn look(&mut self, own: &mut Own<'_>, now: Tick) {
        self.bring(own);
        self.room = MOST_WRITTEN;
        for kind in &mut self.kinds {
            kind.at_once.clear();
            (kind.shares, kind.defers) = (false, false);
        }
        let generation = own.generation;
        for id in &self.met {
            let (meets, ((policy, limit), state)) = (&mut self.limits[*id], own.get(*id));
            meets.deferred = false;
            if !limit.shared && limit.costs_alike() {
                let state = Own::begin((policy, limit), generation, state, now);
                let affords = state.affords(limit, MOST_WRITTEN, now);
                meets.deferred = affords >= WORTH_WRITING;
                if meets.deferred {
                    self.room = self.room.min(affords);
                }
            }
            let mut kinds = meets.kinds;
            while kinds != 0 {
                let kind = &mut self.kinds[kinds.trailing_zeros() as usize];
                kinds &= kinds - 1;
                kind.shares |= limit.shared;
                kind.defers |= meets.deferred;
                if !meets.deferred {
                    kind.at_once.push(*id);
                }
            }
        }
    }
}
