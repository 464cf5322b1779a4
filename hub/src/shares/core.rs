//! Who has which share of each limit that routers have together. Pure: what was said comes in, what is to be said goes out,
//! and time is an argument. Caller: `shares`.
//!
//! Of each router is kept what it may be using at most: what it said, or was told and may have heard. The sum of that never
//! grows beyond the bucket, so a share grows only out of what others have given up and said so. What is not known is
//! presumed to be used: of a router whose stream broke what it had until it is back, and after a start of the hub, by routers
//! that are registered and have said nothing yet, all that nobody else says that he has.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use portolan_crds::circuit_breaker::RATE_LIMITINGS_MAX;
use portolan_wire::v1;

use super::division::{WHOLE, divide_useful, wanted};
use super::router::{Id, Router, Shares};
use crate::compile::{SharedLimit, Supply};
use crate::facts::PolicyName;

/// Of routers that are not heard after a start of the hub it is presumed for so long that they have what nobody else says
/// that he has. One that left is waited for without end: it keeps its own share from others, and no more.
pub(super) const UNHEARD_FOR: Duration = Duration::from_mins(10);
/// Objects of routers that come within this time after the start of the hub may be of one that was let in before it.
const ENROLLED_BEFORE: Duration = Duration::from_mins(1);
/// Where there is too little of a bucket for all routers, each turn lasts so long at least: shares move within a second or two.
pub(super) const TURN: Duration = Duration::from_secs(10);
/// No hub gave a revision beyond: a router that says one must not use up all that there are.
const BELIEVED: u64 = 1 << 62;
/// What a router may lack before all is divided anew, in parts of its share and at least: demand is never even.
const SLACK: u32 = 10;
const LEAST_SLACK: u32 = WHOLE / 500;

/// A router that is registered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Registered {
    /// Of its Router object.
    pub(crate) uid: String,
    /// Policies that it may be told of; `None`: all.
    pub(crate) sees: Option<BTreeSet<PolicyName>>,
}

/// What a router is to be told on its stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Message {
    pub(crate) router: String,
    pub(crate) epoch: u64,
    pub(crate) shares: v1::Shares,
}

/// All rules and routers.
#[derive(Debug, Default)]
pub(crate) struct Core {
    /// When it was first known which routers there are: until a hub leads it hears of none. `None`: not yet.
    started: Option<Instant>,
    /// The last that was given.
    revision: u64,
    /// Objects that were there at the start: an earlier hub may have divided their limits. `None`: nobody has told yet.
    of_before: Option<BTreeSet<String>>,
    /// Uids of the policies' objects, also of those that are gone while routers may have something of them.
    objects: BTreeMap<PolicyName, String>,
    ids: BTreeMap<SharedLimit, Id>,
    next_id: Id,
    rules: BTreeMap<Id, Rule>,
    routers: BTreeMap<String, Router>,
}

#[derive(Debug)]
struct Rule {
    key: SharedLimit,
    /// What comes to it. `None`: it is not in force, or of an object of which no good spec is
    /// known, and shares stay as they are.
    supply: Option<Supply>,
    /// An earlier hub may have divided it.
    of_before: bool,
    /// What routers that have said nothing may have together then.
    presumed: u32,
    /// What each router is to get to.
    goal: BTreeMap<String, u32>,
}

impl Core {
    /// `revision`: beyond all that an earlier hub of this ledger gave.
    pub(crate) fn begin(&mut self, revision: u64) {
        self.revision = self.revision.max(revision);
    }

    /// The rules in force, with what comes to each; and the uids of all objects.
    pub(crate) fn set_rules(&mut self, rules: &BTreeMap<SharedLimit, Supply>, objects: BTreeMap<PolicyName, String>) {
        self.of_before
            .get_or_insert_with(|| objects.values().cloned().collect());
        self.objects = objects;
        for rule in self.rules.values_mut() {
            rule.supply = None;
        }
        for (key, supply) in rules {
            let id = self.id_of(key.clone());
            if let Some(rule) = self.rules.get_mut(&id) {
                rule.supply = Some(*supply);
            }
        }
        let routers = &self.routers;
        let is_used = |id: &Id| routers.values().any(|router| router.uses(*id));
        self.rules.retain(|id, rule| rule.supply.is_some() || is_used(id));
        self.ids.retain(|_, id| self.rules.contains_key(id));
        for SharedLimit { policy, uid, .. } in self.ids.keys() {
            if !self.objects.contains_key(policy) {
                self.objects.insert(policy.clone(), uid.clone());
            }
        }
    }

