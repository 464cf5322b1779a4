//! Looks for the owners that a body names, before a child is written beside another member's owner.
//!
//! Only owners without a namespace are looked for, as the same user, in the child's member first. Refused is what is found
//! in another member, or might be there; an owner that is nowhere is the API server's to refuse.

use super::{MAX_METADATA_BYTES, Pending, Preflight};
use crate::decision::plan::choose::{Candidate, Finding, Holder};
use crate::decision::plan::owners::{self, Owner};
use crate::decision::plan::{self, Forward, Plan};
use crate::resource::upstream::{Body, gather};
use crate::value::classify::{ApiRequest, Query, ResourceRequest, Verb};
use crate::value::fault::Fault;
use crate::value::kinds::Scope;
use crate::value::object;

impl Preflight {
    /// Refuses an object whose owner is in another member than itself: 403, or 503 while that is not known.
    pub(super) async fn owners(&self, child: &Forward, pending: Pending<'_>, body: &mut Body) -> Result<(), Fault> {
        let bytes = pending.gather(body).await?;
        for owner in owners::read(pending.content_type(), &bytes) {
            let Some(resource) = self.clusterwide(child, &owner, pending) else {
                continue;
            };
            self.owner(child, &owner, resource, pending).await?;
        }
        Ok(())
    }

    /// The plural name of an owner that has no namespace: as the child's member calls it, or any other that serves it.
    fn clusterwide<'a>(&self, child: &Forward, owner: &Owner, pending: Pending<'a>) -> Option<&'a str> {
        let (group, kind) = (owner.group.as_str(), owner.kind.as_str());
        let (kinds, members) = (&pending.routing.kinds, pending.routing.snapshot.targets.keys());
        let here = kinds.member(&child.target.cluster);
        let named = here.and_then(|served| served.resource_of(group, kind));
        if here.is_some() && named.is_none() {
            self.routing.miss();
        }
        let mut elsewhere = members
            .clone()
            .filter_map(|one| kinds.member(one)?.resource_of(group, kind));
        let resource = named.or_else(|| elsewhere.next())?;
        let scope = kinds.scope(members.map(|cluster| &**cluster), (group, resource));
        (scope == Some(Scope::Cluster)).then_some(resource)
    }

    async fn owner(&self, child: &Forward, owner: &Owner, resource: &str, pending: Pending<'_>) -> Result<(), Fault> {
        let holder = Holder {
            path: owner.path(resource),
            object: format!("owner {} {}", owner.kind, owner.name),
            writes: false,
        };
        let here = &child.target.cluster;
        let mut candidates = holders(owner, resource, &holder.path, pending);
        // The child's own member first: there it is, as a rule.
        candidates.sort_by_key(|one| one.forward.target.cluster != *here);
        for candidate in &candidates {
            let cluster = &candidate.forward.target.cluster;
            if self.uid(&holder, candidate, pending).await?.as_deref() != Some(&owner.uid) {
                continue;
            }
            if cluster == here {
                return Ok(());
            }
            return Err(Fault::Forbidden(format!(
                "{} is in member cluster {cluster}, and the object would be in {here}, whose garbage collector would delete it as an orphan: leave out this ownerReference",
                holder.object
            )));
        }
        Ok(())
    }

    /// The object's uid in this member; `None` if it is not there or may not be looked at.
    async fn uid(&self, holder: &Holder, candidate: &Candidate, pending: Pending<'_>) -> Result<Option<String>, Fault> {
        let body = match self.look(holder, candidate, pending).await {
            (Finding::Has, body) => body,
            (Finding::HasNot | Finding::Forbidden, _) => return Ok(None),
            (Finding::Unknown(fault), _) => return Err(fault),
        };
        let unknown = |why: String| holder.unknown(&candidate.forward, &why);
        let body = gather(body, MAX_METADATA_BYTES).await;
        let body = body.map_err(|error| unknown(error.to_string()))?;
        let metadata = object::metadata(&body).map_err(|error| unknown(error.to_string()))?;
        Ok(metadata.uid)
    }
}

/// Where the merged view would look for it.
fn holders(owner: &Owner, resource: &str, path: &str, pending: Pending<'_>) -> Vec<Candidate> {
    let asked = ApiRequest {
        path: path.to_owned(),
        query: Query::new(None),
        method: http::Method::GET,
        verb: Verb::Get,
        resource: Some(ResourceRequest {
            group: owner.group.clone(),
            version: owner.version.clone(),
            resource: resource.to_owned(),
            name: Some(owner.name.clone()),
            // Of the object `namespaces/<name>`.
            namespace: (resource == "namespaces" && owner.group.is_empty()).then(|| owner.name.clone()),
            named_by_path: true,
            ..ResourceRequest::default()
        }),
        upgrade: None,
        ..pending.asked.clone()
    };
    match plan::plan(
        pending.caller,
        &asked,
        &pending.routing.snapshot,
        &pending.routing.kinds,
    )
    .plan
    {
        Plan::Forward(forward) => vec![Candidate::from(*forward)],
        Plan::Choose(choose) => choose.candidates,
        _ => Vec::new(),
    }
}
