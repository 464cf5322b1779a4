//! Writes that are open at members, by the shard whose grant of the (cluster, namespace) pair they left by: what the hub asks about
//! a pair that is being released (`docs/semantics.md#handover`). Writes of other shards are nothing to it: where several operators
//! have the namespace, their epochs go on, and a handover of one waits for no write of another.
//!
//! Of a pair it is said that its writes are answered only where that is known of all of them. A write whose answer never came
//! may still be carried out; and of what an earlier process of this router's name has sent nobody can tell, unless its state
//! folder does (`ended`), so that of grants that there were when this one was told for the first time nothing is said. Both for
//! as long as something may still be under way.
//!
//! Also which namespaces have no annotation, as their member said when it refused a write: they were made anew. Until the agent
//! has annotated such a one its owner's writes say no epoch. They would be admitted whoever the owner is by then, so that they
//! leave only while this router hears the hub: without that nobody waits for it, and the namespace may be another's. Callers:
//! `dispatch` counts and asks, `subscribe` reports.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use parking_lot::Mutex;
use portolan_crds::names::ShardName;
use portolan_wire::protocol::UNDER_WAY_FOR;
use portolan_wire::v1;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::value::snapshot::{GrantState, Snapshot};

/// How long writes say no epoch before one says it again. Agents annotate within a second, if they are there.
const BARE_FOR: Duration = Duration::from_secs(5);
/// More that are made anew in a few seconds are refused for that long.
const MAX_BARE: usize = 10_000;
/// How long a write that said no epoch may be carried out after its answer was lost. No API server works longer on a request.
const LOST_FOR: Duration = Duration::from_mins(1);

/// In place of cluster and namespace, of writes of leader locks: none has this name.
const LOCKS: &str = "";

/// Cluster, namespace, and the ShardingConfig that has it; of leader locks [`LOCKS`] twice.
type Pair = (Arc<str>, Arc<str>, Arc<str>);

/// A pair as [`Pair`], in words of a request.
pub(crate) type PairOf<'a> = (&'a Arc<str>, &'a str, &'a str);

fn pair((cluster, namespace, shard): PairOf<'_>) -> Pair {
    (cluster.clone(), Arc::from(namespace), Arc::from(shard))
}

/// As the snapshot has it.
fn of_snapshot((cluster, namespace, shard): (&Arc<str>, &str, &ShardName)) -> Pair {
    pair((cluster, namespace, &shard.to_string()))
}

/// Open and lost writes of this process.
#[derive(Debug)]
pub(crate) struct Writes {
    // Sharded locks: each write takes one twice.
    pairs: DashMap<Pair, Open>,
    /// Epochs of the pairs that there were when the hub had told this process for the first time; `None`: it has not. A mutex:
    /// held for a walk over the pairs, by the session alone.
    inherited: Mutex<Option<HashMap<Pair, u64>>>,
    /// Something is being released, and not all of its writes were answered.
    awaited: AtomicBool,
    /// A write of something that is awaited is over.
    over: Notify,
    /// Pairs whose namespace has no annotation, with the epoch of the write that was refused, and when.
    bare: DashMap<Pair, (u64, Instant)>,
    /// The hub has told all that it knows on a stream that is open.
    hears_hub: AtomicBool,
    /// When this process began.
    began: Instant,
    /// Every write that earlier processes have sent is answered.
    earlier_answered: AtomicBool,
}

impl Default for Writes {
    /// Of a process of which nobody knows what earlier ones have sent.
    fn default() -> Self {
        Self {
            pairs: DashMap::default(),
            inherited: Mutex::default(),
            awaited: AtomicBool::default(),
            over: Notify::default(),
            bare: DashMap::default(),
            hears_hub: AtomicBool::default(),
            began: Instant::now(),
            earlier_answered: AtomicBool::default(),
        }
    }
}

/// While it is held, a stream to the hub is open.
#[derive(Debug)]
pub(crate) struct HubHeard(Arc<Writes>);

