//! What a client is told that a CircuitBreaker refuses.

use std::time::Duration;

use portolan_crds::duration::format_duration;

use crate::decision::policy::{Denied, Why};
use crate::value::fault::{Fault, PolicyRefusal, RefusedBy};
use crate::value::policy::{Asked, Limit, Policy};

/// Longest `Retry-After`: a limit may be raised, and what is opened closed by hand, before the time is over.
const LONGEST_RETRY_SECONDS: u64 = 30;

/// Refused by a limit.
pub(super) fn of_limit(policy: &Policy, limit: &Limit, denied: &Denied, asked: &Asked<'_>) -> Fault {
    let rule = format!("{}/{}", policy.name, limit.name);
    let (by, why) = match denied.why {
        Why::Limited => (RefusedBy::Limit, over(limit)),
        Why::Opened => (RefusedBy::Opened, opened(&rule, denied.lasts)),
        Why::Forced => (RefusedBy::Forced, "its triggerPolicy is ForceOpened".to_owned()),
    };
    Fault::Policy(Box::new(PolicyRefusal {
        rule,
        by,
        why,
        collection: asked.is_collection(),
        retry_after_seconds: retry_after(denied.lasts),
        about: None,
    }))
}

/// Refused by a breaker of the caller's, for one member.
pub(super) fn of_breaker(policy: &Policy, breaker: &str, cluster: &str, retry_in: Duration, collection: bool) -> Fault {
    Fault::Policy(Box::new(PolicyRefusal {
        rule: format!("{}/{breaker}", policy.name),
        by: RefusedBy::Breaker,
        why: format!(
            "requests of this caller to member cluster {cluster} failed; the next try is in {}",
            format_duration(retry_in)
        ),
        collection,
        retry_after_seconds: retry_after(Some(retry_in)),
        about: None,
    }))
}

fn over(limit: &Limit) -> String {
    let rate = limit.rate;
    let interval = format_duration(Duration::from_nanos(rate.interval));
    let whose = if limit.shared {
        "all its callers together have"
    } else {
        "this caller has"
    };
    format!(
        "{whose} {} tokens in {interval}, {} at most, and has not enough left for this",
        rate.limit, rate.burst
    )
}

fn opened(rule: &str, lasts: Option<Duration>) -> String {
    if let Some(lasts) = lasts {
        let lasts = format_duration(lasts);
        return format!("its limit was exceeded, and it is opened for {lasts} more");
    }
    let rule = rule.split_once('/').map_or(rule, |(_, rule)| rule);
    format!("its limit was exceeded, and it is opened until somebody runs portolanctl breaker close {rule}")
}

fn retry_after(lasts: Option<Duration>) -> u32 {
    let seconds = lasts.map_or(LONGEST_RETRY_SECONDS, |lasts| {
        lasts.as_secs() + u64::from(lasts.subsec_nanos() > 0)
    });
    u32::try_from(seconds.clamp(1, LONGEST_RETRY_SECONDS)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_comes_again_when_enough_is_there_within_bounds() {
        for (lasts, seconds) in [
            (Some(Duration::ZERO), 1),
            (Some(Duration::from_millis(1)), 1),
            (Some(Duration::from_millis(1_001)), 2),
            (Some(Duration::from_secs(29)), 29),
            (Some(Duration::from_hours(1)), 30),
            (None, 30),
        ] {
            assert_eq!(retry_after(lasts), seconds, "{lasts:?}");
        }
    }
}
