//! What one breaker knows behind its lock: its rules, who asks, how fast the member answers, and what was set by hand.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::super::Settings;
use super::super::askers::{Askers, Reach};
use super::super::by_hand::{ByHand, Held};
use super::super::core::{Admission, Core, Outcome, Probe};
use super::super::lag::Lag;
use super::super::pace::{Pace, Size, Took};
use super::super::report::{Refused, Report};
use super::super::why::{State, Transition};
use super::Pass;

/// A client comes again after so long at most, however long a breaker is held open by hand: it may be let go before.
const HELD_RETRY: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) settings: Settings,
    pub(super) core: Core,
    pub(super) report: Report,
    pub(super) askers: Askers,
    pub(super) pace: Pace,
    /// Who saw it lag: apart, so that one slow answer makes nobody's failures everybody's.
    pub(super) laggers: Askers,
    /// When the member's `/readyz` was looked at last because of that, and how long its answer took.
    pub(super) looked: Option<(Instant, Duration)>,
    /// Not closed, and what failed is known of these only: others are let through.
    pub(super) sole: Option<Arc<str>>,
    pub(super) by_hand: ByHand,
}

impl Inner {
    pub(super) fn forget(&mut self) {
        self.core.forget();
        self.askers.forgive();
        self.sole = None;
    }

    /// What becomes of a request while the breaker is held by hand. Renewals of leader elections pass: who drains a member
    /// means to end no operator's leadership.
    pub(super) fn held(&self, probe: Probe) -> Option<Result<(), Refused>> {
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
    pub(super) fn lets_others(&self, tenant: Option<&Arc<str>>) -> bool {
        let other = |sole: &Arc<str>| tenant != Some(sole);
        self.core.state() != State::Closed && self.sole.as_ref().is_some_and(other)
    }

    /// How far the failure of a request reaches; `None` for all other outcomes.
    pub(super) fn reach(&mut self, pass: &Pass, outcome: Outcome, now: Instant) -> Option<Reach> {
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
    pub(super) fn paced(
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
    pub(super) fn lags(&mut self, tenant: Option<&Arc<str>>, now: Instant) -> Reach {
        let window = self.settings.window;
        tenant.map_or(Reach::Tenants, |tenant| self.laggers.failed(tenant, now, window))
    }

    pub(super) fn tell_own(&mut self, pass: &mut Pass, outcome: Outcome, now: Instant) -> Option<Transition> {
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

/// Whether those who see the member lag are not one tenant alone, whose requests may be slow by what they ask; of one alone,
/// whether the router's own look was slow as well.
pub(super) fn is_sure(
    laggers: &Askers,
    looked: Option<(Instant, Duration)>,
    settings: &Settings,
    now: Instant,
) -> bool {
    let recent = |(at, _): &(Instant, Duration)| now.saturating_duration_since(*at) < settings.window;
    !laggers.is_alone(now, settings.window) || looked.filter(recent).is_some_and(|(_, took)| took >= settings.slow)
}
