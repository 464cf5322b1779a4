//! Asks the other members for an object of the name that is about to be made in the primary. The rules are `plan::twins`'.

use std::sync::Arc;

use futures::future::join_all;

use super::{MAX_METADATA_BYTES, Pending, Preflight};
use crate::decision::plan::choose::{Finding, Holder};
use crate::decision::plan::twins::leaving;
use crate::decision::plan::{Candidate, Other, Twins};
use crate::resource::upstream::{Body, gather};
use crate::value::classify::ResourceRequest;
use crate::value::fault::Fault;
use crate::value::object;

impl Preflight {
    /// 409 if another member has it, 503 while that is not known; or a text to warn of.
    pub(super) async fn twins(
        &self,
        twins: &Twins,
        pending: Pending<'_>,
        body: &mut Body,
    ) -> Result<Option<String>, Fault> {
        // Nobody may make us read the body before they may do all.
        for other in &twins.others {
            if let Other::Asked(candidate) = other {
                match self.access(pending.caller, &candidate.forward).await {
                    Err(Fault::Forbidden(_)) => {}
                    other => other?,
                }
            }
        }
        let bytes = pending.gather(body).await?;
        let name = object::name(pending.content_type(), &bytes)?;
        let resource = ResourceRequest {
            name: Some(name.clone()),
            ..twins.resource.clone()
        };
        // The API server makes a name of its own, or refuses this one.
        if resource.unfit_part().is_some() {
            return Ok(None);
        }
        let holder = Holder {
            path: resource.object_path(),
            object: format!("{} {name}", resource.kind()),
            writes: true,
            one_of: false,
            replicated: false,
            unasked: None,
        };
        if twins.replicated {
            return self.none_leaves(twins, &holder, &name, pending).await;
        }
        let look = async |other: &Other| match other {
            Other::Closed(cluster) => (cluster.clone(), Finding::Forbidden),
            Other::Asked(candidate) => {
                let cluster = candidate.forward.target.cluster.to_string();
                (cluster, self.look(&holder, candidate, pending).await.0)
            }
        };
        twins.judge(&name, &join_all(twins.others.iter().map(look)).await)
    }

    /// 409 while a copy of what is to be made anew is on its way out in another member.
    async fn none_leaves(
        &self,
        twins: &Twins,
        holder: &Holder,
        name: &str,
        pending: Pending<'_>,
    ) -> Result<Option<String>, Fault> {
        let asked = twins.others.iter().filter_map(|other| match other {
            Other::Asked(candidate) => Some(&**candidate),
            Other::Closed(_) => None,
        });
        match self.leaves(holder, asked, pending).await {
            Some(cluster) => Err(leaving(&twins.resource, name, &cluster)),
            None => Ok(None),
        }
    }

    /// The first member whose copy of an object is on its way out, as far as they say.
    pub(super) async fn leaves<'c>(
        &self,
        holder: &Holder,
        candidates: impl Iterator<Item = &'c Candidate>,
        pending: Pending<'_>,
    ) -> Option<Arc<str>> {
        let look = async |candidate: &'c Candidate| {
            let (_, body) = self.look(holder, candidate, pending).await;
            let bytes = gather(body, MAX_METADATA_BYTES).await.ok()?;
            let leaves = object::metadata(&bytes).ok()?.deletion_timestamp.is_some();
            leaves.then(|| candidate.forward.target.cluster.clone())
        };
        join_all(candidates.map(look)).await.into_iter().flatten().next()
    }
}
