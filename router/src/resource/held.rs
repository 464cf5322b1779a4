//! Leader locks and other Leases that callers renew: until when each may hold what it renewed, for the hub and for the plan of its
//! writes once its shard is another one; and which Leases are renewed beside an election, for the hub to say so
//! (`docs/semantics.md#leader-election`).
//!
//! A caller believes in what it was answered: an answer counts from when it is handed on. Lost with the process; the hub knows.
//! Writer: `edge`; readers: `edge`, and `subscribe`, which tells.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use dashmap::DashMap;
use portolan_crds::{Election, HeldLock};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::value::snapshot::{Binding, CallerKey, CallerView, HeldElsewhere, Shard};

/// Most locks of one caller that are known, and most other Leases: names of these are its choice.
const MOST: usize = 4;
/// How long a Lease beside an election counts as such after its last renewal, in seconds.
const BESIDE_SECONDS: i64 = 120;
/// Between the clocks of who renews and of this router.
const CLOCKS_DIFFER: Duration = Duration::from_secs(5);
/// Until the hub has said how long a lock counts at most: the hub's own default.
const LONGEST_SECONDS: u64 = 180;

/// One Lease that is not the one by which its shard elects its leader.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OtherLease {
    /// The ShardingConfig, `namespace/name`.
    pub(crate) shard: String,
    pub(crate) name: String,
}

/// A renewal that its member has carried out.
#[derive(Debug, Clone)]
pub(crate) struct Renewal {
    pub(crate) lock: HeldLock,
    /// The caller's shard: the ShardingConfig, and its uid.
    pub(crate) shard: Arc<str>,
    pub(crate) shard_uid: Arc<str>,
    /// The shard elects its leader by another name, and this was renewed, not made.
    pub(crate) is_beside: bool,
    /// As it says itself; `None`: nobody knows.
    pub(crate) lasts: Option<Duration>,
    /// Nobody holds it from now on.
    pub(crate) is_released: bool,
}

/// What a caller may hold, and what the hub must know of it beside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HeldKey {
    pub(crate) caller: CallerKey,
    pub(crate) lock: HeldLock,
    pub(crate) shard_uid: Arc<str>,
}

/// One caller's.
#[derive(Debug)]
struct Held {
    renewal: Renewal,
    until: Instant,
    unix_seconds: i64,
}

/// Of all callers of this router.
#[derive(Debug)]
pub(crate) struct HeldLocks {
    // Sharded locks: each renewal and each write of a caller takes one, over a handful of entries.
    callers: DashMap<CallerKey, Vec<Held>>,
    /// For longer nothing counts after its last renewal, in seconds.
    longest: AtomicU64,
    /// Somebody holds what it did not hold before, or for longer: one waits, the hub's stream.
    news: Notify,
}

impl Default for HeldLocks {
    fn default() -> Self {
        Self {
            callers: DashMap::default(),
            longest: AtomicU64::new(LONGEST_SECONDS),
            news: Notify::new(),
        }
    }
}

impl HeldLocks {
    /// The hub says for how long anything counts at most; 0: an older one, which does not.
    pub(crate) fn set_longest(&self, seconds: u32) {
        if seconds > 0 {
            self.longest.store(seconds.into(), Ordering::Relaxed);
        }
    }

    /// For how long a lock counts after a renewal.
    fn counts(&self, lasts: Option<Duration>) -> Duration {
        let longest = Duration::from_secs(self.longest.load(Ordering::Relaxed));
        lasts.map_or(longest, |lasts| lasts.saturating_add(CLOCKS_DIFFER).min(longest))
    }

    pub(crate) fn renewed(&self, caller: CallerKey, renewal: Renewal) {
        self.renewed_at(caller, renewal, (Instant::now(), unix_seconds()));
    }

    fn renewed_at(&self, caller: CallerKey, renewal: Renewal, (now, unix_seconds): (Instant, i64)) {
        let mut of_caller = self.callers.entry(caller).or_default();
        let place = of_caller.iter().position(|held| held.renewal.lock == renewal.lock);
        let before = place.map(|place| of_caller.swap_remove(place));
        let is_news = match &before {
            Some(before) => before.until <= now || !before.renewal.is_like(&renewal),
            None => !renewal.is_released,
        };
        if !renewal.is_released {
            let of_election = renewal.lock.of_election;
            let alike = |held: &Held| held.renewal.lock.of_election == of_election;
            if of_caller.iter().filter(|held| alike(held)).count() >= MOST {
                let oldest = of_caller.iter().enumerate().filter(|(_, held)| alike(held));
                let oldest = oldest.min_by_key(|(_, held)| held.until).map(|(place, _)| place);
                oldest.map(|place| of_caller.swap_remove(place));
            }
            // A write that leaves it out does not change how long it lasts.
            let known = before.as_ref().and_then(|before| before.renewal.lasts);
            let lasts = renewal.lasts.or(known);
            of_caller.push(Held {
                until: now + self.counts(lasts),
                renewal: Renewal { lasts, ..renewal },
                unix_seconds,
            });
        }
        drop(of_caller);
        if is_news {
            self.news.notify_one();
        }
    }

