//! What the hub is told of the locks that callers may hold: differences, in bounded messages. Caller: `session`.

use std::collections::BTreeMap;

use portolan_wire::v1;
use tokio::time::Instant;

use crate::resource::held::{HeldKey, HeldLocks};

/// Most in one message: a fraction of a megabyte.
const MOST: usize = 2_000;

/// Of one stream.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// `None`: nothing was told on this stream.
    told: Option<BTreeMap<HeldKey, u32>>,
    /// When the first of them does not count any more.
    next: Option<Instant>,
}

impl Reports {
    /// What the hub does not know yet; nothing if that is nothing.
    pub(super) fn next(&mut self, held: &HeldLocks) -> Vec<v1::HeldLocks> {
        let (now, next) = held.told();
        self.next = next;
        let reset = self.told.is_none();
        let before = self.told.take().unwrap_or_default();
        let new = now.iter().filter(|(key, lasts)| before.get(key) != Some(lasts));
        let gone = before.iter().filter(|(key, _)| !now.contains_key(key));
        let new = new.map(|(key, lasts)| message(key, *lasts, false));
        let changes: Vec<_> = new.chain(gone.map(|(key, lasts)| message(key, *lasts, true))).collect();
        let mut reports: Vec<_> = changes.chunks(MOST).map(report).collect();
        if reset && reports.is_empty() {
            reports.push(report(&[]));
        }
        let last = reports.len().saturating_sub(1);
        for (index, report) in reports.iter_mut().enumerate() {
            report.reset = reset && index == 0;
            report.more = index < last;
        }
        self.told = Some(now);
        reports
    }

    /// Completes when there may be something to tell.
    pub(super) async fn due(&self, held: &HeldLocks) {
        let expires = async {
            match self.next {
                Some(next) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = held.changed() => {}
            () = expires => {}
        }
    }
}

fn report(held: &[v1::HeldLock]) -> v1::HeldLocks {
    v1::HeldLocks {
        held: held.to_vec(),
        ..v1::HeldLocks::default()
    }
}

fn message(key: &HeldKey, lasts_seconds: u32, gone: bool) -> v1::HeldLock {
    v1::HeldLock {
        home_cluster: key.caller.home_cluster.to_string(),
        pod_uid: key.caller.pod_uid.to_string(),
        cluster: key.lock.cluster.clone(),
        resource: key.lock.resource.clone(),
        name: key.lock.name.clone(),
        of_election: key.lock.of_election,
        shard_uid: key.shard_uid.to_string(),
        lasts_seconds,
        gone,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use portolan_crds::HeldLock;

    use super::*;
    use crate::resource::held::Renewal;
    use crate::value::snapshot::CallerKey;

    #[tokio::test(start_paused = true)]
    async fn the_hub_is_told_what_is_held_while_it_counts_in_bounded_messages() {
        let held = HeldLocks::default();
        let renew = |pod: usize, is_released| {
            let caller = CallerKey {
                home_cluster: "east".into(),
                pod_uid: pod.to_string().into(),
            };
            let renewal = Renewal {
                lock: HeldLock {
                    cluster: "east".to_owned(),
                    resource: "leases".to_owned(),
                    name: "op---a".to_owned(),
                    of_election: true,
                },
                shard: "ops/a".into(),
                shard_uid: "uid-a".into(),
                is_beside: false,
                lasts: Some(Duration::from_secs(15)),
                is_released,
            };
            held.renewed(caller, renewal);
        };
        let mut reports = Reports::default();
        let counts = |reports: &[v1::HeldLocks]| -> Vec<_> {
            let one = |report: &v1::HeldLocks| (report.reset, report.more, report.held.len());
            reports.iter().map(one).collect()
        };
        assert_eq!(
            counts(&reports.next(&held)),
            [(true, false, 0)],
            "nothing is a word as well"
        );
        (0..=MOST).for_each(|pod| renew(pod, false));
        assert_eq!(counts(&reports.next(&held)), [(false, true, MOST), (false, false, 1)]);
        renew(0, false);
        assert!(reports.next(&held).is_empty(), "a renewal is no news");
        renew(1, true);
        let told = reports.next(&held);
        assert_eq!(counts(&told), [(false, false, 1)]);
        assert!(told[0].held[0].gone && told[0].held[0].lasts_seconds == 20);
        let before = Instant::now();
        reports.due(&held).await;
        // Twice: what was told wakes once more, as the first has done it.
        while reports.next(&held).is_empty() {
            reports.due(&held).await;
        }
        assert!(before.elapsed() >= Duration::from_secs(20), "{:?}", before.elapsed());
    }
}
