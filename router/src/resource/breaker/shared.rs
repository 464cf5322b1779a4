//! The handle on one breaker that requests share: a lock around the rules, the clock, and what others see of it.

mod inner;
mod pass;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tokio::sync::watch;

use self::inner::{Inner, is_sure};
pub(crate) use self::pass::Pass;
use super::Settings;
use super::askers::{Askers, Reach};
use super::by_hand::ByHand;
use super::core::{Admission, Core, Outcome, Probe, Readyz};
use super::lag::Lag;
use super::pace::{Pace, Took};
use super::report::{Change, Refused, Report};
use super::why::{State, Transition, Why};
use crate::value::snapshot::{Caller, CallerId};

/// One breaker, shared by all requests of its member and class.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// A mutex: held for some comparisons, never across an await.
    inner: Mutex<Inner>,
    /// So that the usual state is known without the lock. Behind it by a moment at most.
    closed: AtomicBool,
    /// Whether the router's own look is to say if it is the member that is slow.
    unsure: AtomicBool,
    /// Counts reasons to look. A watch: one look answers them all.
    looks: watch::Sender<u64>,
    /// Counts the transitions of all breakers. A watch: those who report want the latest states, once.
    changes: watch::Sender<u64>,
    /// Counts those of this one, callers' own included. A watch: whoever waits for its turn looks again, once.
    turned: watch::Sender<u64>,
}

impl Breaker {
    /// Closed. `changes` is bumped at each transition, `looks` when the member's `/readyz` is to be looked at; share them among all
    /// breakers that are reported together.
    pub(crate) fn looking(settings: Settings, changes: watch::Sender<u64>, looks: watch::Sender<u64>) -> Arc<Self> {
        let report = Report {
            state: State::Closed,
            reason: String::new(),
            since: SystemTime::now(),
            transitions: BTreeMap::new(),
        };
        Arc::new(Self {
            inner: Mutex::new(Inner {
                settings,
                core: Core::new(settings),
                report,
                askers: Askers::default(),
                pace: Pace::default(),
                laggers: Askers::default(),
                looked: None,
                sole: None,
                by_hand: ByHand::default(),
            }),
            closed: AtomicBool::new(true),
            unsure: AtomicBool::new(false),
            looks,
            changes,
            turned: watch::Sender::new(0),
        })
    }

    /// New thresholds; state and counts stay.
    pub(crate) fn configure(&self, settings: Settings) {
        let mut inner = self.inner.lock();
        inner.settings = settings;
        inner.core.configure(settings);
        inner.askers.configure(settings);
    }

    /// Asks to send one request of `caller`'s; `None`: of the router's own. The outcome of the pass must be told; dropped
    /// untold, it is neutral.
    pub(crate) fn admit(self: &Arc<Self>, caller: Option<&Caller>, probe: Probe) -> Result<Pass, Refused> {
        let now = Instant::now();
        let mut inner = self.inner.lock();
        let mut pass = Pass::new(self.clone(), caller, probe);
        self.lapse(&mut inner);
        if let Some(held) = inner.held(probe) {
            pass.told = true;
            return held.map(|()| pass);
        }
        if let Some(tenant) = &pass.tenant {
            inner.askers.used(tenant, now);
        }
        match caller.and_then(|caller| inner.askers.admit(caller, probe, now)) {
            Some(Admission::Pass(ticket)) => pass.own = Some(ticket),
            Some(Admission::Refuse { retry_in }) => {
                pass.told = true;
                return Err(Refused::alone(retry_in));
            }
            None => {}
        }
        if inner.lets_others(pass.tenant.as_ref()) {
            return Ok(pass);
        }
        let (admission, transition) = inner.core.admit(now, probe);
        self.publish(&mut inner, transition.as_ref());
        pass.began = transition;
        match admission {
            Admission::Pass(ticket) => {
                pass.ticket = Some(ticket);
                Ok(pass)
            }
            Admission::Refuse { retry_in } => {
                inner.tell_own(&mut pass, Outcome::Neutral, now);
                pass.told = true;
                Err(Refused {
                    retry_in,
                    state: inner.report.state,
                    reason: inner.report.reason.clone(),
                })
            }
        }
    }

    /// Why a request of `caller`'s would be refused at once, whatever is free: whoever waits for something else first need not.
    /// `None`: it may ask, which this does not. Nothing is taken or counted.
    pub(crate) fn would_refuse(&self, caller: Option<&Caller>, probe: Probe) -> Option<Refused> {
        let now = Instant::now();
        let mut inner = self.inner.lock();
        self.lapse(&mut inner);
        if let Some(held) = inner.held(probe) {
            return held.err();
        }
        let own = caller.and_then(|caller| inner.askers.refuses(caller, probe, now));
        if let Some(retry_in) = own {
            return Some(Refused::alone(retry_in));
        }
        if inner.lets_others(caller.map(Caller::tenant).as_ref()) {
            return None;
        }
        let retry_in = inner.core.refuses(now, probe)?;
        Some(Refused {
            retry_in,
            state: inner.report.state,
            reason: inner.report.reason.clone(),
        })
    }

