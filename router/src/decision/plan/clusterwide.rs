//! What has no namespace, but for its collections: one object, a create, a deletion of all
//! (`docs/semantics.md#planning`).
//!
//! A member that has the object is asked; the primary if none has. Nothing is ever done in two members. Caller: `merged`;
//! collections are `collection`'s.

use super::choose::{By, Candidate, Choose, Holder};
use super::merged::{Merged, Outcome};
use super::{Forward, Plan, Refusal, Rewrite, Rule, single};
use crate::value::classify::{ResourceRequest, Verb};
use crate::value::fault::Fault;
use crate::value::kinds::Scope;

impl Merged<'_> {
    /// No namespace in the path, and neither list nor watch.
    pub(super) fn without_namespace(&self, resource: &ResourceRequest) -> Outcome {
        match self.verb() {
            Verb::Create if !resource.named_by_path && resource.is("", "namespaces") => self.new_namespace(resource),
            Verb::DeleteCollection => self.delete_all(resource),
            _ if resource.named_by_path => self.wherever_it_is(resource),
            _ => {
                let forward = self.limited(&self.shard.primary_cluster, resource, None)?;
                Ok((Rule::ClusterScoped, forward.into()))
            }
        }
    }

    fn wherever_it_is(&self, resource: &ResourceRequest) -> Outcome {
        let by = By::Holder(Holder {
            path: single::object_path(resource),
            object: single::describe(resource),
            writes: !self.route.request.is_read(),
        });
        let holders: Vec<&str> = self.holders().collect();
        Ok((Rule::ClusterScoped, self.choose(&holders, resource, by)?))
    }

    /// One candidate needs no choice, unless the body must be read all the same.
    pub(super) fn choose(&self, clusters: &[&str], resource: &ResourceRequest, by: By) -> Result<Plan, Refusal> {
        if let ([cluster], By::Holder(_)) = (clusters, &by) {
            return Ok(self.limited(cluster, resource, None)?.into());
        }
        let candidate = |cluster: &&str| -> Result<Candidate, Refusal> {
            let forward = self.route.whatever_state(cluster, Rewrite::default())?;
            let held = self.route.cordon_of(&forward);
            let forward: Forward = self.limit(forward, resource, None)?;
            Ok(Candidate { forward, held })
        };
        let candidates = clusters.iter().map(candidate).collect::<Result<Vec<_>, _>>()?;
        Ok(Plan::Choose(Box::new(Choose { candidates, by })))
    }

    fn delete_all(&self, resource: &ResourceRequest) -> Outcome {
        let clusters: Vec<&str> = self.holders().collect();
        let refuse = |message: String| {
            Err(Refusal {
                rule: Rule::SeveralMembers,
                fault: Fault::MethodNotAllowed(message),
            })
        };
        let config = &self.shard.config;
        if self.scope_of(resource) != Some(Scope::Cluster) {
            return refuse(format!(
                "deletecollection of {} needs a namespace in the path: over all of them it would go beyond shard {config}",
                resource.kind()
            ));
        }
        let [cluster] = clusters.as_slice() else {
            return refuse(format!(
                "deletecollection of {} spans several member clusters of shard {config} ({}), and half of it cannot be undone: use /clusters/<member>/ for each",
                resource.kind(),
                clusters.join(", ")
            ));
        };
        Ok((Rule::ClusterScoped, self.limited(cluster, resource, None)?.into()))
    }
}
