//! Which locks callers may hold, as routers tell it: what each has told on its stream, and what of that counts after it has left
//! (`docs/semantics.md#leader-election`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan_crds::HeldLock;
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;
use tokio::time::Instant;

use super::{Acks, RouterState};
use crate::compile::{CallerKey, Hold, Teller, Untold};

/// Longest name of a lock, as Kubernetes has them.
const LONGEST_NAME: usize = 253;
/// Longest name of a member cluster or of a resource, and longest uid.
const LONGEST_LABEL: usize = 63;
/// Most of one caller: a router knows four locks and four other Leases of each, and tells of new ones before it takes old ones back.
const MOST_OF_CALLER: usize = 16;
/// Most of one router of all callers: a lock and some other Leases of each caller of a large fleet.
const MOST: usize = 200_000;
/// Most of a router of shards, for each of these.
const MOST_OF_SHARD: usize = 4_000;

/// A lock, and the UID of the shard whose caller held it.
type Lock = (HeldLock, String);

/// What one router has told.
#[derive(Debug, Clone, Default)]
pub(crate) struct Renewals {
    /// The router tells at all which locks callers hold.
    are_told: bool,
    /// On the stream that is open it has told all that it knows.
    is_whole: bool,
    /// Shared: statuses are made of copies.
    told: Arc<Told>,
    /// What earlier processes of its name had told, and until when that counts.
    earlier: Arc<BTreeMap<(CallerKey, Hold), Instant>>,
    /// Since then nobody renews by an earlier process of its name that has not said what callers renewed by it last; and whoever may
    /// have.
    lost: Option<(Instant, Untold)>,
}

/// The locks of each caller, and for how many seconds each counts after a renewal. No caller has none.
#[derive(Debug, Clone, Default)]
struct Told {
    callers: BTreeMap<CallerKey, BTreeMap<Lock, u32>>,
    /// How many locks are told, of all callers together.
    count: usize,
}

/// What came of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The router said what was known.
    Nothing,
    /// More is known than before, or less. `whole`: it is all that the router knows, for the first time on its stream.
    News { whole: bool },
    /// It says more than there can be, and none of its words counts.
    TooMuch,
}

/// What all routers have told.
#[derive(Debug, Default)]
pub(crate) struct AllRenewals {
    pub(crate) held: BTreeMap<CallerKey, Vec<Hold>>,
    /// Callers that may hold more locks than are told.
    pub(crate) untold: Untold,
    /// There was a hub before this one so lately that what routers told that one may count.
    pub(crate) young: bool,
}

/// What a router of this subscription may tell at most.
fn most_of(subscription: &Subscription) -> usize {
    match subscription {
        Subscription::Everything => MOST,
        Subscription::Shards(shards) => shards.len().saturating_mul(MOST_OF_SHARD).min(MOST),
        // Of one that has just taken the name of another.
        Subscription::Caller(_) => 2 * MOST_OF_CALLER,
    }
}

impl Told {
    fn lasts(&self, caller: &CallerKey, lock: &Lock) -> Option<u32> {
        self.callers.get(caller)?.get(lock).copied()
    }

    fn remove(&mut self, caller: &CallerKey, lock: &Lock) {
        let Some(locks) = self.callers.get_mut(caller) else {
            return;
        };
        self.count -= usize::from(locks.remove(lock).is_some());
        if locks.is_empty() {
            self.callers.remove(caller);
        }
    }

    /// False if it is one more than there can be.
    fn insert(&mut self, caller: CallerKey, lock: Lock, lasts: u32, most: usize) -> bool {
        let locks = self.callers.entry(caller).or_default();
        self.count += usize::from(locks.insert(lock, lasts).is_none());
        locks.len() <= MOST_OF_CALLER && self.count <= most
    }

    fn iter(&self) -> impl Iterator<Item = (&CallerKey, &Lock, u32)> {
        let callers = self.callers.iter();
        callers.flat_map(|(caller, locks)| locks.iter().map(move |(lock, lasts)| (caller, lock, *lasts)))
    }
}

