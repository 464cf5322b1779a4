//! Callers that may hold a lock which is not their present shard's: whose writes are closed for that, and which new locks
//! (`docs/semantics.md#leader-election`). Pure.
//!
//! Whoever leads by another lock may be a second leader in its new shard. What each caller renewed so lately that it may count is
//! told by routers; where one of them cannot be asked, nobody knows what a caller that changes its shard had renewed by it, and then
//! the longest time counts. Callers: `callers` for views, `decide` for locks that nobody has held yet.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use portolan_crds::ledger::Vacancy;
use portolan_crds::sharding::LeaderElection;
use portolan_crds::{Election, HeldLock, ShardName, ShardingConfigSpec, lease_name};
use portolan_wire::v1;

use super::callers::{is_caller, runs_in};
use super::{Accepted, World};
use crate::facts::Facts;

/// Home cluster and uid of a caller's Pod.
pub(crate) type CallerKey = (String, String);

/// One lock that a caller may hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hold {
    pub(crate) lock: HeldLock,
    /// UID of the shard whose caller it was when it renewed.
    pub(crate) shard_uid: String,
    /// For how long it counts after a renewal at most.
    pub(crate) lasts_seconds: u32,
}

/// What this hub has seen of one caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Past {
    /// UID of the shard that it was of last.
    pub(crate) shard_uid: String,
    /// When it came there from another shard.
    pub(crate) changed: Option<Instant>,
    /// Until when routers were told last that its writes are closed.
    pub(crate) closed_until: Option<i64>,
}

/// What callers may hold, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holders {
    /// By this time.
    pub(crate) at: Instant,
    pub(crate) held: BTreeMap<CallerKey, Vec<Hold>>,
    /// Callers may have renewed more by routers that cannot be asked.
    pub(crate) unknown: bool,
    /// An earlier hub may have closed what this one knows nothing of.
    pub(crate) young: bool,
    pub(crate) past: BTreeMap<CallerKey, Past>,
}

impl Default for Holders {
    /// Nobody holds anything.
    fn default() -> Self {
        Self {
            at: Instant::now(),
            held: BTreeMap::new(),
            unknown: false,
            young: false,
            past: BTreeMap::new(),
        }
    }
}

impl Holders {
    /// Since when the caller is in the shard of this uid, if it came from another one.
    fn changed(&self, caller: &CallerKey, shard_uid: &str) -> Option<Instant> {
        let past = self.past.get(caller)?;
        if past.shard_uid == shard_uid {
            past.changed
        } else {
            Some(self.at)
        }
    }

    /// For how long nobody knows yet what a caller that came to this shard may hold.
    fn unknown_for(&self, caller: &CallerKey, shard_uid: &str, longest: Duration) -> Option<Duration> {
        let changed = self.changed(caller, shard_uid).filter(|_| self.unknown)?;
        let left = longest.saturating_sub(self.at.saturating_duration_since(changed));
        (!left.is_zero()).then_some(left)
    }

    /// Whether, and until when, the writes of a caller of this shard are closed.
    pub(super) fn closed(
        &self,
        caller: &CallerKey,
        (name, accepted): (&ShardName, &Accepted),
        (longest, now): (Duration, Timestamp),
    ) -> Option<v1::WritesClosed> {
        if !elects(&accepted.spec) {
            return None;
        }
        let election = ElectionOf::of(name, &accepted.spec, &caller.0);
        let holds = self.held.get(caller).into_iter().flatten();
        let elsewhere = holds.filter(|hold| hold.shard_uid != accepted.uid && !election.has(&hold.lock));
        let known = elsewhere.max_by_key(|hold| hold.lasts_seconds);
        let (left, reason) = match (known, self.unknown_for(caller, &accepted.uid, longest)) {
            (Some(hold), _) => (Duration::from_secs(hold.lasts_seconds.into()), reason(&hold.lock)),
            (None, Some(left)) => (left, "some router cannot say what it renewed there".to_owned()),
            (None, None) => return None,
        };
        let left = i64::try_from(left.min(longest).as_secs()).unwrap_or(i64::MAX);
        let until = now.as_second().saturating_add(left);
        let past = self.past.get(caller).filter(|past| past.shard_uid == accepted.uid);
        let told = past
            .and_then(|past| past.closed_until)
            .filter(|told| *told > now.as_second());
        Some(v1::WritesClosed {
            // What was told stays so, unless it ends earlier than was known then.
            until_unix_seconds: told.map_or(until, |told| told.min(until)),
            reason,
        })
    }

