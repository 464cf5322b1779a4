//! Locks that nobody has held yet where they are: closed while callers of their shards may lead by another one
//! (`docs/semantics.md#leader-election`). Pure. Caller: `decide`.

use std::collections::BTreeMap;
use std::time::Duration;

use portolan_crds::ShardName;
use portolan_crds::ledger::Vacancy;
use portolan_wire::v1;

use super::Accepted;
use super::callers::{is_caller, runs_in};
use super::held::{CallerKey, ElectionOf, Holders, elects};
use crate::facts::Facts;

impl Holders {
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
        if !self.untold.is_nobody() {
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
            if self
                .holds(caller, fact)
                .any(|hold| hold.lock.of_election && election.has(&hold.lock))
            {
                return None;
            }
            if !runs_in(accepted, &caller.0) || !is_caller(name, accepted, fact) {
                continue;
            }
            is_awaited |= self.holds(caller, fact).any(|hold| !election.has(&hold.lock))
                || self.unknown_for((caller, fact), &accepted.uid, longest).is_some();
        }
        Some(if is_awaited { Vacancy::Closed } else { Vacancy::Open })
    }
}
