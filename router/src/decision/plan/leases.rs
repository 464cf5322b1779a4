//! Leases in the callers' own namespace, of a shard that elects a leader (`docs/semantics.md#leader-election`).
//!
//! They are the primary's, so that callers in several clusters cannot each hold one; the election's own is renamed. A Lease
//! of another name that is alive where it was kept before stays there until it expires: `preflight` asks. Caller: `merged`.

use super::choose::{By, Candidate, Choose, OtherLease};
use super::merged::{Merged, Outcome};
use super::{Forward, Plan, Refusal, Rewrite, Rule, single};
use crate::value::classify::{ResourceRequest, Verb};
use crate::value::snapshot::{GrantState, LeaseName};

impl Merged<'_> {
    /// The names of the election's Lease, where the request is about Leases in the callers' namespace.
    pub(super) fn electing(&self, resource: &ResourceRequest, namespace: &str) -> Option<&LeaseName> {
        let own = resource.is("coordination.k8s.io", "leases") && *namespace == *self.view.namespace;
        self.shard.lease.as_ref().filter(|_| own)
    }

    /// The plan, unless it is a collection of others.
    pub(super) fn lease(&self, names: &LeaseName, resource: &ResourceRequest, namespace: &str) -> Option<Outcome> {
        match &resource.name {
            Some(name) if *name == names.client && self.collects() => Some(self.watch_election(names)),
            Some(name) if *name == names.client => {
                let election = self.election(names);
                Some(election.map(|forward| (Rule::LeaderElection, forward.into())))
            }
            None if self.verb() == Verb::Create => Some(self.other_lease(names, resource, namespace)),
            Some(_) if resource.named_by_path && self.verb() != Verb::Watch => {
                Some(self.other_lease(names, resource, namespace))
            }
            _ => None,
        }
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
        let by = By::Lease(OtherLease {
            names: names.clone(),
            collection: single::object_path(&ResourceRequest {
                name: None,
                ..resource.clone()
            }),
            name: resource.name.clone(),
            moved,
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

fn renamed(names: &LeaseName) -> Rewrite {
    Rewrite {
        lease: Some(names.clone()),
        ..Rewrite::default()
    }
}
