//! One router, as far as shares are concerned: what it may be using at most, and what it was told. Pure; called by `core`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use portolan_wire::protocol::TOKEN_LIFE;
use portolan_wire::v1;

use super::division::WHOLE;
use crate::facts::PolicyName;

/// Whoever has heard nothing of the hub for so long has no token of any member that is good, so that it passes nothing. An hour
/// more than tokens last, for what was under way.
pub(super) const UNHEARD_FOR: Duration = TOKEN_LIFE.saturating_add(Duration::from_hours(1));
/// A router of an older release that has no shared rule cannot say that it has heard so. What it is told on its stream it heeds
/// within moments all the same.
pub(super) const SAYS_NOTHING_FOR: Duration = Duration::from_mins(10);
/// A router that has not said by then that it keeps to what it was told may be told something else meanwhile.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(3);

/// Rules of which it is kept what a router says: of more only those that it was told.
const MAX_BOUNDS: usize = super::MAX_DEMANDS;

/// A rule's number in this process: names are long, and looked up for each router.
pub(super) type Id = u32;
/// Shares by rule.
pub(super) type Shares = BTreeMap<Id, u32>;

#[derive(Debug, Default)]
pub(super) struct Router {
    /// Of its Router object.
    pub(super) uid: Option<String>,
    /// Policies that it may be told of; `None`: all.
    pub(super) sees: Option<BTreeSet<PolicyName>>,
    /// Whether it has nothing that is not in `bound`.
    pub(super) is_known: bool,
    /// What it has at most, as it said or confirmed.
    bound: Shares,
    /// What it was told since and may have heard.
    told: Option<Told>,
    /// The last revision that it was told, on whichever stream.
    last_told: u64,
    /// Since when it may not have heard of any hub. `None`: it has a stream.
    away_since: Option<Instant>,
    stream: Option<Stream>,
}

/// What a router is to have next.
#[derive(Debug, Default)]
pub(super) struct Next {
    pub(super) shares: Shares,
    /// Those that no router had any part of before.
    pub(super) fresh: BTreeSet<Id>,
}

#[derive(Debug)]
struct Told {
    revision: u64,
    /// The last.
    shares: Shares,
    /// Of those the ones that it may find to be fresh, and as much as that was said of.
    fresh: Shares,
    /// The most of all that it was told and has not confirmed.
    most: Shares,
    at: Instant,
}

#[derive(Debug)]
struct Stream {
    epoch: u64,
    since: Instant,
    /// Whether it serves policies.
    serves: bool,
    /// It has reported.
    is_heard: bool,
    /// What it is asked for, of each rule that it has.
    asked: BTreeMap<Id, u64>,
    /// What it was told last.
    last: Option<Shares>,
}

impl Router {
    pub(super) fn new(uid: String, is_known: bool, now: Instant) -> Self {
        Self {
            uid: Some(uid),
            is_known,
            away_since: Some(now),
            ..Self::default()
        }
    }

    pub(super) fn bound_of(&self, rule: Id) -> u32 {
        let told = self.told.as_ref().and_then(|told| told.most.get(&rule));
        self.bound.get(&rule).max(told).copied().unwrap_or_default()
    }

    /// What it may be using of the rule beyond what it was told last on this stream.
    pub(super) fn beyond_told(&self, rule: Id) -> u32 {
        let last = self.stream.as_ref().and_then(|stream| stream.last.as_ref());
        let told = |last: &Shares| last.get(&rule).copied().unwrap_or_default();
        last.map_or(0, |last| self.bound_of(rule).saturating_sub(told(last)))
    }

    pub(super) fn sees(&self, policy: &PolicyName) -> bool {
        self.sees.as_ref().is_none_or(|sees| sees.contains(policy))
    }

    /// Whether it may have something of the rule that it has not said.
    pub(super) fn may_hide(&self, rule: Id) -> bool {
        !self.is_known && !self.bound.contains_key(&rule)
    }

    pub(super) fn takes_part(&self) -> bool {
        self.stream
            .as_ref()
            .is_some_and(|stream| stream.serves && stream.is_heard)
    }

    /// Whether it can be told something at `now`.
    pub(super) fn is_free(&self, now: Instant) -> bool {
        let confirmed = self.told.as_ref().is_none_or(|told| now - told.at >= CONFIRMED_WITHIN);
        self.takes_part() && confirmed
    }

