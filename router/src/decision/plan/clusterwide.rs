//! What has no namespace, but for its collections: one object, a create, a deletion of all
//! (`docs/semantics.md#planning`).
//!
//! A member that has the object is asked; the primary if none has. One object is never written in two members. Caller:
//! `merged`; collections are `collection`'s.

use super::Candidate;
use super::choose::{By, Choose, Decides, Holder};
use super::merged::{Merged, Outcome};
use super::{Forward, Plan, Refusal, Rewrite, Rule, single};
use crate::value::classify::{ResourceRequest, Verb};
use crate::value::fault::Fault;
use crate::value::kinds::Scope;

/// Kinds that other objects are joined to by name alone.
const JOINED_BY_NAME: [(&str, &str); 4] = [
    ("", "nodes"),
    ("", "persistentvolumes"),
    ("storage.k8s.io", "csinodes"),
    ("storage.k8s.io", "volumeattachments"),
];

impl Merged<'_> {
    /// No namespace in the path, and neither list nor watch.
    pub(super) fn without_namespace(&self, resource: &ResourceRequest) -> Outcome {
        match self.verb() {
            Verb::Create if !resource.named_by_path && resource.is("", "namespaces") => self.new_namespace(resource),
            Verb::DeleteCollection => self.delete_all(resource),
            _ if resource.named_by_path => self.wherever_it_is(resource),
            Verb::Create if resource.subresource.is_none() && !self.is_replicated(resource) => {
                self.new_object(resource)
            }
            _ => {
                let mut forward = self.limited(&self.shard.primary_cluster, resource, None)?;
                let makes = self.verb() == Verb::Create && resource.subresource.is_none();
                forward
                    .needs
                    .extend(self.copies(resource).filter(|_| makes && self.is_replicated(resource)));
                forward.replicas = self.replicas(resource, &self.shard.primary_cluster);
                Ok((Rule::ClusterScoped, forward.into()))
            }
        }
    }

    fn wherever_it_is(&self, resource: &ResourceRequest) -> Outcome {
        let is_alike = self.is_replicated(resource);
        let replicated = is_alike && resource.subresource.is_none();
        if replicated && self.verb() == Verb::Delete {
            let mut parts = self.delete_everywhere(resource)?;
            let plan = match parts.len() {
                1 => parts.swap_remove(0).forward.into(),
                _ => Plan::DeleteEach(parts),
            };
            return Ok((Rule::ClusterScoped, plan));
        }
        let makes = matches!(self.verb(), Verb::Update | Verb::Patch) && resource.subresource.is_none();
        let holder = Holder {
            path: resource.object_path(),
            object: single::describe(resource),
            writes: !self.route.request.is_read(),
            one_of: JOINED_BY_NAME.iter().any(|(group, kind)| resource.is(group, kind)),
            replicated,
            decides: if is_alike { Decides::Object } else { Decides::Place },
            unasked: None,
            placing: (!is_alike && makes).then(|| Box::new(self.placing(resource))),
        };
        if is_alike && holder.writes {
            return Ok((Rule::ClusterScoped, self.write_replicated(resource, holder)?));
        }
        // What no other has would be made, or said not to be, where it does not belong.
        if !self.route.request.is_read() {
            self.route
                .whatever_state(&self.shard.primary_cluster, Rewrite::default())?;
        }
        let holders: Vec<&str> = self.holders().collect();
        let plan = self.choose(&holders, resource, By::Holder(holder))?;
        Ok((Rule::ClusterScoped, plan))
    }

    /// One candidate needs no choice, unless the body must be read all the same.
    pub(super) fn choose(&self, clusters: &[&str], resource: &ResourceRequest, by: By) -> Result<Plan, Refusal> {
        if clusters.is_empty() {
            return Err(self.without_members());
        }
        if let ([cluster], By::Holder(_)) = (clusters, &by) {
            return Ok(self.limited(cluster, resource, None)?.into());
        }
        let candidates = self.candidates(clusters, resource)?;
        Ok(Plan::Choose(Box::new(Choose { candidates, by })))
    }

    fn candidates(&self, clusters: &[&str], resource: &ResourceRequest) -> Result<Vec<Candidate>, Refusal> {
        let candidates = clusters.iter().map(|cluster| self.limit_candidate(cluster, resource));
        candidates.collect()
    }

    /// A member that has the object, or may, with what the limits demand.
    pub(super) fn limit_candidate(&self, cluster: &str, resource: &ResourceRequest) -> Result<Candidate, Refusal> {
        let forward = self.route.whatever_state(cluster, Rewrite::default())?;
        let held = self.route.cordon_of(&forward);
        let forward: Forward = self.limit(forward, resource, None)?;
        Ok(Candidate { forward, held })
    }

    /// No API server deletes over all namespaces, and of what has none each member deletes its own.
    fn delete_all(&self, resource: &ResourceRequest) -> Outcome {
        if self.scope_of(resource) != Some(Scope::Cluster) {
            return Err(Refusal {
                rule: Rule::SeveralMembers,
                fault: Fault::MethodNotAllowed(format!(
                    "the server does not allow this method on the requested resource: deletecollection of {} needs a \
                     namespace in the path",
                    resource.kind()
                )),
            });
        }
        // Without the primary nothing of cluster scope is written.
        self.route
            .whatever_state(&self.shard.primary_cluster, Rewrite::default())?;
        let clusters: Vec<&str> = self.holders().collect();
        let plan: Plan = match clusters.as_slice() {
            [] => return Err(self.without_members()),
            [cluster] => self.limited(cluster, resource, None)?.into(),
            _ => Plan::DeleteEach(self.candidates(&clusters, resource)?),
        };
        Ok((Rule::ClusterScoped, plan))
    }
}
