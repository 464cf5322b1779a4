//! Every merged watch that is open now: for people (`/watches`, `portolanctl watch-state`), for metrics, and for the write
//! fence.
//!
//! A stream writes its own figures without a lock; the registry is asked when a watch opens or ends, when somebody looks,
//! and once per write that a fence may be for. Callers: `stream` registers and writes, `fence`, `admin` and `metrics` read.

mod collector;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use parking_lot::Mutex;
use portolan_crds::selector::Selector;
use portolan_merge::cursor::Slot;
use portolan_merge::filter::NamespaceFilter;
use serde_json::{Value, json};
use tokio::sync::Notify;

pub(crate) use self::collector::OpenCollector;
use super::metrics::FanOutMetrics;
use crate::stage::inject::StreamInjection;
use crate::value::classify::ApiRequest;
use crate::value::object;
use crate::value::snapshot::{Caller, CallerId};

/// What one leg is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum LegState {
    /// Its stream is open.
    Live,
    /// It is not there: its slot is kept, the client's stream goes on.
    Held,
    /// Its objects are read anew.
    Relisting,
    /// Its member does not serve the kind.
    Absent,
}

impl LegState {
    pub(crate) const ALL: [Self; 4] = [Self::Live, Self::Held, Self::Relisting, Self::Absent];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Held => "held",
            Self::Relisting => "relisting",
            Self::Absent => "absent",
        }
    }

    fn of(byte: u8) -> Self {
        Self::ALL
            .into_iter()
            .find(|state| *state as u8 == byte)
            .unwrap_or(Self::Held)
    }
}

/// A client that takes nothing for so long is no witness of writes.
const UNREAD_MILLISECONDS: u64 = 1_000;

/// All of them, of this process.
pub(crate) struct OpenWatches {
    // Sharded locks: each watch adds and removes itself; nothing waits under them.
    watches: DashMap<u64, Arc<OpenWatch>>,
    /// Of those that the answers to their caller's writes wait for; by number, as thousands of one caller may end at once.
    fenced: DashMap<Fenced, BTreeMap<u64, Arc<OpenWatch>>>,
    /// Number of the next one.
    next: AtomicU64,
    started: Instant,
    pub(crate) metrics: FanOutMetrics,
}

/// What a write must have in common with a watch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Fenced {
    pub(crate) caller: CallerId,
    pub(crate) group: String,
    pub(crate) resource: String,
}

/// One merged watch.
#[derive(Debug)]
pub(crate) struct OpenWatch {
    pub(crate) id: u64,
    fenced: Option<Fenced>,
    caller: String,
    shard: Option<String>,
    group: String,
    version: String,
    resource: String,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    /// The client's own selectors: not every object of the shard shows in it.
    pub(crate) narrowed: bool,
    opened: Instant,
    /// Faults that are ordered for what the client sees.
    injection: OnceLock<Arc<StreamInjection>>,
    // A mutex: replaced when a swap changes the plan.
    legs: Mutex<Vec<Arc<OpenLeg>>>,
    pub(crate) bytes: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) bookmarks: AtomicU64,
    /// Milliseconds since the registry began, and one: when the last piece was handed on, until the client takes more; else 0.
    handed: AtomicU64,
}

/// One leg of it.
#[derive(Debug)]
pub(crate) struct OpenLeg {
    pub(crate) cluster: Arc<str>,
    state: AtomicU8,
    /// What of the member the client has been sent, as its cursor says it: 0 for none yet.
    slot: AtomicU64,
    /// The highest version that was read of the member and handed on.
    seen: AtomicU64,
    /// Milliseconds since the registry began: when the member said anything last.
    heard: AtomicU64,
    restarts: AtomicU32,
    /// Why it is not live.
    why: Mutex<Option<Arc<str>>>,
    /// Faults that are ordered for it.
    injection: OnceLock<Arc<StreamInjection>>,
    /// Told of changes of `seen` and `state`. Only fences wait here.
    moved: Notify,
    /// A mutex: replaced when a swap changes the plan.
    shows: Mutex<Shows>,
}

