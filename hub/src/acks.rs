//! What each router is known to hold, to have refused, and to have seen: the way back from sessions.
//!
//! Read by `distribute` (what may be freed) and `status` (n of m). A router that disconnects goes on serving what it
//! holds, so it goes on counting until it is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::RwLock;
use portolan_crds::ShardName;
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::compile::{Ref, Released};

/// A router that has been away this long no longer blocks a release: it is gone for good, or its operators' clients are.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(10);
/// After a start of the hub, routers that held something before get this long to come back and say so.
const RETURN_GRACE: Duration = Duration::from_mins(1);

/// One router.
#[derive(Debug, Clone)]
pub(crate) struct RouterState {
    pub(crate) epoch: u64,
    pub(crate) version: String,
    /// What the router is told.
    pub(crate) subscription: Subscription,
    /// `None` while connected.
    pub(crate) left: Option<Instant>,
    pub(crate) held: BTreeMap<Ref, String>,
    /// Shards to which the transaction under way, or the last one that was not answered, grants namespaces.
    pub(crate) offered: BTreeSet<ShardName>,
    /// Refused version and reason, until a later version is taken.
    pub(crate) rejected: BTreeMap<Ref, (String, String)>,
    /// The last compile run whose outcome it serves whole.
    pub(crate) acked_run: u64,
    /// What the router had seen of the ledger when its stream began.
    pub(crate) seen: LedgerPosition,
    pub(crate) breakers: Vec<v1::BreakerState>,
}

impl RouterState {
    /// A gateway whose stream begins, and that holds this.
    pub(crate) fn new(epoch: u64, held: BTreeMap<Ref, String>) -> Self {
        Self {
            epoch,
            version: String::new(),
            subscription: Subscription::Everything,
            left: None,
            held,
            offered: BTreeSet::new(),
            rejected: BTreeMap::new(),
            acked_run: 0,
            seen: LedgerPosition::default(),
            breakers: Vec::new(),
        }
    }

    /// Whether callers of `shard` may act on its namespaces by this router: a gateway counts for all shards, any other for
    /// those of which it holds something or is being sent something.
    fn may_serve(&self, shard: &ShardName) -> bool {
        self.subscription == Subscription::Everything
            || self.offered.contains(shard)
            || self.held.keys().any(|name| name.owner() == Some(shard))
    }
}

/// How much of which ledger's life somebody has seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LedgerPosition {
    pub(crate) incarnation: String,
    pub(crate) view_revision: u64,
}

/// All routers of this process's life, by name.
#[derive(Debug)]
pub(crate) struct Acks {
    // A lock: sessions write one entry each, readers take one pass.
    routers: RwLock<BTreeMap<String, RouterState>>,
    changed: watch::Sender<u64>,
    /// The time until which routers may come back that an earlier hub served, and that still act on what they hold.
    returning_until: RwLock<Instant>,
}

impl Default for Acks {
    fn default() -> Self {
        Self {
            routers: RwLock::default(),
            changed: watch::Sender::new(0),
            returning_until: RwLock::new(Instant::now()),
        }
    }
}

