//! What CircuitBreakers remember of callers: tokens, which limits have opened, which members fail whom.
//!
//! It outlives requests and swaps: a rule that an edit did not change keeps its state. It is bounded by the callers that the
//! hub has told, since each swap takes out whose caller is gone, or has not been held by its policy for minutes. The rules themselves are pure (`decision::policy`).
//!
//! Locks are taken in one order: a caller's own rules, then those that are shared. A request holds them for as
//! long as it is judged, so that it takes tokens from all it meets or from none. Callers: `admit` for each request, `dispatch`
//! for breakers, `routing` at each swap, `subscribe` for reports and shares, the admin pages.

mod aside;
mod breakers;
mod caller;
mod deferred;
mod found;
mod kept;
mod metrics;
mod page;
mod recorder;
mod refusal;
mod report;
mod shared;
mod taken;
#[cfg(test)]
pub(crate) mod tests;
mod trial;
mod worst;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use self::breakers::CallerBreakers;
use self::caller::CallerRules;
pub(crate) use self::kept::SharesFile;
pub(crate) use self::metrics::PolicyCollector;
pub(crate) use self::metrics::PolicyMetrics;
use self::recorder::Recorder;
use self::shared::SharedRules;
pub(crate) use self::shared::ToldShares;
use self::taken::JudgedBy;
pub(crate) use self::taken::Taken;
use crate::decision::policy::{Denied, Passed, Tick};
use crate::resource::breaker::BesidePass;
use crate::resource::injected::InjectedFaults;
use crate::value::fault::{Fault, RefusedBy};
use crate::value::policy::{Asked, CallerPolicies};
use crate::value::snapshot::{CallerKey, CallerView, Snapshot};

/// All state of policies. One per process.
#[derive(Debug)]
pub(crate) struct Policies {
    clock: Clock,
    // Sharded locks: each request of a caller that meets a limit looks its rules up.
    callers: DashMap<CallerKey, Arc<Mutex<CallerRules>>>,
    // One mutex: a request may meet several, and takes of all or of none. Held for some comparisons.
    shared: Mutex<SharedRules>,
    breakers: CallerBreakers,
    /// The hub has told all that it had to tell this process: what changes from now on all routers see change.
    heard: AtomicBool,
    /// Counts what the hub is to hear soon: transitions, and shares that are too small. A watch: only the latest matters.
    changes: watch::Sender<u64>,
    recorder: Recorder,
    pub(crate) metrics: PolicyMetrics,
    /// What FaultInjections did.
    pub(crate) injected: Arc<InjectedFaults>,
}

/// Moments since this router began, and what they are called elsewhere.
#[derive(Debug, Clone, Copy)]
struct Clock {
    began: Instant,
}

