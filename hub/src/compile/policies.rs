//! Policies → what routers are told of them, and which callers each holds.
//!
//! Whom a policy holds stands in the callers' views: Pods come and go far more often than rules change. A policy speaks of
//! callers in its own namespace alone, so each caller is compared with those of its namespace, once for all callers that
//! are alike in the labels that these policies ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use portolan_crds::circuit_breaker::{Bucket, LimitScope, RateLimiting, TriggerPolicy};
use portolan_crds::duration::parse_go_duration;
use portolan_crds::{Requirement, Selector};
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;

use super::{Compiled, Ref, World};
use crate::facts::{Facts, PolicyKind, PolicyName, PolicyObject, PolicySpec, RuleNames, Selection};

/// Policies of one namespace that are in force, the oldest first: their names are in the view of every caller there, and
/// whoever may make objects in a namespace must not be able to fill the hub's and the routers' memory by them.
pub(crate) const MAX_IN_NAMESPACE: usize = 1_000;
/// Policies that hold one caller, the oldest first: their names, of some hundred bytes each, are in the views of as many callers
/// as the namespace has Pods.
pub(crate) const MAX_OF_CALLER: usize = 200;
/// Callers whose names are told of one policy: more nobody reads, and its status is an object of etcd.
pub(crate) const MAX_NAMED: usize = 50;

/// Why a policy holds or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    InForce,
    /// It was there before this process, which has seen no good spec of it: routers keep what they have.
    NoneGood,
    /// It came later, and had no good spec: what routers have of its name is of an object that is gone.
    NeverGood,
    /// Its label says so.
    Withdrawn,
    /// Its spec says so.
    Disabled,
    /// All faults are stopped.
    Stopped,
    /// Its time is over.
    Expired,
    /// There are too many in its namespace.
    Excess,
}

impl Standing {
    /// Whether routers are to hold it, so that callers' views name it.
    pub(crate) fn is_told(self) -> bool {
        matches!(self, Self::InForce | Self::NoneGood)
    }
}

/// A limit that routers have together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SharedLimit {
    pub(crate) policy: PolicyName,
    /// Of the policy's object: one that is made anew has buckets of its own.
    pub(crate) uid: String,
    pub(crate) rule: String,
}

/// What comes to a limit that routers share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Supply {
    /// Tokens in a second, in thousandths.
    pub(crate) rate: u64,
    /// The share that may hold the tokens of the dearest request, in millionths: with less, some never pass.
    pub(crate) least: u32,
    /// How long an empty bucket takes to fill, whatever part of it one has; `None`: for ever.
    pub(crate) fills_in: Option<Duration>,
}

/// How a policy stands, and how far it reaches.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PolicyReach {
    pub(crate) uid: String,
    /// Of the object, whose spec may be a bad one.
    pub(crate) generation: i64,
    pub(crate) standing: Standing,
    /// Names of the rules of its spec in force; `None` while none is known, and routers may have one.
    pub(crate) rules: Option<Arc<RuleNames>>,
    /// Callers that it selects, whether or not it is in force.
    pub(crate) callers: Reached,
}

/// Callers that a policy selects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) count: usize,
    /// Of them those that it does not hold, as older policies do that are as many as may.
    pub(crate) spared: usize,
    /// The first [`MAX_NAMED`], as `<cluster>/<namespace>/<Pod>`, in the order of these names.
    pub(crate) first: BTreeSet<Arc<str>>,
}

impl Reached {
    /// One more, whose turn may be anywhere.
    fn add(&mut self, name: &Arc<str>) {
        self.count += 1;
        let is_among = self.first.len() < MAX_NAMED || self.first.last().is_some_and(|last| name < last);
        if is_among && self.first.insert(name.clone()) && self.first.len() > MAX_NAMED {
            self.first.pop_last();
        }
    }
}

/// Adds a resource for each policy in force, and returns which policies may hold callers.
pub(super) fn render<'a>(world: &mut World, facts: &'a Facts, now: Timestamp) -> Holders<'a> {
    let policies = facts.policies.iter();
    let standings = policies.map(|(name, object)| (name, standing(name, object, facts, now)));
    let mut standings: BTreeMap<_, _> = standings.collect();
    for name in excess(facts, &standings) {
        standings.insert(name, Standing::Excess);
    }
    let mut holders = Holders::default();
    for (name, object) in &facts.policies {
        let standing = standings[name];
        if let (Standing::InForce, Some(policy)) = (standing, policy(name, object)) {
            let compiled = Compiled::new(Body::Policy(policy));
            world.resources.insert(Ref::Policy(name.clone()), compiled);
            world.shared_limits.extend(shared_limits(name, object));
        }
        if let Some(selection) = &object.selection {
            let holder = Holder {
                name,
                created: object.created,
                selection,
                is_told: standing.is_told(),
                text: name.to_string(),
            };
            holders.add(holder);
        }
        let reach = PolicyReach {
            uid: object.uid.clone(),
            generation: object.generation,
            standing,
            rules: object.in_force.as_ref().map(|good| good.rules.clone()),
            callers: Reached::default(),
        };
        world.policies.insert(name.clone(), reach);
    }
    holders
}