/// What of its member's objects a leg shows.
#[derive(Debug, Default)]
struct Shows {
    namespaces: Option<NamespaceFilter>,
    /// What the member selects by.
    selector: Option<Selector>,
}

/// All open watches in figures.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    pub(crate) watches: usize,
    /// Age of the oldest one.
    pub(crate) oldest: Duration,
    pub(crate) legs: HashMap<(Arc<str>, LegState), Legs>,
}

/// The legs of one member that are in one state.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Legs {
    pub(crate) count: usize,
    /// The longest time that the member has said nothing on one of them.
    pub(crate) lag: Duration,
}

/// A registered watch; dropped, it is forgotten.
pub(crate) struct Registered {
    pub(crate) watch: Arc<OpenWatch>,
    all: Arc<OpenWatches>,
}

impl OpenWatches {
    pub(crate) fn new(metrics: FanOutMetrics) -> Arc<Self> {
        Arc::new(Self {
            watches: DashMap::new(),
            fenced: DashMap::new(),
            next: AtomicU64::new(1),
            started: Instant::now(),
            metrics,
        })
    }

    pub(crate) fn register(
        self: &Arc<Self>,
        caller: &Caller,
        asked: &ApiRequest,
        fence: bool,
        legs: Vec<Arc<OpenLeg>>,
    ) -> Registered {
        let (name, shard) = names(caller);
        let resource = asked.resource.clone().unwrap_or_default();
        let says = |parameter| asked.query.first(parameter).is_some_and(|text| !text.is_empty());
        let narrowed =
            says("labelSelector") || says("shardSelector") || (says("fieldSelector") && resource.name.is_none());
        let fenced = fence.then(|| Fenced {
            caller: CallerId::of(caller),
            group: resource.group.clone(),
            resource: resource.resource.clone(),
        });
        let watch = Arc::new(OpenWatch {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            fenced,
            caller: name,
            shard,
            group: resource.group,
            version: resource.version,
            resource: resource.resource,
            namespace: resource.namespace,
            name: resource.name,
            narrowed,
            opened: Instant::now(),
            injection: OnceLock::new(),
            legs: Mutex::new(legs),
            bytes: AtomicU64::new(0),
            events: AtomicU64::new(0),
            bookmarks: AtomicU64::new(0),
            handed: AtomicU64::new(0),
        });
        self.watches.insert(watch.id, watch.clone());
        if let Some(key) = &watch.fenced {
            let mut of_caller = self.fenced.entry(key.clone()).or_default();
            of_caller.insert(watch.id, watch.clone());
        }
        let all = self.clone();
        Registered { watch, all }
    }

    /// Watches that the answer to such a write may have to wait for.
    pub(crate) fn fenced(&self, key: &Fenced) -> Vec<Arc<OpenWatch>> {
        let of_caller = self.fenced.get(key);
        of_caller.map_or_else(Vec::new, |watches| watches.values().cloned().collect())
    }

    /// A leg of a watch that is about to be registered or replanned.
    pub(crate) fn leg(&self, cluster: &Arc<str>) -> Arc<OpenLeg> {
        Arc::new(OpenLeg {
            cluster: cluster.clone(),
            state: AtomicU8::new(LegState::Held as u8),
            slot: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            heard: AtomicU64::new(self.now()),
            restarts: AtomicU32::new(0),
            why: Mutex::new(None),
            injection: OnceLock::new(),
            moved: Notify::new(),
            shows: Mutex::default(),
        })
    }

    /// Since the registry began.
    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Milliseconds since the registry began.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// For `/watches`.
    pub(crate) fn describe(&self) -> Value {
        let mut all: Vec<_> = self.watches.iter().map(|watch| watch.clone()).collect();
        all.sort_by_key(|watch| watch.id);
        let now = self.now();
        json!({ "watches": all.iter().map(|watch| watch.describe(now)).collect::<Vec<_>>() })
    }

