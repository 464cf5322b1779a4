//! Reads every member's discovery before somebody asks: at start, after swaps, when a kind is asked for that nobody is
//! known to serve, and now and then. Planning never waits for a member. Caller: `app`.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use portolan_runtime::Tasks;
use tokio::time::Instant;

use super::Discovery;
use super::cache::{FRESH, Key, Paper};
use crate::value::snapshot::Snapshot;

/// Between two rounds that nothing has caused. A round is two requests per member, answered 304.
const PERIOD: Duration = Duration::from_secs(30);

impl Discovery {
    /// Ends with `tasks`.
    pub(crate) async fn warm(self: Arc<Self>, tasks: Tasks) {
        let (mut swapped, token) = (self.routing.subscribe(), tasks.token());
        loop {
            swapped.mark_unchanged();
            self.round(&self.routing.load().snapshot).await;
            // Jitter, so that many routers do not come at once.
            let jitter = rand::random_range(0.8..1.2);
            let missed = async {
                // A caller that insists on a kind that does not exist costs a round per pause, whatever its rate.
                tokio::time::sleep(FRESH.mul_f64(jitter)).await;
                self.routing.missed().await;
            };
            tokio::select! {
                () = token.cancelled() => return,
                // However many come in a row: what was read just now is not read again.
                _ = swapped.changed() => {}
                () = missed => {}
                () = tokio::time::sleep(PERIOD.mul_f64(jitter)) => {}
            }
        }
    }

    /// Looks at all members at once; each look is bounded, and a member that hangs keeps the others waiting for seconds.
    pub(super) async fn round(&self, snapshot: &Snapshot) {
        self.copies.retain(|cluster, uid| {
            snapshot
                .targets
                .get(cluster)
                .is_some_and(|target| target.cluster_uid == uid)
        });
        let keys = snapshot.targets.values().flat_map(|target| {
            [Paper::Core, Paper::Groups].map(|paper| Key {
                cluster: target.cluster.clone(),
                uid: target.cluster_uid.as_str().into(),
                paper,
            })
        });
        let keys: Vec<_> = keys.collect();
        join_all(keys.iter().map(|key| self.copies.get(key, Instant::now()))).await;
        // A member that was away from the snapshot for a moment is told of again, though nothing of it has changed.
        let kinds = &self.routing.load().kinds;
        for key in keys.iter().filter(|key| kinds.member(&key.cluster).is_none()) {
            self.copies.tell_kinds(key);
        }
    }
}
