//! Leader locks in the callers' own namespace, of a shard that elects a leader (`docs/semantics.md#leader-election`).
//!
//! Leases are the primary's, so that callers in several clusters cannot each hold one; the election's own is renamed. A Lease
//! of another name that is alive where it was kept before stays there until it expires: `preflight` asks. Where a ConfigMap
//! or Endpoints carries the lock, the one of that name is the primary's and renamed too; all others are none of this.
//! Caller: `merged`.

use std::collections::BTreeMap;

use portolan_crds::selector::Selector;

use super::Candidate;
use super::choose::{By, Choose, OtherLease};
use super::forward::unavailable;
use super::merged::{Merged, Outcome};
use super::{Forward, LockMove, Need, Plan, Refusal, Rewrite, Rule, scope};
use crate::value::classify::{ResourceRequest, Verb};
use crate::value::fault::Fault;
use crate::value::snapshot::{GrantState, LeaseName, Lock, LockState};
use crate::value::traffic::Traffic;

impl Merged<'_> {
    /// The names of the election's lock, where the request is about Leases in the callers' namespace.
    pub(super) fn electing(&self, resource: &ResourceRequest, namespace: &str) -> Option<&LeaseName> {
        self.locking(resource, namespace).filter(|_| resource.is_leases())
    }

    /// The names of the lock, where the request is about a kind that carries it in the callers' namespace.
    fn locking(&self, resource: &ResourceRequest, namespace: &str) -> Option<&LeaseName> {
        let mut kinds = self.lock_kinds().chain(self.closed_kind());
        let carries = resource.is_leases() || kinds.any(|lock| resource.is("", lock));
        let own = carries && *namespace == *self.view.namespace;
        let names = self.shard.lease.as_ref().filter(|_| own)?;
        // Who knew the lock by another name before goes on.
        let former = self
            .former()
            .filter(|former| resource.name.as_ref() == Some(&former.client));
        Some(former.unwrap_or(names))
    }

    /// Whether it is about the lock itself.
    pub(super) fn is_lock(&self, resource: &ResourceRequest, namespace: &str) -> bool {
        let names = self.locking(resource, namespace);
        names.is_some_and(|names| resource.name.as_ref() == Some(&names.client))
    }

    /// The kind that carries the lock beside Leases.
    fn lock_kinds(&self) -> impl Iterator<Item = &'static str> {
        self.shard.lock_resource.into_iter()
    }

    /// The kind that carried the lock before, until nobody can lead by it any more.
    fn closed_kind(&self) -> Option<&'static str> {
        match &self.shard.lock.as_ref()?.state {
            LockState::Closed(from) => from.as_ref()?.resource,
            LockState::Open | LockState::Bringing(_) => None,
        }
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

    /// A LeaseCandidate names a Lease that its API server then writes for the one it elects (KEP-4355): a Lease of the client's name in one
    /// member, which is none of the shard's election, so that each member elects its own leader and no caller reads of it.
    pub(super) fn no_candidate(&self, resource: &ResourceRequest, namespace: &str) -> Result<(), Refusal> {
        let candidates = resource.is("coordination.k8s.io", "leasecandidates") && *namespace == *self.view.namespace;
        let makes = matches!(self.verb(), Verb::Create | Verb::Update | Verb::Patch);
        let Some(names) = self.shard.lease.as_ref().filter(|_| candidates && makes) else {
            return Ok(());
        };
        let message = format!(
            "LeaseCandidates are not served in the merged view: shard {} elects its leader by the Lease {}, which lies in member \
             cluster {} under another name, and no API server elects for it; let candidates take that Lease themselves (no \
             coordinated leader election)",
            self.shard.config, names.client, self.shard.primary_cluster
        );
        Err(Refusal::forbidden(Rule::LeaderElection, message))
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
        let (rule, other, instead) = match (self.single(resource, namespace), self.election(names)) {
            (Ok((rule, other)), _) => (rule, other.clone().into(), other),
            (Err(Refusal { rule, fault }), Ok(election)) => (rule, held(&election, &fault), election),
            (Err(refusal), Err(_)) => return Err(refusal),
        };
        let lock = |names: &LeaseName| match self.election(names) {
            Ok(election) => election.into(),
            Err(Refusal { fault, .. }) => held(&instead, &fault),
        };
        let former = self.former();
        let locks = former.into_iter().chain([names]).map(lock);
        let candidates = [other].into_iter().chain(locks).collect();
        let former = former.map(|former| former.client.clone());
        let by = By::Lease(OtherLease {
            former,
            ..OtherLease::told(names, resource, false)
        });
        Ok((rule, Plan::Choose(Box::new(Choose { candidates, by }))))
    }

    /// The Lease under its other name in the primary.
    fn election(&self, names: &LeaseName) -> Result<Forward, Refusal> {
        let closed = |message| self.closed(message);
        let brought = self.brought(names).map_err(closed)?;
        let mut forward = self.route.to(&self.shard.primary_cluster, renamed(names))?;
        forward.needs.extend(brought);
        Ok(forward)
    }

    /// The lock by the name that callers knew it by before, if they did.
    fn former(&self) -> Option<&LeaseName> {
        self.shard.lock.as_ref()?.former.as_ref()
    }

    /// Adds the lock by the name that callers knew it by before, if they did; returns that.
    fn push_former(&self, candidates: &mut Vec<Candidate>) -> Result<Option<String>, Refusal> {
        let Some(former) = self.former() else {
            return Ok(None);
        };
        candidates.push(self.election(former)?.into());
        Ok(Some(former.client.clone()))
    }

    /// A list or watch of it. A cordon does not stop it either.
    fn watch_election(&self, names: &LeaseName) -> Outcome {
        let mut leg = self.placed_leg(&self.shard.primary_cluster, None)?;
        leg.forward.rewrite = renamed(names);
        leg.held = self.route.cordon_of(&leg.forward);
        match self.brought(names) {
            Ok(brought) => leg.forward.needs.extend(brought),
            Err(closed) => leg.held = Some(closed),
        }
        Ok((Rule::LeaderElection, self.fan_out(vec![leg], false)?.into()))
    }

    /// What must be done before the lock is used where it is; or why it must not be used now.
    fn brought(&self, names: &LeaseName) -> Result<Vec<Need>, String> {
        let Some(lock) = &self.shard.lock else {
            return Ok(Vec::new());
        };
        let from = match &lock.state {
            LockState::Open => return Ok(Vec::new()),
            LockState::Closed(_) => {
                let config = &self.shard.config;
                return Err(format!(
                    "the leader lock of shard {config} is on its way to another place"
                ));
            }
            LockState::Bringing(from) => from,
        };
        let there = LeaseName {
            client: names.client.clone(),
            member: from.member.clone(),
        };
        let asked = self.route.to(&from.cluster, renamed(&there));
        let asked = asked.map_err(|Refusal { fault, .. }| {
            format!("what is recorded of the leader lock cannot be brought from where it was: {fault}")
        })?;
        let mut needs = asked.needs;
        needs.retain(|need| matches!(need, Need::Access(_)));
        needs.push(Need::Lock(Box::new(LockMove {
            shard: self.shard.config.to_string(),
            mark: self.shard.lock_mark().unwrap_or_default(),
            from: (from.cluster.clone(), there),
            collections: self.lock_collections(),
        })));
        Ok(needs)
    }

    /// Where locks are in any member, by kind; first the kind of the request.
    fn lock_collections(&self) -> Vec<String> {
        let collection = |group: &str, resource: &str| {
            let collection = ResourceRequest {
                group: group.to_owned(),
                version: "v1".to_owned(),
                resource: resource.to_owned(),
                namespace: Some(self.view.namespace.to_string()),
                ..ResourceRequest::default()
            };
            collection.object_path()
        };
        let core = self.lock_kinds().map(|kind| collection("", kind));
        let mut all: Vec<_> = core.chain([collection("coordination.k8s.io", "leases")]).collect();
        if self
            .route
            .request
            .resource
            .as_ref()
            .is_some_and(ResourceRequest::is_leases)
        {
            all.reverse();
        }
        all
    }

    fn closed(&self, message: String) -> Refusal {
        let cluster = Some(&*self.shard.primary_cluster);
        Refusal {
            rule: Rule::LockClosed,
            fault: unavailable(Traffic::of(self.route.request), message, cluster),
        }
    }

    /// One Lease that is not the election's, as far as the path tells. What stops it must not stop the election.
    fn other_lease(&self, names: &LeaseName, resource: &ResourceRequest, namespace: &str) -> Outcome {
        // Who leads by it at the place that is left must not be joined by another.
        if let Some(Lock {
            state: LockState::Closed(_),
            ..
        }) = self.shard.lock
        {
            self.election(names)?;
        }
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
        let mut former = None;
        if resource.name.is_none() {
            former = self.push_former(&mut candidates)?;
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
        let by = By::Lease(OtherLease {
            former,
            ..OtherLease::told(names, resource, moved)
        });
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
            collection: ResourceRequest {
                name: None,
                ..resource.clone()
            }
            .object_path(),
            name: resource.name.clone(),
            moved,
            former: None,
        }
    }
}

fn renamed(names: &LeaseName) -> Rewrite {
    Rewrite {
        lease: Some(names.clone()),
        ..Rewrite::default()
    }
}