    /// What the caller may hold of which its present shard knows nothing: another shard's, or this one's before it was made anew.
    pub(crate) fn elsewhere(&self, view: &CallerView) -> Option<HeldElsewhere> {
        if self.callers.is_empty() {
            return None;
        }
        let Binding::One(shard) = &view.binding else {
            return None;
        };
        // A shard that names no lock elects none, or at home: the hub knows which.
        let lock = shard.lease.as_ref()?;
        let election = election(view, shard, Some(&lock.member));
        let now = Instant::now();
        let of_caller = self.callers.get(&view.key)?;
        let elsewhere = of_caller.iter().filter(|held| {
            let renewal = &held.renewal;
            held.until > now && *renewal.shard_uid != *shard.uid() && !renewal.lock.is_of(&election)
        });
        let last = elsewhere.max_by_key(|held| held.until)?;
        let left = last.until - now;
        Some(HeldElsewhere {
            until_unix_seconds: unix_seconds().saturating_add_unsigned(left.as_secs()).saturating_add(1),
            reason: reason(&last.renewal).into(),
        })
    }

    /// What callers may hold now, and for how many seconds each counts after a renewal; what nobody asks for any more is forgotten.
    /// With it, when the first of them will not count any more.
    pub(crate) fn told(&self) -> (BTreeMap<HeldKey, u32>, Option<Instant>) {
        let (now, unix_seconds) = (Instant::now(), unix_seconds());
        let (mut told, mut first) = (BTreeMap::new(), None::<Instant>);
        self.callers.retain(|caller, of_caller| {
            of_caller.retain(|held| held.until > now || held.is_beside(unix_seconds));
            for held in of_caller.iter().filter(|held| held.until > now) {
                let key = HeldKey {
                    caller: caller.clone(),
                    lock: held.renewal.lock.clone(),
                    shard_uid: held.renewal.shard_uid.clone(),
                };
                let lasts = self.counts(held.renewal.lasts).as_secs();
                told.insert(key, u32::try_from(lasts).unwrap_or(u32::MAX));
                first = Some(first.map_or(held.until, |first| first.min(held.until)));
            }
            !of_caller.is_empty()
        });
        (told, first)
    }

    /// Wakes when [`Self::told`] may say more.
    pub(crate) async fn changed(&self) {
        self.news.notified().await;
    }

    /// Leases beside elections, each once, with the time of its last renewal in seconds of Unix time.
    pub(crate) fn beside(&self) -> BTreeMap<OtherLease, i64> {
        self.beside_at(unix_seconds())
    }

    fn beside_at(&self, now_unix_seconds: i64) -> BTreeMap<OtherLease, i64> {
        let mut beside = BTreeMap::new();
        for of_caller in &self.callers {
            for held in of_caller.iter().filter(|held| held.is_beside(now_unix_seconds)) {
                let lease = OtherLease {
                    shard: held.renewal.shard.to_string(),
                    name: held.renewal.lock.name.clone(),
                };
                let last = beside.entry(lease).or_insert(held.unix_seconds);
                *last = (*last).max(held.unix_seconds);
            }
        }
        beside
    }
}

impl Renewal {
    /// Whether the hub need not know of `next` if it knows of this.
    fn is_like(&self, next: &Self) -> bool {
        !next.is_released
            && self.shard_uid == next.shard_uid
            && next.lasts.is_none_or(|lasts| self.lasts == Some(lasts))
    }
}

impl Held {
    fn is_beside(&self, now_unix_seconds: i64) -> bool {
        self.renewal.is_beside && now_unix_seconds - self.unix_seconds <= BESIDE_SECONDS
    }
}

fn election<'a>(view: &'a CallerView, shard: &'a Shard, lock: Option<&'a str>) -> Election<'a> {
    Election {
        home: &view.key.home_cluster,
        primary: &shard.primary_cluster,
        lock,
    }
}

/// As the hub says it.
fn reason(renewal: &Renewal) -> String {
    let HeldLock {
        cluster,
        resource,
        name,
        ..
    } = &renewal.lock;
    format!(
        "it renewed {resource}/{name} in member cluster {cluster} as a caller of shard {}",
        renewal.shard
    )
}

pub(super) fn unix_seconds() -> i64 {
    let since = UNIX_EPOCH.elapsed().unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
