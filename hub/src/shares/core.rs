//! Who has which share of each limit that routers have together. Pure: what was said comes in, what is to be said goes out,
//! and time is an argument. Caller: `shares`.
//!
//! Of each router is kept what it may be using at most: what it said, or was told and may have heard. The sum of that never
//! grows beyond the bucket, so a share grows only out of what others have given up and said so. What is not known is
//! presumed to be used: of a router whose stream broke what it had until it is back, and after a start of the hub, by routers
//! that are registered and have said nothing yet, all that nobody else says that he has. It ends with the router: when it is
//! forgotten, or when it was away for so long that it can pass nothing any more.
//!
//! Tokens come by the clock, and at once only with what no router ever had of a rule: each rule knows how much that is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use portolan_crds::circuit_breaker::RATE_LIMITINGS_MAX;
use portolan_wire::v1;

use super::router::{Id, Next, Router};
use super::rule::Rule;
use super::withheld::WithheldShares;
use crate::compile::{SharedLimit, Supply};
use crate::facts::PolicyName;

/// Objects of routers that come within this time after the start of the hub may be of one that was let in before it.
const ENROLLED_BEFORE: Duration = Duration::from_mins(1);
/// A rule of an object that is out of force for a while is the same when it is back: routers lay what they know of it aside for
/// ten minutes from when they hear so.
pub(super) const SAME_FOR: Duration = Duration::from_mins(11);
/// No hub gave a revision beyond: a router that says one must not use up all that there are.
/// Revisions of a hub begin with its term, in seconds of today, times 2³²: what is left beyond is as much as one hub may give.
const BELIEVED: u64 = u64::MAX << super::REVISIONS_OF_A_TERM;

/// A router that is registered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Registered {
    /// Of its Router object.
    pub(crate) uid: String,
    /// Policies that it may be told of; `None`: all.
    pub(crate) sees: Option<BTreeSet<PolicyName>>,
}

/// A policy's object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) uid: String,
    /// Whether routers are told of it: then these are all of its rules. Else nobody says which there are.
    pub(crate) in_force: bool,
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
    /// Those of them that were not in force yet: of their rules nobody has told.
    unseen: BTreeSet<String>,
    /// The policies' objects, also those that are gone while routers may have something of them.
    objects: BTreeMap<PolicyName, Object>,
    ids: BTreeMap<SharedLimit, Id>,
    next_id: Id,
    rules: BTreeMap<Id, Rule>,
    routers: BTreeMap<String, Router>,
}

impl Core {
    /// `revision`: beyond all that an earlier hub of this ledger gave.
    pub(crate) fn begin(&mut self, revision: u64) {
        self.revision = self.revision.max(revision);
    }

    /// The rules in force, with what comes to each; and all objects.
    pub(crate) fn set_rules(
        &mut self,
        rules: &BTreeMap<SharedLimit, Supply>,
        objects: BTreeMap<PolicyName, Object>,
        now: Instant,
    ) {
        if self.of_before.is_none() {
            let uids: BTreeSet<_> = objects.values().map(|object| object.uid.clone()).collect();
            self.unseen.clone_from(&uids);
            self.of_before = Some(uids);
        }
        self.objects = objects;
        for rule in self.rules.values_mut() {
            rule.end(now);
        }
        for (key, supply) in rules {
            let id = self.id_of(key.clone());
            if let Some(rule) = self.rules.get_mut(&id) {
                rule.supply = Some(*supply);
            }
        }
        // What an edit adds from now on is new, also to an object of before.
        for object in self.objects.values().filter(|object| object.in_force) {
            self.unseen.remove(&object.uid);
        }
        self.forget_rules(now);
        for SharedLimit { policy, uid, .. } in self.ids.keys() {
            if !self.objects.contains_key(policy) {
                let gone = Object {
                    uid: uid.clone(),
                    in_force: false,
                };
                self.objects.insert(policy.clone(), gone);
            }
        }
    }

    /// Those that are not in force, of which no router has anything, and that cannot come back as they were.
    fn forget_rules(&mut self, now: Instant) {
        let (routers, objects) = (&self.routers, &self.objects);
        let is_used = |id: &Id| routers.values().any(|router| router.uses(*id));
        let is_withdrawn = |SharedLimit { policy, uid, .. }: &SharedLimit| {
            let object = objects.get(policy);
            object.is_some_and(|object| object.uid == *uid && !object.in_force)
        };
        self.rules.retain(|id, rule| {
            rule.supply.is_some() || is_used(id) || (rule.ended_within(SAME_FOR, now) && is_withdrawn(&rule.key))
        });
        self.ids.retain(|_, id| self.rules.contains_key(id));
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
        self.router(name, uid, now).connect(epoch, serves, now);
    }

    /// A stream is over.
    pub(crate) fn left(&mut self, router: &str, epoch: u64, now: Instant) {
        if let Some(router) = self.routers.get_mut(router).filter(|router| router.is_on(epoch)) {
            router.leave(now);
        }
    }

    /// A router has ended, and has no part of anything any more.
    pub(crate) fn gave_back(&mut self, router: &str, epoch: u64, now: Instant) {
        if let Some(router) = self.routers.get_mut(router).filter(|router| router.is_on(epoch)) {
            router.give_back(now);
        }
    }

