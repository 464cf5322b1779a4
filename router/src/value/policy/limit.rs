//! A limit of a CircuitBreaker as numbers: what a request costs, how tokens come, what an empty bucket does.
//!
//! Made once for each policy. What becomes of tokens is `decision::policy`'s.

use std::time::Duration;

use portolan_crds::circuit_breaker::{LimitScope, RateLimiting, RecoverType, TriggerPolicy};
use portolan_crds::duration::parse_go_duration;

/// Tokens of a request whose verb has no cost of its own.
const USUAL_COST: u32 = 1;

/// One limit, ready to be judged by.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Limit {
    /// Its name in its policy.
    pub(crate) name: Box<str>,
    /// How tokens come.
    pub(crate) rate: Rate,
    /// What becomes of a request that meets it.
    pub(crate) trigger: TriggerPolicy,
    /// After how long it closes by itself once it has opened; `None`: by hand alone.
    pub(crate) recovers_after: Option<Duration>,
    /// All callers of the policy have one bucket together, over all routers.
    pub(crate) shared: bool,
    /// Of verbs that do not cost the usual.
    costs: Vec<(Box<str>, u32)>,
    /// Of what it was made: two limits are the same rule if this is.
    spec: RateLimiting,
}

/// A token bucket: `limit` tokens come in each `interval`, and `burst` of them are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    /// Most tokens that it holds.
    pub(crate) burst: u32,
    /// Tokens that come in each interval.
    pub(crate) limit: u32,
    /// Nanoseconds, at least one.
    pub(crate) interval: u64,
}

impl Limit {
    /// Of a checked spec. What could not be checked is held to what the numbers here can say.
    pub(super) fn new(spec: &RateLimiting) -> Self {
        let recover = spec.recover_policy.as_ref();
        let window = recover
            .filter(|recover| recover.type_ == RecoverType::SleepingWindow)
            .and_then(|recover| parse_go_duration(recover.sleeping_window_size.as_deref()?).ok());
        let costs = spec
            .cost
            .iter()
            .map(|(verb, cost)| (verb.as_str().into(), tokens(*cost)));
        Self {
            name: spec.name.as_str().into(),
            rate: Rate {
                burst: tokens(spec.bucket.burst),
                limit: tokens(spec.bucket.limit),
                interval: nanoseconds(&spec.bucket.interval),
            },
            trigger: spec.trigger_policy,
            recovers_after: window,
            shared: spec.scope == LimitScope::Shared,
            costs: costs.collect(),
            spec: spec.clone(),
        }
    }

    /// Tokens that a request of this verb takes.
    pub(crate) fn cost(&self, verb: &str) -> u32 {
        let own = self.costs.iter().find(|(of, _)| **of == *verb);
        own.map_or(USUAL_COST, |(_, cost)| *cost)
    }

    /// Whether every request takes one token.
    pub(crate) fn costs_alike(&self) -> bool {
        self.costs.is_empty()
    }

    /// Whether it has a bucket: else it refuses all, or lets all pass.
    pub(crate) fn counts(&self) -> bool {
        matches!(self.trigger, TriggerPolicy::Normal | TriggerPolicy::LimiterOnly)
    }
}

fn tokens(wanted: i64) -> u32 {
    u32::try_from(wanted.max(0)).unwrap_or(u32::MAX)
}

fn nanoseconds(interval: &str) -> u64 {
    let interval = parse_go_duration(interval).unwrap_or_default();
    u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1)
}
