//! What each router is known to hold, to have refused, and to have seen: the way back from sessions.
//!
//! Read by `distribute` (what may be freed) and `status` (n of m). A router that disconnects goes on serving what it
//! holds, so it goes on counting until it is forgotten, unless it said at its end that nothing is left of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use portolan_crds::ShardName;
use portolan_crds::ledger::CursorFormat;
use portolan_wire::protocol::UNDER_WAY_FOR;
use portolan_wire::subscription::Subscription;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::compile::{Ref, Released};
pub(crate) use crate::facts::FORGOTTEN_AFTER;
use crate::facts::PairEpoch;
use crate::pace::Paces;

mod held;
mod locks;
mod moving;
mod renewals;
mod reported;
mod state;

pub(crate) use held::{Held, Names};
pub(crate) use locks::LockStanding;
pub(crate) use moving::moving as moving_lock;
pub(crate) use renewals::Renewals;
pub(crate) use reported::{Answered, Copies, CopyBehind, OtherLeases, Reported, RuleReport};

/// After a start of the hub, routers that held something before get this long to come back and say so.
pub(crate) const RETURN_GRACE: Duration = Duration::from_mins(1);
/// Longer than anything depends on.
const KNOWN_FOR_MAX: Duration = Duration::from_hours(1);
/// Routers report every three seconds: one that has not for so long may be cut off, and goes on asking members.
const HEARD_WITHIN: Duration = Duration::from_secs(8);
/// A router that was connected within this time may be asked by a client that has its position from another one.
const READERS_WITHIN: Duration = Duration::from_hours(1);

/// One router.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "what it can do and what it has said, each apart from the others"
)]
pub(crate) struct RouterState {
    pub(crate) epoch: u64,
    pub(crate) version: String,
    /// Whether it reads cursors of format 2.
    pub(crate) reads_views: bool,
    /// Whether its writes say their epoch, where the grant is fenced.
    pub(crate) says_epochs: bool,
    /// Pairs that are being released and of which no write of it is open.
    pub(crate) answered: BTreeSet<PairEpoch>,
    /// Whether it hands leader locks over.
    pub(crate) hands_locks_over: bool,
    /// How far each handover of a leader lock is in it.
    pub(crate) locks: BTreeMap<ShardName, LockStanding>,
    /// Which locks callers may hold, as it tells.
    pub(crate) renewals: Renewals,
    /// Whether it serves policies.
    pub(crate) serves_policies: bool,
    /// Whether it knows that a namespace has an owner of each operator.
    pub(crate) knows_operators: bool,
    /// What the router is told.
    pub(crate) subscription: Subscription,
    /// Another one with each start of the router; empty: it is of a release that does not tell.
    pub(crate) process: String,
    /// It says that every write of earlier processes is answered.
    pub(crate) earlier_answered: bool,
    /// The hub that led before has noted that it believes this process.
    pub(crate) is_noted: bool,
    /// The router enrolled under this hub: nobody had its key before.
    pub(crate) is_new: bool,
    /// It serves nobody any more, and every write of it and of earlier processes is answered.
    pub(crate) ended: bool,
    /// No process that has its name will serve by what it holds: nobody waits for it.
    pub(crate) gone: bool,
    /// Until then writes may be open of which it does not know, of another process of its name.
    pub(crate) doubted_until: Option<Instant>,
    /// When one of its name left that had another memory.
    pub(crate) replaces: Option<Instant>,
    /// `None` while connected.
    pub(crate) left: Option<Instant>,
    pub(crate) held: Held,
    /// Shards of which the transaction under way, or the last one that was not answered, tells the rules or grants namespaces.
    pub(crate) offered: BTreeSet<ShardName>,
    /// Refused version and reason, until a later version is taken.
    pub(crate) rejected: BTreeMap<Ref, (String, String)>,
    /// The last compile run whose outcome it serves whole.
    pub(crate) acked_run: u64,
    /// It cannot write its state file: what it was told since it acknowledged last is in force there, and a restart would undo it.
    pub(crate) unsaved: bool,
    /// What the router had seen of the ledger when its stream began.
    pub(crate) seen: LedgerPosition,
    /// Shared: statuses are made of copies.
    pub(crate) reported: Arc<Reported>,
    /// When this stream began.
    pub(crate) came: Instant,
    /// When it reported last on this stream.
    pub(crate) heard: Option<Instant>,
    /// When it told last on this stream how rules of policies stand.
    pub(crate) told_rules: Option<Instant>,
    /// How rules of policies stand in it, as it reported last: on this stream, or on one before.
    pub(crate) rules: Arc<RuleReport>,
    /// Copies of replicated kinds that are not what the primary has, as it reported last: on this stream, or on one before of the same
    /// process.
    pub(crate) copies: Arc<BTreeMap<ShardName, Copies>>,
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
    /// Counts changes of what concerns statuses alone: how rules of policies stand, and which copies are behind.
    status_changed: watch::Sender<u64>,
    /// Counts the comings and goings of routers.
    came_or_left: watch::Sender<u64>,
    /// The time until which routers may come back that an earlier hub served, and that still act on what they hold.
    returning_until: RwLock<Instant>,
    readers: RwLock<Readers>,
    /// When this hub followed another one, or had lost touch with its ledger: what routers told before is not known.
    followed: RwLock<Option<Instant>>,
    /// Counts all words of routers on locks of callers.
    renewals_heard: AtomicU64,
    /// Counts words of routers on locks of callers that are in another shard by now.
    held_elsewhere: watch::Sender<u64>,
    /// How often words of each router but the gateways on these locks may cost a compile.
    // A mutex: taken for a moment for each such word.
    paces: Mutex<Paces>,
    /// When the last router left that is not known any more, or may have: at the start of a hub that was not the first.
    others_left: RwLock<Option<Instant>>,
    /// This hub leads, and knows whether there was one before it.
    begun: AtomicBool,
    /// For how long no unknown router had acted, as the hub told that led before, and when it told so; taken once all known ones are back.
    inherited: RwLock<Option<(Duration, Instant)>>,
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
            status_changed: watch::Sender::new(0),
            came_or_left: watch::Sender::new(0),
            returning_until: RwLock::new(Instant::now()),
            readers: RwLock::new(Readers {
                known_since: Instant::now(),
                older: None,
            }),
            followed: RwLock::default(),
            renewals_heard: AtomicU64::new(0),
            held_elsewhere: watch::Sender::new(0),
            paces: Mutex::default(),
            others_left: RwLock::default(),
            begun: AtomicBool::new(false),
            inherited: RwLock::default(),
        }
    }
}