fn standing(name: &PolicyName, object: &PolicyObject, facts: &Facts, now: Timestamp) -> Standing {
    let is_fault = name.kind == PolicyKind::FaultInjection;
    if object.labelled_off {
        Standing::Withdrawn
    } else if object.disabled {
        Standing::Disabled
    } else if is_fault && facts.faults_stopped.is_some() {
        Standing::Stopped
    } else if is_fault && object.until.is_some_and(|until| until <= now) {
        Standing::Expired
    } else if object.in_force.is_none() {
        if object.was_there {
            Standing::NoneGood
        } else {
            Standing::NeverGood
        }
    } else {
        Standing::InForce
    }
}

/// The youngest of namespaces that have too many: what is switched off takes nobody's place.
fn excess<'a>(facts: &'a Facts, standings: &BTreeMap<&'a PolicyName, Standing>) -> BTreeSet<&'a PolicyName> {
    let mut in_namespace = BTreeMap::<&str, Vec<(Timestamp, &PolicyName)>>::new();
    let told = facts.policies.iter().filter(|(name, _)| standings[name].is_told());
    for (name, object) in told {
        let policies = in_namespace.entry(&name.namespace).or_default();
        policies.push((object.created, name));
    }
    let mut excess = BTreeSet::new();
    for mut policies in in_namespace.into_values().filter(|all| all.len() > MAX_IN_NAMESPACE) {
        policies.sort();
        excess.extend(policies[MAX_IN_NAMESPACE..].iter().map(|(_, name)| *name));
    }
    excess
}

fn policy(name: &PolicyName, object: &PolicyObject) -> Option<v1::Policy> {
    let in_force = object.in_force.as_ref()?;
    Some(v1::Policy {
        name: name.to_string(),
        uid: object.uid.clone(),
        generation: in_force.generation,
        spec_json: in_force.json.clone(),
        closed: object.closed.clone(),
    })
}

/// Of a share: all of a bucket.
const WHOLE: u32 = 1_000_000;

/// Limits of the spec in force that routers have together, with what comes to them. Those that count nothing have no tokens.
fn shared_limits(name: &PolicyName, object: &PolicyObject) -> Vec<(SharedLimit, Supply)> {
    let Some(PolicySpec::Breaker(spec)) = object.in_force.as_deref().map(|good| &good.spec) else {
        return Vec::new();
    };
    let counts = |rule: &&RateLimiting| {
        rule.scope == LimitScope::Shared
            && matches!(rule.trigger_policy, TriggerPolicy::Normal | TriggerPolicy::LimiterOnly)
    };
    let rules = spec.rate_limitings.iter().filter(counts);
    let limits = rules.map(|rule| {
        let limit = SharedLimit {
            policy: name.clone(),
            uid: object.uid.clone(),
            rule: rule.name.clone(),
        };
        (limit, supply(rule))
    });
    limits.collect()
}

fn supply(rule: &RateLimiting) -> Supply {
    let burst = u64::try_from(rule.bucket.burst).unwrap_or_default();
    // What is not named costs one.
    let dearest = rule.cost.values().copied().max().unwrap_or_default().max(1);
    let dearest = u128::try_from(dearest).unwrap_or(1);
    let part = (dearest * u128::from(WHOLE)).div_ceil(u128::from(burst.max(1)));
    let rate = rate(&rule.bucket);
    Supply {
        rate,
        least: u32::try_from(part).unwrap_or(WHOLE).min(WHOLE),
        fills_in: fills_in(&rule.bucket),
    }
}

/// How long it takes from empty to full; `None`: for ever, as nothing comes.
fn fills_in(bucket: &Bucket) -> Option<Duration> {
    let burst = u32::try_from(bucket.burst).unwrap_or_default();
    let tokens = u32::try_from(bucket.limit).ok().filter(|tokens| *tokens > 0)?;
    let interval = parse_go_duration(&bucket.interval).unwrap_or_default();
    Some(interval.saturating_mul(burst) / tokens)
}

/// Tokens that come in a second, in thousandths.
fn rate(bucket: &Bucket) -> u64 {
    let interval = parse_go_duration(&bucket.interval).unwrap_or_default().as_nanos();
    let tokens = u128::from(u64::try_from(bucket.limit).unwrap_or_default());
    // A thousand thousandths, and so many nanoseconds in a second.
    let rate = tokens * 1_000 * 1_000_000_000 / interval.max(1);
    // However little comes, it is not nothing.
    u64::try_from(rate.max(tokens.min(1))).unwrap_or(u64::MAX)
}

