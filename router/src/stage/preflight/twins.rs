//! Asks the other members for an object of the name that is about to be made in the primary. The rules are `plan::twins`'.

use std::sync::Arc;

use futures::future::join_all;

use super::{MAX_METADATA_BYTES, Pending, Preflight};
use crate::decision::plan::choose::{Decides, Finding, Holder};
use crate::decision::plan::twins::{decided, leaving};
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
            decides: Decides::Place,
            unasked: None,
        };
        if twins.replicated {
            return self.may_make(twins, &holder, &name, pending).await;
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

    /// 409 while a copy of what is to be made anew is on its way out in another member, or says that another member decides about it.
    async fn may_make(
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
        let said = join_all(asked.map(|candidate| self.said(holder, candidate, pending))).await;
        if let Some(leaves) = said.iter().find(|said| said.leaves) {
            return Err(leaving(&twins.resource, name, &leaves.cluster));
        }
        let decides = said
            .iter()
            .find_map(|said| Some((&*said.cluster, said.decides.as_deref()?)));
        match decides.filter(|(_, decides)| **decides != *twins.makes) {
            Some(decides) => Err(decided(&twins.resource, name, decides)),
            None => Ok(None),
        }
    }

    /// What a member says of an object that all have alike, as far as the caller may know.
    pub(super) async fn said(&self, holder: &Holder, candidate: &Candidate, pending: Pending<'_>) -> Said {
        let cluster = candidate.forward.target.cluster.clone();
        let (finding, body) = self.look(holder, candidate, pending).await;
        let meta = match gather(body, MAX_METADATA_BYTES).await {
            Ok(bytes) => object::metadata(&bytes).unwrap_or_default(),
            Err(error) => {
                let fault = holder.unknown(&candidate.forward, &error.to_string());
                return Said::of(cluster, Finding::Unknown(fault));
            }
        };
        Said {
            decides: meta.decides().map(str::to_owned),
            leaves: meta.deletion_timestamp.is_some(),
            ..Said::of(cluster, finding)
        }
    }
}

/// What a member says of an object that all have alike.
pub(super) struct Said {
    pub(super) cluster: Arc<str>,
    pub(super) finding: Finding,
    /// Its annotation.
    pub(super) decides: Option<String>,
    /// It is on its way out there.
    pub(super) leaves: bool,
}

impl Said {
    fn of(cluster: Arc<str>, finding: Finding) -> Self {
        Self {
            cluster,
            finding,
            decides: None,
            leaves: false,
        }
    }
}
