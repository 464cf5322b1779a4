//! Which endpoint of a member gets the next stream or connection: priority, outlier ejection, slow return. Pure.
//!
//! The order of the spec is the order of preference. An endpoint that fails in a row is ejected for a while, longer each time, but
//! never the last one that is left; when its time is over one probe decides. Back again, it gets a growing share of what is
//! new. Not here: addresses behind an endpoint's name (`addresses`). Caller: `dialer`, which adds the lock and the clock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// The first ejection.
    pub(super) ejected_for: Duration,
    /// The longest: each ejection soon after the one before takes twice its time.
    pub(super) ejected_at_most: Duration,
    /// From the first streams to all of them, after an ejection.
    pub(super) returns_within: Duration,
    /// Before the next endpoint is tried beside one that has not answered yet. One that is passed over so is ejected.
    pub(super) next_after: Duration,
}

/// Of every member.
pub(super) const PACE: Pace = Pace {
    ejected_for: Duration::from_secs(10),
    ejected_at_most: Duration::from_mins(1),
    returns_within: Duration::from_secs(30),
    next_after: Duration::from_secs(2),
};
/// Of an endpoint that has just come back.
const FIRST_SHARE: f64 = 0.1;
/// Without an ejection; the next is a first one.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(5);
/// Points that eject; see [`Failure::points`].
const EJECT_AT: u32 = 5;
/// As many as a member may have.
pub(super) const MAX_ENDPOINTS: usize = 16;

/// How an endpoint failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// No connection, and that at once.
    Refused,
    /// No connection in time, or none while another endpoint had one long since.
    Silent,
    /// Its certificate is not the member's, or it speaks something else.
    Untrusted,
    /// A connection that was open broke, or its pings were not answered.
    Broken,
    /// A request was not answered for long, nor any other since: it takes connections and answers pings, and does nothing.
    Late,
    /// 502, 503 or 504, and not an API server's.
    Gateway,
}

impl Failure {
    /// What it adds to the failures in a row. **The table** of what ejects: the first that was waited for or is not trusted, the second
    /// that was refused or broke (a listener that restarts refuses one), the third that was late, the fifth gateway's answer.
    fn points(self) -> u32 {
        match self {
            Self::Silent | Self::Untrusted => EJECT_AT,
            Self::Refused | Self::Broken => 3,
            Self::Late => 2,
            Self::Gateway => 1,
        }
    }

    /// The word in metrics and logs: of a closed set.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Silent => "silent",
            Self::Untrusted => "untrusted",
            Self::Broken => "broken",
            Self::Late => "late",
            Self::Gateway => "gateway",
        }
    }
}

/// What an endpoint is given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum State {
    /// All that is new, if none before it is.
    Usable,
    /// A share of that, which grows.
    Returning { since: Instant },
    /// Nothing, but for one probe once its time is over.
    Ejected { until: Instant, probing: bool },
}

impl State {
    /// The word on `/endpoints`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Usable => "usable",
            Self::Returning { .. } => "returning",
            Self::Ejected { .. } => "ejected",
        }
    }

    fn is_ejected(self) -> bool {
        matches!(self, Self::Ejected { .. })
    }
}

/// All endpoints of one member.
#[derive(Debug)]
pub(super) struct Failover {
    pace: Pace,
    /// In order of preference.
    all: Vec<Health>,
}

#[derive(Debug)]
struct Health {
    state: State,
    /// Of failures in a row.
    points: u32,
    /// Ejections, each soon after the one before.
    streak: u32,
    /// When the last of them ended.
    came_back: Option<Instant>,
    ejections: BTreeMap<&'static str, u64>,
}

/// Whom the next stream is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) first: usize,
    /// Bit by endpoint.
    ejected: u16,
}

impl Choice {
    /// The lower, the better; `None`: ejected.
    pub(super) fn rank(self, endpoint: usize) -> Option<usize> {
        if endpoint < MAX_ENDPOINTS && self.ejected & (1 << endpoint) != 0 {
            return None;
        }
        Some(if endpoint == self.first { 0 } else { endpoint + 1 })
    }
}

/// One endpoint's state, for metrics and pages.
#[derive(Debug, Clone)]
pub(crate) struct HealthReport {
    pub(crate) state: State,
    /// By reason.
    pub(crate) ejections: BTreeMap<&'static str, u64>,
}

impl Pace {
    /// Of all streams, those for an endpoint that is back since then.
    fn share(self, since: Instant, now: Instant) -> f64 {
        let over = now.saturating_duration_since(since).as_secs_f64() / self.returns_within.as_secs_f64();
        FIRST_SHARE + (1.0 - FIRST_SHARE) * over.min(1.0)
    }

    fn ejection(self, streak: u32) -> Duration {
        let doubled = self.ejected_for.saturating_mul(1 << streak.min(8));
        doubled.min(self.ejected_at_most)
    }
}

impl Failover {
    pub(super) fn new(endpoints: usize, pace: Pace) -> Self {
        let health = || Health {
            state: State::Usable,
            points: 0,
            streak: 0,
            came_back: None,
            ejections: BTreeMap::new(),
        };
        Self {
            pace,
            all: (0..endpoints.min(MAX_ENDPOINTS)).map(|_| health()).collect(),
        }
    }

