//! Finds out that a namespace which no shard owns is in no member: the primary says whether the caller may know, the hub whether it is
//! anywhere, and members themselves where the hub cannot. What they say is weighed by `plan::unowned`.

use futures::future::join_all;

use super::{Pending, Preflight};
use crate::decision::plan::{Candidate, Presence, Unowned};
use crate::resource::whereabouts::Question;
use crate::value::fault::Fault;

impl Preflight {
    /// Ok: it is nowhere. `applies`: the request is a server-side apply.
    pub(crate) async fn nowhere(&self, unowned: &Unowned, applies: bool, pending: Pending<'_>) -> Result<(), Fault> {
        self.access.check(pending.caller, &unowned.rights).await?;
        let question = Question::new(&unowned.namespace, &unowned.clusters);
        let unknown = match self.routing.whereabouts.find(question.clone()).await {
            Ok(found) => {
                let (there, away) = (&*found.there, &*found.away);
                unowned.judge(Presence { there, away }, unowned.makes(applies))?;
                found.unknown
            }
            Err(_) => question.clusters,
        };
        if unknown.is_empty() {
            return Ok(());
        }
        let is_unknown = |one: &&Candidate| unknown.iter().any(|cluster| **cluster == *one.forward.target.cluster);
        let finding = async |candidate| self.look(&unowned.holder, candidate, pending).await.0;
        let findings = unowned.lookable.iter().filter(is_unknown).map(finding);
        unowned.is_absent(&unknown, join_all(findings).await)
    }
}
