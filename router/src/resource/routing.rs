//! What requests are routed by: the snapshot, the kinds that members serve, and the connections to them. One swap publishes
//! all three, so they never disagree.
//!
//! A request loads one [`Routing`] and is ruled by it to its end; what outlives requests (legs that connect anew, replanning,
//! the router's own questions) loads the newest whenever it acts. Connections that a swap does not concern are handed on
//! from one to the next; what nobody can be routed to any more goes when its last request does. Writers: `subscribe` for
//! snapshots, `discovery` for kinds, which outlive a restart (`remember`).

mod metrics;
mod remember;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use portolan_runtime::Tasks;
use tokio::sync::{Notify, watch};

pub(crate) use self::metrics::RoutingCollector;
use super::alone::Alone;
use super::catch_up::CatchUp;
use super::held::{HeldLocks, unix_seconds};
use super::locks::Locks;
use super::policies::Policies;
use super::question::Questions;
use super::replicas::Replicas;
use super::upstream::{Connector, Upstreams};
use super::whereabouts::Whereabouts;
use super::writes::Writes;
use crate::value::kinds::{Kinds, MemberKinds};
use crate::value::snapshot::{Caller, CallerView, HeldElsewhere, Snapshot};

/// By so many seconds the clocks of hub and router may differ.
const CLOCKS_SECONDS: i64 = 60;

/// Of these members, in seconds of Unix time; of which it is not known are not in the answer.
pub(crate) type LastAnswers = Questions<Vec<String>, HashMap<String, i64>>;

/// Routing of one moment. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Routing {
    pub(crate) snapshot: Arc<Snapshot>,
    /// Of the snapshot's members, as far as they have said.
    pub(crate) kinds: Arc<Kinds>,
    /// Of the snapshot's members, all of them.
    pub(crate) upstreams: Arc<Upstreams>,
    /// What the snapshot's policies remember of callers: one for the life of this router.
    pub(crate) policies: Arc<Policies>,
}

/// Where the current routing is kept, and who is woken when it changes.
#[derive(Debug)]
pub(crate) struct RoutingStore {
    /// An `ArcSwap`: every request reads it and must not wait. Written by `rcu`, so that no writer undoes another's.
    current: ArcSwap<Routing>,
    connector: Connector,
    /// A watch: few tasks must notice a swap, and only the newest matters to them.
    generation: watch::Sender<u64>,
    /// Of the kinds; a watch as well.
    revision: watch::Sender<u64>,
    /// A `Notify`: many askers, one look.
    missed: Notify,
    /// Until what the hub has told any router is served.
    pub(crate) catch_up: CatchUp,
    /// Whether other routers serve the same callers.
    pub(crate) alone: Alone,
    /// Until when members may have answered any router, as the hub knows of all.
    pub(crate) last_answers: LastAnswers,
    /// Locks and other Leases that callers renew.
    pub(crate) held: HeldLocks,
    /// Which members have a namespace that nobody owns, as the hub knows of all.
    pub(crate) whereabouts: Whereabouts,
    /// Writes that are open at members.
    pub(crate) writes: Arc<Writes>,
    /// Leader locks that were brought to their present place.
    pub(crate) locks: Locks,
    /// Copies of replicated kinds that are not what the primary has.
    pub(crate) replicas: Replicas,
}

impl Routing {
    /// Whether this cluster, and not another of its name, is a member.
    fn has_member(&self, cluster: &str, uid: &str) -> bool {
        let target = self.snapshot.targets.get(cluster);
        target.is_some_and(|target| target.cluster_uid == uid)
    }

    fn next(&self, snapshot: &Arc<Snapshot>, connector: &Connector) -> Self {
        let mut next = Self {
            snapshot: snapshot.clone(),
            kinds: self.kinds.clone(),
            upstreams: Arc::new(connector.follow(&self.upstreams, &snapshot.targets)),
            policies: self.policies.clone(),
        };
        let stays = |cluster: &str| {
            let before = self.snapshot.targets.get(cluster);
            before.is_some_and(|before| next.has_member(cluster, &before.cluster_uid))
        };
        if !next.kinds.clusters().all(stays) {
            let mut kinds = Kinds::clone(&next.kinds);
            kinds.retain(stays);
            next.kinds = Arc::new(kinds);
        }
        next
    }
}

impl RoutingStore {
    /// Routes nothing before the first swap. Connections are tasks of `tasks`, which must be cancelled only when clients are
    /// drained: it ends them with all their streams.
    pub(crate) fn new(connect_timeout: Duration, tasks: Tasks) -> Arc<Self> {
        Arc::new(Self {
            current: ArcSwap::default(),
            connector: Connector::new(connect_timeout, tasks),
            generation: watch::Sender::new(0),
            revision: watch::Sender::new(0),
            missed: Notify::new(),
            catch_up: CatchUp::default(),
            alone: Alone::unknown(),
            last_answers: LastAnswers::default(),
            held: HeldLocks::default(),
            whereabouts: Whereabouts::default(),
            writes: Arc::default(),
            locks: Locks::default(),
            replicas: Replicas::default(),
        })
    }

    /// The routing of this moment. Load it once per request.
    pub(crate) fn load(&self) -> Arc<Routing> {
        self.current.load_full()
    }

    /// Routes by another snapshot from now on, then wakes the subscribers. There must be one who swaps.
    pub(crate) fn swap(&self, snapshot: Snapshot) {
        let snapshot = Arc::new(snapshot);
        // Before anybody is ruled by it: no request finds rules that its state has not followed to.
        self.load().policies.follow(&snapshot);
        self.current.rcu(|before| before.next(&snapshot, &self.connector));
        self.connector.changed();
        self.generation.send_replace(snapshot.generation);
    }