    /// For one stream. `draw` is random, in [0, 1).
    pub(super) fn choose(&mut self, now: Instant, draw: f64) -> Choice {
        self.settle(now);
        let ejected = self.all.iter().enumerate().fold(0, |bits, (at, health)| {
            bits | (u16::from(health.state.is_ejected()) << (at % MAX_ENDPOINTS))
        });
        let pace = self.pace;
        let takes = |health: &Health| match health.state {
            State::Usable => true,
            State::Returning { since } => draw < pace.share(since, now),
            State::Ejected { .. } => false,
        };
        let first = self.all.iter().position(takes).unwrap_or(0);
        Choice { first, ejected }
    }

    /// For one connection: those to try one after the other, the ejected last. They wait for the others to fail or to take long,
    /// not for them to time out.
    pub(super) fn order(&mut self, now: Instant, draw: f64) -> Vec<usize> {
        let choice = self.choose(now, draw);
        let all = 0..self.all.len();
        let (mut usable, mut ejected): (Vec<_>, Vec<_>) = all.partition(|at| choice.rank(*at).is_some());
        usable.sort_by_key(|at| choice.rank(*at));
        ejected.sort_by_key(|at| match self.all[*at].state {
            State::Ejected { until, .. } => Some(until),
            State::Usable | State::Returning { .. } => None,
        });
        usable.extend(ejected);
        usable
    }

    /// Whether the endpoint is ejected by this failure, and for how long.
    pub(super) fn failed(&mut self, now: Instant, at: usize, why: Failure) -> Option<Duration> {
        self.settle(now);
        let is_last = self.all.iter().filter(|health| !health.state.is_ejected()).count() <= 1;
        let health = self.all.get_mut(at)?;
        if health.state.is_ejected() {
            return None;
        }
        health.points = (health.points + why.points()).min(EJECT_AT);
        if health.points < EJECT_AT || is_last {
            return None;
        }
        if health
            .came_back
            .is_some_and(|back| now.saturating_duration_since(back) >= FORGOTTEN_AFTER)
        {
            health.streak = 0;
        }
        *health.ejections.entry(why.word()).or_default() += 1;
        Some(health.eject(now, self.pace))
    }

    /// It answered a request.
    pub(super) fn answered(&mut self, at: usize) {
        if let Some(health) = self.all.get_mut(at) {
            health.points = 0;
        }
    }

    /// There is a connection. True if that brings it back: nothing else could be connected to.
    pub(super) fn connected(&mut self, now: Instant, at: usize) -> bool {
        let Some(health) = self.all.get_mut(at).filter(|health| health.state.is_ejected()) else {
            return false;
        };
        health.bring_back(now);
        true
    }

    /// Whether its time is over and nobody probes it. If so, whoever asked this does, and tells [`Self::probed`].
    pub(super) fn probe(&mut self, now: Instant, at: usize) -> bool {
        match self.all.get_mut(at).map(|health| &mut health.state) {
            Some(State::Ejected { until, probing }) if *until <= now && !*probing => {
                *probing = true;
                true
            }
            _ => false,
        }
    }

    /// A probe is over. If it stays ejected, for how long.
    pub(super) fn probed(&mut self, now: Instant, at: usize, connected: bool) -> Option<Duration> {
        let health = self.all.get_mut(at)?;
        let State::Ejected { probing: true, .. } = health.state else {
            return None;
        };
        if connected {
            health.bring_back(now);
            return None;
        }
        Some(health.eject(now, self.pace))
    }

    /// If it is ejected, until when.
    pub(super) fn ejected_until(&self, at: usize) -> Option<Instant> {
        match self.all.get(at)?.state {
            State::Ejected { until, .. } => Some(until),
            State::Usable | State::Returning { .. } => None,
        }
    }

    pub(super) fn report(&mut self, now: Instant) -> Vec<HealthReport> {
        self.settle(now);
        let report = |health: &Health| HealthReport {
            state: health.state,
            ejections: health.ejections.clone(),
        };
        self.all.iter().map(report).collect()
    }

    /// Whoever has returned for long enough is usable; so is the first of those who return when nobody else is there to
    /// share with.
    fn settle(&mut self, now: Instant) {
        for health in &mut self.all {
            if let State::Returning { since } = health.state
                && now.saturating_duration_since(since) >= self.pace.returns_within
            {
                health.state = State::Usable;
            }
        }
        if self.all.iter().all(|health| health.state != State::Usable)
            && let Some(health) = self.all.iter_mut().find(|health| !health.state.is_ejected())
        {
            health.state = State::Usable;
        }
    }
}

impl Health {
    fn eject(&mut self, now: Instant, pace: Pace) -> Duration {
        let time = pace.ejection(self.streak);
        self.streak = self.streak.saturating_add(1);
        self.points = 0;
        self.state = State::Ejected {
            until: now + time,
            probing: false,
        };
        time
    }

    fn bring_back(&mut self, now: Instant) {
        self.state = State::Returning { since: now };
        self.came_back = Some(now);
        self.points = 0;
    }
}

#[cfg(test)]
mod tests;