    /// Moves on what is known of locks that nobody has held yet where they are.
    pub(super) fn look_at_vacant(
        &self,
        accepted: &mut BTreeMap<ShardName, Accepted>,
        facts: &Facts,
        longest: Duration,
    ) {
        if accepted.values().all(|accepted| accepted.lock.vacancy.is_none()) {
            return;
        }
        let mut interesting: Vec<_> = self.held.keys().collect();
        if self.unknown {
            interesting.extend(self.past.keys().filter(|caller| !self.held.contains_key(*caller)));
        }
        let mut by_namespace = BTreeMap::<&str, Vec<_>>::new();
        for caller in interesting {
            let callers = facts.agents.get(&caller.0).and_then(|agent| agent.callers.as_ref());
            if let Some(fact) = callers.and_then(|callers| callers.get(&caller.1)) {
                by_namespace.entry(&fact.namespace).or_default().push((caller, fact));
            }
        }
        for (name, accepted) in accepted {
            let Some(vacancy) = accepted.lock.vacancy else { continue };
            let near = by_namespace.get(name.namespace()).map_or(&[][..], Vec::as_slice);
            accepted.lock.vacancy = self.vacancy((name, accepted), near, (vacancy, longest));
        }
    }

    /// `near`: callers in the shard's namespace of which anything is known.
    fn vacancy(
        &self,
        (name, accepted): (&ShardName, &Accepted),
        near: &[(&CallerKey, &v1::CallerFact)],
        (before, longest): (Vacancy, Duration),
    ) -> Option<Vacancy> {
        if !elects(&accepted.spec) || accepted.spec.leader_election_name().is_none() {
            return None;
        }
        let mut is_awaited = before == Vacancy::Closed && self.young;
        for (caller, fact) in near {
            let election = ElectionOf::of(name, &accepted.spec, &caller.0);
            let mut holds = self.held.get(*caller).into_iter().flatten();
            if holds.any(|hold| hold.lock.of_election && election.has(&hold.lock)) {
                return None;
            }
            if !runs_in(accepted, &caller.0) || !is_caller(name, accepted, fact) {
                continue;
            }
            let mut holds = self.held.get(*caller).into_iter().flatten();
            is_awaited |= holds.any(|hold| !election.has(&hold.lock))
                || self.unknown_for(caller, &accepted.uid, longest).is_some();
        }
        Some(if is_awaited { Vacancy::Closed } else { Vacancy::Open })
    }
}

/// A lock as an author names it in its spec, for whom it is closed.
fn reason(lock: &HeldLock) -> String {
    format!(
        "it renewed {}/{} in member cluster {}",
        lock.resource, lock.name, lock.cluster
    )
}

/// Whether callers of such a shard may have a leader.
fn elects(spec: &ShardingConfigSpec) -> bool {
    let controller = spec.controller.as_ref();
    spec.root.is_none() && controller.is_none_or(|controller| controller.leader_election != LeaderElection::Disabled)
}

/// An [`Election`], with its words.
struct ElectionOf<'a> {
    home: &'a str,
    primary: &'a str,
    lock: Option<String>,
}

impl<'a> ElectionOf<'a> {
    fn of(name: &ShardName, spec: &'a ShardingConfigSpec, home: &'a str) -> Self {
        Self {
            home,
            primary: spec.primary_cluster().unwrap_or(home),
            lock: spec.leader_election_name().and_then(|lock| lease_name(lock, name).ok()),
        }
    }

    fn has(&self, lock: &HeldLock) -> bool {
        lock.is_of(&Election {
            home: self.home,
            primary: self.primary,
            lock: self.lock.as_deref(),
        })
    }
}

/// What a world says of its callers, for the next: of each the UID of its shard, and until when its writes are closed.
pub(crate) fn callers_of(world: &World) -> impl Iterator<Item = (CallerKey, (&str, Option<i64>))> {
    let views = world.views.values().flatten().filter_map(|name| world.view_of(name));
    views.filter_map(|view| {
        let [shard] = view.shards.as_slice() else { return None };
        let accepted = world.state.accepted.get(&shard.parse::<ShardName>().ok()?)?;
        let closed = view.writes_closed.as_ref().map(|closed| closed.until_unix_seconds);
        let caller = (view.home_cluster.clone(), view.pod_uid.clone());
        Some((caller, (accepted.uid.as_str(), closed)))
    })
}
