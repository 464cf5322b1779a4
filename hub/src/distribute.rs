//! Runs the compiler whenever its inputs changed, stores what it decided about ownership, and then publishes the outcome.
//! The only writer of the compile state.
//!
//! Waits until the facts are complete (watches synced, pins read): a world compiled from half the facts would take from
//! routers what they need. While the ledger cannot be written, what was decided last stays in force, rendered by the facts
//! as they are. Sessions and `status` read the published world.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use opentelemetry::Context;
use portolan_crds::ShardName;
use portolan_runtime::telemetry::{context_of, extract_context, inject_context, set_parent};
use portolan_runtime::{Backoff, Chain};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tracing::Span;

use crate::acks::Acks;
use crate::compile::{Decided, Given, Memo, Released, State, World, decide, render};
use crate::index::Index;
use crate::ledger::{self, LedgerError, Store};
use crate::metrics::Metrics;
use crate::settings::Settings;

mod crossings;
mod holders;
mod locks;

use crossings::Crossings;
pub(crate) use holders::Pasts;
use locks::LockClocks;

/// Changes come in bursts (an apply of many objects, an agent's first report): one run for all of them. In a large fleet something
/// changes all the time: there a run also waits for as long as the one before took, so that sessions have their turns.
const SETTLE: Duration = Duration::from_millis(30);
/// Longest rest of that kind.
const REST_MAX: Duration = Duration::from_secs(1);
/// How often it is looked whether another hub has started. A hub that grants anything finds out by its write.
const TERM_CHECK: Duration = Duration::from_secs(5);
/// A hub that could not look for this long may have been superseded: routers are let go, in time to come back to another hub
/// while that still waits for them.
const CUT_OFF_AFTER: Duration = Duration::from_secs(30);
/// Longest first wait after a write of the ledger that failed.
const WRITE_RETRY_BASE: Duration = Duration::from_millis(100);
/// Longest wait between two tries to write the ledger.
const WRITE_RETRY_MAX: Duration = Duration::from_secs(5);
/// Clocks are set meanwhile: a fault that ends in a year is looked at again.
const LOOK_AT_ENDS: Duration = Duration::from_mins(10);
/// Objects come and go all the time: it is looked now and then whether a root is still shared out by how many there are.
/// The first counts of a member are looked at when they are told.
const LOOK_AT_COUNTS: Duration = Duration::from_mins(1);
/// Grace periods pass without an event; what waits for one is looked at again.
const POLL: Duration = Duration::from_secs(1);
/// A router acknowledges a release when it lets no new write through; one that it let through just before may still be
/// under way to the member. It gets this long before the namespace can have another owner. What remains: a member that
/// takes a write in later than that (its own limit is a minute) may carry it out after the new owner has begun. Waiting
/// for the slowest write in every move would make all of them slow, and could not be sure either: of a write whose
/// connection broke nobody knows when it ends.
const RELEASE_DWELL: Duration = Duration::from_secs(5);

/// A world as it is handed to sessions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Published {
    pub(crate) world: Arc<World>,
    /// W3C trace context of the run, so that config push and swap are one trace.
    pub(crate) traceparent: String,
}

/// `None` until the facts are complete for the first time, and while the hub does not know whether it is the hub still.
pub(crate) type Worlds = watch::Receiver<Option<Published>>;

/// The newest world once facts or world have changed, or `at_most` is over. Changes come in bursts: after the first one it waits
/// for `settle`, so that one pass does for all.
pub(crate) async fn news(
    facts: &mut watch::Receiver<u64>,
    worlds: &mut Worlds,
    (settle, at_most): (Duration, Duration),
) -> Arc<World> {
    loop {
        tokio::select! {
            _ = facts.changed() => {}
            _ = worlds.changed() => {}
            () = tokio::time::sleep(at_most) => {}
        }
        tokio::time::sleep(settle).await;
        facts.mark_unchanged();
        if let Some(published) = worlds.borrow_and_update().as_ref() {
            return published.world.clone();
        }
    }
}

/// The compiler's loop.
pub(crate) struct Distributor {
    pub(crate) index: Arc<Index>,
    pub(crate) acks: Arc<Acks>,
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    pub(crate) ledger: Store,
    pub(crate) worlds: watch::Sender<Option<Published>>,
    /// Whether the ledger has begun a new life under this hub.
    pub(crate) reborn: bool,
    /// When it was last confirmed that the ledger is this hub's still.
    pub(crate) confirmed: Instant,
    pub(crate) memo: Memo,
    pub(crate) pasts: Pasts,
    /// Whether a ledger of before is to have owners of each operator from now on.
    pub(crate) separates: watch::Receiver<bool>,
    /// How many words of routers on locks of callers what was published last knows.
    pub(crate) renewals_heard: u64,
}