/// Which policies may hold callers, by namespace.
#[derive(Debug, Default)]
pub(super) struct Holders<'a>(BTreeMap<&'a str, Namespace<'a>>);

#[derive(Debug, Default)]
struct Namespace<'a> {
    policies: Vec<Holder<'a>>,
    /// Labels that some selector asks for: callers that differ in others alone are held by the same.
    keys: BTreeSet<&'a str>,
    alike: BTreeMap<Alike<'a>, Vec<Selecting>>,
}

/// A policy that selects a caller, by its place.
#[derive(Debug)]
struct Selecting {
    index: usize,
    /// It is not among the oldest that may hold the caller.
    is_spared: bool,
}

#[derive(Debug)]
struct Holder<'a> {
    name: &'a PolicyName,
    created: Timestamp,
    selection: &'a Selection,
    is_told: bool,
    /// Written once.
    text: String,
}

/// What decides which policies hold a caller: its home cluster, and its labels as far as they count.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Alike<'a> {
    cluster: String,
    labels: BTreeMap<&'a str, String>,
}

impl<'a> Holders<'a> {
    /// In the order of names.
    fn add(&mut self, holder: Holder<'a>) {
        let namespace = self.0.entry(&holder.name.namespace).or_default();
        let requirements = holder.selection.selector.iter().flat_map(Selector::requirements);
        namespace.keys.extend(requirements.map(Requirement::key));
        namespace.policies.push(holder);
    }

    /// Names of the policies that hold the caller, in order. Each that selects it counts one more.
    pub(super) fn hold(
        &mut self,
        reach: &mut BTreeMap<PolicyName, PolicyReach>,
        cluster: &str,
        caller: &v1::CallerFact,
    ) -> Vec<String> {
        let Some(namespace) = self.0.get_mut(caller.namespace.as_str()) else {
            return Vec::new();
        };
        let own: Arc<str> = format!("{cluster}/{}/{}", caller.namespace, caller.pod).into();
        let mut names = Vec::new();
        let (policies, selecting) = namespace.selecting(cluster, caller);
        for Selecting { index, is_spared } in selecting {
            let holder = &policies[*index];
            if let Some(reach) = reach.get_mut(holder.name) {
                reach.callers.add(&own);
                reach.callers.spared += usize::from(*is_spared);
            }
            if holder.is_told && !is_spared {
                names.push(holder.text.clone());
            }
        }
        names
    }
}

impl<'a> Namespace<'a> {
    /// Its policies, and which of them select the caller.
    fn selecting(&mut self, cluster: &str, caller: &v1::CallerFact) -> (&[Holder<'a>], &[Selecting]) {
        let labels = self
            .keys
            .iter()
            .filter_map(|key| Some((*key, caller.labels.get(*key)?.clone())));
        let alike = Alike {
            cluster: cluster.to_owned(),
            labels: labels.collect(),
        };
        let policies = &self.policies;
        let selecting = self.alike.entry(alike).or_insert_with_key(|alike| {
            let labels = alike.labels.iter();
            let labels: BTreeMap<_, _> = labels.map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
            let selects = |holder: &Holder<'_>| {
                let selector = holder.selection.selector.as_ref();
                holder.selection.is_of(cluster) && selector.is_some_and(|selector| selector.matches(&labels))
            };
            let all = policies.iter().enumerate();
            let selecting = all.filter(|(_, holder)| selects(holder)).map(|(index, _)| index);
            oldest(policies, selecting.collect())
        });
        (policies, selecting)
    }
}

/// Which of those that select a caller hold it: the oldest, if there are too many.
fn oldest(policies: &[Holder<'_>], selecting: Vec<usize>) -> Vec<Selecting> {
    let told = selecting.iter().copied().filter(|index| policies[*index].is_told);
    let mut by_age: Vec<_> = told.collect();
    by_age.sort_by_key(|index| (policies[*index].created, *index));
    let spared: BTreeSet<_> = by_age.into_iter().skip(MAX_OF_CALLER).collect();
    let selecting = selecting.into_iter().map(|index| Selecting {
        index,
        is_spared: spared.contains(&index),
    });
    selecting.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_buckets_fill_in_their_time_and_those_of_nothing_never() {
        let bucket = |burst, limit, interval: &str| Bucket {
            burst,
            interval: interval.to_owned(),
            limit,
        };
        let hour = Duration::from_hours(1);
        assert_eq!(
            fills_in(&bucket(1, 1, "1h")),
            Some(hour),
            "less than a thousandth a second"
        );
        assert_eq!(rate(&bucket(1, 1, "1h")), 1, "not nothing");
        assert_eq!(fills_in(&bucket(100, 50, "1s")), Some(Duration::from_secs(2)));
        assert_eq!(rate(&bucket(100, 50, "1s")), 50_000);
        assert_eq!((fills_in(&bucket(5, 0, "1s")), rate(&bucket(5, 0, "1s"))), (None, 0));
    }
}
