//! A deletion that goes to several members: of a collection, or of one object that each of them may have.

use super::{After, Call, Identified, Served};
use crate::decision::plan::Candidate;
use crate::resource::upstream::Body;
use crate::stage::admit::Admitted;
use crate::value::classify::Verb;
use crate::value::fault::Fault;

impl Call<'_> {
    /// To each of some members, for one collection, or for one object that all have.
    pub(super) async fn delete_each(
        &self,
        parts: &[Candidate],
        request: &Identified,
        admitted: Admitted,
        body: Body,
    ) -> Result<Served, Fault> {
        let pending = self.pending(request);
        let answer = match parts.first() {
            // One object, which each of them may have.
            Some(primary) if request.asked.verb == Verb::Delete => {
                let headers = &request.head.headers;
                let after = After::of(&request.caller, &request.asked, headers, &primary.forward);
                let deleted = Box::pin(self.edge.delete_everywhere(parts, pending, body)).await?;
                after.answered(&self.edge.parts, deleted).await?
            }
            _ => self.edge.fanouts.delete_each(parts, pending, body).await?,
        };
        Ok(Served {
            deadline: Some(request.deadline),
            ..Served::of(answer, admitted)
        })
    }
}