    /// Wakes at transitions of this breaker, for all or for one caller.
    pub(crate) fn turns(&self) -> watch::Receiver<u64> {
        self.turned.subscribe()
    }

    /// The member answered other traffic: closes if it only waits for a probe. Costs nothing while closed. `whatever`: see
    /// [`Core::recover`].
    pub(crate) fn recover(&self, whatever: bool) -> Option<Transition> {
        if self.closed.load(Ordering::Relaxed) {
            return None;
        }
        self.change(|core| core.recover(Instant::now(), whatever))
    }

    /// Whether the member's `/readyz` may end its open time, or is to say whether it is the member that is slow.
    pub(crate) fn wants_readyz(&self) -> bool {
        let wants = |inner: &Inner| inner.by_hand.held.is_none() && inner.core.wants_readyz();
        self.unsure.load(Ordering::Relaxed) || (!self.closed.load(Ordering::Relaxed) && wants(&self.inner.lock()))
    }

    /// What the member said of itself, and how long that took.
    pub(crate) fn readyz(&self, found: Readyz, took: Duration) -> Option<Transition> {
        if self.unsure.swap(false, Ordering::Relaxed) {
            self.inner.lock().looked = Some((Instant::now(), took));
        }
        self.change(|core| core.readyz(found))
    }

    /// No connection to the member comes about, for nobody.
    pub(crate) fn unreachable(&self) -> Option<Transition> {
        self.change(|core| core.unreachable(Instant::now(), rand::random()))
    }

    fn change(&self, change: impl FnOnce(&mut Core) -> Option<Transition>) -> Option<Transition> {
        let mut inner = self.inner.lock();
        if inner.by_hand.held.is_some() {
            return None;
        }
        let transition = change(&mut inner.core);
        // Half-open it concerns those whom it did when it was open.
        if transition
            .as_ref()
            .is_some_and(|transition| transition.to != State::HalfOpen)
        {
            inner.sole = None;
        }
        self.publish(&mut inner, transition.as_ref());
        transition
    }

    pub(crate) fn report(&self) -> Report {
        let mut inner = self.inner.lock();
        self.lapse(&mut inner);
        inner.report.clone()
    }

    /// Carries out what people say, if that is news.
    pub(crate) fn by_hand(&self, ByHand { held, reset }: ByHand) {
        let inner = &mut *self.inner.lock();
        if let Some((since, reason)) = reset {
            let last = inner.by_hand.reset.replace((since, reason.clone()));
            let is_news = last.is_none_or(|(last, _)| last != since);
            if is_news && inner.report.state != State::Closed {
                inner.by_hand.held = None;
                self.set(inner, State::Closed, Some(&reason));
            } else if is_news {
                inner.forget();
            }
        }
        let held = held.filter(|held| held.left(SystemTime::now()).is_some());
        match held {
            Some(held) if inner.by_hand.held.as_ref() != Some(&held) => {
                let to = if held.open { State::Open } else { State::Closed };
                self.set(inner, to, Some(&held.reason));
                inner.by_hand.held = Some(held);
            }
            None if inner.by_hand.held.take().is_some() => self.set(inner, State::Closed, None),
            _ => {}
        }
    }

    /// Ends what is held when its time is over.
    fn lapse(&self, inner: &mut Inner) {
        let held = inner.by_hand.held.as_ref();
        if held.is_some_and(|held| held.left(SystemTime::now()).is_none()) {
            inner.by_hand.held = None;
            self.set(inner, State::Closed, None);
        }
    }

    /// By hand: what was counted is forgotten. Without a reason, because that is over.
    fn set(&self, inner: &mut Inner, to: State, reason: Option<&str>) {
        let from = inner.report.state;
        inner.forget();
        let why = if reason.is_some() { Why::ByHand } else { Why::ByHandOver };
        self.publish(inner, Some(&Transition { from, to, why }));
        if let Some(reason) = reason {
            reason.clone_into(&mut inner.report.reason);
        }
    }

    /// Callers that are refused by a breaker of their own.
    pub(crate) fn refused_callers(&self) -> Vec<(CallerId, State)> {
        self.inner.lock().askers.refused(Instant::now())
    }

