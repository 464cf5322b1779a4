//! The state of one limit, of one caller or of all who share it: its bucket, whether it has opened, what it refused.
//!
//! ```text
//! Closed ── a request finds its bucket empty (Normal) ──▶ Opened
//! Opened ── sleepingWindowSize is over, or by hand ──▶ Closed, with the tokens that came meanwhile and no more
//! ```
//!
//! One rule looks at a request by [`RuleState::look`] and is told what became of it by [`RuleState::settle`]; what
//! several rules make of it together is `judge`'s. Pure.

use std::time::Duration;

use portolan_crds::PolicyReason;
use portolan_crds::circuit_breaker::TriggerPolicy;

use super::Tick;
use super::bucket::{Bucket, MILLIONTHS};
use super::recent::Recent;
use super::takes::Takes;
use crate::value::policy::Limit;

/// A limit that routers share opens when it has refused for so long: shares follow demand within a second or two, and a router
/// whose share is small yet has seen no empty bucket but its own.
pub(crate) const SHARES_SETTLE: Duration = Duration::from_secs(5);
/// Who is refused for want of a share may come again after so long.
const SHARE_SOON: Duration = Duration::from_secs(1);
/// Refusals further apart are not of one spell.
const SPELL_PAUSE: Duration = Duration::from_secs(1);

/// The state of one rule.
#[derive(Debug, Clone)]
pub(crate) struct RuleState {
    bucket: Bucket,
    opened: Option<Opened>,
    /// Why it is opened or closed, and since when; `None`: it was never opened.
    changed: Option<(PolicyReason, Tick)>,
    /// When a person closed it last, in milliseconds of Unix time, as far as that was carried out.
    closed_by_hand: i64,
    /// Since when the bucket goes on refusing, and when it did last.
    spell: Option<(Tick, Tick)>,
    /// What it refused. Boxed: most refuse nothing.
    refused: Option<Box<Recent>>,
    /// Tokens that were asked for.
    asked: u64,
    /// See [`Self::began_with`].
    began_with: u64,
    /// When its share of the bucket became smaller last.
    shrunk_at: Option<Tick>,
}

/// A request that has passed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Passed {
    /// Of the rules that it passed by.
    pub(crate) generation: u64,
    pub(crate) at: Tick,
}

/// A rule that has opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Opened {
    /// It closes by itself then; `None`: by hand alone.
    until: Option<Tick>,
}

/// What a rule says to a request. Nothing is taken or opened by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// It may pass.
    Passes,
    /// Its bucket has not enough: they will be there after so long; `None`: never.
    Limited(Option<Duration>),
    /// It is opened, for so long from now on; `None`: until a person closes it.
    Opened(Option<Duration>),
    /// `ForceOpened`.
    Forced,
}

/// What became of a request that met the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// All rules let it pass.
    Passed,
    /// It was refused, and this rule is one of those that did.
    Refused,
    /// Other rules refused it.
    Aside,
}

impl RuleState {
    /// Of a limit that each caller has for itself. `closed_at`: when a person closed it last, which was before.
    pub(crate) fn own(limit: &Limit, closed_at: Option<i64>, now: Tick) -> Self {
        Self::with(Bucket::full(&limit.rate, MILLIONTHS, now), closed_at)
    }

    /// Of a limit that routers share, of which this one has so much, in millionths, with nothing in it.
    pub(crate) fn shared(closed_at: Option<i64>, share: u32, now: Tick) -> Self {
        Self::with(Bucket::empty(share, now), closed_at)
    }

    fn with(bucket: Bucket, closed_at: Option<i64>) -> Self {
        Self {
            bucket,
            opened: None,
            changed: None,
            closed_by_hand: closed_at.unwrap_or(i64::MIN),
            spell: None,
            refused: None,
            asked: 0,
            began_with: 0,
            shrunk_at: None,
        }
    }

    /// It begins with rules of this generation: what was taken of a rule of its name before was not taken of it.
    pub(crate) fn began_with(mut self, generation: u64) -> Self {
        self.began_with = generation;
        self
    }

    /// What it says to a request of this cost. What time has brought is carried out: tokens, and the end of a window.
    pub(crate) fn look(&mut self, limit: &Limit, cost: u32, now: Tick) -> Look {
        match limit.trigger {
            TriggerPolicy::ForceOpened => return Look::Forced,
            TriggerPolicy::ForceClosed => return Look::Passes,
            TriggerPolicy::Normal | TriggerPolicy::LimiterOnly => {}
        }
        self.pass_time(limit, now);
        if let Some(opened) = self.opened {
            return Look::Opened(opened.until.map(|until| Duration::from_nanos(until.since(now))));
        }
        if self.bucket.has(&limit.rate, cost) {
            Look::Passes
        } else {
            let wait = self.bucket.wait(&limit.rate, cost);
            // A share that is too small for it grows when the hub has heard of the demand.
            let share_comes = limit.shared && limit.rate.limit > 0;
            Look::Limited(wait.or(share_comes.then_some(SHARE_SOON)))
        }
    }

    /// Tells what became of a request that was looked at just now; true if the rule opened by it.
    pub(crate) fn settle(&mut self, limit: &Limit, cost: u32, settled: Settled, now: Tick) -> bool {
        if limit.shared {
            self.asked = self.asked.saturating_add(cost.into());
        }
        match settled {
            Settled::Passed if limit.counts() => self.bucket.take(&limit.rate, cost),
            Settled::Passed | Settled::Aside => {}
            Settled::Refused => {
                self.refused.get_or_insert_default().count(now);
                return limit.counts() && self.opened.is_none() && self.overflows(limit, cost, now);
            }
        }
        false
    }

