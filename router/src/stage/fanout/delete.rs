//! A collection that is deleted in each of several members (`docs/semantics.md#planning`).
//!
//! Half of it cannot be undone, so every member is asked something harmless first: if one does not answer nothing is deleted
//! anywhere. What fails after that is told member by member. Caller: `edge`.

use bytes::Bytes;
use futures::future::join_all;
use http::Response;

use super::FanOuts;
use crate::decision::plan::{Candidate, Forward};
use crate::resource::upstream::{Body, gather, gather_request};
use crate::stage::dispatch::Leg;
use crate::stage::preflight::Pending;
use crate::stage::reply;
use crate::value::fault::{Fault, MemberFailure};
use crate::value::media::Media;
use crate::value::object::message_of;

/// Of a failed member's answer.
const MAX_STATUS_BYTES: usize = 64 << 10;

impl FanOuts {
    /// In all, or in none while one of them is away.
    pub(crate) async fn delete_each(
        &self,
        parts: &[Candidate],
        pending: Pending<'_>,
        mut body: Body,
    ) -> Result<Response<Body>, Fault> {
        let there = parts.iter().map(|part| self.preflight.is_there(part, pending));
        let mut serving = Vec::new();
        for (part, there) in parts.iter().zip(join_all(there).await) {
            match there {
                Ok(true) => serving.push(part),
                // It has nothing to delete.
                Ok(false) => {}
                Err(refused @ Fault::Forbidden(_)) => return Err(refused),
                Err(away) => {
                    return Err(part
                        .forward
                        .unavailable(format!("nothing is deleted in any member: {away}")));
                }
            }
        }
        let body = gather_request(&mut body).await?;
        if serving.is_empty() {
            // They say so themselves.
            serving.extend(parts);
        }
        let deleted = serving
            .into_iter()
            .map(|part| self.delete_in(part.forward.clone(), pending, body.clone()));
        let failures: Vec<_> = join_all(deleted).await.into_iter().filter_map(Result::err).collect();
        if failures.is_empty() {
            return Ok(reply::done(Media::preferred(&pending.head.headers)).map(Body::from));
        }
        Err(Fault::Members(failures))
    }

    async fn delete_in(&self, forward: Forward, pending: Pending<'_>, body: Bytes) -> Result<(), MemberFailure> {
        let cluster = forward.target.cluster.to_string();
        let leg = Leg {
            forward: Box::new(forward),
            asked: Box::new(pending.asked.clone()),
            routing: pending.routing.clone(),
            caller: pending.caller.clone(),
            deadline: Some(pending.deadline),
            received: pending.received.clone(),
            replanner: Some(self.replanner.clone()),
            running: false,
        };
        let answer = self
            .dispatcher
            .dispatch(leg, pending.head.clone(), Body::from(body))
            .await;
        let (status, message) = match answer {
            Err(fault) => (fault.status_code(), fault.to_string()),
            Ok(answer) if answer.response.status().is_success() => return Ok(()),
            Ok(answer) => {
                let (head, body) = answer.response.into_parts();
                let body = gather(body, MAX_STATUS_BYTES).await.unwrap_or_default();
                (
                    head.status,
                    message_of(&body).unwrap_or_else(|| head.status.to_string()),
                )
            }
        };
        Err(MemberFailure {
            cluster,
            status,
            message,
        })
    }
}