    fn record(&self, pass: &mut Pass, outcome: Outcome) -> Option<Change> {
        let now = Instant::now();
        let mut inner = self.inner.lock();
        let waited = pass.waits.take();
        if let Some(state) = waited {
            inner.core.waits_no_more(state);
        }
        if inner.by_hand.held.is_some() {
            return None;
        }
        let reach = inner.reach(pass, outcome, now);
        let (own, all) = match reach {
            None => (outcome, outcome),
            Some(Reach::Caller) => (outcome, Outcome::Neutral),
            // Its own as well: what others are answered, with what they ask for, may keep the one for all closed.
            Some(Reach::Tenants) => (outcome, outcome.of_all()),
            Some(Reach::Sole) => (Outcome::Neutral, outcome.of_all()),
        };
        let own = inner.tell_own(pass, own, now);
        if own.is_some() {
            self.turned.send_modify(|count| *count += 1);
        }
        let sole = pass.tenant.clone().filter(|_| reach == Some(Reach::Sole));
        let transition = match pass.ticket.take() {
            Some(ticket) => inner.core.record(ticket, all, now, rand::random()),
            None if all == Outcome::Success && inner.sole.is_some() => inner.core.answers_others(now),
            None => None,
        };
        let paced = pass.took.take().filter(|_| all == Outcome::Success);
        let (transition, sole) = match paced.filter(|_| transition.is_none()) {
            Some(took) => {
                let (lag, sole) = inner.paced(pass.tenant.as_ref(), took, now);
                (self.lagged(lag), sole)
            }
            None => (transition, sole),
        };
        if waited.is_some() {
            // Of one that was not answered nothing is left.
            inner.core.lag(now);
        }
        match &transition {
            Some(transition) if transition.to == State::Open => {
                inner.sole = sole;
                if reach == Some(Reach::Tenants) {
                    inner.askers.forgive();
                }
            }
            Some(_) => inner.sole = None,
            // Others see it fail as well.
            None if all.is_failure() && inner.sole != sole => inner.sole = None,
            None => {}
        }
        self.publish(&mut inner, transition.as_ref());
        let change = |of_caller| move |transition| Change { transition, of_caller };
        transition.map(change(false)).or_else(|| own.map(change(true)))
    }

    fn waits(&self, pass: &mut Pass, waited: Took) -> Option<Transition> {
        let now = Instant::now();
        let mut inner = self.inner.lock();
        let slow = inner.settings.slow;
        let lags = waited.tells(slow) && inner.pace.waits(waited.time, slow) == Some(true);
        if inner.by_hand.held.is_some() || pass.waits.is_some() || !lags {
            return None;
        }
        let reach = inner.lags(pass.tenant.as_ref(), now);
        if reach == Reach::Caller {
            return None;
        }
        let Inner {
            core,
            laggers,
            looked,
            settings,
            ..
        } = &mut *inner;
        let sure = || is_sure(laggers, *looked, settings, now);
        let (state, lag) = core.waits(now, rand::random(), sure);
        pass.waits = Some(state);
        let transition = self.lagged(lag);
        if transition.is_some() {
            inner.sole = pass.tenant.clone().filter(|_| reach == Reach::Sole);
        }
        self.publish(&mut inner, transition.as_ref());
        transition
    }

    /// What comes of requests that lag: where they are one tenant's alone, a look before anything else.
    fn lagged(&self, lag: Lag) -> Option<Transition> {
        match lag {
            Lag::No => None,
            Lag::Opens(transition) => Some(transition),
            Lag::Unsure => {
                if !self.unsure.swap(true, Ordering::Relaxed) {
                    self.looks.send_modify(|count| *count += 1);
                }
                None
            }
        }
    }

    /// Under the lock, so that reports come in the order of the transitions.
    fn publish(&self, inner: &mut Inner, transition: Option<&Transition>) {
        let Some(transition) = transition else { return };
        let report = &mut inner.report;
        report.state = transition.to;
        report.reason = transition.why.to_string();
        report.since = SystemTime::now();
        *report.transitions.entry(transition.why.word()).or_default() += 1;
        self.closed.store(transition.to == State::Closed, Ordering::Relaxed);
        self.changes.send_modify(|count| *count += 1);
        self.turned.send_modify(|count| *count += 1);
    }
}

#[cfg(test)]
impl Breaker {
    /// One whose member nobody looks at.
    pub(crate) fn new(settings: Settings, changes: watch::Sender<u64>) -> Arc<Self> {
        Self::looking(settings, changes, watch::Sender::new(0))
    }

    /// As if all answers of minutes ago had taken so long.
    pub(crate) fn learn(&self, pace: Duration) {
        self.inner.lock().pace.learn(pace, Instant::now());
    }
}