    /// How many requests it lets pass from now on whatever time brings, if each costs the usual, up to `most`. What time has
    /// brought is carried out.
    pub(crate) fn affords(&mut self, limit: &Limit, most: u32, now: Tick) -> u32 {
        self.pass_time(limit, now);
        if self.opened.is_some() || !limit.counts() {
            return 0;
        }
        self.bucket.affords(&limit.rate, most)
    }

    /// Requests of the usual cost have passed at these moments, as many as it affords.
    pub(crate) fn passed(&mut self, limit: &Limit, takes: &Takes) {
        self.bucket.take_each(&limit.rate, takes);
    }

    /// A request that had passed goes no further. What has opened meanwhile stays so; a state that began later gets nothing. Nor
    /// does a share that has shrunk: the tokens may be another router's.
    pub(crate) fn give_back(&mut self, limit: &Limit, cost: u32, passed: Passed, now: Tick) {
        let has_shrunk = self.shrunk_at.is_some_and(|at| at >= passed.at);
        if limit.counts() && self.began_with <= passed.generation && !has_shrunk {
            self.bucket.give(&limit.rate, cost, passed.at, now);
        }
    }

    /// What time alone has brought: tokens, and the end of a window; true if it closed.
    pub(crate) fn pass_time(&mut self, limit: &Limit, now: Tick) -> bool {
        self.bucket.advance(&limit.rate, now);
        let over = self
            .opened
            .and_then(|opened| opened.until)
            .filter(|until| now >= *until);
        let Some(until) = over else { return false };
        self.opened = None;
        self.changed = Some((PolicyReason::SleepingWindowOver, until));
        true
    }

    /// A person closed it at that time, in milliseconds of Unix time. One that is not later than the last is no news; true if
    /// it closed. Tokens do not come by it.
    pub(crate) fn close_by_hand(&mut self, at_unix_milliseconds: i64, now: Tick) -> bool {
        if at_unix_milliseconds <= self.closed_by_hand {
            return false;
        }
        self.closed_by_hand = at_unix_milliseconds;
        self.spell = None;
        let was_opened = self.opened.take().is_some();
        if was_opened {
            self.changed = Some((PolicyReason::ClosedByHand, now));
        }
        was_opened
    }

    /// This router's share of it, in millionths, from now on.
    pub(crate) fn reshare(&mut self, limit: &Limit, share: u32, now: Tick) {
        if share < self.bucket.share() {
            self.shrunk_at = Some(now);
        }
        self.bucket.reshare(&limit.rate, share, now);
    }

    /// So much of this router's share, in millionths, comes with all its tokens, as nobody can have spent them.
    pub(crate) fn fill(&mut self, limit: &Limit, part: u32) {
        self.bucket.fill(&limit.rate, part);
    }

    /// Tokens that were asked for, in all; counted for limits that routers share.
    pub(crate) fn asked(&self) -> u64 {
        self.asked
    }

    /// How it stands, for who looks; what time has brought is in it.
    pub(crate) fn stands(&mut self, limit: &Limit, now: Tick) -> Stands {
        self.pass_time(limit, now);
        let forced = match limit.trigger {
            TriggerPolicy::ForceOpened => Some(PolicyReason::ForceOpened),
            TriggerPolicy::ForceClosed => Some(PolicyReason::ForceClosed),
            TriggerPolicy::Normal | TriggerPolicy::LimiterOnly => None,
        };
        let refused = self.refused.as_deref();
        Stands {
            opened: self.opened.is_some() || forced == Some(PolicyReason::ForceOpened),
            reason: forced.or(self.changed.map(|(reason, _)| reason)),
            since: self.changed.map(|(_, since)| since),
            last_minute: refused.map_or(0, |refused| refused.last_minute(now)),
            total: refused.map_or(0, Recent::total),
            tokens: limit.counts().then(|| self.bucket.tokens(&limit.rate)),
            untouched: self.changed.is_none()
                && self.refused.is_none()
                && (!limit.counts() || self.bucket.is_full(&limit.rate)),
        }
    }

    /// The bucket refused: whether the rule opens by it.
    fn overflows(&mut self, limit: &Limit, cost: u32, now: Tick) -> bool {
        let pause = nanoseconds(SPELL_PAUSE);
        let since = match self.spell {
            Some((since, last)) if now.since(last) <= pause => since,
            _ => now,
        };
        self.spell = Some((since, now));
        // A share that can never hold so much says nothing of what all routers have.
        let own_alone =
            limit.shared && (!self.bucket.holds(&limit.rate, cost) || now.since(since) < nanoseconds(SHARES_SETTLE));
        if limit.trigger != TriggerPolicy::Normal || own_alone {
            return false;
        }
        self.opened = Some(Opened {
            until: limit.recovers_after.map(|window| now.after(nanoseconds(window))),
        });
        self.changed = Some((PolicyReason::LimitExceeded, now));
        true
    }
}

/// How a rule stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stands {
    /// Whether it refuses all.
    pub(crate) opened: bool,
    /// Why it is opened or closed; `None`: it was never opened.
    pub(crate) reason: Option<PolicyReason>,
    /// Since when; `None`: it has been so for all the time that this router knows it.
    pub(crate) since: Option<Tick>,
    /// Requests that it refused within the last minute.
    pub(crate) last_minute: u64,
    /// Requests that it refused.
    pub(crate) total: u64,
    /// Whole tokens that are left; `None`: it has no bucket.
    pub(crate) tokens: Option<u64>,
    /// As if no request had met it yet.
    pub(crate) untouched: bool,
}

fn nanoseconds(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(u64::MAX)
}
