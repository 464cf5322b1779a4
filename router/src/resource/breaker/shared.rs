//! The handle on one breaker that requests share: a lock around the rules, the clock, and what others see of it.

mod pass;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tokio::sync::watch;

pub(crate) use self::pass::Pass;
use super::Settings;
use super::askers::{Askers, Reach};
use super::by_hand::{ByHand, Held};
use super::core::{Admission, Core, Outcome, Probe, Readyz};
use super::lag::Lag;
use super::pace::{Pace, Size, Took};
use super::report::{Change, Refused, Report};
use super::why::{State, Transition, Why};
use crate::value::snapshot::{Caller, CallerId};

/// A client comes again after so long at most, however long a breaker is held open by hand: it may be let go before.
const HELD_RETRY: Duration = Duration::from_secs(30);

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

#[derive(Debug)]
struct Inner {
    settings: Settings,
    core: Core,
    report: Report,
    askers: Askers,
    pace: Pace,
    /// Who saw it lag: apart, so that one slow answer makes nobody's failures everybody's.
    laggers: Askers,
    /// When the member's `/readyz` was looked at last because of that, and how long its answer took.
    looked: Option<(Instant, Duration)>,
    /// Not closed, and what failed is known of these only: others are let through.
    sole: Option<Arc<str>>,
    by_hand: ByHand,
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

/// Whether those who see the member lag are not one tenant alone, whose requests may be slow by what they ask; of one alone,
/// whether the router's own look was slow as well.
fn is_sure(laggers: &Askers, looked: Option<(Instant, Duration)>, settings: &Settings, now: Instant) -> bool {
    let recent = |(at, _): &(Instant, Duration)| now.saturating_duration_since(*at) < settings.window;
    !laggers.is_alone(now, settings.window) || looked.filter(recent).is_some_and(|(_, took)| took >= settings.slow)
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

impl Inner {
    fn forget(&mut self) {
        self.core.forget();
        self.askers.forgive();
        self.sole = None;
    }

    /// What becomes of a request while the breaker is held by hand. Renewals of leader elections pass: who drains a member
    /// means to end no operator's leadership.
    fn held(&self, probe: Probe) -> Option<Result<(), Refused>> {
        let held = self.by_hand.held.as_ref()?;
        let refused = |held: &Held| Refused {
            retry_in: held.left(SystemTime::now()).unwrap_or_default().min(HELD_RETRY),
            state: State::Open,
            reason: held.reason.to_string(),
        };
        Some(if held.open && probe != Probe::Lease {
            Err(refused(held))
        } else {
            Ok(())
        })
    }

    /// Whether what keeps this breaker open concerns another tenant alone.
    fn lets_others(&self, tenant: Option<&Arc<str>>) -> bool {
        let other = |sole: &Arc<str>| tenant != Some(sole);
        self.core.state() != State::Closed && self.sole.as_ref().is_some_and(other)
    }

    /// How far the failure of a request reaches; `None` for all other outcomes.
    fn reach(&mut self, pass: &Pass, outcome: Outcome, now: Instant) -> Option<Reach> {
        let silent = match outcome {
            Outcome::Failure => false,
            Outcome::TimedOut | Outcome::Slow => true,
            Outcome::Success | Outcome::Unreachable | Outcome::Neutral => return None,
        };
        Some(match &pass.tenant {
            None => Reach::Tenants,
            Some(_) if silent && !pass.probe.tells_by_silence() => Reach::Caller,
            Some(tenant) => self.askers.failed(tenant, now, self.settings.window),
        })
    }

    /// An answer that took so long; with what that changed, those who see it if they are one tenant alone.
    fn paced(
        &mut self,
        tenant: Option<&Arc<str>>,
        (took, size): (Took, Size),
        now: Instant,
    ) -> (Lag, Option<Arc<str>>) {
        let slow = self.settings.slow;
        let told = took.tells(slow).then(|| self.pace.took(took.time, size, slow, now));
        let Some(lags) = told.flatten() else {
            return (Lag::No, None);
        };
        let reach = if lags {
            self.lags(tenant, now)
        } else {
            if let Some(tenant) = tenant {
                self.laggers.used(tenant, now);
            }
            Reach::Caller
        };
        let counts = reach != Reach::Caller;
        let sole = tenant.filter(|_| reach == Reach::Sole).cloned();
        let Self {
            core,
            laggers,
            looked,
            settings,
            ..
        } = self;
        let sure = || is_sure(laggers, *looked, settings, now);
        (core.paced(counts, now, rand::random(), sure), sole)
    }

    /// How far it reaches that a request lags.
    fn lags(&mut self, tenant: Option<&Arc<str>>, now: Instant) -> Reach {
        let window = self.settings.window;
        tenant.map_or(Reach::Tenants, |tenant| self.laggers.failed(tenant, now, window))
    }

    fn tell_own(&mut self, pass: &mut Pass, outcome: Outcome, now: Instant) -> Option<Transition> {
        let caller = pass.caller.as_ref()?;
        let ticket = pass.own.take();
        // That nobody gets through is not this caller's failing.
        let outcome = if outcome == Outcome::Unreachable {
            Outcome::Neutral
        } else {
            outcome
        };
        let core = match (&ticket, outcome) {
            (None, Outcome::Failure | Outcome::TimedOut) => self.askers.own(caller, self.settings, now)?,
            (None, _) => return None,
            (Some(_), _) => self.askers.known(caller)?,
        };
        let ticket = ticket.or_else(|| match core.admit(now, Probe::Telling).0 {
            Admission::Pass(ticket) => Some(ticket),
            Admission::Refuse { .. } => None,
        })?;
        core.record(ticket, outcome, now, rand::random())
    }
}
