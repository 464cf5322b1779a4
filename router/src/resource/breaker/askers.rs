//! Whose requests a member fails: one caller's, or everybody's.
//!
//! A tenant can make its own requests fail: by an admission webhook that hangs, by what it asks for. Those failures open a
//! breaker for that caller alone. The breaker for all opens when what failed was the way to the member, or when at least half
//! of the tenants that used it within the window saw it fail: two at least, unless there is only one. Silence is failure for
//! reads only: who writes may have brought it about, in as many shards as it has. Pure. Called by `shared`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Settings;
use super::core::{Admission, Core, Probe};
use super::why::State;
use crate::value::hashed::HashMap;
use crate::value::snapshot::{Caller, CallerId};

/// Breakers of single callers in one breaker. A caller beyond them has none: its failures count for nobody.
const MAX_CALLERS: usize = 1024;
/// Tenants that are remembered; the others are taken together.
const MAX_TENANTS: usize = 4096;

/// Those who share a breaker.
#[derive(Debug, Default)]
pub(super) struct Askers {
    /// By their names, see [`Caller::tenant`]: those whose failures count as one.
    tenants: HashMap<Arc<str>, Seen>,
    /// All tenants beyond those.
    others: Seen,
    callers: HashMap<CallerId, Core>,
}

/// What a tenant saw of the member.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    used: Option<Instant>,
    failed: Option<Instant>,
}

/// How far a failure reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// The one caller.
    Caller,
    /// All: so many tenants see it.
    Tenants,
    /// All, as nobody else used the member: it is known of one tenant only.
    Sole,
}

impl Askers {
    /// Asks the caller's own breaker, if its requests failed before.
    pub(super) fn admit(&mut self, caller: &Caller, probe: Probe, now: Instant) -> Option<Admission> {
        if self.callers.is_empty() {
            return None;
        }
        let core = self.callers.get_mut(&CallerId::of(caller))?;
        Some(core.admit(now, probe).0)
    }

    /// How long the caller's own breaker would refuse it; see [`Core::refuses`].
    pub(super) fn refuses(&self, caller: &Caller, probe: Probe, now: Instant) -> Option<Duration> {
        if self.callers.is_empty() {
            return None;
        }
        self.callers.get(&CallerId::of(caller))?.refuses(now, probe)
    }

    /// The tenant uses the member, and sees nothing amiss.
    pub(super) fn used(&mut self, tenant: &Arc<str>, now: Instant) {
        self.seen(tenant).used = Some(now);
    }

    /// A request of the tenant's failed: how far that reaches.
    pub(super) fn failed(&mut self, tenant: &Arc<str>, now: Instant, window: Duration) -> Reach {
        let seen = self.seen(tenant);
        *seen = Seen {
            used: Some(now),
            failed: Some(now),
        };
        let recent = |at: Option<Instant>| at.is_some_and(|at| now.saturating_duration_since(at) < window);
        self.tenants.retain(|_, seen| recent(seen.used));
        let all = self.tenants.values().chain([&self.others]);
        let (mut used, mut failed) = (0, 0);
        for seen in all {
            used += usize::from(recent(seen.used));
            failed += usize::from(recent(seen.failed));
        }
        match (used, failed) {
            (1, _) => Reach::Sole,
            (_, 2..) if failed * 2 >= used => Reach::Tenants,
            _ => Reach::Caller,
        }
    }

    /// Whether no more than one tenant used the member within the window.
    pub(super) fn is_alone(&self, now: Instant, window: Duration) -> bool {
        let recent = |seen: &&Seen| seen.used.is_some_and(|at| now.saturating_duration_since(at) < window);
        let all = self.tenants.values().chain([&self.others]);
        all.filter(recent).nth(1).is_none()
    }

    /// The caller's own breaker, closed if there was none; `None` where there are too many.
    pub(super) fn own(&mut self, caller: &Caller, settings: Settings, now: Instant) -> Option<&mut Core> {
        let id = CallerId::of(caller);
        if self.callers.len() >= MAX_CALLERS && !self.callers.contains_key(&id) {
            self.callers.retain(|_, core| !core.is_quiet(now));
            if self.callers.len() >= MAX_CALLERS {
                return None;
            }
        }
        Some(self.callers.entry(id).or_insert_with(|| Core::new(settings)))
    }

    /// The caller's own breaker, if there is one.
    pub(super) fn known(&mut self, caller: &Caller) -> Option<&mut Core> {
        self.callers.get_mut(&CallerId::of(caller))
    }

    /// The breaker for all rules: whose own is open beside it would wait longer than all.
    pub(super) fn forgive(&mut self) {
        self.callers.clear();
    }

    pub(super) fn configure(&mut self, settings: Settings) {
        for core in self.callers.values_mut() {
            core.configure(settings);
        }
    }

    /// Callers whose own breaker is not closed, but for those that are gone.
    pub(super) fn refused(&self, now: Instant) -> Vec<(CallerId, State)> {
        let open = |(id, core): (&CallerId, &Core)| {
            let state = core.state();
            (state != State::Closed && !core.is_deserted(now)).then(|| (id.clone(), state))
        };
        self.callers.iter().filter_map(open).collect()
    }

    fn seen(&mut self, tenant: &Arc<str>) -> &mut Seen {
        let Self { tenants, others, .. } = self;
        if tenants.len() < MAX_TENANTS {
            return tenants.entry(tenant.clone()).or_default();
        }
        tenants.get_mut(tenant).unwrap_or(others)
    }
}