impl Distributor {
    /// Runs for ever, from what the ledger said when it was opened; ends if the ledger is another hub's, or cannot be relied
    /// on. To be started once the facts are complete.
    pub(crate) async fn run(mut self, mut state: State) -> Result<(), LedgerError> {
        let mut alarms = self.alarms();
        let mut dwells = Dwells::default();
        let mut crossings = Crossings::new(Instant::now());
        let mut locks = LockClocks::default();
        let mut writes = Writes::default();
        let mut decided = None;
        self.acks.begin(state.is_empty());
        loop {
            alarms.mark_unchanged();
            self.index.read(|facts| {
                let awaited = facts.awaited_routers(Timestamp::now());
                self.acks.hear_returns(awaited, facts.router_gone);
            });
            let seen = self.acks.released(state.ledger.releasing());
            let begun = Instant::now();
            let mut released = dwells.observe(seen, state.run, begun);
            released.saying_epochs = self.acks.say_epochs(state.ledger.releasing());
            self.index.read(|facts| crossings.observe(facts, &state.ledger, begun));
            released.over = crossings.over(&self.acks, &state.ledger, begun);
            released.given_up = crossings.given_up();
            released.locks_are_handed_over = self.acks.hand_locks_over();
            released.away = self.acks.lock_users_away();
            released.locks = locks.observe(&state, &self.acks, begun);
            released.holders = self.pasts.holders(&self.acks, self.settings.longest_lease);
            // Faults that have ended by then are over in what is published from here on.
            let now = Timestamp::now();
            if writes.have_failed() {
                // What goes on without the ledger does not wait for another try.
                self.publish_again(&mut decided, &mut state);
            }
            if writes.are_due() && self.ledger.is_due() && !self.is_cut_off() {
                match self.decide(&state, &released).await {
                    Ok(next) => {
                        writes = Writes::default();
                        decided = Some(next);
                    }
                    Err(error) if error.is_final() => return Err(error),
                    Err(error) => {
                        tracing::warn!(error = %Chain(&error), "nothing is granted until the ledger is written");
                        writes.failed();
                    }
                }
            }
            self.publish_again(&mut decided, &mut state);
            let locks_stay = !released.away.is_nobody() || !released.locks_are_handed_over;
            let waiting = state.awaits_routers()
                || self.pasts.close_writes()
                // An edit may be refused for this alone: routers that come, that are upgraded, are no facts.
                || locks_stay && decided.as_ref().is_some_and(Decided::refuses)
                || writes.have_failed()
                || !self.ledger.is_due();
            let rested = Instant::now() + begun.elapsed().min(REST_MAX);
            self.wait(&mut alarms, waiting, (now, look(&state))).await?;
            tokio::time::sleep_until(rested.max(Instant::now() + SETTLE)).await;
        }
    }

    fn alarms(&self) -> Alarms {
        let mut alarms = Alarms {
            facts: self.index.compile_changes(),
            acks: self.acks.changes(),
            holders: self.acks.holders_elsewhere(),
            separates: self.separates.clone(),
            owed: tokio::time::interval(POLL),
            checks: tokio::time::interval(TERM_CHECK),
        };
        alarms.owed.set_missed_tick_behavior(MissedTickBehavior::Delay);
        alarms.checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        alarms
    }

