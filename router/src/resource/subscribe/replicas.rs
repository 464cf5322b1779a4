//! When the hub is told which copies of replicated kinds are not what the primary has: once after each Hello, and when that
//! changes, once a second at most. Caller: `session`.

use std::time::Duration;

use portolan_wire::v1;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::resource::replicas::Replicas;

/// Shortest time between two reports.
const APART: Duration = Duration::from_secs(1);

/// The reports of one stream.
pub(super) struct ReplicaReports {
    changes: watch::Receiver<v1::ReplicaReport>,
    /// When the next one is due, if one is.
    at: Option<Instant>,
    /// What the hub was told last on this stream, and when.
    told: Option<(v1::ReplicaReport, Instant)>,
}

impl ReplicaReports {
    pub(super) fn new(replicas: &Replicas) -> Self {
        Self {
            changes: replicas.changes(),
            at: Some(Instant::now()),
            told: None,
        }
    }

    /// Waits until one is due. Safe to drop.
    pub(super) async fn due(&mut self) {
        loop {
            if let Some(at) = self.at {
                return tokio::time::sleep_until(at).await;
            }
            if self.changes.changed().await.is_err() {
                // Nobody writes any more.
                std::future::pending::<()>().await;
            }
            let now = Instant::now();
            let soonest = self.told.as_ref().map_or(now, |(_, told)| *told + APART);
            self.at = Some(soonest.max(now));
        }
    }

    /// What is to be told now; `None`: it is as it was told.
    pub(super) fn next(&mut self) -> Option<v1::ReplicaReport> {
        self.at = None;
        let report = self.changes.borrow_and_update().clone();
        if self.told.as_ref().is_some_and(|(told, _)| *told == report) {
            return None;
        }
        self.told = Some((report.clone(), Instant::now()));
        Some(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::replicas::ReplicaFault;

    #[tokio::test(start_paused = true)]
    async fn changes_are_told_once_a_second_at_most_and_each_stream_begins_with_all() {
        let replicas = Replicas::default();
        let mut reports = ReplicaReports::new(&replicas);
        let began = Instant::now();
        reports.due().await;
        let nothing = v1::ReplicaReport::default();
        assert_eq!(reports.next(), Some(nothing.clone()), "nothing is a word as well");
        let be_behind = |name| {
            replicas.are_behind([ReplicaFault {
                shard: "ops/a",
                is_conflict: true,
                name,
                kind: "k",
                cluster: "west",
                reason: "conflict",
                message: "m",
            }]);
        };
        be_behind("first");
        be_behind("second");
        reports.due().await;
        assert_eq!(began.elapsed(), APART);
        assert_eq!(reports.next().unwrap().faults[0].name, "second");
        // What has come and gone in between is not told.
        be_behind("third");
        be_behind("second");
        reports.due().await;
        assert_eq!(reports.next(), None);
        let quiet = tokio::time::timeout(Duration::from_hours(1), reports.due()).await;
        assert!(quiet.is_err());
        let mut later = ReplicaReports::new(&replicas);
        later.due().await;
        assert_eq!(later.next().unwrap().faults.len(), 1);
        replicas.are_behind([]);
        reports.due().await;
        assert_eq!(reports.next(), Some(nothing));
    }
}
