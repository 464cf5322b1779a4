//! Limits that all callers of a policy have together, over all routers: one bucket each, of which this router has a share.
//!
//! Shares are told whole; what is not named is 0, and so is what nobody has told yet. A rule uses what was told as far as it is
//! on disk, too: less at once, more once a restart would find it. A rule begins empty, as other routers may have spent what its
//! share held, unless the hub says that no router has had that part before. Owner: `policies`, which locks it after a caller's own
//! rules.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use portolan_wire::v1;

use super::aside::{ASIDE, MOST_ASIDE};
use crate::decision::policy::{Demand, Passed, RuleState, Tick};
use crate::value::policy::{CallerPolicies, Limit, Policy};
use crate::value::snapshot::{CallerKey, CallerView, Map, Snapshot};

/// Most demands that are told at a time: what the hub takes.
const MOST_DEMANDS: usize = 4_096;

/// By what a shared rule is known over edits: the policy's uid and the rule's name.
type SharedKey = (Arc<str>, Box<str>);

/// All of them that this router knows.
#[derive(Debug, Default)]
pub(super) struct SharedRules {
    /// What they have followed to.
    newest: Newest,
    rules: HashMap<SharedKey, SharedRule>,
    /// Rules of which no snapshot tells any more, until when: who finds one again finds it as it was left.
    aside: HashMap<SharedKey, (SharedRule, Tick)>,
    told: ToldShares,
    /// Those that a restart would find at least.
    safe: ToldShares,
    /// `Some`: a write failed such that the file may have other shares by now; these at most.
    feared: Option<HashMap<SharedKey, u32>>,
    /// Parts of buckets that no router had before this one and that no rule has begun with here: what it has kept of them.
    fresh: HashMap<SharedKey, u32>,
    /// What was asked of them was looked at last then.
    demand_at: Tick,
}

/// Of the newest snapshot: who meets a shared rule must be judged by no older ones of its own, either.
#[derive(Debug, Default)]
struct Newest {
    generation: u64,
    callers: Map<CallerKey, CallerView>,
}

#[derive(Debug)]
struct SharedRule {
    policy: Arc<Policy>,
    limit: Arc<Limit>,
    state: RuleState,
    demand: Demand,
}

/// Shares as they were told last.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ToldShares {
    /// 0: none were told.
    pub(crate) revision: u64,
    /// By the policy's uid and the rule's name, in millionths of the bucket.
    pub(crate) shares: HashMap<SharedKey, u32>,
    /// Of which no router had this part before. It is true once: neither what is kept in memory nor the file says so.
    pub(super) fresh: HashSet<SharedKey>,
}

impl ToldShares {
    pub(crate) fn of(wire: &v1::Shares) -> Self {
        let key = |share: &v1::RuleShare| (share.uid.as_str().into(), share.rule.as_str().into());
        let fresh = wire.shares.iter().filter(|share| share.fresh);
        Self {
            revision: wire.revision,
            shares: wire.shares.iter().map(|share| (key(share), share.millionths)).collect(),
            fresh: fresh.map(key).collect(),
        }
    }

    /// Back as it came, but for the names of the policies, of which uids say enough.
    pub(super) fn to_wire(&self) -> v1::Shares {
        let share = |((uid, rule), millionths): (&SharedKey, &u32)| v1::RuleShare {
            policy: String::new(),
            uid: uid.to_string(),
            rule: rule.to_string(),
            millionths: *millionths,
            fresh: false,
        };
        v1::Shares {
            revision: self.revision,
            shares: self.shares.iter().map(share).collect(),
        }
    }

    pub(super) fn share(&self, key: &SharedKey) -> u32 {
        self.shares.get(key).copied().unwrap_or_default()
    }
}

impl SharedRules {
    /// What holds this caller by the snapshot that they have followed to, and its generation, if that is newer.
    pub(super) fn newer_than(
        &self,
        generation: u64,
        caller: &CallerKey,
    ) -> Option<(Option<&Arc<CallerPolicies>>, u64)> {
        let newest = &self.newest;
        let policies = || newest.callers.get(caller)?.policies.as_ref();
        (newest.generation > generation).then(|| (policies(), newest.generation))
    }

    /// Tokens come back that a request took of this rule, if it is the same since.
    pub(super) fn give_back(&mut self, (policy, limit): (&Policy, &Limit), cost: u32, passed: Passed, now: Tick) {
        let key = key(policy, limit);
        let aside = self.aside.get_mut(&key).map(|(rule, _)| rule);
        if let Some(rule) = self.rules.get_mut(&key).or(aside) {
            rule.state.give_back(&rule.limit, cost, passed, now);
        }
    }