impl Acks {
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Wakes when rules open, close, or do something for the first time, and when other copies of replicated kinds are behind.
    pub(crate) fn status_changes(&self) -> watch::Receiver<u64> {
        self.status_changed.subscribe()
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&BTreeMap<String, RouterState>) -> T) -> T {
        look(&self.routers.read())
    }

    /// This hub leads. `is_first`: nobody was ever granted anything before.
    pub(crate) fn begin(&self, is_first: bool) {
        if !is_first {
            self.expect_returns();
        }
        self.begun.store(true, Ordering::Release);
    }

    /// There was a hub before this one, and routers may hold what it granted.
    pub(crate) fn expect_returns(&self) {
        *self.returning_until.write() = Instant::now() + RETURN_GRACE;
        *self.others_left.write() = Some(Instant::now());
        *self.followed.write() = Some(Instant::now());
        self.readers.write().known_since = Instant::now();
    }

    /// The hub that leads told, while it led, that no router has acted for so long that is not among the known ones.
    pub(crate) fn inherit_known_for(&self, known_for: Duration) {
        *self.inherited.write() = Some((known_for, Instant::now()));
    }

    #[cfg(test)]
    pub(crate) fn inherited(&self) -> Option<Duration> {
        self.inherited.read().map(|(known_for, _)| known_for)
    }

    /// For how long no router has acted that is not among the known ones, for whoever follows this hub. `gone`: when one of these was
    /// last found gone.
    pub(crate) fn known_for(&self, gone: Option<Instant>) -> Duration {
        let last = match *self.inherited.read() {
            // That not all are back yet says nothing against it: those have objects.
            Some((known_for, told)) => told.checked_sub(known_for),
            None if self.begun.load(Ordering::Acquire) => *self.others_left.read(),
            // It has won the Lease a moment ago.
            None => return Duration::ZERO,
        };
        let last = last.max(gone);
        last.map_or(KNOWN_FOR_MAX, |last| last.elapsed().min(KNOWN_FOR_MAX))
    }

    /// Routers have come back that an earlier hub served, all `known` ones: nobody else is waited for, as only these can have been told
    /// anything. Of others that have sent something is known what the hub told that led; `gone`: when a known one was last found gone.
    pub(crate) fn hear_returns<'a>(&self, mut known: impl Iterator<Item = &'a String>, gone: Option<Instant>) {
        let mut until = self.returning_until.write();
        let now = Instant::now();
        if now >= *until {
            return;
        }
        let (routers, followed) = (self.routers.read(), *self.followed.read());
        let is_back = |state: &RouterState| followed.is_some_and(|followed| state.came >= followed);
        if known.all(|router| routers.get(router).is_some_and(is_back)) {
            *until = now;
            if let Some((known_for, told)) = self.inherited.write().take() {
                // None: that was before this machine started.
                *self.others_left.write() = told.checked_sub(known_for).max(gone);
            }
        }
    }

    /// A stream begins, with what the router says it holds. False, and nothing changes, while an earlier one of the name is
    /// open: there are two routers then, and of what either holds nothing would be known.
    pub(crate) fn connected(&self, router: &str, mut state: RouterState) -> bool {
        let mut routers = self.routers.write();
        if let Some(earlier) = routers.get(router) {
            if earlier.left.is_none() {
                return false;
            }
            state.follow(earlier);
        } else {
            let followed = *self.followed.read();
            // Whatever an earlier hub has known is over by then.
            let is_recent = followed.is_some_and(|followed| followed.elapsed() < UNDER_WAY_FOR);
            if is_recent && !state.is_new {
                state.begin_unknown();
            }
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
            let answered = state.reported.answered.get(cluster);
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
            ..Released::default()
        }
    }

    /// Those of the shards all of whose routers let their writes say their epoch.
    pub(crate) fn say_epochs(&self, shards: BTreeSet<ShardName>) -> BTreeSet<ShardName> {
        let routers = self.routers.read();
        let all = |shard: &ShardName| {
            let mut serving = routers.values().filter(|state| state.may_serve(shard));
            serving.all(|state| state.says_epochs)
        };
        shards.into_iter().filter(all).collect()
    }

    /// Whether no write of `shard` to the pair is open, in any router that may have sent one. Of one that left and did not say that it
    /// ends, or that an earlier hub knew, nobody knows.
    pub(crate) fn are_answered(&self, shard: &ShardName, pair: &PairEpoch) -> bool {
        if self
            .others_left
            .read()
            .is_some_and(|left| left.elapsed() < FORGOTTEN_AFTER)
        {
            return false;
        }
        let routers = self.routers.read();
        let mut serving = routers.values().filter(|state| state.may_serve(shard));
        serving.all(|state| state.is_answered(pair))
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
mod tests;
