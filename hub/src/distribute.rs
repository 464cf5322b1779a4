//! Runs the compiler whenever its inputs changed and publishes the outcome. The only writer of the compile state.
//!
//! Waits until the facts are complete (watches synced, pins read): a world compiled from half the facts would take from
//! routers what they need. Sessions and `status` read the published world.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use opentelemetry::Context;
use portolan_runtime::telemetry::{context_of, extract_context, inject_context, set_parent};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Span;

use crate::acks::Acks;
use crate::compile::{State, World, compile};
use crate::index::Index;
use crate::metrics::Metrics;
use crate::settings::Settings;

/// Changes come in bursts (an apply of many objects, an agent's first report): one run for all of them.
const SETTLE: Duration = Duration::from_millis(30);
/// Grace periods pass without an event; what waits for one is looked at again.
const RECHECK: Duration = Duration::from_secs(1);
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

/// `None` until the facts are complete for the first time.
pub(crate) type Worlds = watch::Receiver<Option<Published>>;

/// The compiler's loop.
pub(crate) struct Distributor {
    pub(crate) index: Arc<Index>,
    pub(crate) acks: Arc<Acks>,
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    pub(crate) worlds: watch::Sender<Option<Published>>,
}

impl Distributor {
    /// Runs for ever. To be started once the facts are complete.
    pub(crate) async fn run(self) {
        let mut facts = self.index.compile_changes();
        let mut acks = self.acks.changes();
        let mut dwell = Dwell::default();
        let mut state = self.index.read(State::recover);
        if state != State::default() {
            self.acks.expect_returns();
        }
        loop {
            facts.mark_unchanged();
            acks.mark_unchanged();
            // Of runs to come nobody has seen anything yet, also where there are no routers at all.
            let seen = self.acks.released_up_to().min(state.run);
            state = self.once(state, dwell.observe(seen, Instant::now()));
            let releasing = state.ledger.is_releasing();
            tokio::select! {
                _ = facts.changed() => {}
                _ = acks.changed(), if releasing => {}
                () = tokio::time::sleep(RECHECK), if releasing => {}
            }
            tokio::time::sleep(SETTLE).await;
        }
    }

    /// One run; its outcome is published if it differs from the last.
    fn once(&self, before: State, released_up_to: u64) -> State {
        let span = tracing::info_span!("compile", run = before.run + 1, resources = tracing::field::Empty);
        let _entered = span.enter();
        let started = Instant::now();
        let world = self
            .index
            .read(|facts| compile(facts, &self.settings, &before, released_up_to, Timestamp::now()));
        self.metrics
            .compiled(started.elapsed().as_secs_f64(), world.resources.len());
        span.record("resources", world.resources.len());
        let mut state = world.state.clone();
        let changed = self.worlds.send_if_modified(|published| {
            if let Some(last) = published.as_ref().filter(|last| last.world.same_outcome(&world)) {
                // Nothing new: the number of the run stays too, as acknowledgements are of published runs.
                state.run = last.world.state.run;
                return false;
            }
            *published = Some(Published {
                world: Arc::new(world),
                traceparent: traceparent(&span),
            });
            true
        });
        if changed {
            tracing::debug!(run = state.run, "published");
        }
        state
    }
}

/// Since when everyone has seen which run.
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
mod tests {
    use super::*;

    #[test]
    fn what_was_just_seen_has_to_ripen() {
        let (mut dwell, start) = (Dwell::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(dwell.observe(3, at(0)), 0);
        assert_eq!(dwell.observe(4, at(2)), 0);
        assert_eq!(dwell.observe(4, at(5)), 3);
        assert_eq!(dwell.observe(4, at(7)), 4);
        assert_eq!(dwell.observe(9, at(8)), 4);
        assert_eq!(dwell.observe(1, at(9)), 0, "a router came back that has seen less");
        assert_eq!(dwell.observe(9, at(10)), 0);
        assert_eq!(dwell.observe(9, at(15)), 9);
    }
}
