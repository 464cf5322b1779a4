//! When the hub is told how policies stand: once after each Hello, soon after a rule opens or closes or shares are kept to, and
//! every second while there is something to tell; twice a second at most. Caller: `session`.

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
    /// The last one said nothing but that the shares of this revision are kept to.
    said_only: Option<u64>,
}

impl PolicyReports {
    pub(super) fn new(policies: Arc<Policies>) -> Self {
        Self {
            changes: policies.changes(),
            policies,
            at: Instant::now(),
            told_at: None,
            said_only: None,
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
        // Who has no shared rule any more says all the same that he has let go of his shares: others wait for that.
        let says_only = is_empty.then_some(report.shares_revision);
        let said_only = std::mem::replace(&mut self.said_only, says_only);
        if is_empty && said_only == says_only {
            return None;
        }
        self.told_at = Some(now);
        Some(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::policies::ToldShares;

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
    async fn who_has_no_shared_rule_says_all_the_same_which_shares_it_keeps_to() {
        let policies = Arc::new(Policies::default());
        let mut reports = PolicyReports::new(policies.clone());
        assert_eq!(reports.next(&Snapshot::default()), Some(v1::PolicyReport::default()));
        assert_eq!(reports.next(&Snapshot::default()), None);
        policies.restore(ToldShares::of(&v1::Shares {
            revision: 7,
            shares: Vec::new(),
        }));
        let told = reports.next(&Snapshot::default()).unwrap();
        assert_eq!(told.shares_revision, 7);
        assert_eq!(reports.next(&Snapshot::default()), None, "once");
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
            reports.said_only = None;
            told += usize::from(reports.next(&Snapshot::default()).is_some());
        }
        assert!((19..=21).contains(&told), "{told}");
    }
}
