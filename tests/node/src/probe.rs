//! Probes: how often, how many in a row make a verdict, and what the verdict was before the first.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::action::Action;
use crate::field::Place;
use crate::machine::{Inside, Machine};

/// A probe of one container.
#[derive(Debug)]
pub(crate) struct Check {
    action: Action,
    ticks: Interval,
    timeout: Duration,
    row: Row,
    /// What the container gets to end, if the Pod's own grace does not count.
    pub(crate) grace: Option<Duration>,
}

/// A row of the same outcomes, of which so many make a verdict. Pure.
#[derive(Debug)]
struct Row {
    good: u32,
    bad: u32,
    last: Option<bool>,
    length: u32,
}

impl Row {
    /// Whether this outcome makes a verdict.
    fn hear(&mut self, good: bool) -> bool {
        self.length = if self.last == Some(good) {
            self.length.saturating_add(1)
        } else {
            1
        };
        self.last = Some(good);
        self.length >= if good { self.good } else { self.bad }
    }
}

impl Check {
    /// Begins to count its delay.
    pub(crate) fn new(probe: &Probe, container: &Container, place: &Place) -> Result<Self, String> {
        let seconds = |value: Option<i32>, default: u64| {
            let given = value.and_then(|value| u64::try_from(value).ok());
            Duration::from_secs(given.unwrap_or(default))
        };
        let count = |value: Option<i32>, default| value.and_then(|value| u32::try_from(value).ok()).unwrap_or(default);
        let grace = probe.termination_grace_period_seconds;
        let period = seconds(probe.period_seconds, 10).max(Duration::from_secs(1));
        let mut ticks = interval_at(Instant::now() + seconds(probe.initial_delay_seconds, 0), period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            action: Action::of_probe(probe, container, place.pod_ip)?,
            ticks,
            timeout: seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1)),
            row: Row {
                good: count(probe.success_threshold, 1),
                bad: count(probe.failure_threshold, 3),
                last: None,
                length: 0,
            },
            grace: grace
                .and_then(|seconds| u64::try_from(seconds).ok())
                .map(Duration::from_secs),
        })
    }

    /// Probes until there is a verdict, which may be the one that there was. Safe to cancel: what was under way is lost.
    pub(crate) async fn verdict(&mut self, machine: &Machine, inside: &Inside) -> Result<(), String> {
        loop {
            self.ticks.tick().await;
            let outcome = self.action.run_within(self.timeout, machine, inside).await;
            if self.row.hear(outcome.is_ok()) {
                return outcome;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_takes_a_row() {
        let mut row = Row {
            good: 2,
            bad: 3,
            last: None,
            length: 0,
        };
        let outcomes = [true, true, true, false, false, true, false, false, false, true, true];
        let verdicts: Vec<_> = outcomes.into_iter().map(|good| row.hear(good)).collect();
        let (yes, no) = (true, false);
        assert_eq!(verdicts, [no, yes, yes, no, no, no, no, no, yes, no, yes]);
    }
}
