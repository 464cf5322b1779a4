//! Asks the other members for an object of the name that is about to be made in one. The rules are `plan::twins`'.

use std::sync::Arc;

use futures::future::join_all;

use super::{MAX_METADATA_BYTES, Pending, Preflight};
use crate::decision::plan::choose::{Decides, Finding, Holder};
use crate::decision::plan::placing::NewObject;
use crate::decision::plan::twins::{self, decided, leaving};
use crate::decision::plan::{Candidate, OtherCopies};
use crate::resource::upstream::{Body, gather};
use crate::value::classify::ResourceRequest;
use crate::value::fault::Fault;
use crate::value::object;

/// The object of a create, as others are asked for it; `None` if the API server makes a name of its own, or refuses this one.
fn named(resource: &ResourceRequest, name: &str) -> Option<Holder> {
    let resource = ResourceRequest {
        name: Some(name.to_owned()),
        ..resource.clone()
    };
    resource.unfit_part().is_none().then(|| Holder {
        path: resource.object_path(),
        object: format!("{} {name}", resource.kind()),
        writes: true,
        one_of: false,
        replicated: false,
        decides: Decides::Place,
        unasked: None,
        placing: None,
    })
}

impl Preflight {
    /// 409 if another candidate than the one of this index has an object of the name, 503 while that is not known; or a text to warn of.
    pub(super) async fn no_twin(
        &self,
        new: &NewObject,
        name: &str,
        (candidates, index): (&[Candidate], usize),
        pending: Pending<'_>,
    ) -> Result<Option<String>, Fault> {
        let Some(holder) = named(&new.resource, name).filter(|_| new.unique) else {
            return Ok(None);
        };
        let look = async |candidate: &Candidate| {
            let cluster = candidate.forward.target.cluster.to_string();
            (cluster, self.look(&holder, candidate, pending).await.0)
        };
        let others = candidates.iter().enumerate().filter(|(other, _)| *other != index);
        let mut found = join_all(others.map(|(_, candidate)| look(candidate))).await;
        found.extend(new.closed.iter().map(|cluster| (cluster.clone(), Finding::Forbidden)));
        twins::judge(&new.resource, name, &found)
    }

    /// 409 while a copy of what is to be made anew is on its way out in another member, or says that another member decides about it.
    pub(super) async fn copies(
        &self,
        copies: &OtherCopies,
        pending: Pending<'_>,
        body: &mut Body,
    ) -> Result<(), Fault> {
        // Nobody may make us read the body before they may do all.
        for other in &copies.others {
            match self.access(pending.caller, &other.forward).await {
                Err(Fault::Forbidden(_)) => {}
                other => other?,
            }
        }
        let bytes = pending.gather(body).await?;
        let name = object::name(pending.content_type(), &bytes)?;
        let Some(holder) = named(&copies.resource, &name) else {
            return Ok(());
        };
        let asked = copies.others.iter();
        let said = join_all(asked.map(|candidate| self.said(&holder, candidate, pending))).await;
        if let Some(leaves) = said.iter().find(|said| said.leaves) {
            return Err(leaving(&copies.resource, &name, &leaves.cluster));
        }
        let decides = said
            .iter()
            .find_map(|said| Some((&*said.cluster, said.decides.as_deref()?)));
        match decides.filter(|(_, decides)| **decides != *copies.makes) {
            Some(decides) => Err(decided(&copies.resource, &name, decides)),
            None => Ok(()),
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