    /// The rule with its state. One that no snapshot was followed to for yet begins as it will then.
    pub(super) fn rule(&mut self, policy: &Arc<Policy>, limit: &Arc<Limit>, now: Tick) -> (&Limit, &mut RuleState) {
        let key = key(policy, limit);
        if !self.rules.contains_key(&key) {
            let found = self.aside.remove(&key).map(|(rule, _)| rule);
            let found = found.filter(|rule| is_same(&rule.limit, limit));
            let rule = found.unwrap_or_else(|| self.begin(&key, (policy, limit), false, now));
            self.rules.insert(key.clone(), rule);
        }
        let rule = self.rules.get_mut(&key).expect("it was put there if it was not");
        (&rule.limit, &mut rule.state)
    }

    /// Follows to the policies of another snapshot. `full`: a rule that an edit changed has all tokens of this router's share.
    /// True if a person closed one that was opened.
    pub(super) fn follow(&mut self, snapshot: &Snapshot, full: bool, now: Tick) -> bool {
        self.newest = Newest {
            generation: snapshot.generation,
            callers: snapshot.callers.clone(),
        };
        let mut before = std::mem::take(&mut self.rules);
        let mut closed = false;
        for policy in snapshot.policies.values() {
            for limit in policy.limits().iter().filter(|limit| limit.shared) {
                let key = key(policy, limit);
                let had = before
                    .remove(&key)
                    .or_else(|| self.aside.remove(&key).map(|(rule, _)| rule));
                let edited = full && had.is_some();
                let kept = had.filter(|rule| is_same(&rule.limit, limit));
                let mut rule = kept.unwrap_or_else(|| self.begin(&key, (policy, limit), edited, now));
                rule.policy = policy.clone();
                if let Some(at) = policy.closed_at(&limit.name) {
                    closed |= rule.state.close_by_hand(at, now);
                }
                self.rules.insert(key, rule);
            }
        }
        self.lay_aside(before, snapshot, now);
        closed
    }

    /// A rule with this router's share of it, and the tokens of what no router had before. `edited`: with all its tokens; who
    /// has no share at that moment gets one later, of what others began with then.
    fn begin(
        &mut self,
        key: &SharedKey,
        (policy, limit): (&Arc<Policy>, &Arc<Limit>),
        edited: bool,
        now: Tick,
    ) -> SharedRule {
        let share = self.share(key);
        let mut rule = SharedRule::new((policy, limit), share, now).began_with(self.newest.generation);
        if edited {
            rule.state.fill(limit, share);
        }
        rule.begin_fresh(key, share, &mut self.fresh);
        rule
    }

    /// An edit that takes a rule out of its policy ends it. A policy that this router is told of no more may come back: a Pod's
    /// label changes, or the only caller here is made anew.
    fn lay_aside(&mut self, left: HashMap<SharedKey, SharedRule>, snapshot: &Snapshot, now: Tick) {
        let uids: HashSet<_> = snapshot.policies.values().map(|policy| &policy.uid).collect();
        let until = now.after(ASIDE);
        self.aside
            .extend(left.into_iter().map(|(key, rule)| (key, (rule, until))));
        // Also one that came back without a rule that it had.
        self.aside
            .retain(|(uid, _), (_, until)| now < *until && !uids.contains(uid));
        if self.aside.len() > MOST_ASIDE {
            let mut untils: Vec<_> = self.aside.values().map(|(_, until)| *until).collect();
            untils.sort_unstable_by_key(|until| Reverse(*until));
            let least = untils[MOST_ASIDE];
            self.aside.retain(|_, (_, until)| *until > least);
        }
    }

    /// These are this router's shares from now on; of what grows once they are [`Self::secured`].
    pub(super) fn reshare(&mut self, mut told: ToldShares, now: Tick) {
        let fresh = std::mem::take(&mut told.fresh);
        // What was told before is not fresh, though it be said again: the hub says it until it knows that it was heard.
        let fresh = fresh.into_iter().filter(|key| self.told.share(key) == 0);
        let fresh: Vec<_> = fresh.map(|key| (told.share(&key), key)).collect();
        // What was given up meanwhile others have had.
        self.fresh.retain(|key, part| {
            *part = told.share(key).min(*part);
            *part > 0
        });
        self.fresh.extend(fresh.into_iter().map(|(part, key)| (key, part)));
        self.told = told;
        self.use_shares(now);
    }

    /// As if the hub had told that there are no shares.
    pub(super) fn give_back_all(&mut self, now: Tick) {
        let none = ToldShares {
            revision: self.told.revision,
            ..ToldShares::default()
        };
        self.reshare(none, now);
    }

    /// A restart would find these.
    pub(super) fn secured(&mut self, mut safe: ToldShares, now: Tick) {
        safe.fresh.clear();
        self.safe = safe;
        self.feared = None;
        self.use_shares(now);
    }