/// Writes of one pair.
#[derive(Debug, Default)]
struct Open {
    count: usize,
    /// The highest epoch of those whose outcome is not known, and when the last one was lost.
    lost: Option<(u64, Instant)>,
    /// When the last of those that said no epoch was lost. Its member admits it whatever the epoch is by then.
    lost_bare: Option<Instant>,
}

/// One write. Dropped, it is over; its outcome is not known if it had left and was not [`Self::answered`].
#[derive(Debug)]
pub(crate) struct Write {
    all: Arc<Writes>,
    pair: Pair,
    epoch: Option<u64>,
    left: bool,
}

impl Writes {
    /// To be called before it is looked whether the grant still holds: what is not counted by then does not leave. The epoch is
    /// the one that the write says, if it says any.
    pub(crate) fn begin(self: &Arc<Self>, of: PairOf<'_>, epoch: Option<u64>) -> Write {
        let pair = pair(of);
        self.pairs.entry(pair.clone()).or_default().count += 1;
        Write {
            all: self.clone(),
            pair,
            epoch,
            left: false,
        }
    }

    /// [`Self::begin`], of a write of the leader lock of `shard`. It says no epoch.
    pub(crate) fn begin_of_lock(self: &Arc<Self>, shard: &str) -> Write {
        self.begin((&LOCKS.into(), LOCKS, shard), None)
    }

    /// Whether no write of the leader lock of `shard` is open, nor may be carried out yet. Where it is not so, it is to be
    /// asked again, after [`Self::answered`]: [`Self::changed`] wakes for those that are open. By the session alone.
    pub(crate) fn is_lock_idle(&self, shard: &str) -> bool {
        // Before it is looked: what ends from here on wakes.
        let others = self.awaited.swap(true, Ordering::SeqCst);
        let (is_open, is_idle) = match self.pairs.get(&pair((&LOCKS.into(), LOCKS, shard))) {
            Some(open) => (open.count > 0, open.count == 0 && !open.has_lost(0)),
            None => (false, true),
        };
        // Nothing else is to be told of what ends.
        self.awaited.store(others || is_open, Ordering::SeqCst);
        is_idle
    }

    /// The hub has told this process all that it knows, for the first time: what is granted by now may have been granted to an
    /// earlier one.
    pub(crate) fn inherit(&self, snapshot: &Snapshot) {
        let mut inherited = self.inherited.lock();
        if inherited.is_none() {
            let pairs = snapshot.pairs().map(|(of, known)| (of_snapshot(of), known.owner_count));
            *inherited = Some(pairs.collect());
        }
    }

    /// Every write that earlier processes have sent is answered. To be called before the hub is heard.
    pub(crate) fn earlier_are_answered(&self) {
        self.earlier_answered.store(true, Ordering::SeqCst);
    }

    /// What [`Self::earlier_are_answered`] has said, for the hub.
    pub(crate) fn is_earlier_answered(&self) -> bool {
        self.earlier_answered.load(Ordering::SeqCst)
    }

    /// Whether nothing that earlier processes have sent is under way.
    fn is_earlier_over(&self) -> bool {
        self.is_earlier_answered() || self.began.elapsed() >= UNDER_WAY_FOR
    }

    /// Whether nothing is under way that any process with this state folder has sent. Once nothing is sent any more it stays so.
    pub(crate) fn is_over(&self) -> bool {
        let is_idle = |open: &Open| open.count == 0 && !open.has_lost(0);
        self.is_earlier_over() && self.pairs.iter().all(|pair| is_idle(pair.value()))
    }

