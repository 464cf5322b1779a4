//! Which members a new object without a namespace may be made in, and those in which its owners may be
//! (`docs/semantics.md#new-objects-without-a-namespace`).
//!
//! What tells which one it is, and what comes of it, is `placing`'s; `preflight::new_object` asks. Namespaces and replicated kinds have
//! rules of their own. Pure. Caller: `clusterwide`.

use std::cell::Cell;
use std::sync::Arc;

use super::choose::{By, Choose};
use super::merged::{Merged, Outcome};
use super::placing::{NewObject, Placing};
use super::{Candidate, Plan, Refusal, Route, Rule, single};
use crate::value::classify::{ApiRequest, ResourceRequest};
use crate::value::fault::Fault;
use crate::value::kinds::Kinds;
use crate::value::snapshot::{Binding, Caller, Snapshot};

/// A member in which an owner may be, as it is asked there; or why it cannot be asked.
pub(crate) type Looker = (Arc<str>, Result<Candidate, Fault>);

impl Merged<'_> {
    /// A create. Where one member alone may be it, nothing is to be chosen.
    pub(super) fn new_object(&self, resource: &ResourceRequest) -> Outcome {
        let primary = &*self.shard.primary_cluster;
        let mut holders = self.holders().filter(|cluster| *cluster != primary).peekable();
        if holders.peek().is_none() || !self.can_be_got(resource) {
            return Ok((Rule::ClusterScoped, self.limited(primary, resource, None)?.into()));
        }
        let mut candidates = vec![self.limit_candidate(primary, resource)?];
        let mut closed = Vec::new();
        for cluster in holders.filter(|cluster| self.may_serve(cluster, resource)) {
            match self.limit_candidate(cluster, resource) {
                Ok(candidate) => candidates.push(candidate),
                Err(Refusal {
                    rule: Rule::NotAllowed, ..
                }) => closed.push(cluster.to_owned()),
                Err(refusal) => return Err(refusal),
            }
        }
        let by = By::NewObject(Box::new(NewObject {
            resource: resource.clone(),
            placing: self.placing(resource),
            // Also where the shard does not have definitions replicated each member may have its own.
            unique: !resource.is_definition(),
            closed,
        }));
        Ok((Rule::ClusterScoped, Plan::Choose(Box::new(Choose { candidates, by }))))
    }

    pub(super) fn placing(&self, resource: &ResourceRequest) -> Placing {
        Placing {
            object: single::describe(resource),
            annotation: self.shard.label_keys.cluster().to_owned(),
            shard: self.shard.config.to_string(),
            holders: self.holders().map(str::to_owned).collect(),
        }
    }

    /// Each member of the shard that may have an owner of this kind, but those in which the caller has nothing.
    fn lookers(&self, resource: &ResourceRequest) -> Result<Vec<Looker>, Refusal> {
        let mut lookers = Vec::new();
        for cluster in self.holders().filter(|cluster| self.may_serve(cluster, resource)) {
            match self.limit_candidate(cluster, resource) {
                Ok(candidate) => lookers.push((cluster.into(), Ok(candidate))),
                Err(Refusal {
                    rule: Rule::NotAllowed, ..
                }) => {}
                Err(Refusal {
                    rule: Rule::NoTarget,
                    fault,
                }) => lookers.push((cluster.into(), Err(fault))),
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(lookers)
    }
}

/// Where the caller may look for an owner without a namespace, which `asked` gets: in no member what is not the shard's.
pub(crate) fn lookers(
    caller: &Caller,
    asked: &ApiRequest,
    snapshot: &Snapshot,
    kinds: &Kinds,
) -> Result<Vec<Looker>, Fault> {
    let (unknown_kind, lacks_grant) = (Cell::new(false), Cell::new(false));
    let route = Route {
        caller,
        request: asked,
        snapshot,
        kinds,
        unknown_kind: &unknown_kind,
        lacks_grant: &lacks_grant,
    };
    let (Caller::Pod(view), Some(resource)) = (caller, &asked.resource) else {
        return Ok(Vec::new());
    };
    let Binding::One(shard) = &view.binding else {
        return Ok(Vec::new());
    };
    let merged = Merged {
        route: &route,
        view,
        shard,
    };
    merged.lookers(resource).map_err(|refusal| refusal.fault)
}
