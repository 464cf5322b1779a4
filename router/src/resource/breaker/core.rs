//! The rules of a breaker, pure: closed counts, open refuses, half-open lets one probe decide.
//!
//! Called by `shared`, which adds the lock, the clock and the random draw.

use std::time::{Duration, Instant};

use super::lag::{Lag, Lags};
use super::why::{State, Transition, Why};
use super::window::Window;
use super::{LEASE_PROBE_EVERY, PROBE_ALONE, Settings};

/// Most doublings of the open time; beyond it the maximum rules anyway.
const MAX_GROWTH: u32 = 16;

/// How one admitted request ended, as far as the member's health goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The member answered.
    Success,
    /// It did not, or what answered was no API server: of this one request, see `askers`.
    Failure,
    /// It had all of the request and all the time there was: as a failure, but no `/readyz` tells when it is over.
    TimedOut,
    /// There is no way to it, or the connection broke, pings that were not answered included.
    Unreachable,
    /// The client gave up waiting. Speaks against the member where others see it fail too, and against no caller.
    Slow,
    /// Says nothing: the client went away, the request was shed later, or the member said 429.
    Neutral,
}

impl Outcome {
    pub(crate) fn is_failure(self) -> bool {
        matches!(self, Self::Failure | Self::TimedOut | Self::Unreachable)
    }

    /// Of a breaker that it opens.
    fn word(self) -> Word {
        if self == Self::TimedOut {
            Word::Ignored
        } else {
            Word::Heeded
        }
    }

    /// What it is where others see the member fail as well.
    pub(super) fn of_all(self) -> Self {
        match self {
            Self::Slow => Self::TimedOut,
            other => other,
        }
    }
}

/// What the router's own look at a member's `/readyz` found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readyz {
    Ready,
    /// 401, 403 or 404: a caller's request must tell.
    Forbidden,
    /// An answer of another kind, or none in time, over a connection that came about.
    NotReady,
    /// No connection.
    Unreachable,
}

/// The right to send one request. Its outcome must be told; a ticket of an earlier state counts for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    epoch: u64,
    /// Since when it has its place, if it is a probe.
    probe: Option<(Probe, Instant)>,
}

/// What a request would be as a probe. Each kind has one place in a half-open breaker: none keeps another waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probe {
    /// Answered soon by a member that is well.
    Telling,
    /// A write: it waits for its body and its webhooks, and is answered as a rule. Apart from what may be silent for ever, which
    /// would have all writes refused while it is.
    Write,
    /// May be silent, or fail, by who asks: a followed log waits for its Pod, and what is behind `proxy` answers for itself.
    Doubtful,
    /// A renewal of a leader election.
    Lease,
    /// A Lease that may be one of an election of which the router does not know. Apart from those that it knows: anybody may
    /// write Leases.
    OtherLease,
}

impl Probe {
    const ALL: usize = 5;

    /// Whether a member that says nothing to it is not well, whoever asks. Writes wait for the webhooks of who writes, and
    /// what may be silent is.
    pub(super) fn tells_by_silence(self) -> bool {
        self == Self::Telling
    }

    /// Which turn it takes while open, every [`LEASE_PROBE_EVERY`]; `None`: it has none.
    fn turn(self) -> Option<usize> {
        match self {
            Self::Lease => Some(0),
            Self::OtherLease => Some(1),
            Self::Telling | Self::Write | Self::Doubtful => None,
        }
    }
}

/// Answer to a request for admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    Pass(Ticket),
    Refuse { retry_in: Duration },
}

/// What the member's own word that it is ready is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// It says nothing of what opened the breaker, or was wrong.
    Ignored,
    /// What opened the breaker is over when it says so.
    Heeded,
    /// It was given: the breaker is half-open because of it.
    Taken,
}

#[derive(Debug, Clone)]
pub(super) struct Core {
    settings: Settings,
    state: State,
    /// Counts states entered, so that answers to requests of an earlier one are told apart.
    epoch: u64,
    consecutive: u32,
    window: Window,
    lags: Lags,
    /// Openings without a quiet time between them.
    openings: u32,
    /// Of the present opening.
    word: Word,
    /// It is open, or half-open, for slowness: what has no pace passes, and tells nothing while it is open.
    for_reads: bool,
    open_until: Option<Instant>,
    closed_at: Option<Instant>,
    /// Since when each kind of probe is under way.
    probing: [Option<Instant>; Probe::ALL],
    /// When the next of each kind of Lease may pass while open.
    next_leases: [Option<Instant>; 2],
}