    /// Completes when another run may have another outcome. `waiting`: for routers, or for a chance to write. `since`: faults
    /// that end later have not been looked at. `look`: when there may be a reason that nobody tells of.
    async fn wait(
        &mut self,
        alarms: &mut Alarms,
        waiting: bool,
        (since, look): (Timestamp, Option<Duration>),
    ) -> Result<(), LedgerError> {
        // What was heard while it was published was not yet of callers in another shard.
        if self.acks.renewals_heard() != self.renewals_heard {
            return Ok(());
        }
        let end = self.index.read(|facts| facts.next_end(since)).map(until);
        let end = end.into_iter().chain(look).min();
        let mut ended = std::pin::pin!(tokio::time::sleep(end.unwrap_or_default().min(LOOK_AT_ENDS)));
        // Begun once: other ticks that change nothing must not begin it anew.
        let mut polled = std::pin::pin!(tokio::time::sleep(POLL));
        loop {
            tokio::select! {
                _ = alarms.facts.changed() => return Ok(()),
                _ = alarms.acks.changed(), if waiting => return Ok(()),
                _ = alarms.holders.changed() => return Ok(()),
                Ok(()) = alarms.separates.changed() => return Ok(()),
                _ = alarms.owed.tick() => {
                    if self.acks.settle_renewals() {
                        return Ok(());
                    }
                }
                () = &mut polled, if waiting => return Ok(()),
                () = &mut ended, if end.is_some() => return Ok(()),
                _ = alarms.checks.tick() => {
                    let was_cut_off = self.is_cut_off();
                    self.check().await?;
                    if was_cut_off && !self.is_cut_off() {
                        self.acks.expect_returns();
                        return Ok(());
                    }
                    let format = self.ledger.cursor_format();
                    if self.is_set_back(self.ledger.incarnation(), self.ledger.view_revision())
                        || self.acks.cursor_format(format) != format
                    {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// What is in force from now on, once it is stored.
    async fn decide(&mut self, before: &State, released: &Released) -> Result<Decided, LedgerError> {
        let mut before = before.clone();
        if self.ledger.view_revision() > before.ledger.view_revision() {
            Arc::make_mut(&mut before.ledger).skip_to(self.ledger.view_revision());
        }
        let state = &mut before;
        // Who ordered it saw an earlier state.
        let may_separate = state.ledger.contention().is_fleet()
            && !state.ledger.is_withholding()
            && state.ledger.inseparable(&state.accepted).is_empty();
        if *self.separates.borrow() && may_separate {
            Arc::make_mut(&mut state.ledger).separate(&state.accepted);
        }
        let (settings, memo) = (&self.settings, &mut self.memo);
        let mut next = self.index.read(|facts| {
            let given = Given {
                facts,
                settings,
                before: &before,
                released,
                now: Timestamp::now(),
            };
            decide(given, memo)
        });
        next.state.cursor_format = self.acks.cursor_format(before.cursor_format);
        let known = before.ledger.view_revision();
        if self.is_set_back(&before.incarnation, known) {
            next.state.incarnation = ledger::incarnation();
            tracing::error!(
                known,
                "a router has seen view revisions that the ledger never gave: it begins a new life"
            );
        }
        self.ledger.commit(&next.state).await?;
        self.reborn |= next.state.incarnation != before.incarnation;
        Ok(next)
    }

    /// Whether the ledger that this hub began with was an older one: some router has seen more of its life than `known`.
    /// Nobody sets a ledger back under a hub without it noticing, so that no later router is believed once that is mended.
    fn is_set_back(&self, incarnation: &str, known: u64) -> bool {
        !self.reborn && self.acks.have_seen_beyond(incarnation, known)
    }

    /// What was decided last, by the facts as they are now.
    fn publish_again(&mut self, decided: &mut Option<Decided>, state: &mut State) {
        self.renewals_heard = self.acks.renewals_heard();
        if let Some(decided) = decided {
            // By now: what was decided may have waited for the ledger.
            decided.holders = self.pasts.holders(&self.acks, self.settings.longest_lease);
            if !self.is_cut_off() {
                self.publish(decided, state.run + 1);
            }
            *state = decided.state.clone();
        }
    }

    /// One world of what was decided, as `run`; published if it differs from the last.
    fn publish(&mut self, decided: &mut Decided, run: u64) {
        let span = tracing::info_span!("compile", run, resources = tracing::field::Empty);
        let _entered = span.enter();
        let started = Instant::now();
        decided.state.run = run;
        let last = self.worlds.borrow().as_ref().map(|last| last.world.clone());
        let (settings, last) = (&self.settings, last.as_deref());
        let world = self
            .index
            .read(|facts| render(facts, settings, decided.clone(), last, Timestamp::now()));
        self.metrics
            .compiled(started.elapsed().as_secs_f64(), world.resources.len());
        span.record("resources", world.resources.len());
        let changed = self.worlds.send_if_modified(|published| {
            if let Some(last) = published.as_ref().filter(|last| last.world.same_outcome(&world)) {
                // Nothing new: the number of the run stays too, as acknowledgements are of published runs.
                let newer = std::mem::replace(&mut decided.state, last.world.state.clone());
                decided.state.know_roots_of(newer);
                return false;
            }
            *published = Some(Published {
                world: Arc::new(world),
                traceparent: traceparent(&span),
            });
            true
        });
        if changed {
            tracing::debug!(run, "published");
            if let Some(published) = self.worlds.borrow().as_ref() {
                self.pasts.note(&published.world, self.settings.longest_lease);
            }
        }
    }

    /// Whether the ledger is this hub's still. An API server that is away says nothing about that, for a while.
    async fn check(&mut self) -> Result<(), LedgerError> {
        let asked = Instant::now();
        match self.ledger.check().await {
            Ok(()) => self.confirmed = asked,
            Err(error) if error.is_final() => return Err(error),
            Err(error) if self.is_cut_off() && self.worlds.send_if_modified(|published| published.take().is_some()) => {
                tracing::error!(error = %Chain(&error), "another hub may have started: routers are let go until that is known");
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// Whether another hub may have started, and given away what routers of this one still serve.
    fn is_cut_off(&self) -> bool {
        self.confirmed.elapsed() >= CUT_OFF_AFTER
    }
}

/// When there may be a reason to look again that nobody tells of.
fn look(state: &State) -> Option<Duration> {
    // A ledger that cannot be written ends none.
    let vacancy = state.ledger.vacancy_ends().map(|end| until(end).max(POLL));
    let counts = state.weighs_objects().then_some(LOOK_AT_COUNTS);
    counts.into_iter().chain(vacancy).min()
}

/// How long it is until then; none if it was.
fn until(then: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(Timestamp::now())).unwrap_or_default()
}

/// What wakes the compiler.
struct Alarms {
    facts: watch::Receiver<u64>,
    acks: watch::Receiver<u64>,
    /// Callers hold what was their former shard's.
    holders: watch::Receiver<u64>,
    /// Somebody wants an owner of each operator.
    separates: watch::Receiver<bool>,
    /// Ticks at which it is looked whether words of routers on these are to be looked at that came too often.
    owed: tokio::time::Interval,
    /// Ticks at which it is looked whether another hub has started.
    checks: tokio::time::Interval,
}

impl Alarms {
    /// What comes from here on wakes.
    fn mark_unchanged(&mut self) {
        self.facts.mark_unchanged();
        self.acks.mark_unchanged();
        self.holders.mark_unchanged();
        self.separates.mark_unchanged();
    }
}

/// How writing the ledger goes.
#[derive(Debug)]
struct Writes {
    backoff: Backoff,
    /// When writes are tried again after one that failed.
    again_at: Option<Instant>,
}

impl Default for Writes {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(WRITE_RETRY_BASE, WRITE_RETRY_MAX),
            again_at: None,
        }
    }
}

impl Writes {
    fn are_due(&self) -> bool {
        self.again_at.is_none_or(|at| Instant::now() >= at)
    }

    fn have_failed(&self) -> bool {
        self.again_at.is_some()
    }

    fn failed(&mut self) {
        self.again_at = Some(Instant::now() + self.backoff.next(&mut rand::rng()));
    }
}

/// The times since which runs are seen, by all routers and by those that may serve each shard that lets go of something.
#[derive(Debug, Default)]
struct Dwells {
    by_all: Dwell,
    of_shard: BTreeMap<ShardName, Dwell>,
}

impl Dwells {
    /// What is seen for long enough, given what is seen by now. Of runs after the `last` nobody has seen anything yet, also
    /// where there are no routers at all.
    fn observe(&mut self, seen: Released, last: u64, now: Instant) -> Released {
        self.of_shard.retain(|shard, _| seen.of_shard.contains_key(shard));
        let let_go = seen.of_shard.iter();
        let let_go = let_go.map(|(shard, run)| (shard.clone(), (*run).min(last))).collect();
        let of_shard = seen.of_shard.into_iter().map(|(shard, run)| {
            let dwell = self.of_shard.entry(shard.clone()).or_default();
            (shard, dwell.observe(run.min(last), now))
        });
        Released {
            of_shard: of_shard.collect(),
            by_all: self.by_all.observe(seen.by_all.min(last), now),
            let_go,
            ..Released::default()
        }
    }
}

/// The time since which everyone has seen each run.
#[derive(Debug, Default)]
struct Dwell {
    /// Ascending in both.
    seen: Vec<(u64, Instant)>,
}

impl Dwell {
    /// The last run that everyone has seen for long enough, given what they have seen by now.
    fn observe(&mut self, seen: u64, now: Instant) -> u64 {
        // A router that comes back has seen less than those that were here.
        self.seen.retain(|(run, _)| *run <= seen);
        if self.seen.last().is_none_or(|(run, _)| *run < seen) {
            self.seen.push((seen, now));
        }
        let ripe = self.seen.iter().rposition(|(_, since)| now - *since >= RELEASE_DWELL);
        ripe.map_or(0, |ripe| {
            self.seen.drain(..ripe);
            self.seen[0].0
        })
    }
}

/// Makes `span` a child of `traceparent` and returns its own.
pub(crate) fn continue_trace(span: &Span, traceparent: &str) -> String {
    let mut headers = http::HeaderMap::new();
    if let Ok(value) = traceparent.parse() {
        headers.insert("traceparent", value);
    }
    set_parent(span, extract_context(&headers));
    self::traceparent(span)
}

fn traceparent(span: &Span) -> String {
    let mut headers = http::HeaderMap::new();
    inject_context(&context_of(span, &Context::new()), &mut headers);
    let header = headers.get("traceparent").and_then(|value| value.to_str().ok());
    header.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
