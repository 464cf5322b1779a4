//! A collection of a namespace that no shard owns: it is run once it is known that the namespace is nowhere. And what is answered where
//! what must be known cannot be found out.

use tracing::Instrument as _;

use super::{Call, FanOut, Identified, span};
use crate::edge::bounds::not_yet;
use crate::value::fault::Fault;

impl Call<'_> {
    /// The plan, if the namespace that it is of is nowhere, or it is not of such a one.
    pub(super) async fn unless_somewhere(&self, plan: FanOut, request: &Identified) -> Result<FanOut, Fault> {
        let Some(unowned) = &plan.unowned else { return Ok(plan) };
        let asked = Box::pin(self.edge.preflight.nowhere(unowned, false, self.pending(request)));
        match asked.instrument(span::preflight("nowhere")).await {
            Ok(()) => Ok(plan.nowhere()),
            // It has left the shard: who had it is told so once.
            Err(_) if plan.left.is_some() => Ok(plan),
            Err(fault) => Err(not_yet(&request.asked, fault)),
        }
    }
}