fn hold((lock, shard_uid): &Lock, lasts_seconds: u32, teller: &Teller) -> Hold {
    Hold {
        lock: lock.clone(),
        shard_uid: shard_uid.clone(),
        lasts_seconds,
        teller: teller.clone(),
    }
}

/// Whether all its names can be names.
fn is_bounded(held: &v1::HeldLock) -> bool {
    let labels = [
        &held.home_cluster,
        &held.pod_uid,
        &held.cluster,
        &held.resource,
        &held.shard_uid,
    ];
    held.name.len() <= LONGEST_NAME && labels.iter().all(|label| label.len() <= LONGEST_LABEL)
}

impl Renewals {
    /// Of a router that has told nothing yet, if it tells at all.
    pub(crate) fn of(are_told: bool) -> Self {
        Self {
            are_told,
            ..Self::default()
        }
    }

    /// Takes what a router of this subscription says. `longest`: for longer nothing counts, whatever it says.
    fn hear(&mut self, report: v1::HeldLocks, (subscription, longest): (&Subscription, Duration)) -> Heard {
        let was_whole = self.is_whole;
        let mut is_news = report.reset;
        if report.reset {
            (self.told, self.is_whole) = (Arc::default(), false);
        }
        let most = most_of(subscription);
        let longest = u32::try_from(longest.as_secs()).unwrap_or(u32::MAX);
        for held in report.held {
            if !is_bounded(&held) {
                return self.too_much();
            }
            let caller = (held.home_cluster, held.pod_uid);
            let lock = HeldLock {
                cluster: held.cluster,
                resource: held.resource,
                name: held.name,
                of_election: held.of_election,
            };
            let lock = (lock, held.shard_uid);
            let lasts = (!held.gone).then_some(held.lasts_seconds.min(longest));
            if self.told.lasts(&caller, &lock) == lasts {
                continue;
            }
            is_news = true;
            let told = Arc::make_mut(&mut self.told);
            match lasts {
                None => told.remove(&caller, &lock),
                Some(lasts) if told.insert(caller, lock, lasts, most) => {}
                Some(_) => return self.too_much(),
            }
        }
        self.is_whole |= !report.more;
        let whole = self.is_whole && !was_whole;
        if is_news || whole {
            Heard::News { whole }
        } else {
            Heard::Nothing
        }
    }

    fn too_much(&mut self) -> Heard {
        (self.told, self.is_whole) = (Arc::default(), false);
        Heard::TooMuch
    }

    /// Follows those of the stream before, of the same process or of another one that has its name.
    pub(super) fn follow(&mut self, earlier: &RouterState, is_same: bool) {
        let before = &earlier.renewals;
        (self.earlier, self.lost) = (before.earlier.clone(), before.lost.clone());
        let now = Instant::now();
        if self.earlier.values().any(|until| *until <= now) {
            Arc::make_mut(&mut self.earlier).retain(|_, until| *until > now);
        }
        if is_same {
            // Until it tells all of it anew.
            self.told = before.told.clone();
            return;
        }
        let left = earlier.left.unwrap_or(now);
        let teller = Teller::of(&earlier.subscription);
        let told = before.told.iter().map(|(caller, lock, lasts)| {
            let until = left + seconds(lasts);
            ((caller.clone(), hold(lock, lasts, &teller)), until)
        });
        let told: Vec<_> = told.filter(|(_, until)| *until > now).collect();
        // Of processes that come and go all the time.
        let is_too_much = self.earlier.len() + told.len() > most_of(&earlier.subscription);
        if is_too_much {
            self.earlier = Arc::default();
        } else if !told.is_empty() {
            Arc::make_mut(&mut self.earlier).extend(told);
        }
        if is_too_much || !earlier.ended {
            let mut lost = self.lost.take().map(|(_, lost)| lost).unwrap_or_default();
            lost.add(&earlier.subscription);
            self.lost = Some((now, lost));
        }
    }

