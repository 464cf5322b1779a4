//! Discovery and OpenAPI of the merged view: what members have said they serve, united.

use tokio::time::Instant;

use super::{Admitted, Call, Fault, Identified, Served};
use crate::stage::discovery::Asked;
use crate::stage::reply;
use crate::value::document::Wanted;

impl Call<'_> {
    /// From what members have said they serve.
    pub(super) async fn discover(
        self,
        wanted: &Wanted,
        mut request: Identified,
        admitted: Admitted,
    ) -> Result<Served, Fault> {
        let edge = &self.edge.parts;
        self.edge.preflight.allowed(&request.caller, &wanted.checks).await?;
        let yaml = reply::takes_yaml(&mut request.head.headers);
        let deadline = request.started + edge.request_timeout;
        let asked = Asked {
            head: &request.head,
            hash: request.asked.query.first("hash"),
            // Some of it is for the answer.
            until: Instant::now() + (deadline - Instant::now()) * 4 / 5,
        };
        let answer = edge.discovery.answer(wanted, &asked, &request.routing.snapshot).await?;
        let answer = if yaml { reply::in_yaml(answer) } else { answer };
        Ok(Served {
            deadline: Some(deadline),
            ..Served::of(answer, admitted)
        })
    }
}
