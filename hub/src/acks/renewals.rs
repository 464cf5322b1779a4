//! Which locks callers may hold, as routers tell it: what each has told on its stream, and what of that counts after it has left
//! (`docs/semantics.md#leader-election`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan_crds::HeldLock;
use portolan_wire::v1;
use tokio::time::Instant;

use super::{Acks, RouterState};
use crate::compile::{CallerKey, Hold};

/// Longest name of anything in it, as Kubernetes has them.
const LONGEST_NAME: usize = 253;
/// Most of one router: a lock and some other Leases of each caller of a large fleet.
const MOST: usize = 200_000;

/// A caller and a lock.
type Key = (CallerKey, HeldLock, String);

/// What one router has told.
#[derive(Debug, Clone, Default)]
pub(crate) struct Renewals {
    /// It tells them at all.
    are_told: bool,
    /// On the stream that is open it has told all that it knows.
    is_whole: bool,
    /// For how many seconds each counts after a renewal. Shared: statuses are made of copies.
    told: Arc<BTreeMap<Key, u32>>,
    /// What earlier processes of its name had told, and until when that counts.
    earlier: Arc<BTreeMap<Key, (u32, Instant)>>,
    /// Since then nobody renews by an earlier process of its name that has not said what callers renewed by it last.
    lost: Option<Instant>,
}

/// What all routers have told.
#[derive(Debug, Default)]
pub(crate) struct AllRenewals {
    pub(crate) held: BTreeMap<CallerKey, Vec<Hold>>,
    /// There may be more.
    pub(crate) unknown: bool,
    /// There was a hub before this one so lately that what routers told that one may count.
    pub(crate) young: bool,
}

impl Renewals {
    /// Of a router that has told nothing yet, if it tells at all.
    pub(crate) fn of(are_told: bool) -> Self {
        Self {
            are_told,
            ..Self::default()
        }
    }

    /// Takes what a router says. False if it says too much.
    pub(crate) fn hear(&mut self, report: v1::HeldLocks) -> bool {
        let told = Arc::make_mut(&mut self.told);
        if report.reset {
            told.clear();
            self.is_whole = false;
        }
        for held in report.held {
            let names = [
                &held.home_cluster,
                &held.pod_uid,
                &held.cluster,
                &held.resource,
                &held.name,
                &held.shard_uid,
            ];
            if names.iter().any(|name| name.len() > LONGEST_NAME) {
                return false;
            }
            let lock = HeldLock {
                cluster: held.cluster,
                resource: held.resource,
                name: held.name,
                of_election: held.of_election,
            };
            let key = ((held.home_cluster, held.pod_uid), lock, held.shard_uid);
            if held.gone {
                told.remove(&key);
            } else {
                told.insert(key, held.lasts_seconds);
            }
        }
        self.is_whole |= !report.more;
        told.len() <= MOST
    }

    /// Follows those of the stream before, of the same process or of another one that has its name.
    pub(super) fn follow(&mut self, earlier: &RouterState, is_same: bool) {
        let before = &earlier.renewals;
        (self.earlier, self.lost) = (before.earlier.clone(), before.lost);
        if is_same {
            // Until it tells all of it anew.
            self.told = before.told.clone();
            return;
        }
        let left = earlier.left.unwrap_or_else(Instant::now);
        let told = before.told.iter();
        let told = told.map(|(key, lasts)| (key.clone(), (*lasts, left + seconds(*lasts))));
        Arc::make_mut(&mut self.earlier).extend(told);
        if !earlier.ended {
            self.lost = Some(Instant::now());
        }
    }

    /// What counts now, of a router that is there or `left`.
    fn all(&self, left: Option<Instant>, now: Instant) -> impl Iterator<Item = (&Key, u32)> {
        let counts = move |lasts: u32| left.is_none_or(|left| left + seconds(lasts) > now);
        let told = self.told.iter().filter(move |(_, lasts)| counts(**lasts));
        let earlier = self.earlier.iter().filter(move |(_, (_, until))| *until > now);
        told.map(|(key, lasts)| (key, *lasts))
            .chain(earlier.map(|(key, (lasts, _))| (key, *lasts)))
    }
}

impl RouterState {
    /// Whether callers may have renewed by this router, or by an earlier process of its name, what it has not told.
    fn may_know_more(&self, longest: Duration, now: Instant) -> bool {
        let renewals = &self.renewals;
        let is_lost = renewals.lost.is_some_and(|since| now < since + longest);
        let is_away = match self.left {
            Some(_) => !self.ended,
            None => !renewals.is_whole,
        };
        !renewals.are_told || is_lost || is_away
    }
}

impl Acks {
    /// Which locks callers may hold. `longest`: what nothing counts for without a renewal.
    pub(crate) fn renewals(&self, longest: Duration) -> AllRenewals {
        let now = Instant::now();
        let young = self.followed.read().is_some_and(|since| now < since + longest);
        let mut all = AllRenewals {
            unknown: young,
            young,
            ..AllRenewals::default()
        };
        for state in self.routers.read().values() {
            all.unknown |= state.may_know_more(longest, now);
            for ((caller, lock, shard_uid), lasts_seconds) in state.renewals.all(state.left, now) {
                let hold = Hold {
                    lock: lock.clone(),
                    shard_uid: shard_uid.clone(),
                    lasts_seconds,
                };
                all.held.entry(caller.clone()).or_default().push(hold);
            }
        }
        for holds in all.held.values_mut() {
            holds.sort();
            holds.dedup();
        }
        all
    }

