//! What each router is known to hold, to have refused, and to have seen: the way back from sessions.
//!
//! Read by `distribute` (what may be freed) and `status` (n of m). A router that disconnects goes on serving what it
//! holds, so it goes on counting until it is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::RwLock;
use portolan_crds::ShardName;
use portolan_crds::ledger::CursorFormat;
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::compile::{Ref, Released};

/// A router that has been away this long no longer blocks a release: it is gone for good, or its operators' clients are.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(10);
/// After a start of the hub, routers that held something before get this long to come back and say so.
const RETURN_GRACE: Duration = Duration::from_mins(1);
/// Routers report every three seconds: one that has not for so long may be cut off, and goes on asking members.
const HEARD_WITHIN: Duration = Duration::from_secs(8);
/// A router that was connected within this time may be asked by a client that has its position from another one.
const READERS_WITHIN: Duration = Duration::from_hours(1);

/// One router.
#[derive(Debug, Clone)]
pub(crate) struct RouterState {
    pub(crate) epoch: u64,
    pub(crate) version: String,
    /// Whether it reads cursors of format 2.
    pub(crate) reads_views: bool,
    /// What the router is told.
    pub(crate) subscription: Subscription,
    /// When one of its name left that had another memory.
    pub(crate) replaces: Option<Instant>,
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
    pub(crate) reported: Reported,
    /// When it reported last on this stream.
    pub(crate) heard: Option<Instant>,
}

/// What a router reports last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reported {
    pub(crate) breakers: Vec<v1::BreakerState>,
    /// Until when each member may have answered it, in seconds of Unix time. Those that it has not told are not known.
    pub(crate) answered: BTreeMap<String, i64>,
    pub(crate) other_leases: OtherLeases,
}

/// When callers last renewed a Lease that is not their election's, by shard and name, in seconds of Unix time.
pub(crate) type OtherLeases = BTreeMap<(ShardName, String), i64>;

impl RouterState {
    /// A gateway whose stream begins, and that holds this.
    pub(crate) fn new(epoch: u64, held: BTreeMap<Ref, String>) -> Self {
        Self {
            epoch,
            version: String::new(),
            reads_views: true,
            subscription: Subscription::Everything,
            replaces: None,
            left: None,
            held,
            offered: BTreeSet::new(),
            rejected: BTreeMap::new(),
            acked_run: 0,
            seen: LedgerPosition::default(),
            reported: Reported::default(),
            heard: None,
        }
    }