    /// Pairs that are being released and of which no write is open. `None`: nothing can be said yet.
    pub(crate) fn answered(&self, snapshot: &Snapshot) -> Option<v1::WritesAnswered> {
        let inherited = self.inherited.lock();
        let inherited = inherited.as_ref()?;
        // Before it is looked: what ends from here on wakes.
        self.awaited.store(true, Ordering::SeqCst);
        let mut awaited = false;
        let mut answered = v1::WritesAnswered::default();
        let releasing = snapshot
            .pairs()
            .filter(|(_, known)| known.state == GrantState::Releasing);
        for (of, known) in releasing {
            let key = of_snapshot(of);
            let epoch = known.owner_count;
            let open = self.pairs.get(&key);
            let is_open = open.as_ref().is_some_and(|open| open.count > 0);
            let is_lost = open.is_some_and(|open| open.has_lost(epoch));
            awaited |= is_open;
            let is_inherited = inherited.get(&key) == Some(&epoch) && !self.is_earlier_over();
            if !is_open && !is_lost && !is_inherited {
                answered.pairs.push(v1::PairEpoch {
                    cluster: key.0.to_string(),
                    namespace: key.1.to_string(),
                    epoch,
                });
            }
        }
        self.awaited.store(awaited, Ordering::SeqCst);
        answered
            .pairs
            .sort_by(|a, b| (&a.cluster, &a.namespace, a.epoch).cmp(&(&b.cluster, &b.namespace, b.epoch)));
        Some(answered)
    }

    /// A stream to the hub begins.
    pub(crate) fn stream(self: &Arc<Self>) -> HubHeard {
        HubHeard(self.clone())
    }

    /// A member said that the namespace has no annotation, when it refused a write of this epoch.
    pub(crate) fn has_no_epoch(&self, of: PairOf<'_>, epoch: u64) {
        let now = Instant::now();
        self.bare.retain(|_, (_, since)| now - *since < BARE_FOR);
        if self.bare.len() < MAX_BARE {
            self.bare.insert(pair(of), (epoch, now));
        }
    }

    /// Whether a write of this epoch is to say none.
    pub(crate) fn says_no_epoch(&self, of: PairOf<'_>, epoch: u64) -> bool {
        if self.bare.is_empty() || !self.hears_hub.load(Ordering::SeqCst) {
            return false;
        }
        let bare = self.bare.get(&pair(of));
        bare.is_some_and(|bare| bare.0 == epoch && bare.1.elapsed() < BARE_FOR)
    }

    /// Wakes when [`Self::answered`] may say more.
    pub(crate) async fn changed(&self) {
        self.over.notified().await;
    }
}

impl HubHeard {
    /// All that the hub knows was told.
    pub(crate) fn told(&self) {
        self.0.hears_hub.store(true, Ordering::SeqCst);
    }
}

impl Drop for HubHeard {
    fn drop(&mut self) {
        self.0.hears_hub.store(false, Ordering::SeqCst);
    }
}

impl Open {
    /// Whether a write may still be carried out that its member would admit in this epoch or before.
    fn has_lost(&self, epoch: u64) -> bool {
        let is_late = self.lost_bare.is_some_and(|since| since.elapsed() < LOST_FOR);
        let may_arrive = |(lost, since): (u64, Instant)| lost >= epoch && since.elapsed() < UNDER_WAY_FOR;
        is_late || self.lost.is_some_and(may_arrive)
    }
}

impl Write {
    /// It is being sent.
    pub(crate) fn leaves(&mut self) {
        self.left = true;
    }

    /// The member has carried it out or refused it; or vouches that it never had it.
    pub(crate) fn answered(&mut self) {
        self.left = false;
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        let Entry::Occupied(mut entry) = self.all.pairs.entry(self.pair.clone()) else {
            return;
        };
        let open = entry.get_mut();
        open.count = open.count.saturating_sub(1);
        match self.epoch {
            _ if !self.left => {}
            None => open.lost_bare = Some(Instant::now()),
            Some(epoch) => {
                let highest = open.lost.map_or(epoch, |(lost, _)| lost.max(epoch));
                open.lost = Some((highest, Instant::now()));
            }
        }
        let was_last = open.count == 0;
        if was_last && open.lost.is_none() && open.lost_bare.is_none() {
            entry.remove();
        }
        if was_last && self.all.awaited.load(Ordering::SeqCst) {
            self.all.over.notify_one();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