    /// For metrics.
    pub(crate) fn count(&self) -> Counted {
        let all: Vec<_> = self.watches.iter().map(|watch| watch.clone()).collect();
        let now = self.now();
        let mut counted = Counted {
            watches: all.len(),
            ..Counted::default()
        };
        for watch in &all {
            counted.oldest = counted.oldest.max(watch.opened.elapsed());
            for leg in watch.legs.lock().iter() {
                let legs = counted.legs.entry((leg.cluster.clone(), leg.state())).or_default();
                legs.count += 1;
                // Silence that was ordered is no member's.
                if !(is_silent(&watch.injection) || is_silent(&leg.injection)) {
                    legs.lag = legs.lag.max(leg.lag(now));
                }
            }
        }
        counted
    }
}

impl OpenWatch {
    /// The leg that shows objects of this member.
    pub(crate) fn leg(&self, cluster: &str) -> Option<Arc<OpenLeg>> {
        self.legs.lock().iter().find(|leg| &*leg.cluster == cluster).cloned()
    }

    /// So many bytes were handed on, and this is what all of them were; returns what is new. Called by the stream alone.
    pub(crate) fn sent(&self, bytes: usize, events: u64, bookmarks: u64) -> (u64, u64) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let before = |all: &AtomicU64, now: u64| now.saturating_sub(all.swap(now, Ordering::Relaxed));
        (before(&self.events, events), before(&self.bookmarks, bookmarks))
    }

    /// A piece was handed on at `now` (as [`OpenWatches::now`]), or the client takes more. Called by the stream alone.
    pub(crate) fn set_handed(&self, now: Option<u64>) {
        let handed = now.map_or(0, |now| now.saturating_add(1));
        self.handed.store(handed, Ordering::Relaxed);
    }

    /// Whether its client takes what it is sent. One that has not for a second shows nothing to anybody.
    pub(crate) fn is_read(&self, now: u64) -> bool {
        let handed = self.handed.load(Ordering::Relaxed);
        handed == 0 || now.saturating_add(1).saturating_sub(handed) < UNREAD_MILLISECONDS
    }

    /// Once, when it begins.
    pub(crate) fn set_injection(&self, injection: Arc<StreamInjection>) {
        let _ = self.injection.set(injection);
    }

    pub(crate) fn injection(&self) -> Option<&Arc<StreamInjection>> {
        self.injection.get()
    }

    pub(crate) fn set_legs(&self, legs: Vec<Arc<OpenLeg>>) {
        *self.legs.lock() = legs;
    }

    fn describe(&self, now: u64) -> Value {
        let legs = self.legs.lock();
        json!({
            "id": self.id,
            "caller": self.caller,
            "shard": self.shard,
            "group": self.group,
            "version": self.version,
            "resource": self.resource,
            "namespace": self.namespace,
            "name": self.name,
            "fenced": self.fenced.is_some(),
            "faults": faults(&self.injection),
            "ageSeconds": self.opened.elapsed().as_secs(),
            "bytes": self.bytes.load(Ordering::Relaxed),
            "events": self.events.load(Ordering::Relaxed),
            "bookmarks": self.bookmarks.load(Ordering::Relaxed),
            "legs": legs.iter().map(|leg| leg.describe(now)).collect::<Vec<_>>(),
        })
    }
}

impl OpenLeg {
    pub(crate) fn state(&self) -> LegState {
        LegState::of(self.state.load(Ordering::Acquire))
    }

    pub(crate) fn set_state(&self, state: LegState, why: Option<&str>) {
        self.state.store(state as u8, Ordering::Release);
        *self.why.lock() = why.map(Arc::from);
        self.moved.notify_waiters();
    }

