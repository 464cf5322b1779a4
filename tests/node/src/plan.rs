//! What is to be done next for a Pod, of what is known of its containers: which to start, which to end, and when to look
//! again. Pure; the worker of the Pod does it, and asks again after every change.

use tokio::time::Instant;

use crate::record::{Record, Role, State};

/// What shall become of a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aim {
    /// Run it, to its end if it has one.
    Run,
    /// End it.
    End,
}

/// The next steps. Containers by their place among the records.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) start: Vec<usize>,
    pub(crate) stop: Vec<usize>,
    /// Ask again then.
    pub(crate) again_at: Option<Instant>,
    /// Nothing runs, and nothing will.
    pub(crate) over: bool,
}

/// The next steps for a Pod of these containers.
pub(crate) fn plan(records: &[Record], aim: Aim, now: Instant) -> Plan {
    let mut plan = Plan::default();
    if aim == Aim::End || is_over(records) {
        stop(records, &mut plan);
    } else {
        start(records, now, &mut plan);
    }
    plan
}

/// An init container has failed for good, or all that the Pod is for is done.
fn is_over(records: &[Record]) -> bool {
    let is_for_good = |record: &Record| matches!(record.state, State::Ended(_)) && !record.wants_again();
    let mut inits = records.iter().filter(|record| record.role == Role::Init);
    let mut mains = records.iter().filter(|record| record.role == Role::Main);
    inits.any(|record| is_for_good(record) && !record.has_succeeded()) || mains.all(is_for_good)
}

/// Sidecars end after all others, the last to start first.
fn stop(records: &[Record], plan: &mut Plan) {
    let live = |role_is: fn(Role) -> bool| {
        let all = records.iter().enumerate();
        all.filter(move |(_, record)| record.is_live() && role_is(record.role))
    };
    let first: Vec<_> = live(|role| role != Role::Sidecar).collect();
    let due: Vec<_> = if first.is_empty() {
        live(|role| role == Role::Sidecar).next_back().into_iter().collect()
    } else {
        first
    };
    plan.over = due.is_empty();
    plan.stop = due
        .into_iter()
        .filter(|(_, record)| !record.stopping)
        .map(|(at, _)| at)
        .collect();
}

fn start(records: &[Record], now: Instant, plan: &mut Plan) {
    let mut may = |at: usize, record: &Record| match record.not_before {
        Some(then) if then > now => plan.again_at = Some(plan.again_at.map_or(then, |other| other.min(then))),
        _ => plan.start.push(at),
    };
    for (at, record) in records.iter().enumerate() {
        let is_idle = matches!(record.state, State::Waiting { .. }) || record.wants_again();
        if is_idle {
            may(at, record);
        }
        let lets_next = match record.role {
            Role::Init => record.has_succeeded(),
            Role::Sidecar => record.has_started,
            // One after the other: postStart of one may be what the next waits for. One that fails holds up nobody.
            Role::Main => !(is_idle && record.not_before.is_none()) && record.state != State::Starting,
        };
        if !lets_next {
            return;
        }
    }
}

/// How a Pod whose containers have all ended has ended.
pub(crate) fn has_succeeded(records: &[Record]) -> bool {
    let counted = records.iter().filter(|record| record.role != Role::Sidecar);
    counted.into_iter().all(Record::has_succeeded)
}

/// Whether all that comes before the main containers has been.
pub(crate) fn is_initialized(records: &[Record]) -> bool {
    records.iter().all(|record| match record.role {
        Role::Init => record.has_succeeded(),
        Role::Sidecar => record.has_started,
        Role::Main => true,
    })
}

#[cfg(test)]
mod tests;
