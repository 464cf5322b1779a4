//! One limit that routers have together: who is to have how much of it, and who keeps what others are to have. Pure; called
//! by `core`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::division::{WHOLE, divide_useful, wanted};
use super::router::{Id, Next, Router};
use super::withheld::{Why, Withheld};
use crate::compile::{SharedLimit, Supply};

/// Where there is too little of a bucket for all routers, each turn lasts so long at least: shares move within a second or two.
pub(super) const TURN: Duration = Duration::from_secs(10);
/// What a router may lack before all is divided anew, in parts of its share and at least: demand is never even.
const SLACK: u32 = 10;
const LEAST_SLACK: u32 = WHOLE / 500;
/// What moves is let go of within a second or two, and a router that restarts is back in some more: this is worth telling.
pub(super) const WITHHELD_AFTER: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Rule {
    pub(super) key: SharedLimit,
    /// What comes to it. `None`: it is not in force, or of an object of which no good spec is
    /// known, and shares stay as they are.
    pub(super) supply: Option<Supply>,
    /// An earlier hub may have divided it.
    of_before: bool,
    /// What routers that have said nothing may have together then.
    presumed: u32,
    /// So much of the bucket no router has ever had: as little as was left when they had most together.
    unheld: u32,
    /// When it went out of force. `None`: it never was in force.
    ended: Option<Instant>,
    /// What each router is to get to.
    goal: BTreeMap<String, u32>,
    /// What routers have that others are to have.
    kept: BTreeMap<String, Kept>,
}

#[derive(Debug)]
struct Kept {
    since: Instant,
    share: u32,
    why: Why,
}

/// From what a router has at most to what it is to have next.
struct Step<'a> {
    router: &'a String,
    bound: u32,
    share: u32,
}

impl Rule {
    /// `is_new`: no router can have anything of it.
    pub(super) fn new(key: SharedLimit, of_before: bool, is_new: bool) -> Self {
        Self {
            key,
            supply: None,
            of_before,
            presumed: WHOLE,
            unheld: if is_new { WHOLE } else { 0 },
            ended: None,
            goal: BTreeMap::new(),
            kept: BTreeMap::new(),
        }
    }

    /// It is not in force unless its supply is told anew.
    pub(super) fn end(&mut self, now: Instant) {
        if self.supply.take().is_some() {
            self.ended = Some(now);
        }
    }

    pub(super) fn ended_within(&self, time: Duration, now: Instant) -> bool {
        self.ended
            .is_some_and(|ended| now.saturating_duration_since(ended) < time)
    }

    /// Whether it is in force, and routers of which nothing is known may have something of it.
    pub(super) fn may_be_hidden(&self) -> bool {
        self.of_before && self.supply.is_some()
    }

    /// A router of which nothing was known says that it has this much.
    pub(super) fn is_said(&mut self, share: u32) {
        self.presumed = self.presumed.saturating_sub(share);
    }

    /// Routers have so much of it together, at least.
    pub(super) fn hold(&mut self, held: u32) {
        self.unheld = self.unheld.min(WHOLE.saturating_sub(held));
    }

    /// Looks who has something that he is not to have.
    pub(super) fn look(&mut self, id: Id, routers: &BTreeMap<String, Router>, now: Instant) {
        let before = std::mem::take(&mut self.kept);
        if self.supply.is_none() {
            return;
        }
        let kept = routers.iter().filter_map(|(name, router)| {
            let (share, why) = self.kept_by(id, router);
            let since = before.get(name).map_or(now, |kept| kept.since);
            (share > 0).then(|| (name.clone(), Kept { since, share, why }))
        });
        self.kept = kept.collect();
    }

    fn kept_by(&self, id: Id, router: &Router) -> (u32, Why) {
        let is_here = router.takes_part();
        if self.of_before && router.may_hide(id) {
            let why = if is_here { Why::Unconfirmed } else { Why::NotHeard };
            (self.presumed, why)
        } else if is_here {
            (router.beyond_told(id), Why::Unconfirmed)
        } else {
            (router.bound_of(id), Why::Away)
        }
    }

    /// What is kept for longer than it takes to let go.
    pub(super) fn withheld(&self, now: Instant) -> impl Iterator<Item = Withheld> {
        let long = move |kept: &Kept| now.saturating_duration_since(kept.since) >= WITHHELD_AFTER;
        let kept = self.kept.iter().filter(move |(_, kept)| long(kept));
        kept.map(|(router, kept)| Withheld {
            rule: self.key.rule.clone(),
            router: router.clone(),
            share: kept.share,
            why: kept.why,
        })
    }