impl Acks {
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&BTreeMap<String, RouterState>) -> T) -> T {
        look(&self.routers.read())
    }

    /// There was a hub before this one, and routers may hold what it granted.
    pub(crate) fn expect_returns(&self) {
        *self.returning_until.write() = Instant::now() + RETURN_GRACE;
    }

    /// A stream begins, with what the router says it holds. False, and nothing changes, while an earlier one of the name is
    /// open: there are two routers then, and of what either holds nothing would be known.
    pub(crate) fn connected(&self, router: &str, state: RouterState) -> bool {
        let mut routers = self.routers.write();
        if routers.get(router).is_some_and(|earlier| earlier.left.is_none()) {
            return false;
        }
        routers.insert(router.to_owned(), state);
        drop(routers);
        self.wake();
        true
    }

    /// Changes a router's state, as long as no later stream of it has begun.
    pub(crate) fn update(&self, router: &str, epoch: u64, change: impl FnOnce(&mut RouterState)) {
        if let Some(state) = self
            .routers
            .write()
            .get_mut(router)
            .filter(|state| state.epoch == epoch)
        {
            change(state);
        }
        self.wake();
    }

    /// The last run that everyone has seen who might still act on an earlier one: all routers, and those that may serve each
    /// of `shards`.
    pub(crate) fn released(&self, shards: BTreeSet<ShardName>) -> Released {
        if Instant::now() < *self.returning_until.read() {
            return Released::default();
        }
        let mut routers = self.routers.write();
        routers.retain(|_, state| state.left.is_none_or(|left| left.elapsed() < FORGOTTEN_AFTER));
        let seen_by = |counts: &dyn Fn(&RouterState) -> bool| {
            let counting = routers.values().filter(|state| counts(state));
            counting.map(|state| state.acked_run).min().unwrap_or(u64::MAX)
        };
        let of_shard = shards.into_iter().map(|shard| {
            let run = seen_by(&|state| state.may_serve(&shard));
            (shard, run)
        });
        Released {
            of_shard: of_shard.collect(),
            by_all: seen_by(&|_| true),
        }
    }

    /// Whether some router has seen a view revision of this life of the ledger that is beyond the last one given: the ledger
    /// was set back. Gateways alone are believed: it concerns all shards.
    pub(crate) fn have_seen_beyond(&self, incarnation: &str, view_revision: u64) -> bool {
        let routers = self.routers.read();
        let gateways = routers
            .values()
            .filter(|state| state.subscription == Subscription::Everything);
        let mut seen = gateways.map(|state| &state.seen);
        seen.any(|seen| seen.incarnation == incarnation && seen.view_revision > view_revision)
    }

    fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_slowest_router_counts_until_it_is_forgotten() {
        let acks = Acks::default();
        assert_eq!(acks.released(BTreeSet::new()).by_all, u64::MAX, "nobody was ever there");
        acks.expect_returns();
        assert_eq!(acks.released(BTreeSet::new()).by_all, 0, "routers may come back");
        tokio::time::advance(RETURN_GRACE).await;
        assert_eq!(acks.released(BTreeSet::new()).by_all, u64::MAX, "nobody is there");
        assert!(acks.connected("a", RouterState::new(1, BTreeMap::new())));
        assert!(acks.connected("b", RouterState::new(2, BTreeMap::new())));
        assert!(!acks.connected("a", RouterState::new(3, BTreeMap::new())), "a is here");
        acks.update("a", 1, |state| state.acked_run = 7);
        assert_eq!(acks.released(BTreeSet::new()).by_all, 0);
        acks.update("b", 1, |state| state.acked_run = 9);
        assert_eq!(
            acks.released(BTreeSet::new()).by_all,
            0,
            "an earlier stream of b has no say"
        );
        acks.update("b", 2, |state| {
            state.acked_run = 5;
            state.left = Some(Instant::now());
        });
        assert_eq!(acks.released(BTreeSet::new()).by_all, 5);
        tokio::time::advance(FORGOTTEN_AFTER).await;
        assert_eq!(acks.released(BTreeSet::new()).by_all, 7);
    }

    #[test]
    fn a_router_of_some_shards_counts_for_what_it_holds_or_is_sent() {
        let shard = |name: &str| -> ShardName { format!("ops/{name}").parse().unwrap() };
        let owned = |name: &str| Ref::Ownership {
            cluster: "east".to_owned(),
            shard: shard(name),
        };
        let acks = Acks::default();
        acks.connected("gateway", RouterState::new(1, BTreeMap::new()));
        let part = RouterState {
            subscription: Subscription::Shards([shard("a"), shard("b")].into()),
            offered: [shard("b")].into(),
            ..RouterState::new(2, [(owned("a"), String::new())].into())
        };
        acks.connected("part", part);
        acks.update("gateway", 1, |state| state.acked_run = 7);
        acks.update("part", 2, |state| state.acked_run = 3);
        let released = acks.released([shard("a"), shard("b"), shard("c")].into());
        let runs: Vec<_> = ["a", "b", "c"].map(|name| released.of(&shard(name))).into();
        assert_eq!((released.by_all, runs), (3, vec![3, 3, 7]));
    }

    #[tokio::test]
    async fn a_ledger_that_was_set_back_is_noticed() {
        let acks = Acks::default();
        assert!(acks.connected("a", RouterState::new(1, BTreeMap::new())));
        let seen = LedgerPosition {
            incarnation: "one".to_owned(),
            view_revision: 8,
        };
        acks.update("a", 1, |state| state.seen = seen);
        assert!(acks.have_seen_beyond("one", 7));
        assert!(!acks.have_seen_beyond("one", 8));
        assert!(!acks.have_seen_beyond("another", 7), "of an earlier life");
        acks.update("a", 1, |state| {
            state.subscription = Subscription::Shards(["ops/a".parse().unwrap()].into());
        });
        assert!(!acks.have_seen_beyond("one", 7), "a router of one shard says so");
    }
}
