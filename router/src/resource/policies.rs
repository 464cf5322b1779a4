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
mod kept;
mod metrics;
mod page;
mod recorder;
mod refusal;
mod report;
mod shared;
#[cfg(test)]
pub(crate) mod tests;
mod trial;

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
use crate::decision::policy::{Denied, Met as _, Tick};
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
    /// The hub has told all that it had to tell this process: what comes new from now on is new to all routers.
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
    pub(crate) fn admit(&self, request: &Judging<'_>) -> Result<(), Fault> {
        let now = self.clock.now();
        self.recorder.record(&request.view.key, &request.asked, now);
        let Some(policies) = &request.view.policies else {
            return Ok(());
        };
        let rows = policies.limit_rows(&request.asked);
        if rows.is_empty() {
            return Ok(());
        }
        let caller = self.rules_of(request, policies);
        let mut rules = caller.lock();
        let (is_current, closed) = rules.is_current(policies, request.generation, now);
        let rows = if is_current {
            rows
        } else {
            rules.of.limit_rows(&request.asked)
        };
        let judged = rules.judge(&rows, request.asked.verb, &self.shared, now);
        if closed || judged.opened || judged.denied.is_some_and(|denied| rules.shares(&[denied.id])) {
            self.changes.send_modify(|count| *count += 1);
        }
        match judged.denied {
            None => Ok(()),
            Some(denied) => Err(self.refused(&rules.of, &denied, &request.asked)),
        }
    }

    /// Something else refuses a request that was admitted: it takes nothing.
    pub(crate) fn give_back(&self, request: &Judging<'_>) {
        let Some(rules) = self.callers.get(&request.view.key).map(|rules| rules.clone()) else {
            return;
        };
        let mut rules = rules.lock();
        let ids = rules.of.limits_met(&request.asked);
        let shared = rules.shares(&ids).then(|| self.shared.lock());
        let mut open = rules.open(shared, self.clock.now());
        for id in ids {
            let (limit, state) = open.rule(id);
            state.give_back(limit, limit.cost(request.asked.verb));
        }
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
    pub(crate) fn follow(&self, snapshot: &Snapshot) {
        let now = self.clock.now();
        let mut closed = false;
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
        let full = self.heard.load(Ordering::Relaxed);
        closed |= self.shared.lock().follow(snapshot, full, now);
        self.breakers.follow(snapshot, now);
        if closed {
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// The hub has told what it had to tell this process.
    pub(crate) fn heard_hub(&self) {
        self.heard.store(true, Ordering::Relaxed);
        self.shared.lock().are_full();
    }

    /// These are this router's shares from now on. What shrinks by them does so at once, what grows once they are
    /// [`Self::secured`], so that a restart finds no less than was used.
    pub(crate) fn reshare(&self, told: ToldShares) {
        self.shared.lock().reshare(told, self.clock.now());
    }

    /// The shares that were told last, if a restart would not find them.
    pub(crate) fn unsecured(&self) -> Option<ToldShares> {
        let shared = self.shared.lock();
        (shared.told() != shared.safe()).then(|| shared.told().clone())
    }

    /// A restart would find these. The hub hears of it soon: what was given up here others wait for.
    pub(crate) fn secured(&self, told: ToldShares) {
        self.shared.lock().secured(told, self.clock.now());
        self.changes.send_modify(|count| *count += 1);
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
        let kept = self.kept_shares();
        self.restore(kept);
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