impl Clock {
    fn now(self) -> Tick {
        Tick::at(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn system_time(self, at: Tick) -> SystemTime {
        let ago = Duration::from_nanos(self.now().since(at));
        SystemTime::now().checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

impl Default for Policies {
    fn default() -> Self {
        let changes = watch::Sender::new(0);
        Self {
            clock: Clock { began: Instant::now() },
            callers: DashMap::new(),
            shared: Mutex::default(),
            breakers: CallerBreakers::telling(changes.clone()),
            heard: AtomicBool::new(false),
            changes,
            recorder: Recorder::default(),
            metrics: PolicyMetrics::default(),
            injected: Arc::default(),
        }
    }
}

/// A request of a caller's, as policies judge it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Judging<'a> {
    pub(crate) view: &'a CallerView,
    pub(crate) asked: Asked<'a>,
    /// Of the snapshot that it is ruled by.
    pub(crate) generation: u64,
}

impl Policies {
    /// Takes the tokens that a request costs, of all limits that it meets, or says which refuses it. Every request that leads to a
    /// member asks once.
    pub(crate) fn admit<'a>(&'a self, request: &'a Judging<'_>) -> Result<Taken<'a>, Fault> {
        let now = self.clock.now();
        self.recorder.record(&request.view.key, &request.asked, now);
        let taken = |by| Taken::new(self, &request.asked, by);
        let Some(policies) = &request.view.policies else {
            return Ok(taken(None));
        };
        let rows = policies.limit_rows(&request.asked);
        if rows.is_empty() {
            return Ok(taken(None));
        }
        let caller = self.rules_of(request, policies);
        let mut rules = caller.lock();
        let meets = rules.meets(request, (policies, rows), &self.shared, now);
        let closed = meets.closed;
        let judged = rules.judge(meets, request.asked.verb, now);
        if closed || judged.opened || judged.denied.is_some_and(|denied| rules.shares(&[denied.id])) {
            self.changes.send_modify(|count| *count += 1);
        }
        if let Some(denied) = judged.denied {
            return Err(self.refused(&rules.of, &denied, &request.asked));
        }
        let (of, generation) = (rules.of.clone(), rules.generation);
        drop(rules);
        let passed = Passed { generation, at: now };
        Ok(taken(Some(JudgedBy { caller, of, passed })))
    }

    /// Asks the caller's breakers for this member, beside the member's own. What they are told must be told to the passes.
    /// `generation`: of the snapshot that the view is of.
    pub(crate) fn ask_breakers(
        &self,
        (view, generation): (&CallerView, u64),
        cluster: &Arc<str>,
        collection: bool,
    ) -> Result<Vec<BesidePass>, Fault> {
        let asked = self.breakers.admit((view, generation), cluster, self.clock.now());
        asked.map_err(|open| {
            self.metrics.refused(RefusedBy::Breaker);
            refusal::of_breaker(open.policy, open.name, cluster, open.retry_in, collection)
        })
    }

    /// Follows to the policies of the next snapshot, before it is served: what has not changed keeps its state.
    ///
    /// Shared rules do so at once; a request that meets some of them brings those of its caller along, and the rest follows.
    pub(crate) fn follow(&self, snapshot: &Snapshot) {
        let now = self.clock.now();
        let full = self.heard.load(Ordering::Relaxed);
        let mut closed = self.shared.lock().follow(snapshot, full, now);
        let nothing = Arc::new(CallerPolicies::new(Vec::new()));
        self.callers.retain(|key, rules| {
            let Some(view) = snapshot.callers.get(key) else {
                return false;
            };
            let mut rules = rules.lock();
            let of = view.policies.as_ref().unwrap_or(&nothing);
            closed |= rules.follow(of, snapshot.generation, now);
            !rules.is_over(now)
        });
        self.recorder.keep(|caller| snapshot.callers.contains_key(caller));
        self.breakers.follow(snapshot, now);
        if closed {
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// The hub has told what it had to tell this process.
    pub(crate) fn heard_hub(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }

    /// These are this router's shares from now on. What shrinks by them does so at once, what grows once they are
    /// [`Self::secured`], so that a restart finds no less than was used.
    pub(crate) fn reshare(&self, told: ToldShares) {
        self.shared.lock().reshare(told, self.clock.now());
    }

    /// This router has no part of anything from now on, once that is [`Self::secured`].
    pub(crate) fn give_back_shares(&self) {
        self.shared.lock().give_back_all(self.clock.now());
    }

    /// The shares that were told last, if it is not known that a restart would find them.
    pub(crate) fn unsecured(&self) -> Option<ToldShares> {
        self.shared.lock().unsecured()
    }

    /// A restart would find these. The hub hears of it soon: what was given up here others wait for.
    pub(crate) fn secured(&self, told: ToldShares) {
        self.shared.lock().secured(told, self.clock.now());
        self.changes.send_modify(|count| *count += 1);
    }

    /// Writing these failed such that nobody knows whether a restart would find them, until a write succeeds.
    pub(crate) fn doubted(&self, written: &ToldShares) {
        self.shared.lock().doubted(written, self.clock.now());
    }

    /// These are on disk, and what was told later is not known.
    pub(crate) fn restore(&self, kept: ToldShares) {
        let now = self.clock.now();
        let mut shared = self.shared.lock();
        shared.reshare(kept.clone(), now);
        shared.secured(kept, now);
    }

    /// A stream begins: what was told on one before and is not on disk counts as not heard. Its hub may be another one by now,
    /// and would rely on less than this router would use once it is written.
    pub(crate) fn forget_unsecured(&self) {
        self.shared.lock().forget_unsecured(self.clock.now());
    }

    fn kept_shares(&self) -> ToldShares {
        self.shared.lock().safe().clone()
    }

    /// Wakes when the hub is to hear something soon.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// As if a rule had opened.
    #[cfg(test)]
    pub(crate) fn touch(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn rules_of(&self, request: &Judging<'_>, policies: &Arc<CallerPolicies>) -> Arc<Mutex<CallerRules>> {
        let key = &request.view.key;
        if let Some(rules) = self.callers.get(key) {
            return rules.clone();
        }
        let make = || Arc::new(Mutex::new(CallerRules::new(policies.clone(), request.generation)));
        self.callers.entry(key.clone()).or_insert_with(make).clone()
    }

    fn refused(&self, of: &CallerPolicies, denied: &Denied, asked: &Asked<'_>) -> Fault {
        let (policy, limit) = of.limit(denied.id).expect("ids are of these rules");
        let fault = refusal::of_limit(policy, limit, denied, asked);
        if let Fault::Policy(refusal) = &fault {
            self.metrics.refused(refusal.by);
        }
        fault
    }
}
