//! Limits that all callers of a policy have together, over all routers: one bucket each, of which this router has a share.
//!
//! Shares are told whole; what is not named is 0, and so is what nobody has told yet. A rule uses what was told as far as it is
//! on disk, too: less at once, more once a restart would find it. Owner: `policies`, which locks it after a caller's own rules.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use portolan_wire::v1;

use super::aside::{ASIDE, MOST_ASIDE};
use crate::decision::policy::{Demand, RuleState, Tick};
use crate::value::policy::{Limit, Policy};
use crate::value::snapshot::Snapshot;

/// By what a shared rule is known over edits: the policy's uid and the rule's name.
type SharedKey = (Arc<str>, Box<str>);

/// All of them that this router knows.
#[derive(Debug, Default)]
pub(super) struct SharedRules {
    rules: HashMap<SharedKey, SharedRule>,
    /// Rules of which no snapshot tells any more, until when: who finds one again finds it as it was left.
    aside: HashMap<SharedKey, (SharedRule, Tick)>,
    told: ToldShares,
    /// Those that a restart would find.
    safe: ToldShares,
    /// A rule that comes from now on is new to all routers.
    full: bool,
    /// What was asked of them was looked at last then.
    demand_at: Tick,
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
}

impl ToldShares {
    pub(crate) fn of(wire: &v1::Shares) -> Self {
        let share = |share: &v1::RuleShare| {
            let key = (share.uid.as_str().into(), share.rule.as_str().into());
            (key, share.millionths)
        };
        Self {
            revision: wire.revision,
            shares: wire.shares.iter().map(share).collect(),
        }
    }

    /// Back as it came, but for the names of the policies, of which uids say enough.
    pub(super) fn to_wire(&self) -> v1::Shares {
        let share = |((uid, rule), millionths): (&SharedKey, &u32)| v1::RuleShare {
            policy: String::new(),
            uid: uid.to_string(),
            rule: rule.to_string(),
            millionths: *millionths,
        };
        v1::Shares {
            revision: self.revision,
            shares: self.shares.iter().map(share).collect(),
        }
    }

    fn share(&self, key: &SharedKey) -> u32 {
        self.shares.get(key).copied().unwrap_or_default()
    }
}

impl SharedRules {
    /// Rules that come from now on are new to all routers: nobody has spent anything of them.
    pub(super) fn are_full(&mut self) {
        self.full = true;
    }

    /// The rule with its state. One that no snapshot was followed to for yet begins as it will then.
    pub(super) fn rule(&mut self, policy: &Arc<Policy>, limit: &Arc<Limit>, now: Tick) -> (&Limit, &mut RuleState) {
        let key = key(policy, limit);
        let (full, share) = (self.full, self.share(&key));
        let aside = &mut self.aside;
        let begin = |key: &SharedKey| {
            let found = aside.remove(key).map(|(rule, _)| rule);
            let found = found.filter(|rule| is_same(&rule.limit, limit));
            found.unwrap_or_else(|| SharedRule::new((policy, limit), (full, share), now))
        };
        let rule = self.rules.entry(key).or_insert_with_key(begin);
        (&rule.limit, &mut rule.state)
    }