    pub(super) fn is_on(&self, epoch: u64) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.epoch == epoch)
    }

    /// Rules that it has.
    pub(super) fn asked(&self) -> impl Iterator<Item = Id> {
        let asked = self.stream.iter().flat_map(|stream| stream.asked.keys());
        asked.copied()
    }

    /// Tokens of the rule that it is asked for in a second, in thousandths.
    pub(super) fn asks_for(&self, rule: Id) -> u64 {
        let asked = self.stream.as_ref().and_then(|stream| stream.asked.get(&rule));
        asked.copied().unwrap_or_default()
    }

    /// Whether it has, or was told, something of the rule.
    pub(super) fn uses(&self, rule: Id) -> bool {
        let told = self.told.as_ref().is_some_and(|told| told.most.contains_key(&rule));
        let asked = self
            .stream
            .as_ref()
            .is_some_and(|stream| stream.asked.contains_key(&rule));
        told || asked || self.bound.contains_key(&rule)
    }

    pub(super) fn connect(&mut self, epoch: u64, serves: bool, now: Instant) {
        self.leave(now);
        self.away_since = None;
        if !serves {
            // What of a bucket it had was of a release of it that did.
            self.bound.clear();
            self.is_known = true;
        }
        self.stream = Some(Stream {
            epoch,
            since: now,
            serves,
            is_heard: false,
            asked: BTreeMap::new(),
            last: None,
        });
    }

    /// Its stream is over: what it was told last it may have heard.
    pub(super) fn leave(&mut self, now: Instant) {
        self.stream = None;
        self.away_since = Some(now);
        for (rule, share) in self.told.take().into_iter().flat_map(|told| told.most) {
            let bound = self.bound.entry(rule).or_default();
            *bound = share.max(*bound);
        }
    }

    /// It has given back all that it had, on disk too, and its stream is over.
    pub(super) fn give_back(&mut self, now: Instant) {
        self.leave(now);
        self.bound.clear();
        self.is_known = true;
    }

    /// What time alone says of it.
    pub(super) fn pass_time(&mut self, now: Instant) {
        let passed = |since: Instant, time: Duration| now.saturating_duration_since(since) >= time;
        if self.away_since.is_some_and(|since| passed(since, UNHEARD_FOR)) {
            self.bound.clear();
            self.is_known = true;
        }
        self.is_known |= self
            .stream
            .as_ref()
            .is_some_and(|stream| stream.last.is_some() && passed(stream.since, SAYS_NOTHING_FOR));
    }

    /// What it says that it has. Returns the rules of which it had said nothing, and might have had anything.
    /// `revision`: of the shares that it keeps to.
    pub(super) fn hear(&mut self, said: &[(Id, &v1::SharedDemand)], revision: u64) -> Vec<Id> {
        let Some(stream) = &mut self.stream else {
            return Vec::new();
        };
        stream.is_heard = true;
        stream.asked = said
            .iter()
            .map(|(id, demand)| (*id, demand.asked_per_second_thousandths))
            .collect();
        // It has what it says, as nothing else is under way to it, and it was told nothing that it has not kept yet: a router says
        // what it would have after a restart.
        let is_exact = stream.last.is_none() && revision >= self.last_told;
        if let Some(told) = self.told.take_if(|told| told.revision == revision) {
            // Also of rules that it does not have yet: it was told all of its shares.
            self.bound = told.shares;
            self.is_known = true;
        }
        let mut first = Vec::new();
        for (id, demand) in said {
            let share = demand.share_millionths.min(WHOLE);
            if self.may_hide(*id) {
                first.push(*id);
            }
            if self.bound.len() >= MAX_BOUNDS && !self.bound.contains_key(id) {
                continue;
            }
            let bound = self.bound.entry(*id).or_insert(share);
            *bound = if is_exact { share } else { share.max(*bound) };
        }
        first
    }

    /// It is told these shares unless it was on this stream: on which. `may_hide`: it might have something that it does not say.
    /// What of them was fresh is so until it says that it has heard it.
    pub(super) fn tell(&mut self, revision: u64, next: &mut Next, may_hide: bool, now: Instant) -> Option<u64> {
        let stream = self.stream.as_mut()?;
        let shares = &next.shares;
        let is_told = match &stream.last {
            Some(last) => last == shares,
            // What it has may be older than what it says, or be of what it does not say.
            None => shares.is_empty() && self.bound.is_empty() && (self.is_known || !may_hide),
        };
        if is_told {
            return None;
        }
        stream.last = Some(shares.clone());
        self.last_told = revision;
        let before = self.told.take();
        let (mut most, before) = before.map(|told| (told.most, told.fresh)).unwrap_or_default();
        let fresh = shares.iter().filter_map(|(rule, share)| {
            let first = next.fresh.contains(rule).then_some(*share);
            // More than it was told of at first it cannot have missed: that others may have had.
            let again = before.get(rule).filter(|most| share <= *most);
            let part = first.or(again.map(|_| *share)).filter(|part| *part > 0)?;
            Some((*rule, part))
        });
        let fresh: Shares = fresh.collect();
        next.fresh = fresh.keys().copied().collect();
        for (rule, share) in shares {
            let most = most.entry(*rule).or_default();
            *most = share.max(most).to_owned();
        }
        self.told = Some(Told {
            revision,
            shares: shares.clone(),
            fresh,
            most,
            at: now,
        });
        Some(stream.epoch)
    }
}