    /// What a router has, and was asked for. `revision`: of the shares that it keeps to, also where it has none of a rule; of an
    /// older router 0.
    pub(crate) fn reported(&mut self, router: &str, epoch: u64, demands: &[v1::SharedDemand], revision: u64) {
        let is_on = self.routers.get(router).is_some_and(|router| router.is_on(epoch));
        let is_understood = self.of_before.is_some() || demands.is_empty();
        if !is_on || !is_understood {
            // It has gone; or of nothing that it says it is known what it is. It says it again, but who has nothing says so once.
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
        let revisions = demands.iter().map(|demand| demand.revision).chain([revision]);
        let revision = revisions.max().unwrap_or_default();
        if revision < BELIEVED {
            self.revision = self.revision.max(revision);
        }
        for id in router.hear(&said, revision) {
            if let Some(rule) = self.rules.get_mut(&id) {
                rule.is_said(router.bound_of(id));
            }
        }
        for (id, _) in &said {
            if let Some(rule) = self.rules.get_mut(id) {
                rule.hold(router.bound_of(*id));
            }
        }
    }

    /// What is to be told now. It counts as told.
    pub(crate) fn divide(&mut self, now: Instant) -> Vec<Message> {
        for router in self.routers.values_mut() {
            router.pass_time(now);
        }
        for (id, rule) in &mut self.rules {
            rule.look(*id, &self.routers, now);
        }
        let mut next = BTreeMap::<String, Next>::new();
        for (name, router) in self.routers.iter().filter(|(_, router)| router.is_free(now)) {
            // What is not in force stays as it is for as long as the router has it: it is about to learn that.
            let asked = router
                .asked()
                .filter(|id| self.rules.get(id).is_some_and(|rule| rule.supply.is_none()));
            let kept = asked.map(|id| (id, router.bound_of(id)));
            let kept = Next {
                shares: kept.collect(),
                ..Next::default()
            };
            next.insert(name.clone(), kept);
        }
        let age = self
            .started
            .map_or(Duration::ZERO, |started| now.saturating_duration_since(started));
        for (id, rule) in &mut self.rules {
            rule.divide((*id, age), &self.routers, &mut next);
        }
        self.tell(next, now)
    }

    /// Those who were not told the same before. It counts as told.
    fn tell(&mut self, next: BTreeMap<String, Next>, now: Instant) -> Vec<Message> {
        let may_be_hidden = self.rules.values().any(Rule::may_be_hidden);
        let mut messages = Vec::new();
        for (name, mut next) in next {
            let Some(router) = self.routers.get_mut(&name) else {
                continue;
            };
            if let Some(epoch) = router.tell(self.revision + 1, &mut next, may_be_hidden, now) {
                self.revision += 1;
                messages.push(Message {
                    router: name,
                    epoch,
                    shares: wire(self.revision, &next, &self.rules),
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

    /// What routers keep that others are to have, and have kept for long.
    pub(crate) fn withheld(&self, now: Instant) -> WithheldShares {
        let mut all = WithheldShares::new();
        for rule in self.rules.values() {
            for withheld in rule.withheld(now) {
                let of_policy = all.entry(rule.key.policy.clone()).or_default();
                of_policy.push(withheld);
            }
        }
        for of_policy in all.values_mut() {
            of_policy.sort();
        }
        all
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
            *router = Router::new(uid, is_known, now);
        }
        router
    }

    /// The rule that a router speaks of. It may be of a spec that this hub has not seen, but whoever makes up names must not fill
    /// its memory. `room`: for how many more of each object there is room, once that was asked.
    fn named(&mut self, demand: &v1::SharedDemand, room: &mut BTreeMap<PolicyName, usize>) -> Option<Id> {
        let policy: PolicyName = demand.policy.parse().ok()?;
        let present = self.objects.get(&policy)?.uid.clone();
        // It may be of an object that was deleted: what it has of that one it does not have of the present one.
        let is_present = demand.uid.is_empty() || demand.uid == present;
        let uid = if is_present { present } else { demand.uid.clone() };
        let rule = demand.rule.clone();
        let key = SharedLimit { policy, uid, rule };
        if let Some(id) = self.ids.get(&key) {
            return Some(*id);
        }
        if !is_present {
            return None;
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
        let is_new = !self.unseen.contains(&key.uid);
        self.rules.insert(id, Rule::new(key.clone(), of_before, is_new));
        self.ids.insert(key, id);
        id
    }
}

fn wire(revision: u64, next: &Next, rules: &BTreeMap<Id, Rule>) -> v1::Shares {
    let shares = next.shares.iter().filter_map(|(id, millionths)| {
        let SharedLimit { policy, uid, rule } = &rules.get(id)?.key;
        Some(v1::RuleShare {
            policy: policy.to_string(),
            uid: uid.clone(),
            rule: rule.clone(),
            millionths: *millionths,
            fresh: next.fresh.contains(id),
        })
    });
    v1::Shares {
        revision,
        shares: shares.collect(),
    }
}
