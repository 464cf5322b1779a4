//! Whether the watch of a kind runs, told from its errors: one that is begun anew says nothing while nothing happens. Pure
//! but for the pauses. Caller: `sweep::kind`.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use portolan_runtime::backoff::jittered;
use tokio::time::Instant;

/// Without its watch for so long the agent does not know the objects of a kind.
const TOLERATED: Duration = Duration::from_secs(30);
/// Shortest and longest pause between two tries: so short that it is soon known whether a watch runs.
const PAUSES: (Duration, Duration) = (Duration::from_millis(800), Duration::from_secs(8));
/// No error for so long: it runs. The longest pause and a call.
const QUIET: Duration = Duration::from_secs(20);

/// The errors of one watch.
#[derive(Debug, Default)]
pub(super) struct Outage {
    /// The first and the last in a row.
    errors: Option<(Instant, Instant)>,
}

impl Outage {
    /// The watch broke, or could not begin.
    pub(super) fn failed(&mut self, now: Instant) {
        let row = self.errors.filter(|(_, last)| now - *last < QUIET);
        self.errors = Some((row.map_or(now, |(first, _)| first), now));
    }

    /// The watch has told something.
    pub(super) fn heard(&mut self) {
        self.errors = None;
    }

    /// Whether it has not run for longer than is tolerated.
    pub(super) fn lasts(&self, now: Instant) -> bool {
        self.errors
            .is_some_and(|(first, last)| last - first >= TOLERATED && now - last < QUIET)
    }
}

/// Pauses between tries: each twice the one before.
#[derive(Debug)]
pub(super) struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Self(PAUSES.0)
    }
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.0;
        self.0 = (pause * 2).min(PAUSES.1);
        Some(jittered(pause))
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_in_a_row_are_an_outage() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut outage = Outage::default();
        assert!(!outage.lasts(at(0)));
        for seconds in [0, 10, 20, 29] {
            outage.failed(at(seconds));
            assert!(!outage.lasts(at(seconds)));
        }
        outage.failed(at(37));
        assert!(outage.lasts(at(37)) && outage.lasts(at(50)));
        assert!(!outage.lasts(at(58)), "it was begun anew and has nothing to tell");
        outage.failed(at(60));
        assert!(!outage.lasts(at(60)), "another row");
        outage.failed(at(75));
        outage.failed(at(91));
        assert!(outage.lasts(at(91)));
        outage.heard();
        assert!(!outage.lasts(at(91)));
    }

    #[test]
    fn pauses_grow_to_a_bound() {
        let mut pauses = Pauses::default();
        let longest = pauses.by_ref().take(20).max().unwrap();
        assert!(
            (Duration::from_secs(8)..=Duration::from_secs(10)).contains(&longest),
            "{longest:?}"
        );
        assert!(longest + Duration::from_secs(5) < QUIET);
        pauses.reset();
        assert!(pauses.next().unwrap() <= Duration::from_secs(1));
    }
}
