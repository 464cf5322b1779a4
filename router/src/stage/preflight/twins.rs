//! Asks the other members for an object of the name that is about to be made in the primary. The rules are `plan::twins`'.

use futures::future::join_all;

use super::{Pending, Preflight};
use crate::decision::plan::choose::{Finding, Holder};
use crate::decision::plan::{Other, Twins};
use crate::resource::upstream::Body;
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
        };
        let look = async |other: &Other| match other {
            Other::Closed(cluster) => (cluster.clone(), Finding::Forbidden),
            Other::Asked(candidate) => {
                let cluster = candidate.forward.target.cluster.to_string();
                (cluster, self.look(&holder, candidate, pending).await.0)
            }
        };
        twins.judge(&name, &join_all(twins.others.iter().map(look)).await)
    }
}