    /// Takes what a router says of locks that callers may hold; false if it says too much. `is_urgent`: somebody holds one who is in
    /// another shard by now.
    pub(crate) fn renewed(&self, router: &str, epoch: u64, report: v1::HeldLocks, is_urgent: bool) -> bool {
        let mut is_bounded = true;
        self.update(router, epoch, |state| is_bounded = state.renewals.hear(report));
        self.renewals_heard.fetch_add(1, Ordering::SeqCst);
        if is_urgent {
            self.held_elsewhere.send_modify(|count| *count += 1);
        }
        is_bounded
    }

    /// Counts what [`Self::renewed`] has taken.
    pub(crate) fn renewals_heard(&self) -> u64 {
        self.renewals_heard.load(Ordering::SeqCst)
    }

    /// Wakes when a router tells of a lock that is held by a caller which is in another shard by now.
    pub(crate) fn holders_elsewhere(&self) -> tokio::sync::watch::Receiver<u64> {
        self.held_elsewhere.subscribe()
    }
}

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_mins(3);

    fn report(pod: &str, gone: bool) -> v1::HeldLocks {
        let held = v1::HeldLock {
            home_cluster: "east".to_owned(),
            pod_uid: pod.to_owned(),
            cluster: "east".to_owned(),
            resource: "leases".to_owned(),
            name: "op---a".to_owned(),
            of_election: true,
            shard_uid: "uid-a".to_owned(),
            lasts_seconds: 20,
            gone,
        };
        v1::HeldLocks {
            held: vec![held],
            ..v1::HeldLocks::default()
        }
    }

    fn come(acks: &Acks, epoch: u64, process: &str) {
        let state = RouterState {
            process: process.to_owned(),
            renewals: Renewals::of(true),
            ..RouterState::new(epoch, BTreeMap::new())
        };
        assert!(acks.connected("r", state));
    }

    fn whole(acks: &Acks, epoch: u64, pods: &[&str]) {
        let held = pods.iter().flat_map(|pod| report(pod, false).held).collect();
        let report = v1::HeldLocks {
            reset: true,
            more: false,
            held,
        };
        assert!(acks.renewed("r", epoch, report, false));
    }

    fn leave(acks: &Acks, epoch: u64, ended: bool) {
        acks.update("r", epoch, |state| {
            (state.left, state.ended) = (Some(Instant::now()), ended);
        });
    }

    fn known(acks: &Acks) -> (usize, bool) {
        let all = acks.renewals(LONGEST);
        (all.held.len(), all.unknown)
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_router_told_counts_until_it_says_otherwise_or_has_been_gone_for_as_long() {
        let acks = Acks::default();
        come(&acks, 1, "one");
        assert_eq!(known(&acks), (0, true), "it has not told yet");
        whole(&acks, 1, &["p"]);
        assert_eq!(known(&acks), (1, false));
        assert!(acks.renewed("r", 1, report("q", false), false));
        tokio::time::advance(LONGEST).await;
        assert_eq!(known(&acks), (2, false), "they go on");
        assert!(acks.renewed("r", 1, report("q", true), false));
        assert_eq!(known(&acks), (1, false));
        leave(&acks, 1, true);
        assert_eq!(known(&acks), (1, false), "it said that it serves nobody any more");
        tokio::time::advance(Duration::from_secs(21)).await;
        assert_eq!(known(&acks), (0, false));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_renewed_by_a_process_that_is_gone_is_not_known_for_the_longest_time() {
        let acks = Acks::default();
        come(&acks, 1, "one");
        whole(&acks, 1, &["p"]);
        leave(&acks, 1, false);
        assert_eq!(known(&acks), (1, true), "it may serve on");
        come(&acks, 2, "one");
        assert_eq!(known(&acks), (1, true));
        whole(&acks, 2, &[]);
        assert_eq!(known(&acks), (0, false), "it is there again, and knows");
        whole(&acks, 2, &["p"]);
        leave(&acks, 2, false);
        come(&acks, 3, "two");
        whole(&acks, 3, &[]);
        assert_eq!(known(&acks), (1, true), "the one before said so");
        tokio::time::advance(Duration::from_secs(21)).await;
        assert_eq!(known(&acks), (0, true));
        tokio::time::advance(LONGEST).await;
        assert_eq!(known(&acks), (0, false));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_knows_after_a_start_of_the_hub_nor_of_a_router_that_does_not_tell() {
        let acks = Acks::default();
        assert_eq!(known(&acks), (0, false), "there was no hub before");
        acks.expect_returns();
        assert_eq!(known(&acks), (0, true));
        tokio::time::advance(LONGEST).await;
        assert_eq!(known(&acks), (0, false));
        assert!(acks.connected("older", RouterState::new(1, BTreeMap::new())));
        assert_eq!(known(&acks), (0, true));
        let huge = v1::HeldLock {
            name: "n".repeat(LONGEST_NAME + 1),
            ..report("p", false).held.remove(0)
        };
        let huge = v1::HeldLocks {
            held: vec![huge],
            ..v1::HeldLocks::default()
        };
        assert!(!acks.renewed("older", 1, huge, false));
    }
}
