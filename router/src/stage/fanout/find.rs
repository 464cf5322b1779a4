//! Finds out which member a [`Choose`] is for: who has the object, or what the body says. Decides nothing itself.
//!
//! Members are asked for the object's metadata as the same user, the first candidate alone and, if it has nothing, all
//! others at once. What they say is judged by `plan::choose`. Caller: `edge`, which goes on with the plan that comes out.

use std::sync::Arc;

use futures::future::join_all;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Method, Request, StatusCode};

use super::leg::Asking;
use crate::decision::plan::choose::{By, Candidate, Choose, Chosen, Finding, Holder};
use crate::decision::plan::{Forward, guard};
use crate::resource::access::Access;
use crate::resource::upstream::Body;
use crate::stage::dispatch::{Dispatcher, Leg};
use crate::value::classify::{ApiRequest, Query, Verb};
use crate::value::fault::Fault;
use crate::value::snapshot::Snapshot;
use crate::value::traffic::TrafficClass;

/// What finding out needs.
pub(crate) struct Finder<'a> {
    pub(crate) dispatcher: &'a Dispatcher,
    pub(crate) access: &'a Access,
    pub(crate) asking: &'a Asking,
    /// The one that it was planned with.
    pub(crate) snapshot: &'a Arc<Snapshot>,
}

impl Finder<'_> {
    /// The one plan. The body is gathered where it tells, and stays there to be sent.
    pub(crate) async fn choose(&self, choose: Choose, head: &Parts, body: &mut Body) -> Result<Box<Forward>, Fault> {
        let (index, warning) = match &choose.by {
            By::Holder(holder) => self.holder(holder, &choose.candidates).await?,
            By::NewNamespace(shard) => {
                let bytes = crate::stage::dispatch::gather_body(body, self.asking.deadline).await?;
                let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
                choose.place(shard, content_type, &bytes)?
            }
        };
        let mut candidates = choose.candidates;
        if index >= candidates.len() {
            return Err(Fault::Internal("a member was chosen that is no candidate".to_owned()));
        }
        let Candidate { mut forward, held } = candidates.swap_remove(index);
        if let Some(held) = held {
            return Err(forward.unavailable(held));
        }
        forward.warning = forward.warning.or(warning);
        Ok(Box::new(forward))
    }

    async fn holder(&self, holder: &Holder, candidates: &[Candidate]) -> Chosen {
        let Some((first, others)) = candidates.split_first() else {
            return Err(Fault::Internal("no member to look in".to_owned()));
        };
        // Of its unary requests, also when it is to become a stream: these questions end.
        let asking = self.asking;
        let _place = self.dispatcher.caller_place_by(&asking.caller, asking.deadline).await?;
        let mut findings = vec![self.look(holder, first).await];
        if findings != [Finding::Has] {
            findings.extend(join_all(others.iter().map(|candidate| self.look(holder, candidate))).await);
        }
        holder.choose(&findings)
    }

    /// Whether a member has the object, as far as the caller may know.
    async fn look(&self, holder: &Holder, candidate: &Candidate) -> Finding {
        let forward = &candidate.forward;
        if let Some(held) = &candidate.held {
            return Finding::Unknown(forward.unavailable(held.clone()));
        }
        // As the user that the caller wants to act as, so it must be allowed to, there.
        match self.access.check(&forward.checks).await {
            Ok(()) => {}
            Err(Fault::Forbidden(_)) => return Finding::Forbidden,
            Err(fault) => return Finding::Unknown(fault),
        }
        let (leg, head) = self.question(holder, forward);
        let answer = self.dispatcher.read(leg, head).await;
        match answer.map(|answer| answer.status()) {
            Ok(StatusCode::OK) => Finding::Has,
            Ok(StatusCode::NOT_FOUND) => Finding::HasNot,
            Ok(StatusCode::FORBIDDEN) => Finding::Forbidden,
            Ok(other) => Finding::Unknown(forward.unavailable(format!(
                "member cluster {} could not say whether it has {}: it answered {}",
                forward.target.cluster,
                holder.object,
                other.as_u16()
            ))),
            // Only the question was sent: whatever became of it, the request itself was not.
            Err(fault) => Finding::Unknown(forward.unavailable(format!(
                "whether {} is in member cluster {} is not known: {fault}",
                holder.object, forward.target.cluster
            ))),
        }
    }

    pub(super) fn question(&self, holder: &Holder, forward: &Forward) -> (Leg, Parts) {
        let mut forward = Box::new(forward.clone());
        forward.class = TrafficClass::Unary;
        forward.long_running = false;
        forward.read = true;
        forward.rewrite = crate::decision::plan::Rewrite::default();
        forward.body_rule = None;
        let asked = ApiRequest {
            path: holder.path.clone(),
            query: Query::new(None),
            method: Method::GET,
            verb: Verb::Get,
            upgrade: None,
            ..self.asking.asked.clone()
        };
        let leg = Leg {
            forward,
            asked,
            snapshot: self.snapshot.clone(),
            caller: self.asking.caller.clone(),
            deadline: self.asking.deadline,
            received: self.asking.received.clone(),
            recheck: None,
        };
        let (mut head, ()) = Request::new(()).into_parts();
        head.headers.insert(ACCEPT, HeaderValue::from_static(guard::ACCEPT));
        (leg, head)
    }
}

#[cfg(test)]
mod tests;
