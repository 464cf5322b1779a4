//! Leader locks in the callers' own namespace, of a shard that elects a leader (`docs/semantics.md#leader-election`).
//!
//! Leases are the primary's, so that callers in several clusters cannot each hold one; the election's own is renamed. A Lease
//! of another name that is alive where it was kept before stays there until it expires: `preflight` asks. Where a ConfigMap
//! or Endpoints carries the lock, the one of that name is the primary's and renamed too; all others are none of this.
//! Caller: `merged`.

use std::collections::BTreeMap;

use portolan_crds::selector::Selector;

use super::choose::{By, Candidate, Choose, OtherLease};
use super::merged::{Merged, Outcome};
use super::{Forward, Plan, Refusal, Rewrite, Rule, scope, single};
use crate::value::classify::{ResourceRequest, Verb};
use crate::value::fault::Fault;
use crate::value::snapshot::{GrantState, LeaseName};

impl Merged<'_> {
    /// The names of the election's lock, where the request is about Leases in the callers' namespace.
    pub(super) fn electing(&self, resource: &ResourceRequest, namespace: &str) -> Option<&LeaseName> {
        self.locking(resource, namespace).filter(|_| resource.is_leases())
    }

    /// The names of the lock, where the request is about a kind that carries it in the callers' namespace.
    fn locking(&self, resource: &ResourceRequest, namespace: &str) -> Option<&LeaseName> {
        let carries = resource.is_leases() || self.shard.lock_resource.is_some_and(|lock| resource.is("", lock));
        let own = carries && *namespace == *self.view.namespace;
        self.shard.lease.as_ref().filter(|_| own)
    }

    /// The plan, unless it is as any other's: of collections, and of ConfigMaps and Endpoints of other names.
    pub(super) fn lock(&self, resource: &ResourceRequest, namespace: &str) -> Option<Outcome> {
        let names = self.locking(resource, namespace)?;
        match &resource.name {
            Some(name) if *name == names.client && self.collects() => Some(self.watch_election(names)),
            Some(name) if *name == names.client => Some(self.elect(names)),
            None if self.verb() == Verb::DeleteCollection => self.delete_locks(names, resource, namespace),
            None if self.verb() == Verb::Create && resource.is_leases() => {
                Some(self.other_lease(names, resource, namespace))
            }
            None if self.verb() == Verb::Create => Some(self.create_lock(names, resource, namespace)),
            Some(_) if resource.is_leases() && resource.named_by_path && self.verb() != Verb::Watch => {
                Some(self.other_lease(names, resource, namespace))
            }
            _ => None,
        }
    }

    /// What a collection of `cluster` shows by another name: the lock, where it is among the namespace's objects of its kind.
    pub(super) fn shown(&self, resource: &ResourceRequest, namespace: &str, cluster: &str) -> Option<LeaseName> {
        let all = resource.name.is_none() && *cluster == *self.shard.primary_cluster;
        self.locking(resource, namespace).filter(|_| all).cloned()
    }

    fn elect(&self, names: &LeaseName) -> Outcome {
        Ok((Rule::LeaderElection, self.election(names)?.into()))
    }

    /// Several at once: by its name the lock alone. What takes all that has no labels would take the locks of other shards,
    /// for locks have none, and leave each of those with two leaders.
    fn delete_locks(&self, names: &LeaseName, resource: &ResourceRequest, namespace: &str) -> Option<Outcome> {
        let request = self.route.request;
        if let Some(name) = request.demanded_name() {
            return (name == names.client).then(|| self.elect(names));
        }
        let primary = &self.shard.primary_cluster;
        if !matches!(self.single(resource, namespace), Ok((_, forward)) if forward.target.cluster == *primary) {
            return None;
        }
        let wanted = request.query.first("labelSelector").unwrap_or_default();
        // One that cannot be read deletes nothing: it is refused where it is sent.
        // The agent's labels locks may have, as all objects of the namespace.
        let takes_locks = |wanted| scope::finer(self.shard, &wanted).matches(&BTreeMap::new());
        let takes_locks = Selector::parse(&wanted).is_ok_and(takes_locks);
        takes_locks.then(|| {
            let message = format!(
                "this would delete leader locks, of other shards too: select by labels that locks have not, or delete {} by \
                 its name",
                names.client
            );
            Err(Refusal::forbidden(Rule::LeaderElection, message))
        })
    }

    /// A ConfigMap or Endpoints: the body tells whether it is the lock. What stops any other must not stop the election, nor the
    /// other way round.
    fn create_lock(&self, names: &LeaseName, resource: &ResourceRequest, namespace: &str) -> Outcome {
        // The place of one that cannot be is held, with the plan of the other, by which nothing is sent.
        let held = |forward: &Forward, fault: &Fault| Candidate {
            forward: forward.clone(),
            held: Some(fault.to_string()),
        };
        let (rule, candidates) = match (self.single(resource, namespace), self.election(names)) {
            (Ok((rule, other)), Ok(election)) => (rule, vec![other.into(), election.into()]),
            (Ok((rule, other)), Err(Refusal { fault, .. })) => {
                let election = held(&other, &fault);
                (rule, vec![other.into(), election])
            }
            (Err(Refusal { rule, fault }), Ok(election)) => (rule, vec![held(&election, &fault), election.into()]),
            (Err(refusal), Err(_)) => return Err(refusal),
        };
        let by = By::Lease(OtherLease::told(names, resource, false));
        Ok((rule, Plan::Choose(Box::new(Choose { candidates, by }))))
    }

    /// The Lease under its other name in the primary.
    fn election(&self, names: &LeaseName) -> Result<Forward, Refusal> {
        self.route.to(&self.shard.primary_cluster, renamed(names))
    }

    /// A list or watch of it. A cordon does not stop it either.
    fn watch_election(&self, names: &LeaseName) -> Outcome {
        let mut leg = self.placed_leg(&self.shard.primary_cluster, None)?;
        leg.forward.rewrite = renamed(names);
        leg.held = self.route.cordon_of(&leg.forward);
        Ok((Rule::LeaderElection, self.fan_out(vec![leg], false)?.into()))
    }

    /// One Lease that is not the election's, as far as the path tells. What stops it must not stop the election.
    fn other_lease(&self, names: &LeaseName, resource: &ResourceRequest, namespace: &str) -> Outcome {
        let mut candidates = vec![self.lease_in(&self.shard.primary_cluster)?];
        let before = self.kept_before(resource, namespace)?;
        let moved = before.is_some();
        candidates.extend(before);
        if let Some(name) = resource.name.as_ref().filter(|_| self.renews()) {
            let text = format!(
                "Lease {name} is not the one by which shard {} elects its leader, which is {}: let the operator use that \
                 name, or set spec.controller.leaderElectionName",
                self.shard.config, names.client
            );
            for candidate in &mut candidates {
                candidate.forward.warning = Some(text.clone());
            }
        }
        if resource.name.is_none() {
            candidates.push(self.election(names)?.into());
        } else if !moved {
            let Some(Candidate { forward, held: None }) = candidates.pop() else {
                let primary = &self.shard.primary_cluster;
                return Err(self
                    .route
                    .cordoned(format!("member cluster {primary} is cordoned"), primary));
            };
            return Ok((Rule::OtherLease, forward.into()));
        }
        let by = By::Lease(OtherLease::told(names, resource, moved));
        Ok((Rule::OtherLease, Plan::Choose(Box::new(Choose { candidates, by }))))
    }

    fn renews(&self) -> bool {
        matches!(self.verb(), Verb::Update | Verb::Patch)
    }

    fn lease_in(&self, cluster: &str) -> Result<Candidate, Refusal> {
        let forward = self.route.whatever_state(cluster, Rewrite::default())?;
        let held = self.route.cordon_of(&forward);
        Ok(Candidate { forward, held })
    }

    /// Where Leases of the callers' namespace are without an election, if that is another member: its owner, or home.
    fn kept_before(&self, resource: &ResourceRequest, namespace: &str) -> Result<Option<Candidate>, Refusal> {
        let owner = self.shard.owner(namespace);
        let cluster = owner.map_or(&self.view.key.home_cluster, |(member, _)| &member.cluster);
        if *cluster == self.shard.primary_cluster {
            return Ok(None);
        }
        let mut before = match self.lease_in(cluster) {
            Ok(before) => before,
            // None of theirs can be there, or count.
            Err(Refusal {
                rule: Rule::NotAllowed | Rule::Withdrawn,
                ..
            }) => return Ok(None),
            Err(refusal) => return Err(refusal),
        };
        if let Some((_, grant)) = owner {
            before.forward = self.limit(before.forward, resource, Some(namespace))?;
            if grant.pair.state == GrantState::Releasing && !self.route.request.is_read() {
                let config = &self.shard.config;
                before.held = Some(format!("namespace {namespace} is leaving shard {config}"));
            }
        }
        Ok(Some(before))
    }
}

impl OtherLease {
    /// As the request tells.
    fn told(names: &LeaseName, resource: &ResourceRequest, moved: bool) -> Self {
        Self {
            names: names.clone(),
            collection: single::object_path(&ResourceRequest {
                name: None,
                ..resource.clone()
            }),
            name: resource.name.clone(),
            moved,
        }
    }
}

fn renamed(names: &LeaseName) -> Rewrite {
    Rewrite {
        lease: Some(names.clone()),
        ..Rewrite::default()
    }
}