    /// Once, when it is made.
    pub(crate) fn set_injection(&self, injection: Arc<StreamInjection>) {
        let _ = self.injection.set(injection);
    }

    /// What it is asked for from now on.
    pub(crate) fn set_shows(&self, namespaces: Option<NamespaceFilter>, selector: Option<Selector>) {
        *self.shows.lock() = Shows { namespaces, selector };
    }

    /// Whether it shows objects of this namespace, "" for those that have none; `name`: as far as it is known.
    pub(crate) fn shows(&self, namespace: &str, name: Option<&str>) -> bool {
        let shows = self.shows.lock();
        let admits = |filter: &NamespaceFilter| filter.admits_key(namespace, name.unwrap_or_default());
        (namespace.is_empty() && name.is_none()) || shows.namespaces.as_ref().is_none_or(admits)
    }

    /// Whether it selects by labels.
    pub(crate) fn selects(&self) -> bool {
        self.shows.lock().selector.is_some()
    }

    /// Whether it shows objects of these labels.
    pub(crate) fn selects_by(&self, labels: &object::Labels) -> bool {
        let shows = self.shows.lock();
        shows.selector.as_ref().is_none_or(|selector| selector.matches(labels))
    }

    pub(crate) fn restarted(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// Something came of the member, and the client has been sent what follows from it.
    pub(crate) fn advance(&self, slot: Slot, seen: u64, now: u64) {
        self.heard.store(now, Ordering::Relaxed);
        let mut seen = seen;
        if let Slot::At(version) = slot {
            self.slot.store(version, Ordering::Relaxed);
            seen = seen.max(version);
        }
        if self.seen.fetch_max(seen, Ordering::AcqRel) < seen {
            self.moved.notify_waiters();
        }
    }

    /// Waits until the client has been sent everything up to this version, or the leg is not live. Bounded by the caller.
    pub(crate) async fn reaches(&self, version: u64) {
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            // Before the look: what changes after it wakes us.
            moved.as_mut().enable();
            if self.seen.load(Ordering::Acquire) >= version || self.state() != LegState::Live {
                return;
            }
            moved.await;
        }
    }

    /// Since the member's last word, bookmarks included: about a minute at most while all is well.
    fn lag(&self, now: u64) -> Duration {
        Duration::from_millis(now.saturating_sub(self.heard.load(Ordering::Relaxed)))
    }

    fn describe(&self, now: u64) -> Value {
        let slot = self.slot.load(Ordering::Relaxed);
        json!({
            "cluster": &*self.cluster,
            "state": self.state().as_str(),
            // Text: versions can be larger than what JSON numbers carry everywhere.
            "slot": (slot > 0).then(|| slot.to_string()),
            "lagSeconds": self.lag(now).as_secs_f64(),
            "restarts": self.restarts.load(Ordering::Relaxed),
            "why": self.why.lock().as_deref(),
            "faults": faults(&self.injection),
        })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.all.watches.remove(&self.watch.id);
        let Some(key) = &self.watch.fenced else { return };
        self.all.fenced.remove_if_mut(key, |_, watches| {
            watches.remove(&self.watch.id);
            watches.is_empty()
        });
    }
}

/// Names of what is ordered.
fn faults(injection: &OnceLock<Arc<StreamInjection>>) -> Option<Vec<String>> {
    injection.get().map(|injection| injection.names())
}

fn is_silent(injection: &OnceLock<Arc<StreamInjection>>) -> bool {
    injection.get().is_some_and(|injection| injection.is_silent())
}

fn names(caller: &Caller) -> (String, Option<String>) {
    match caller {
        Caller::Person { user, .. } => (user.clone(), None),
        Caller::Pod(view) => {
            let name = format!("{}/{}/{}", view.key.home_cluster, view.namespace, view.pod);
            (name, view.shard().map(ToString::to_string))
        }
    }
}

#[cfg(test)]
mod tests;