    /// The routers that there are. What one had that is gone is free.
    pub(crate) fn set_routers(&mut self, registered: BTreeMap<String, Registered>, now: Instant) {
        self.started.get_or_insert(now);
        self.routers.retain(|name, _| registered.contains_key(name));
        for (name, Registered { uid, sees }) in registered {
            self.router(name, uid, now).sees = sees;
        }
    }

    /// A stream begins. `serves`: whether the router serves policies; one that does not has no share.
    pub(crate) fn connected(&mut self, router: (String, String), epoch: u64, serves: bool, now: Instant) {
        let (name, uid) = router;
        self.router(name, uid, now).connect(epoch, serves);
    }

    /// A stream is over.
    pub(crate) fn left(&mut self, router: &str, epoch: u64) {
        if let Some(router) = self.routers.get_mut(router).filter(|router| router.is_on(epoch)) {
            router.leave();
        }
    }

    /// What a router has, and was asked for.
    pub(crate) fn reported(&mut self, router: &str, epoch: u64, demands: &[v1::SharedDemand]) {
        let is_on = self.routers.get(router).is_some_and(|router| router.is_on(epoch));
        if self.of_before.is_none() || !is_on {
            // Of nothing that it says it is known what it is; or it has gone.
            return;
        }
        let mut room = BTreeMap::new();
        let said: Vec<_> = demands
            .iter()
            .filter_map(|demand| Some((self.named(demand, &mut room)?, demand)))
            .collect();
        let Some(router) = self.routers.get_mut(router) else {
            return;
        };
        let beyond = demands
            .iter()
            .map(|demand| demand.revision)
            .filter(|said| *said < BELIEVED)
            .max();
        self.revision = self.revision.max(beyond.unwrap_or_default());
        for id in router.hear(&said) {
            let found = self.rules.get_mut(&id);
            if let Some(rule) = found {
                rule.presumed = rule.presumed.saturating_sub(router.bound_of(id));
            }
        }
    }

    /// What is to be told now. It counts as told.
    pub(crate) fn divide(&mut self, now: Instant) -> Vec<Message> {
        if self.runs_for(UNHEARD_FOR, now) {
            self.routers.values_mut().for_each(|router| router.is_known = true);
        }
        let mut next = BTreeMap::<String, Shares>::new();
        for (name, router) in self.routers.iter().filter(|(_, router)| router.is_free(now)) {
            // What is not in force stays as it is for as long as the router has it: it is about to learn that.
            let asked = router
                .asked()
                .filter(|id| self.rules.get(id).is_some_and(|rule| rule.supply.is_none()));
            let kept = asked.map(|id| (id, router.bound_of(id)));
            next.insert(name.clone(), kept.collect());
        }
        let age = self
            .started
            .map_or(Duration::ZERO, |started| now.saturating_duration_since(started));
        for (id, rule) in &mut self.rules {
            for (router, share) in rule.divide((*id, age), &self.routers, &next) {
                next.entry(router).or_default().insert(*id, share);
            }
        }
        let mut messages = Vec::new();
        for (name, shares) in next {
            let Some(router) = self.routers.get_mut(&name) else {
                continue;
            };
            if let Some(epoch) = router.tell(self.revision + 1, &shares, now) {
                self.revision += 1;
                messages.push(Message {
                    router: name,
                    epoch,
                    shares: wire(self.revision, &shares, &self.rules),
                });
            }
        }
        messages
    }

    /// What each router may be using at most, of each rule that any of them has.
    pub(crate) fn bounds(&self) -> BTreeMap<&SharedLimit, BTreeMap<&str, u32>> {
        let of = |id: Id| {
            let routers = self
                .routers
                .iter()
                .map(|(name, router)| (name.as_str(), router.bound_of(id)));
            routers.filter(|(_, bound)| *bound > 0).collect()
        };
        self.rules.iter().map(|(id, rule)| (&rule.key, of(*id))).collect()
    }