    /// Follows to the policies of another snapshot. `full`: a rule that is new to this router is new to all of them, so
    /// nobody has spent anything of it. True if a person closed one that was opened.
    pub(super) fn follow(&mut self, snapshot: &Snapshot, full: bool, now: Tick) -> bool {
        let mut before = std::mem::take(&mut self.rules);
        let mut closed = false;
        for policy in snapshot.policies.values() {
            for limit in policy.limits().iter().filter(|limit| limit.shared) {
                let key = key(policy, limit);
                let had = before
                    .remove(&key)
                    .or_else(|| self.aside.remove(&key).map(|(rule, _)| rule));
                let share = self.share(&key);
                // Who had nothing of it before an edit is given some later, of what others begin with now.
                let full = full && (had.is_none() || share > 0);
                let kept = had.filter(|rule| is_same(&rule.limit, limit));
                let begin = || SharedRule::new((policy, limit), (full, share), now);
                let mut rule = kept.unwrap_or_else(begin);
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

    /// An edit that takes a rule out of its policy ends it. A policy that this router is told of no more may come back: a Pod's
    /// label changes, or the only caller here is made anew.
    fn lay_aside(&mut self, left: HashMap<SharedKey, SharedRule>, snapshot: &Snapshot, now: Tick) {
        let uids: HashSet<_> = snapshot.policies.values().map(|policy| &policy.uid).collect();
        let left = left.into_iter().filter(|((uid, _), _)| !uids.contains(uid));
        let until = now.after(ASIDE);
        self.aside.extend(left.map(|(key, rule)| (key, (rule, until))));
        self.aside.retain(|_, (_, until)| now < *until);
        if self.aside.len() > MOST_ASIDE {
            let mut untils: Vec<_> = self.aside.values().map(|(_, until)| *until).collect();
            untils.sort_unstable_by_key(|until| Reverse(*until));
            let least = untils[MOST_ASIDE];
            self.aside.retain(|_, (_, until)| *until > least);
        }
    }

    /// These are this router's shares from now on; of what grows once they are [`Self::secured`].
    pub(super) fn reshare(&mut self, told: ToldShares, now: Tick) {
        self.told = told;
        self.use_shares(now);
    }

    /// A restart would find these.
    pub(super) fn secured(&mut self, safe: ToldShares, now: Tick) {
        self.safe = safe;
        self.use_shares(now);
    }

    fn use_shares(&mut self, now: Tick) {
        let mut rules = std::mem::take(&mut self.rules);
        let mut aside = std::mem::take(&mut self.aside);
        let all = rules
            .iter_mut()
            .chain(aside.iter_mut().map(|(key, (rule, _))| (key, rule)));
        for (key, rule) in all {
            rule.state.reshare(&rule.limit, self.share(key), now);
        }
        self.rules = rules;
        self.aside = aside;
    }

    /// A router that used more than it has on disk would say less to the next hub than it uses.
    fn share(&self, key: &SharedKey) -> u32 {
        self.told.share(key).min(self.safe.share(key))
    }

    pub(super) fn told(&self) -> &ToldShares {
        &self.told
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

    /// What each was asked for of late, and its share that a restart would find: more than that the router does not use, and
    /// less it must not say.
    pub(super) fn demands(&mut self, now: Tick) -> Vec<v1::SharedDemand> {
        let passed = Duration::from_nanos(now.since(self.demand_at));
        let mut looked = true;
        let demands = self.rules.iter_mut().map(|(key, rule)| {
            looked &= rule.demand.look(rule.state.asked(), passed);
            v1::SharedDemand {
                policy: rule.policy.name.to_string(),
                uid: rule.policy.uid.to_string(),
                rule: rule.limit.name.to_string(),
                share_millionths: self.safe.share(key),
                revision: self.safe.revision,
                asked_per_second_thousandths: rule.demand.per_second_thousandths(),
            }
        });
        let demands = demands.collect();
        if looked {
            self.demand_at = now;
        }
        demands
    }
}

impl SharedRule {
    /// With this share of it. `full`: the first one comes with all its tokens.
    fn new((policy, limit): (&Arc<Policy>, &Arc<Limit>), (full, share): (bool, u32), now: Tick) -> Self {
        let mut state = RuleState::shared(policy.closed_at(&limit.name), full, now);
        state.reshare(limit, share, now);
        Self {
            policy: policy.clone(),
            limit: limit.clone(),
            state,
            demand: Demand::default(),
        }
    }
}

fn key(policy: &Policy, limit: &Limit) -> SharedKey {
    (policy.uid.clone(), limit.name.clone())
}

/// Whether it says the same. Pointers tell for most: what was not told anew is the same value.
pub(super) fn is_same(one: &Arc<Limit>, other: &Arc<Limit>) -> bool {
    Arc::ptr_eq(one, other) || one == other
}