    /// Replaces what one member serves; nothing of a cluster that is no member any more. Wakes who follows the kinds.
    pub(crate) fn set_kinds(&self, cluster: &Arc<str>, uid: &str, served: &Arc<MemberKinds>) {
        self.current.rcu(|before| {
            let mut next = Routing::clone(before);
            if next.has_member(cluster, uid) && next.kinds.member(cluster) != Some(served) {
                Arc::make_mut(&mut next.kinds).set(cluster, served.clone());
            }
            next
        });
        let revision = self.load().kinds.revision();
        self.revision
            .send_if_modified(|told| std::mem::replace(told, revision) != revision);
    }

    /// The caller of a write, with what it may hold elsewhere as far as the hub has told or this router knows, by the time of now.
    pub(crate) fn writing(&self, caller: Caller) -> Caller {
        let Caller::Pod(view) = &caller else { return caller };
        let own = self.held.elsewhere(view);
        if own.is_none() && view.held_elsewhere.is_none() {
            return caller;
        }
        // The hub takes it back itself when it is over, by its own clock. By this one it is over only when the hub can have been away since.
        let counts = |held: &HeldElsewhere| held.until_unix_seconds + CLOCKS_SECONDS > unix_seconds();
        let told = view.held_elsewhere.clone().filter(counts);
        let held_elsewhere = told.into_iter().chain(own).max_by_key(|held| held.until_unix_seconds);
        Caller::Pod(Arc::new(CallerView {
            held_elsewhere,
            ..CallerView::clone(view)
        }))
    }

    /// Wakes when a member says that it serves other kinds than before.
    pub(crate) fn kinds_changes(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// Wakes after each swap with the new snapshot's generation.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Wakes when the state of a breaker changes, when a member answers after a pause, and after each swap.
    pub(crate) fn breaker_changes(&self) -> watch::Receiver<u64> {
        self.connector.subscribe()
    }

    /// Wakes when there may be reason to look at a member.
    pub(crate) fn looks(&self) -> watch::Receiver<u64> {
        self.connector.looks()
    }

    /// A request needed a kind that no member is known to serve: `discovery` is to look again soon.
    pub(crate) fn miss(&self) {
        self.missed.notify_one();
    }

    /// Waits for the next [`Self::miss`].
    pub(crate) async fn missed(&self) {
        self.missed.notified().await;
    }
}

#[cfg(test)]
impl RoutingStore {
    /// By this snapshot, over connections of its own.
    pub(crate) fn of(snapshot: Snapshot) -> Arc<Self> {
        let store = Self::new(Duration::from_secs(20), Tasks::new());
        store.swap(snapshot);
        store
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::resource::upstream::scripted::{snapshot, target};

    fn members(generation: u64, clusters: &[&str]) -> Snapshot {
        let ca = "";
        let mut snapshot = snapshot(clusters.iter().map(|cluster| target(cluster, &[], ca)));
        snapshot.generation = generation;
        snapshot
    }

    fn assert_agrees(routing: &Routing) {
        let generation = routing.snapshot.generation;
        for cluster in routing.snapshot.targets.keys() {
            let known = routing.upstreams.get(cluster).is_some();
            assert!(known, "{cluster} of generation {generation} cannot be connected to");
        }
        assert_eq!(routing.upstreams.len(), routing.snapshot.targets.len(), "{generation}");
        for cluster in routing.kinds.clusters() {
            let known = routing.snapshot.targets.contains_key(cluster);
            assert!(known, "kinds of {cluster}, which left before generation {generation}");
        }
    }

    /// Requests that load while members come and go, and while discovery tells what they serve.
    #[test]
    fn no_request_sees_a_member_without_its_connections_or_kinds_of_one_that_left() {
        let store = RoutingStore::of(members(1, &["east"]));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        assert_agrees(&store.load());
                    }
                });
            }
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    store.set_kinds(&"west".into(), "uid-west", &Arc::default());
                }
            });
            for generation in 2..2_000 {
                let clusters: &[&str] = if generation % 2 == 0 {
                    &["east", "west"]
                } else {
                    &["east"]
                };
                store.swap(members(generation, clusters));
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(store.load().snapshot.generation, 1_999, "discovery undoes no swap");
    }

    #[test]
    fn kinds_are_of_members_and_of_no_namesake() {
        let store = RoutingStore::of(members(1, &["east", "west"]));
        let mut generations = store.subscribe();
        for cluster in ["east", "west"] {
            store.set_kinds(&cluster.into(), &format!("uid-{cluster}"), &Arc::default());
        }
        store.set_kinds(&"north".into(), "uid-north", &Arc::default());
        let before = store.load();
        let mut next = members(2, &["east", "west"]);
        let mut other = target("west", &[], "");
        other.cluster_uid = "another".to_owned();
        Arc::make_mut(&mut next.targets).insert("west".into(), Arc::new(other));
        assert!(!generations.has_changed().unwrap(), "kinds are no swap");
        store.swap(next);
        assert_eq!(*generations.borrow_and_update(), 2);
        assert!(before.kinds.member("west").is_some(), "frozen for who has it");
        assert!(before.kinds.member("north").is_none(), "no member");
        let after = store.load();
        assert!(after.kinds.member("west").is_none() && after.kinds.member("east").is_some());
        store.set_kinds(&"west".into(), "uid-west", &Arc::default());
        assert!(store.load().kinds.member("west").is_none(), "said by the one before");
    }
}
