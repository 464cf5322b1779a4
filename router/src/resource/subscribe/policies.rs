//! When the hub is told how policies stand: once after each Hello, soon after a rule opens or closes, and every second while
//! there is something to tell; twice a second at most. Caller: `session`.

use std::sync::Arc;
use std::time::Duration;

use portolan_wire::v1;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::resource::policies::Policies;
use crate::value::snapshot::Snapshot;

/// Longest time between two reports.
const EVERY: Duration = Duration::from_secs(1);
/// Shortest time between two reports.
const APART: Duration = Duration::from_millis(500);

/// The reports of one stream.
pub(super) struct PolicyReports {
    policies: Arc<Policies>,
    changes: watch::Receiver<u64>,
    at: Instant,
    told_at: Option<Instant>,
    /// The last one said nothing.
    was_empty: bool,
}

impl PolicyReports {
    pub(super) fn new(policies: Arc<Policies>) -> Self {
        Self {
            changes: policies.changes(),
            policies,
            at: Instant::now(),
            told_at: None,
            was_empty: false,
        }
    }

    /// Waits until one is due. Safe to drop.
    pub(super) async fn due(&mut self) {
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(self.at) => return,
                Ok(()) = self.changes.changed() => {
                    let soonest = self.told_at.map_or_else(Instant::now, |told| told + APART);
                    self.at = self.at.min(soonest);
                }
            }
        }
    }

    /// What is to be told now; `None`: as little as before.
    pub(super) fn next(&mut self, snapshot: &Snapshot) -> Option<v1::PolicyReport> {
        let now = Instant::now();
        self.at = now + EVERY;
        let report = self.policies.report(snapshot);
        let is_empty = report.rules.is_empty() && report.demands.is_empty();
        if std::mem::replace(&mut self.was_empty, is_empty) && is_empty {
            return None;
        }
        self.told_at = Some(now);
        Some(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_hub_is_told_after_hello_and_then_as_long_as_there_is_something() {
        let policies = Arc::new(Policies::default());
        let mut reports = PolicyReports::new(policies);
        let began = Instant::now();
        reports.due().await;
        assert_eq!(Instant::now(), began);
        assert!(reports.next(&Snapshot::default()).is_some(), "once after each Hello");
        reports.due().await;
        assert_eq!(Instant::now() - began, EVERY);
        assert!(reports.next(&Snapshot::default()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_told_soon_and_twice_a_second_at_most() {
        let policies = Arc::new(Policies::default());
        let mut reports = PolicyReports::new(policies.clone());
        let began = Instant::now();
        let mut told = 0;
        while Instant::now() - began < Duration::from_secs(10) {
            policies.touch();
            reports.due().await;
            reports.was_empty = false;
            told += usize::from(reports.next(&Snapshot::default()).is_some());
        }
        assert!((19..=21).contains(&told), "{told}");
    }
}