    fn runs_for(&self, time: Duration, now: Instant) -> bool {
        self.started
            .is_some_and(|started| now.saturating_duration_since(started) >= time)
    }

    /// The router whose object has this name and uid.
    fn router(&mut self, name: String, uid: String, now: Instant) -> &mut Router {
        // One that enrols under this hub was told nothing by another.
        let is_known = self.runs_for(ENROLLED_BEFORE, now);
        let router = self.routers.entry(name).or_default();
        if router.uid.as_ref() != Some(&uid) {
            *router = Router::new(uid, is_known);
        }
        router
    }

    /// The rule that a router speaks of. It may be of a spec that this hub has not seen, but whoever makes up names must not fill
    /// its memory. `room`: for how many more of each object there is room, once that was asked.
    fn named(&mut self, demand: &v1::SharedDemand, room: &mut BTreeMap<PolicyName, usize>) -> Option<Id> {
        let policy: PolicyName = demand.policy.parse().ok()?;
        let uid = self.objects.get(&policy)?.clone();
        let rule = demand.rule.clone();
        let key = SharedLimit { policy, uid, rule };
        if let Some(id) = self.ids.get(&key) {
            return Some(*id);
        }
        let left = room
            .entry(key.policy.clone())
            .or_insert_with(|| RATE_LIMITINGS_MAX.saturating_sub(self.unknown_of(&key)));
        *left = left.checked_sub(1)?;
        Some(self.id_of(key))
    }

    /// Rules of the same object that are not in force.
    fn unknown_of(&self, key: &SharedLimit) -> usize {
        let first = SharedLimit {
            rule: String::new(),
            ..key.clone()
        };
        let same = self
            .ids
            .range(first..)
            .take_while(|(one, _)| one.policy == key.policy && one.uid == key.uid);
        same.filter(|(_, id)| self.rules.get(id).is_some_and(|rule| rule.supply.is_none()))
            .count()
    }

    fn id_of(&mut self, key: SharedLimit) -> Id {
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        let id = self.next_id;
        self.next_id += 1;
        let of_before = self.of_before.as_ref().is_some_and(|uids| uids.contains(&key.uid));
        let rule = Rule {
            key: key.clone(),
            supply: None,
            of_before,
            presumed: WHOLE,
            goal: BTreeMap::new(),
        };
        self.rules.insert(id, rule);
        self.ids.insert(key, id);
        id
    }
}

impl Rule {
    /// The next share of each router that takes part and is in `free`. `age`: of this hub.
    fn divide(
        &mut self,
        (id, age): (Id, Duration),
        routers: &BTreeMap<String, Router>,
        free: &BTreeMap<String, Shares>,
    ) -> Vec<(String, u32)> {
        let Some(supply) = self.supply else { return Vec::new() };
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
        self.approach(id, &parts, budget.saturating_sub(own), free)
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
    fn approach(
        &self,
        id: Id,
        parts: &[(&String, &Router)],
        spare: u32,
        free: &BTreeMap<String, Shares>,
    ) -> Vec<(String, u32)> {
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
            .map(|(name, bound, goal)| (name.clone(), grown(bound, goal)))
            .collect()
    }
}

/// Whose turn it is where there is too little for all. Tokens of who has had his turn are lost, so that it lasts until the
/// bucket has filled up twice; and for ever, if nothing comes.
fn turn(supply: &Supply, age: Duration) -> u64 {
    let lasts = supply.fills_in.map(|fills| fills.saturating_mul(2).max(TURN));
    lasts.map_or(0, |lasts| age.as_secs() / lasts.as_secs().max(1))
}

fn wire(revision: u64, shares: &Shares, rules: &BTreeMap<Id, Rule>) -> v1::Shares {
    let shares = shares.iter().filter_map(|(id, millionths)| {
        let SharedLimit { policy, uid, rule } = &rules.get(id)?.key;
        Some(v1::RuleShare {
            policy: policy.to_string(),
            uid: uid.clone(),
            rule: rule.clone(),
            millionths: *millionths,
        })
    });
    v1::Shares {
        revision,
        shares: shares.collect(),
    }
}