    /// A restart would find these, or what it would have found before they were written: what all of them say may be used, and
    /// the hub must hear the most that any says.
    pub(super) fn doubted(&mut self, written: &ToldShares, now: Tick) {
        let feared = self.feared.get_or_insert_with(|| self.safe.shares.clone());
        for (key, share) in &written.shares {
            let most = feared.entry(key.clone()).or_default();
            *most = (*most).max(*share);
        }
        for (key, share) in &mut self.safe.shares {
            *share = written.share(key).min(*share);
        }
        self.use_shares(now);
    }

    /// What was told and is not on disk counts as not heard.
    pub(super) fn forget_unsecured(&mut self, now: Tick) {
        self.reshare(self.safe.clone(), now);
    }

    /// The shares that were told last, if it is not known that a restart would find them.
    pub(super) fn unsecured(&self) -> Option<ToldShares> {
        (self.told != self.safe || self.feared.is_some()).then(|| self.told.clone())
    }

    fn use_shares(&mut self, now: Tick) {
        let mut rules = std::mem::take(&mut self.rules);
        let mut aside = std::mem::take(&mut self.aside);
        let all = rules
            .iter_mut()
            .chain(aside.iter_mut().map(|(key, (rule, _))| (key, rule)));
        for (key, rule) in all {
            let share = self.share(key);
            rule.state.reshare(&rule.limit, share, now);
            rule.begin_fresh(key, share, &mut self.fresh);
        }
        self.rules = rules;
        self.aside = aside;
    }

    /// A router that used more than it has on disk would say less to the next hub than it uses.
    pub(super) fn share(&self, key: &SharedKey) -> u32 {
        self.told.share(key).min(self.safe.share(key))
    }

    pub(super) fn safe(&self) -> &ToldShares {
        &self.safe
    }

    /// Each of them, with its state.
    pub(super) fn all(&mut self) -> impl Iterator<Item = (&Arc<Policy>, &Arc<Limit>, &mut RuleState)> {
        self.rules
            .values_mut()
            .map(|rule| (&rule.policy, &rule.limit, &mut rule.state))
    }

    /// What each was asked for of late, and its share that a restart would find, at most: more than that the router does not
    /// use, and less it must not say.
    pub(super) fn demands(&mut self, now: Tick) -> Vec<v1::SharedDemand> {
        let passed = Duration::from_nanos(now.since(self.demand_at));
        let mut looked = true;
        let feared = self.feared.as_ref();
        let demands = self.rules.iter_mut().map(|(key, rule)| {
            looked &= rule.demand.look(rule.state.asked(), passed);
            v1::SharedDemand {
                policy: rule.policy.name.to_string(),
                uid: rule.policy.uid.to_string(),
                rule: rule.limit.name.to_string(),
                share_millionths: feared
                    .and_then(|most| most.get(key).copied())
                    .unwrap_or_else(|| self.safe.share(key)),
                revision: self.safe.revision,
                asked_per_second_thousandths: rule.demand.per_second_thousandths(),
            }
        });
        let demands = most_wanted(demands.collect());
        if looked {
            self.demand_at = now;
        }
        demands
    }
}

impl SharedRule {
    /// With this share of it, and nothing in that.
    fn new((policy, limit): (&Arc<Policy>, &Arc<Limit>), share: u32, now: Tick) -> Self {
        Self {
            policy: policy.clone(),
            limit: limit.clone(),
            state: RuleState::shared(policy.closed_at(&limit.name), share, now),
            demand: Demand::default(),
        }
    }

    fn began_with(mut self, generation: u64) -> Self {
        self.state = self.state.began_with(generation);
        self
    }

    /// What no router had before comes with its tokens, as soon as there is a share.
    fn begin_fresh(&mut self, key: &SharedKey, share: u32, fresh: &mut HashMap<SharedKey, u32>) {
        if share > 0
            && let Some(part) = fresh.remove(key)
        {
            self.state.fill(&self.limit, part);
        }
    }
}

/// As many as the hub takes: those first of which there is a share, as one that is not named counts as given up, then those that
/// are asked for most.
pub(super) fn most_wanted(mut demands: Vec<v1::SharedDemand>) -> Vec<v1::SharedDemand> {
    if demands.len() > MOST_DEMANDS {
        let worth = |demand: &v1::SharedDemand| (demand.share_millionths > 0, demand.asked_per_second_thousandths);
        demands.sort_unstable_by_key(|demand| Reverse(worth(demand)));
        demands.truncate(MOST_DEMANDS);
    }
    demands
}

fn key(policy: &Policy, limit: &Limit) -> SharedKey {
    (policy.uid.clone(), limit.name.clone())
}

/// Whether it says the same. Pointers tell for most: what was not told anew is the same value.
pub(super) fn is_same(one: &Arc<Limit>, other: &Arc<Limit>) -> bool {
    Arc::ptr_eq(one, other) || one == other
}