    /// Whether both may serve the same caller. Of which shard a Pod is a caller does not count: that changes.
    fn shares_callers(&self, other: &Self) -> bool {
        match (&self.subscription, &other.subscription) {
            (Subscription::Shards(ours), Subscription::Shards(theirs)) => !ours.is_disjoint(theirs),
            (Subscription::Caller(ours), Subscription::Caller(theirs)) => ours == theirs,
            _ => true,
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
    /// Counts the comings and goings of routers.
    came_or_left: watch::Sender<u64>,
    /// The time until which routers may come back that an earlier hub served, and that still act on what they hold.
    returning_until: RwLock<Instant>,
    readers: RwLock<Readers>,
    /// When the last router left that is not known any more, or may have: at the start of a hub that was not the first.
    others_left: RwLock<Option<Instant>>,
}

/// What is known of routers that do not read cursors of format 2.
#[derive(Debug)]
struct Readers {
    /// Since then all routers that were connected are known.
    known_since: Instant,
    /// When one of them was connected last.
    older: Option<Instant>,
}

impl Default for Acks {
    fn default() -> Self {
        Self {
            routers: RwLock::default(),
            changed: watch::Sender::new(0),
            came_or_left: watch::Sender::new(0),
            returning_until: RwLock::new(Instant::now()),
            readers: RwLock::new(Readers {
                known_since: Instant::now(),
                older: None,
            }),
            others_left: RwLock::default(),
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
        *self.others_left.write() = Some(Instant::now());
        self.readers.write().known_since = Instant::now();
    }

    /// A stream begins, with what the router says it holds. False, and nothing changes, while an earlier one of the name is
    /// open: there are two routers then, and of what either holds nothing would be known.
    pub(crate) fn connected(&self, router: &str, mut state: RouterState) -> bool {
        let mut routers = self.routers.write();
        if let Some(earlier) = routers.get(router) {
            if earlier.left.is_none() {
                return false;
            }
            // One that holds nothing is another program, or was told nothing yet.
            state.replaces = if state.held.is_empty() {
                earlier.left
            } else {
                earlier.replaces
            };
        }
        routers.insert(router.to_owned(), state);
        drop(routers);
        self.came_or_left.send_modify(|count| *count += 1);
        self.wake();
        true
    }

    /// Wakes when a router comes or leaves.
    pub(crate) fn comings_and_goings(&self) -> watch::Receiver<u64> {
        self.came_or_left.subscribe()
    }

    /// Changes a router's state, as long as no later stream of it has begun.
    pub(crate) fn update(&self, router: &str, epoch: u64, change: impl FnOnce(&mut RouterState)) {
        let mut routers = self.routers.write();
        let state = routers.get_mut(router).filter(|state| state.epoch == epoch);
        let left = state.is_some_and(|state| {
            let before = state.left;
            change(state);
            state.left != before
        });
        drop(routers);
        if left {
            self.came_or_left.send_modify(|count| *count += 1);
        }
        self.wake();
    }

    /// What a router reports of members and callers. When they answered is asked for and wakes nobody; times alone neither.
    pub(crate) fn reported(&self, router: &str, epoch: u64, reported: Reported) {
        let mut routers = self.routers.write();
        let state = routers.get_mut(router).filter(|state| state.epoch == epoch);
        let changed = state.is_some_and(|state| {
            state.heard = Some(Instant::now());
            let before = std::mem::replace(&mut state.reported, reported);
            before.breakers != state.reported.breakers
                || !before.other_leases.keys().eq(state.reported.other_leases.keys())
        });
        drop(routers);
        if changed {
            self.wake();
        }
    }

    /// Until when `cluster` may have answered any router that may serve the same callers as `asker`, in seconds of Unix time.
    /// `None`: of some router nobody knows. One that left, or is not heard, goes on asking members until it is forgotten; one
    /// that has not been told of the member asks it nothing, but an earlier one of its name may have.
    pub(crate) fn answered_until(&self, asker: &str, cluster: &str, now_unix_seconds: i64) -> Option<i64> {
        let routers = self.routers.read();
        let others_left = *self.others_left.read();
        let mut until = match others_left.map(|left| left.elapsed()) {
            Some(ago) if ago < FORGOTTEN_AFTER => return None,
            Some(ago) => now_unix_seconds.saturating_sub_unsigned(ago.as_secs()),
            None => i64::MIN,
        };
        let target = Ref::Target(cluster.to_owned());
        let own = routers.get(asker)?;
        for state in routers.values().filter(|state| own.shares_callers(state)) {
            let is_heard = state.heard.is_some_and(|heard| heard.elapsed() < HEARD_WITHIN);
            let answered = state.reported.answered.get(cluster).copied();
            let before = state.replaces.map(|left| left.elapsed());
            until = match (answered, before) {
                _ if state.left.is_some() => return None,
                (Some(answered), _) if is_heard => until.max(answered),
                (None, _) if state.held.contains_key(&target) => return None,
                (None, None) => until,
                (None, Some(ago)) if ago >= FORGOTTEN_AFTER => {
                    until.max(now_unix_seconds.saturating_sub_unsigned(ago.as_secs()))
                }
                (Some(_), _) | (None, Some(_)) => return None,
            };
        }
        Some(until)
    }

    /// The last run that everyone has seen who might still act on an earlier one: all routers, and those that may serve each
    /// of `shards`.
    pub(crate) fn released(&self, shards: BTreeSet<ShardName>) -> Released {
        if Instant::now() < *self.returning_until.read() {
            return Released::default();
        }
        let mut routers = self.routers.write();
        let mut others_left = self.others_left.write();
        routers.retain(|_, state| {
            let kept = state.left.is_none_or(|left| left.elapsed() < FORGOTTEN_AFTER);
            if !kept {
                *others_left = (*others_left).max(state.left);
            }
            kept
        });
        drop(others_left);
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

    /// For how long no other router can have served callers that `router` may serve; zero: one may serve them now. A router
    /// that left goes on serving until it is forgotten.
    pub(crate) fn alone_for(&self, router: &str) -> Duration {
        let routers = self.routers.read();
        // Not before: whoever is forgotten is in one of the two.
        let others_left = *self.others_left.read();
        let Some(own) = routers.get(router) else {
            return Duration::ZERO;
        };
        let others = routers
            .iter()
            .filter(|(name, state)| *name != router && own.shares_callers(state));
        let mut last = others_left.max(own.replaces);
        for (_, other) in others {
            let Some(left) = other.left else { return Duration::ZERO };
            last = last.max(Some(left));
        }
        last.map_or(Duration::MAX, |left| left.elapsed().saturating_sub(FORGOTTEN_AFTER))
    }

    /// The format of cursors to write after `before`: 2 if all routers read it that were connected in the last hour. What was
    /// stored as 2 is so also after a restart: whoever does not read it would have been seen by the hub of before.
    pub(crate) fn cursor_format(&self, before: CursorFormat) -> CursorFormat {
        let now = Instant::now();
        let older = self.read(|routers| {
            let older = routers.values().filter(|router| !router.reads_views);
            older.map(|router| router.left.unwrap_or(now)).max()
        });
        let mut readers = self.readers.write();
        // Routers are forgotten earlier than that.
        readers.older = readers.older.max(older);
        let within = |at: Instant| now - at < READERS_WITHIN;
        if readers.older.is_some_and(within) {
            return CursorFormat::One;
        }
        if within(readers.known_since) {
            before
        } else {
            CursorFormat::Two
        }
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

    #[tokio::test(start_paused = true)]
    async fn cursors_are_written_as_all_routers_of_an_hour_read_them() {
        let older = || RouterState {
            reads_views: false,
            ..RouterState::new(1, BTreeMap::new())
        };
        let (one, two) = (CursorFormat::One, CursorFormat::Two);
        let acks = Acks::default();
        acks.connected("new", RouterState::new(2, BTreeMap::new()));
        assert_eq!(acks.cursor_format(two), two, "as the hub of before has stored it");
        assert_eq!(acks.cursor_format(one), one, "nobody knows who was here before");
        tokio::time::advance(READERS_WITHIN).await;
        assert_eq!(acks.cursor_format(one), two);
        acks.connected("old", older());
        assert_eq!(acks.cursor_format(two), one);
        acks.update("old", 1, |state| state.left = Some(Instant::now()));
        assert_eq!(acks.cursor_format(two), one);
        tokio::time::advance(FORGOTTEN_AFTER).await;
        acks.released(BTreeSet::new());
        assert_eq!(acks.cursor_format(one), one, "forgotten, and not an hour ago");
        tokio::time::advance(READERS_WITHIN).await;
        assert_eq!(acks.cursor_format(one), two);
    }

    #[tokio::test(start_paused = true)]
    async fn a_router_is_alone_once_all_others_are_forgotten() {
        let second = Duration::from_secs(1);
        let acks = Acks::default();
        let of_shard = |epoch, name: &str| RouterState {
            subscription: Subscription::Shards([format!("ops/{name}").parse().unwrap()].into()),
            ..RouterState::new(epoch, BTreeMap::new())
        };
        acks.connected("a", of_shard(1, "a"));
        acks.connected("b", of_shard(2, "b"));
        assert_eq!(
            acks.alone_for("a"),
            Duration::MAX,
            "there was never another one of its callers"
        );
        acks.connected("c", of_shard(3, "a"));
        assert_eq!(acks.alone_for("a"), Duration::ZERO);
        assert_eq!(acks.alone_for("b"), Duration::MAX);
        acks.update("c", 3, |state| state.left = Some(Instant::now()));
        tokio::time::advance(FORGOTTEN_AFTER).await;
        assert_eq!(acks.alone_for("a"), Duration::ZERO);
        acks.released(BTreeSet::new());
        tokio::time::advance(second).await;
        assert_eq!(acks.alone_for("a"), second);
        acks.update("a", 1, |state| state.left = Some(Instant::now()));
        acks.connected("a", of_shard(4, "a"));
        assert_eq!(
            acks.alone_for("a"),
            Duration::ZERO,
            "another program of the name was there"
        );

        let later = Acks::default();
        later.expect_returns();
        later.connected("a", RouterState::new(1, BTreeMap::new()));
        tokio::time::advance(FORGOTTEN_AFTER).await;
        assert_eq!(
            later.alone_for("a"),
            Duration::ZERO,
            "others of before may not have come back"
        );
        tokio::time::advance(second).await;
        assert_eq!(later.alone_for("a"), second);
    }

    #[tokio::test(start_paused = true)]
    async fn until_when_a_member_answered_is_known_only_while_all_routers_are_heard() {
        let acks = Acks::default();
        let target = Ref::Target("east".to_owned());
        let holding = |epoch| RouterState::new(epoch, [(target.clone(), String::new())].into());
        let tell = |router: &str, epoch, until| {
            let reported = Reported {
                answered: [("east".to_owned(), until)].into(),
                ..Reported::default()
            };
            acks.reported(router, epoch, reported);
        };
        let until = || acks.answered_until("a", "east", 1_000);
        acks.connected("a", holding(1));
        acks.connected("b", holding(2));
        tell("a", 1, 100);
        assert_eq!(until(), None, "b has not told");
        tell("b", 2, 200);
        assert_eq!(until(), Some(200));
        tokio::time::advance(HEARD_WITHIN).await;
        tell("a", 1, 300);
        assert_eq!(until(), None, "the line of b is dead");
        tell("b", 2, 200);
        assert_eq!(until(), Some(300));
        acks.update("b", 2, |state| state.left = Some(Instant::now()));
        assert_eq!(until(), None);
        acks.connected("b", RouterState::new(3, BTreeMap::new()));
        assert_eq!(until(), None, "what an earlier b had does not count as nothing");
        tell("b", 3, 400);
        assert_eq!(until(), Some(400));
        // One that is never told of the member.
        acks.update("b", 3, |state| state.left = Some(Instant::now()));
        acks.connected("b", RouterState::new(4, BTreeMap::new()));
        tokio::time::advance(FORGOTTEN_AFTER).await;
        tell("a", 1, 300);
        assert_eq!(until(), Some(400), "600 s ago");
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