    /// What counts now, of a router of this subscription that is there or `left`.
    fn all(
        &self,
        subscription: &Subscription,
        (left, now): (Option<Instant>, Instant),
    ) -> impl Iterator<Item = (&CallerKey, Hold)> {
        let counts = move |lasts: u32| left.is_none_or(|left| left + seconds(lasts) > now);
        let teller = Teller::of(subscription);
        let told = self.told.iter().filter(move |(_, _, lasts)| counts(*lasts));
        let told = told.map(move |(caller, lock, lasts)| (caller, hold(lock, lasts, &teller)));
        let earlier = self.earlier.iter().filter(move |(_, until)| **until > now);
        told.chain(earlier.map(|((caller, hold), _)| (caller, hold.clone())))
    }
}

impl RouterState {
    /// By whom callers may have renewed through this router, or an earlier process of its name, what it has not told.
    fn untold(&self, longest: Duration, now: Instant) -> Untold {
        let renewals = &self.renewals;
        let lost = renewals.lost.as_ref().filter(|(since, _)| now < *since + longest);
        let mut untold = lost.map(|(_, lost)| lost.clone()).unwrap_or_default();
        let is_away = match self.left {
            Some(_) => !self.ended,
            None => !renewals.is_whole,
        };
        if !renewals.are_told || is_away {
            untold.add(&self.subscription);
        }
        untold
    }
}

impl Acks {
    /// Which locks callers may hold. `longest`: what nothing counts for without a renewal.
    pub(crate) fn renewals(&self, longest: Duration) -> AllRenewals {
        let now = Instant::now();
        let young = self.followed.read().is_some_and(|since| now < since + longest);
        let mut all = AllRenewals {
            untold: if young { Untold::everyone() } else { Untold::default() },
            young,
            ..AllRenewals::default()
        };
        for state in self.routers.read().values() {
            all.untold.extend(state.untold(longest, now));
            for (caller, hold) in state.renewals.all(&state.subscription, (state.left, now)) {
                all.held.entry(caller.clone()).or_default().push(hold);
            }
        }
        for holds in all.held.values_mut() {
            holds.sort();
            holds.dedup();
        }
        all
    }

    /// Takes what a router says of locks that callers may hold; false if it says too much. `is_urgent`: it concerns somebody who is in
    /// another shard by now, or whose writes are closed. Who says something else all the time wakes the compiler once a second.
    pub(crate) fn renewed(
        &self,
        (router, epoch): (&str, u64),
        report: v1::HeldLocks,
        is_urgent: bool,
        longest: Duration,
    ) -> bool {
        let mut routers = self.routers.write();
        let Some(state) = routers.get_mut(router).filter(|state| state.epoch == epoch) else {
            return true;
        };
        let heard = state.renewals.hear(report, (&state.subscription, longest));
        let is_paced = state.subscription != Subscription::Everything;
        drop(routers);
        let Heard::News { whole } = heard else {
            return heard != Heard::TooMuch;
        };
        if is_paced && !self.paces.lock().take(router, Instant::now().into_std()) {
            return true;
        }
        self.renewals_heard.fetch_add(1, Ordering::SeqCst);
        if is_urgent {
            self.held_elsewhere.send_modify(|count| *count += 1);
        }
        // Whose writes are closed because nobody knew may write by now. Else nobody waits for it, and many come at once.
        if whole {
            self.wake();
        }
        true
    }

    /// Counts what [`Self::renewed`] has taken.
    pub(crate) fn renewals_heard(&self) -> u64 {
        self.renewals_heard.load(Ordering::SeqCst)
    }

    /// Whether words of routers that say something else all the time may be looked at now.
    pub(crate) fn settle_renewals(&self) -> bool {
        self.paces.lock().settle(Instant::now().into_std())
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
mod tests;
