//! What several limits make of one request together: it takes the tokens of all of them or of none.
//!
//! All are looked at first. One that refuses is enough; of several the strongest says why: `ForceOpened` before one that
//! has opened before an empty bucket. A request that something stronger refuses opens nothing: it was never within reach of the
//! bucket. Pure: live state and a replay give their rules by [`Met`].

use std::time::Duration;

use super::Tick;
use super::rule::{Look, RuleState, Settled};
use crate::value::policy::Limit;

/// The rules that a request met, by their ids.
pub(crate) trait Met {
    /// The rule of this id, with its state.
    fn rule(&mut self, id: usize) -> (&Limit, &mut RuleState);
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Why {
    /// A bucket has not enough tokens.
    Limited,
    /// A rule has opened.
    Opened,
    /// `ForceOpened`.
    Forced,
}

/// A refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Denied {
    /// The rule that says why; of several alike the one that goes on longest, then the first.
    pub(crate) id: usize,
    pub(crate) why: Why,
    /// How long it goes on from now; `None`: nobody knows.
    pub(crate) lasts: Option<Duration>,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Judged {
    /// `None`: it passes, and has taken its tokens.
    pub(crate) denied: Option<Denied>,
    /// A rule opened by it.
    pub(crate) opened: bool,
}

/// Judges a request of this verb that met the rules of these ids.
pub(crate) fn judge(rules: &mut impl Met, ids: &[usize], verb: &str, now: Tick) -> Judged {
    let denied = would_deny(rules, ids, verb, now);
    let mut opened = false;
    for id in ids {
        let (limit, state) = rules.rule(*id);
        let cost = limit.cost(verb);
        let settled = match denied {
            None => Settled::Passed,
            Some(denied) if why(state.look(limit, cost, now)) == Some(denied.why) => Settled::Refused,
            Some(_) => Settled::Aside,
        };
        opened |= state.settle(limit, cost, settled, now);
    }
    Judged { denied, opened }
}

/// Whether it would be refused. Nothing is taken, opened or counted.
pub(crate) fn would_deny(rules: &mut impl Met, ids: &[usize], verb: &str, now: Tick) -> Option<Denied> {
    let mut worst: Option<Denied> = None;
    for id in ids {
        let (limit, state) = rules.rule(*id);
        let look = state.look(limit, limit.cost(verb), now);
        let Some(why) = why(look) else { continue };
        let denied = Denied {
            id: *id,
            why,
            lasts: lasts(look),
        };
        if worst.is_none_or(|worst| denied.is_worse_than(&worst)) {
            worst = Some(denied);
        }
    }
    worst
}

impl Denied {
    fn is_worse_than(&self, other: &Self) -> bool {
        let rank = |denied: &Self| (denied.why, denied.lasts.is_none(), denied.lasts);
        rank(self) > rank(other)
    }
}

fn why(look: Look) -> Option<Why> {
    match look {
        Look::Passes => None,
        Look::Limited(_) => Some(Why::Limited),
        Look::Opened(_) => Some(Why::Opened),
        Look::Forced => Some(Why::Forced),
    }
}

fn lasts(look: Look) -> Option<Duration> {
    match look {
        Look::Limited(lasts) | Look::Opened(lasts) => lasts,
        Look::Passes | Look::Forced => None,
    }
}