impl Core {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            state: State::Closed,
            epoch: 0,
            consecutive: 0,
            window: Window::default(),
            lags: Lags::default(),
            openings: 0,
            word: Word::Ignored,
            for_reads: false,
            open_until: None,
            closed_at: None,
            probing: [None; Probe::ALL],
            next_leases: [None; 2],
        }
    }

    /// Closed, with nothing counted; what was let through before counts for nothing.
    pub(super) fn forget(&mut self) {
        *self = Self {
            epoch: self.epoch + 1,
            ..Self::new(self.settings)
        };
    }

    /// New thresholds; the state and what was counted stay.
    pub(super) fn configure(&mut self, settings: Settings) {
        self.settings = settings;
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    /// May a request be sent? A renewal of a leader election may be starved by nothing else: one is let through every
    /// [`LEASE_PROBE_EVERY`] while open, too. All are where the member may well answer them, which then decides nothing.
    pub(super) fn admit(&mut self, now: Instant, probe: Probe) -> (Admission, Option<Transition>) {
        let mut transition = None;
        if self.state == State::Open && self.open_until.is_none_or(|until| now >= until) {
            transition = Some(self.enter(State::HalfOpen, Why::OpenTimeOver));
        }
        let admission = match self.state {
            State::Closed => self.pass(None),
            State::HalfOpen if !self.is_probing(probe, now) => self.pass_probe(probe, now),
            State::Open if probe == Probe::Lease && self.lets_renew() => self.pass(Some((probe, now))),
            State::Open if self.is_lease_due(probe, now) => self.pass_probe(probe, now),
            State::Open | State::HalfOpen if self.lets_pass(probe) => self.pass(None),
            State::HalfOpen => Admission::Refuse {
                retry_in: Duration::from_secs(1),
            },
            State::Open => {
                let left = self
                    .open_until
                    .map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
                Admission::Refuse { retry_in: left }
            }
        };
        (admission, transition)
    }

    /// How long a request would be refused from now on, as it is open; `None` where it may ask. Takes no place.
    pub(super) fn refuses(&self, now: Instant, probe: Probe) -> Option<Duration> {
        let left = self.open_until?.saturating_duration_since(now);
        let renews = (probe == Probe::Lease && self.lets_renew()) || self.is_lease_due(probe, now);
        let passes = renews || self.lets_pass(probe);
        (self.state == State::Open && !left.is_zero() && !passes).then_some(left)
    }

    /// Tells how an admitted request ended. `jitter` in 0..=1 spreads the open time of many routers.
    pub(super) fn record(&mut self, ticket: Ticket, outcome: Outcome, now: Instant, jitter: f64) -> Option<Transition> {
        if ticket.epoch != self.epoch {
            return None;
        }
        match ticket.probe {
            // Passed by one that is open for reads.
            None if self.state != State::Closed => None,
            None => self.record_closed(outcome, now, jitter),
            Some(probe) => self.record_probe(probe, outcome, now, jitter),
        }
    }

    /// A probe of this kind is under way, and not for so long that another may tell more.
    fn is_probing(&self, probe: Probe, now: Instant) -> bool {
        self.probing[probe as usize].is_some_and(|since| now.saturating_duration_since(since) < PROBE_ALONE)
    }

    /// The member answered traffic of another kind. Closes a breaker that only waits for a probe which may never come:
    /// nobody may want to exec for days. `whatever`: also one that is open for time-outs, which are of its own kind.
    pub(super) fn recover(&mut self, now: Instant, whatever: bool) -> Option<Transition> {
        let waiting = match self.state {
            State::Closed => false,
            State::Open => self.open_until.is_none_or(|until| now >= until),
            State::HalfOpen => true,
        };
        let told_soon = self.is_probing(Probe::Telling, now) || self.is_probing(Probe::Lease, now);
        let waiting = waiting && !told_soon && (whatever || self.word != Word::Ignored);
        waiting.then(|| self.close(now, Why::MemberAnswers))
    }

    /// Whether `/readyz` may end what it is open for.
    pub(super) fn wants_readyz(&self) -> bool {
        self.state == State::Open && self.word == Word::Heeded
    }

    /// The member was asked for its `/readyz`: one that is ready, or may not be asked so, is tried by one request. A word
    /// that the request then shows to be wrong counts for nothing until the open time is over.
    pub(super) fn readyz(&mut self, found: Readyz) -> Option<Transition> {
        let why = match found {
            Readyz::Ready => Why::MemberReady,
            Readyz::Forbidden => Why::ReadyzForbidden,
            Readyz::NotReady | Readyz::Unreachable => return None,
        };
        self.wants_readyz().then(|| {
            self.word = Word::Taken;
            self.enter(State::HalfOpen, why)
        })
    }

    /// Nothing has come from the member for a while, and no connection of the router's own comes about: opens, whoever
    /// asked for what. What it is open for already is explained by it.
    pub(super) fn unreachable(&mut self, now: Instant, jitter: f64) -> Option<Transition> {
        if self.state == State::Open {
            self.word = Word::Heeded;
            self.for_reads = false;
            return None;
        }
        Some(self.open(now, jitter, Why::Unreachable, Word::Heeded))
    }

    /// A request was answered, at the member's own pace or far behind it. Opens when half of them lag, at volume, and go on
    /// to: a pause is no failure. `sure`: asked when it would open.
    pub(super) fn paced(&mut self, lags: bool, now: Instant, jitter: f64, sure: impl FnOnce() -> bool) -> Lag {
        self.lags.answered(lags, now, &self.settings);
        self.opens_for_lag(now, jitter, sure)
    }

    /// A request has waited for longer than the member's own pace, and waits on: as if it had been answered now, until
    /// [`Self::waits_no_more`] is told of the state that this returns. The slower a member is, the fewer answers there are to
    /// tell by.
    pub(super) fn waits(&mut self, now: Instant, jitter: f64, sure: impl FnOnce() -> bool) -> (u64, Lag) {
        let state = self.epoch;
        self.lags.waits();
        (state, self.opens_for_lag(now, jitter, sure))
    }

    pub(super) fn waits_no_more(&mut self, state: u64) {
        if state == self.epoch {
            self.lags.waits_no_more();
        }
    }

    fn opens_for_lag(&mut self, now: Instant, jitter: f64, sure: impl FnOnce() -> bool) -> Lag {
        if self.state != State::Closed {
            return Lag::No;
        }
        let Some((slow, requests)) = self.lags.go_on(now, &self.settings) else {
            return Lag::No;
        };
        if !sure() {
            return Lag::Unsure;
        }
        Lag::Opens(self.open(now, jitter, Why::Slower { slow, requests }, Word::Ignored))
    }

    /// Whether many lag still, after one that waited is gone.
    pub(super) fn lag(&mut self, now: Instant) -> bool {
        self.lags.many(now, &self.settings).is_some()
    }

    /// The member answered a shard that this breaker does not refuse.
    pub(super) fn answers_others(&mut self, now: Instant) -> Option<Transition> {
        (self.state != State::Closed).then(|| self.close(now, Why::AnswersOthers))
    }

    /// Whether it knows nothing that a new one would not: nothing failed of late, or nobody came for long after it might have.
    pub(super) fn is_quiet(&mut self, now: Instant) -> bool {
        match self.state {
            State::Closed => self.window.totals(now, self.settings.window).1 == 0,
            State::Open | State::HalfOpen => self.is_deserted(now),
        }
    }

    /// Whether nobody has asked for as long as it is ever open, though it would let a request through.
    pub(super) fn is_deserted(&self, now: Instant) -> bool {
        let long_over = |until| now >= until + self.settings.max_open_for;
        self.state != State::Closed && self.open_until.is_some_and(long_over)
    }

    fn record_closed(&mut self, outcome: Outcome, now: Instant, jitter: f64) -> Option<Transition> {
        match outcome {
            Outcome::Neutral | Outcome::Slow => None,
            Outcome::Success => {
                self.consecutive = 0;
                self.window.count(now, self.settings.window, false);
                None
            }
            Outcome::Failure | Outcome::TimedOut | Outcome::Unreachable => {
                self.consecutive = self.consecutive.saturating_add(1);
                self.window.count(now, self.settings.window, true);
                let why = self.reason_to_open(now)?;
                Some(self.open(now, jitter, why, outcome.word()))
            }
        }
    }

    fn record_probe(
        &mut self,
        (probe, since): (Probe, Instant),
        outcome: Outcome,
        now: Instant,
        jitter: f64,
    ) -> Option<Transition> {
        // The place may be another's by now.
        self.probing[probe as usize].take_if(|its| *its == since);
        // That it answers a renewal is not that it is as fast as it was, nor that it answers what timed out.
        let early = self.state == State::Open && self.open_until.is_some_and(|until| now < until);
        match (outcome, self.state) {
            (Outcome::Success, _) if early && self.word == Word::Ignored => None,
            (Outcome::Success, _) => Some(self.close(now, Why::ProbeSucceeded)),
            (Outcome::Failure | Outcome::TimedOut | Outcome::Unreachable, State::HalfOpen) => {
                // Ready it said, and was not. Where the way broke again, the next look tells so itself.
                let was_wrong = self.word == Word::Taken && outcome != Outcome::Unreachable;
                let word = if was_wrong { Word::Ignored } else { outcome.word() };
                Some(self.open(now, jitter, Why::ProbeFailed, word))
            }
            // A lease's probe of an open breaker that failed changes nothing: the open time goes on.
            _ => None,
        }
    }

    fn reason_to_open(&mut self, now: Instant) -> Option<Why> {
        let settings = self.settings;
        if self.consecutive >= settings.consecutive_failures.max(1) {
            return Some(Why::Consecutive(self.consecutive));
        }
        let (requests, failures) = self.window.totals(now, settings.window);
        let over = requests >= settings.min_requests.max(1)
            && f64::from(failures) >= f64::from(requests) * settings.failure_ratio;
        over.then_some(Why::Ratio { failures, requests })
    }

    fn open(&mut self, now: Instant, jitter: f64, why: Why, word: Word) -> Transition {
        // Growth starts over only after the breaker stayed closed for as long as it is ever open.
        let quiet = self
            .closed_at
            .is_some_and(|at| now.saturating_duration_since(at) >= self.settings.max_open_for);
        if quiet {
            self.openings = 0;
        }
        let wait = open_time(&self.settings, self.openings, jitter);
        self.openings = (self.openings + 1).min(MAX_GROWTH);
        self.open_until = Some(now + wait);
        // Not put off by a probe that fails: whoever's turn was near still has it.
        let due = now + LEASE_PROBE_EVERY;
        if self.state == State::Closed {
            self.next_leases = self
                .next_leases
                .map(|next| Some(next.map_or(due, |before| before.min(due))));
        }
        self.word = word;
        self.for_reads = matches!(why, Why::Slower { .. });
        self.enter(State::Open, why)
    }

    fn close(&mut self, now: Instant, why: Why) -> Transition {
        self.closed_at = Some(now);
        self.open_until = None;
        self.enter(State::Closed, why)
    }

    fn enter(&mut self, to: State, why: Why) -> Transition {
        let from = std::mem::replace(&mut self.state, to);
        self.epoch += 1;
        self.consecutive = 0;
        self.window = Window::default();
        self.lags = Lags::default();
        self.probing = [None; Probe::ALL];
        Transition { from, to, why }
    }

    fn pass(&self, probe: Option<(Probe, Instant)>) -> Admission {
        Admission::Pass(Ticket {
            epoch: self.epoch,
            probe,
        })
    }

    fn pass_probe(&mut self, probe: Probe, now: Instant) -> Admission {
        self.probing[probe as usize] = Some(now);
        if let Some(turn) = probe.turn() {
            self.next_leases[turn] = Some(now + LEASE_PROBE_EVERY);
        }
        self.pass(Some((probe, now)))
    }

    fn is_lease_due(&self, probe: Probe, now: Instant) -> bool {
        let due = |turn: usize| self.next_leases[turn].is_none_or(|due| now >= due);
        probe.turn().is_some_and(due) && !self.is_probing(probe, now)
    }

    /// What it is open for leaves renewals of elections alone: the member is slow, or hangs for some.
    fn lets_renew(&self) -> bool {
        self.word == Word::Ignored
    }

    /// Whether what it is open for is no matter of such a request: writes, and what may be silent, have no pace.
    pub(super) fn lets_pass(&self, probe: Probe) -> bool {
        self.for_reads && probe != Probe::Telling
    }
}

/// Open time of the `growth`-th opening in a row: doubled each time, 80 to 100 % of it by `jitter`, at most the maximum.
fn open_time(settings: &Settings, growth: u32, jitter: f64) -> Duration {
    let factor = 2_u32.saturating_pow(growth.min(MAX_GROWTH));
    let grown = settings
        .open_for
        .saturating_mul(factor)
        .min(settings.max_open_for.max(settings.open_for));
    grown.mul_f64(0.8 + 0.2 * jitter.clamp(0.0, 1.0))
}
