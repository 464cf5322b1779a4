//! Whose requests a member fails: one caller's, or everybody's.
//!
//! A tenant can make its own requests fail: by an admission webhook that hangs, by what it asks for. Those failures open a
//! breaker for that caller alone. The breaker for all opens when what failed was the way to the member, or when at least half
//! of the shards that used it within the window saw it fail: two at least, unless there is only one. Pure. Called by `shared`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use portolan_crds::ShardName;

use super::Settings;
use super::core::{Admission, Core, Probe, State};
use crate::value::snapshot::{Binding, Caller, CallerId};

/// Breakers of single callers in one breaker. A caller beyond them has none: its failures count for nobody.
const MAX_CALLERS: usize = 1024;
/// Shards that are remembered; the others are taken together.
const MAX_SHARDS: usize = 4096;

/// Those who share a breaker.
#[derive(Debug, Default)]
pub(super) struct Askers {
    shards: HashMap<ShardName, Seen>,
    /// All who have no shard.
    others: Seen,
    callers: HashMap<CallerId, Core>,
}

/// What a shard saw of the member.
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
    /// All: so many shards see it.
    Shards,
    /// All, as nobody else used the member: it is known of one shard only.
    Sole,
}

/// Those whose failures count as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Group {
    Shard(ShardName),
    /// All who have no shard.
    Others,
}

impl Group {
    pub(super) fn of(caller: &Caller) -> Self {
        shard_of(caller).cloned().map_or(Self::Others, Self::Shard)
    }

    pub(super) fn has(&self, caller: &Caller) -> bool {
        match (self, shard_of(caller)) {
            (Self::Shard(shard), Some(its)) => shard == its,
            (Self::Others, None) => true,
            _ => false,
        }
    }
}

/// The shard of a caller; `None` for people, and for callers without one.
fn shard_of(caller: &Caller) -> Option<&ShardName> {
    match caller {
        Caller::Pod(view) => match &view.binding {
            Binding::One(shard) => Some(&shard.config),
            Binding::None | Binding::Unknown { .. } | Binding::Several(_) => None,
        },
        Caller::Person { .. } => None,
    }
}

impl Askers {
    /// Asks the caller's own breaker, if its requests failed before.
    pub(super) fn admit(&mut self, caller: &Caller, probe: Probe, now: Instant) -> Option<Admission> {
        self.seen(shard_of(caller)).used = Some(now);
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

    /// The caller uses the member, and sees nothing amiss.
    pub(super) fn used(&mut self, caller: &Caller, now: Instant) {
        self.seen(shard_of(caller)).used = Some(now);
    }

    /// A request of the caller's failed: how far that reaches.
    pub(super) fn failed(&mut self, caller: &Caller, now: Instant, window: Duration) -> Reach {
        let seen = self.seen(shard_of(caller));
        *seen = Seen {
            used: Some(now),
            failed: Some(now),
        };
        let recent = |at: Option<Instant>| at.is_some_and(|at| now.saturating_duration_since(at) < window);
        self.shards.retain(|_, seen| recent(seen.used));
        let all = self.shards.values().chain([&self.others]);
        let (mut used, mut failed) = (0, 0);
        for seen in all {
            used += usize::from(recent(seen.used));
            failed += usize::from(recent(seen.failed));
        }
        match (used, failed) {
            (1, _) => Reach::Sole,
            (_, 2..) if failed * 2 >= used => Reach::Shards,
            _ => Reach::Caller,
        }
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

    fn seen(&mut self, shard: Option<&ShardName>) -> &mut Seen {
        let Self { shards, others, .. } = self;
        let Some(shard) = shard else { return others };
        if !shards.contains_key(shard) && shards.len() < MAX_SHARDS {
            shards.insert(shard.clone(), Seen::default());
        }
        shards.get_mut(shard).unwrap_or(others)
    }
}