    /// Puts the next share of each router that takes part into `next`, if it is in there. `age`: of this hub.
    pub(super) fn divide(
        &mut self,
        (id, age): (Id, Duration),
        routers: &BTreeMap<String, Router>,
        next: &mut BTreeMap<String, Next>,
    ) {
        let Some(supply) = self.supply else { return };
        let hides = |router: &Router| self.of_before && router.may_hide(id);
        let is_hidden = routers.values().any(hides);
        let (mut fixed, mut own) = (if is_hidden { self.presumed } else { 0 }, 0);
        let mut parts = Vec::new();
        for (name, router) in routers {
            // One that is not told of the policy any more uses what it had until it has kept to less.
            if router.sees(&self.key.policy) && router.takes_part() && !hides(router) {
                own += router.bound_of(id);
                parts.push((name, router));
            } else {
                fixed += router.bound_of(id);
            }
        }
        let budget = WHOLE.saturating_sub(fixed);
        let wants: Vec<_> = parts
            .iter()
            .map(|(_, router)| wanted(router.asks_for(id), supply.rate))
            .collect();
        let ideal = divide_useful(budget, &wants, supply.least, turn(&supply, age));
        self.aim(&parts, budget, (&wants, ideal), supply.least);
        let steps = self.approach(id, &parts, budget.saturating_sub(own), next);
        self.hold(fixed + own);
        let fresh = self.fresh(&steps);
        for Step { router, share, .. } in steps {
            if let Some(next) = next.get_mut(router) {
                next.shares.insert(id, share);
                if fresh.contains(router) {
                    next.fresh.insert(id);
                }
            }
        }
    }

    /// Who gets a first share now, of what no router ever had. All fresh shares after any moment fit into what was left of the
    /// bucket at that moment: so the tokens that come with them were in nobody's share.
    fn fresh(&mut self, steps: &[Step<'_>]) -> BTreeSet<String> {
        let mut fresh = BTreeSet::new();
        for step in steps.iter().filter(|step| step.bound == 0 && step.share > 0) {
            if let Some(left) = self.unheld.checked_sub(step.share) {
                self.unheld = left;
                fresh.insert(step.router.clone());
            }
        }
        fresh
    }

    /// Sets the goal anew where it is not all of `budget`, or leaves somebody short.
    fn aim(&mut self, parts: &[(&String, &Router)], budget: u32, (wants, ideal): (&[u32], Vec<u32>), least: u32) {
        let is_enough = |((name, _), (ideal, want)): (&(&String, &Router), (&u32, &u32))| {
            let Some(goal) = self.goal.get(*name) else { return false };
            let is_served = ideal.min(want) <= &(goal + LEAST_SLACK.max(goal / SLACK));
            // With less nobody passes, however little he wants.
            let is_served = is_served && (*want == 0 || goal >= ideal.min(&least));
            // What nobody wants is not divided anew for each change of what others want.
            is_served && *ideal <= goal.saturating_mul(2).saturating_add(LEAST_SLACK)
        };
        let is_whole = self.goal.len() == parts.len() && self.goal.values().sum::<u32>() == budget;
        if !is_whole || !parts.iter().zip(ideal.iter().zip(wants)).all(is_enough) {
            let names = parts.iter().map(|(name, _)| (*name).clone());
            self.goal = names.zip(ideal).collect();
        }
    }

    /// Steps towards the goal: down at once, up as far as there is something to `spare`.
    fn approach<'a>(
        &self,
        id: Id,
        parts: &[(&'a String, &Router)],
        spare: u32,
        free: &BTreeMap<String, Next>,
    ) -> Vec<Step<'a>> {
        let steps = parts.iter().filter(|(name, _)| free.contains_key(*name));
        let steps: Vec<_> = steps
            .map(|(name, router)| {
                let goal = self.goal.get(*name).copied().unwrap_or_default();
                (*name, router.bound_of(id), goal)
            })
            .collect();
        let lacking: u64 = steps
            .iter()
            .map(|(_, bound, goal)| u64::from(goal.saturating_sub(*bound)))
            .sum();
        let grown = |bound: u32, goal: u32| {
            let lacks = goal.saturating_sub(bound);
            let part = u64::from(lacks) * u64::from(spare) / lacking.max(1);
            goal.min(bound + u32::try_from(part).unwrap_or(WHOLE).min(lacks))
        };
        let steps = steps.into_iter();
        steps
            .map(|(router, bound, goal)| Step {
                router,
                bound,
                share: grown(bound, goal),
            })
            .collect()
    }
}

/// Whose turn it is where there is too little for all. Tokens of who has had his turn are lost, so that it lasts until the
/// bucket has filled up twice; and for ever, if nothing comes.
fn turn(supply: &Supply, age: Duration) -> u64 {
    let lasts = supply.fills_in.map(|fills| fills.saturating_mul(2).max(TURN));
    lasts.map_or(0, |lasts| age.as_secs() / lasts.as_secs().max(1))
}
