//! How far members are with refusing what still arrives of pairs that are being released; and when it is given up that they
//! will. By a clock that does not jump. Caller: `distribute`.
//!
//! A fenced handover waits for its agent, as any waits for routers: not for ever. Once it is given up, the pair is granted as one
//! that was never fenced (every router has let go, and 5 s are over), nothing is promised of it, and `HandoverFenced` says so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::acks::{Acks, FORGOTTEN_AFTER, RETURN_GRACE};
use crate::compile::{Ledger, hindrance};
use crate::facts::{Facts, PairEpoch};

/// An API server carries nothing out that it took in longer ago: its `--request-timeout`, a minute unless somebody sets it.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);
/// An agent that says for this long why it cannot, while its API server is well, is taken at its word. API servers that lag, or
/// are restarted, have seen an annotation by then.
const HINDERED_FOR: Duration = Duration::from_mins(1);

/// How far the closing of each pair is.
#[derive(Debug)]
pub(super) struct Crossings {
    /// Agents that were not heard since then may come yet.
    started: Instant,
    pairs: BTreeMap<PairEpoch, Crossing>,
}

/// How far the closing of one pair is.
#[derive(Debug)]
struct Crossing {
    /// When every router had let go of it.
    since: Instant,
    /// When its member was first known to refuse what arrives.
    closed: Option<Instant>,
    /// Since when its agent says what hinders, without a break.
    hindered: Option<Instant>,
    given_up: bool,
}

impl Crossings {
    pub(super) fn new(started: Instant) -> Self {
        Self {
            started,
            pairs: BTreeMap::new(),
        }
    }

    /// Looks at what is known by now.
    pub(super) fn observe(&mut self, facts: &Facts, ledger: &Ledger, now: Instant) {
        let closing: BTreeMap<_, _> = ledger.closing().collect();
        self.pairs.retain(|pair, _| closing.contains_key(pair));
        let started = self.started;
        for (pair, (_, next)) in closing {
            let crossing = self.pairs.entry(pair.clone()).or_insert(Crossing {
                since: now,
                closed: None,
                hindered: None,
                given_up: false,
            });
            crossing.observe(facts, (&pair, next), (started, now));
        }
    }

    /// Pairs to which nothing is open that their member took before it began to refuse: every router has heard all its answers,
    /// or they have no more time to be carried out.
    pub(super) fn over(&self, acks: &Acks, ledger: &Ledger, now: Instant) -> BTreeSet<PairEpoch> {
        let closing: BTreeMap<_, _> = ledger.closing().collect();
        let is_over = |(pair, crossing): &(&PairEpoch, &Crossing)| {
            let Some(closed) = crossing.closed else { return false };
            let answered = || {
                closing
                    .get(pair)
                    .is_some_and(|(shard, _)| acks.are_answered(shard, pair))
            };
            now - closed >= REQUEST_TIMEOUT || answered()
        };
        let over = self.pairs.iter().filter(is_over);
        over.map(|(pair, _)| pair.clone()).collect()
    }

    /// Pairs of which nobody waits any longer for their member to refuse anything.
    pub(super) fn given_up(&self) -> BTreeSet<PairEpoch> {
        let given_up = self.pairs.iter().filter(|(_, crossing)| crossing.given_up);
        given_up.map(|(pair, _)| pair.clone()).collect()
    }
}

impl Crossing {
    /// `next`: the epoch of who comes after the pair's.
    fn observe(&mut self, facts: &Facts, (pair, next): (&PairEpoch, u64), (started, now): (Instant, Instant)) {
        let (cluster, namespace, epoch) = pair;
        if self.closed.is_none() && facts.is_closed(pair, next) {
            // Also if nobody waited for it any more: it is not granted yet, and takes a minute at most from here.
            (self.closed, self.given_up) = (Some(now), false);
        }
        if self.closed.is_some() || self.given_up {
            return;
        }
        let agent = facts.agents.get(cluster);
        let speaks = agent.is_some_and(|agent| agent.connected && !agent.is_unready());
        let reason = hindrance(facts, cluster, namespace);
        self.hindered = match (&reason, self.hindered) {
            (Some(_), since) if speaks => since.or(Some(now)),
            _ => None,
        };
        let is_away = match agent {
            None => now - started >= RETURN_GRACE,
            Some(agent) => agent
                .left
                .is_some_and(|left| now.into_std().saturating_duration_since(left) >= FORGOTTEN_AFTER),
        };
        let known = facts.inventory(cluster).and_then(|all| all.get(namespace));
        self.given_up = is_away
            || known.is_some_and(|known| known.terminating)
            || self.hindered.is_some_and(|since| now - since >= HINDERED_FOR)
            || now - self.since >= FORGOTTEN_AFTER;
        if self.given_up {
            let reason = reason.unwrap_or_else(|| "its agent has not closed it in time".to_owned());
            tracing::warn!(
                cluster,
                namespace,
                epoch,
                reason,
                "a handover is not fenced: writes of its former owner may arrive late"
            );
        }
    }
}

#[cfg(test)]
mod tests;
