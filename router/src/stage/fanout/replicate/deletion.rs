//! Deletions of objects of replicated kinds: of each member's own by the uid that it has there, once all of them have said whether
//! they have it; of none while one that may have it cannot be asked. Caller: `edge`.

use bytes::Bytes;
use futures::future::join_all;
use http::{Method, Response, StatusCode};
use serde_json::Value;

use super::{Copies, JSON, MAX_ANSWER_BYTES, warn};
use crate::decision::plan::choose::{Decides, Finding, Holder};
use crate::decision::plan::{Candidate, Forward};
use crate::decision::replica::Deletion;
use crate::resource::upstream::{Body, gather, gather_request};
use crate::stage::dispatch::Dispatched;
use crate::stage::fanout::FanOuts;
use crate::stage::preflight::Pending;
use crate::value::classify::ResourceRequest;
use crate::value::fault::Fault;
use crate::value::media;
use crate::value::object::{self, message_of};

/// A deletion that may go: who has the object, and what is to be told.
pub(crate) struct Planned {
    primary: Forward,
    resource: ResourceRequest,
    first: Candidate,
    /// The others that have it, each with its uid there.
    rest: Vec<(Candidate, String)>,
    deletion: Deletion,
    body: Bytes,
    warnings: Vec<String>,
}

/// Copies of an object that was deleted in the primary, which are to go next.
pub(crate) struct Rest {
    primary: Forward,
    resource: ResourceRequest,
    /// Each with the options that delete it.
    copies: Vec<(Candidate, Value)>,
}

/// A member that has the object.
struct Has<'c> {
    part: &'c Candidate,
    uid: String,
    /// Its annotation there.
    decides: Option<String>,
}

/// The member that decides about the object answers the deletion. 409 if that is none of those.
fn first_who_decides(holder: &Holder, parts: &[Candidate], holders: &mut [Has<'_>]) -> Result<(), Fault> {
    let Some(decides) = holders.iter().find_map(|has| has.decides.clone()) else {
        return Ok(());
    };
    let is_its = |part: &Candidate| *part.forward.target.cluster == *decides;
    if let Some(index) = holders.iter().position(|has| is_its(has.part)) {
        holders[..=index].rotate_right(1);
    } else if !parts.iter().any(is_its) {
        return Err(holder.decided_elsewhere(&decides));
    }
    Ok(())
}

impl Rest {
    /// The members that have one.
    pub(crate) fn clusters(&self) -> String {
        let clusters = self.copies.iter().map(|(part, _)| &*part.forward.target.cluster);
        clusters.collect::<Vec<_>>().join(", ")
    }
}

impl FanOuts {
    /// Finds out who has the object: it is deleted in none while one that may have it cannot be asked. Nothing is sent yet. `parts`: the
    /// primary first.
    pub(crate) async fn deletion(
        &self,
        parts: &[Candidate],
        pending: Pending<'_>,
        mut body: Body,
    ) -> Result<Planned, Fault> {
        let Some(resource) = &pending.asked.resource else {
            return Err(Fault::Internal("a deletion of no object".to_owned()));
        };
        let Some(primary) = parts.first() else {
            return Err(Fault::Internal("a deletion in no member".to_owned()));
        };
        let holder = Holder {
            path: resource.object_path(),
            object: format!("{} {}", resource.kind(), resource.name.as_deref().unwrap_or_default()),
            writes: true,
            one_of: false,
            replicated: true,
            decides: Decides::Place,
            unasked: None,
            placing: None,
        };
        let (mut holders, hidden) = self.who_has(&holder, parts, pending).await?;
        first_who_decides(&holder, parts, &mut holders)?;
        self.preflight.check(&primary.forward, pending, &mut body).await?;
        for Has { part: holder, .. } in &holders {
            if holder.forward.target.cluster != primary.forward.target.cluster {
                self.preflight.check(&holder.forward, pending, &mut Body::Empty).await?;
            }
        }
        let body = gather_request(&mut body).await?;
        let content_type = media::content_type(&pending.head.headers);
        let deletion = Deletion::of(&pending.asked.query, content_type, &body)?;
        let first = if holders.is_empty() {
            // It says so itself.
            primary
        } else {
            holders.remove(0).part
        };
        Ok(Planned {
            primary: primary.forward.clone(),
            resource: resource.clone(),
            first: first.clone(),
            rest: holders.into_iter().map(|has| (has.part.clone(), has.uid)).collect(),
            deletion,
            body,
            warnings: hidden,
        })
    }

    /// Deletes the object in the primary, or in the first who has it. The copies that are to go next come back.
    pub(crate) async fn delete_everywhere(
        &self,
        planned: Planned,
        pending: Pending<'_>,
    ) -> Result<(Response<Body>, Option<Rest>), Fault> {
        let Planned {
            primary,
            resource,
            first,
            rest,
            deletion,
            body,
            warnings,
        } = planned;
        let Dispatched { mut response, seat, .. } = self.delete_first(&first, pending, body).await?;
        warn(&mut response, &warnings);
        if let Body::Member(stream) = response.body_mut() {
            stream.hold(seat);
        }
        let goes_on = response.status().is_success() && !deletion.dry_run && !rest.is_empty();
        let rest = goes_on.then(|| Rest {
            primary,
            resource,
            copies: rest
                .into_iter()
                .map(|(part, uid)| (part, deletion.of_uid(&uid)))
                .collect(),
        });
        Ok((response, rest))
    }

    /// Deletes the copies of what was deleted in the primary. What stays is told.
    pub(crate) async fn delete_rest(&self, rest: &Rest, pending: Pending<'_>) -> Vec<String> {
        let copies = Copies {
            primary: &rest.primary,
            limits: None,
            resource: &rest.resource,
            path: rest.resource.object_path(),
            pending,
        };
        let deleted = rest
            .copies
            .iter()
            .map(|(part, options)| self.delete_copy(&copies, part, options));
        join_all(deleted).await.into_iter().flatten().collect()
    }

    /// Who has the object, in their order, each with its uid there; and what is to be told of those who do not let the caller look.
    async fn who_has<'c>(
        &self,
        holder: &Holder,
        parts: &'c [Candidate],
        pending: Pending<'_>,
    ) -> Result<(Vec<Has<'c>>, Vec<String>), Fault> {
        let looks = parts.iter().map(|part| self.preflight.look(holder, part, pending));
        let (mut holders, mut hidden) = (Vec::new(), Vec::new());
        for (index, (part, (finding, body))) in parts.iter().zip(join_all(looks).await).enumerate() {
            let cluster = &part.forward.target.cluster;
            let unknown = |why: &str| {
                part.forward
                    .unavailable(format!("nothing is deleted in any member: {why}"))
            };
            match finding {
                Finding::Has => {
                    let bytes = gather(body, MAX_ANSWER_BYTES).await;
                    let bytes = bytes.map_err(|error| unknown(&error.to_string()))?;
                    let meta = object::metadata(&bytes).unwrap_or_default();
                    let decides = meta.decides().map(str::to_owned);
                    let nameless = || unknown(&format!("{cluster} does not say of which uid it is"));
                    let uid = meta.uid.ok_or_else(nameless)?;
                    holders.push(Has { part, uid, decides });
                }
                Finding::HasNot => {}
                // The primary answers the deletion itself.
                Finding::Forbidden if index == 0 => holders.push(Has {
                    part,
                    uid: String::new(),
                    decides: None,
                }),
                Finding::Forbidden => hidden.push(format!(
                    "whether {} is in member cluster {cluster} is not known: it does not let this caller get it",
                    holder.object
                )),
                Finding::Unknown(fault) => return Err(unknown(&fault.to_string())),
            }
        }
        Ok((holders, hidden))
    }

    async fn delete_first(&self, part: &Candidate, pending: Pending<'_>, body: Bytes) -> Result<Dispatched, Fault> {
        let leg = self.leg(part.forward.clone(), pending.asked.clone(), pending);
        self.dispatcher
            .dispatch(leg, pending.head.clone(), Body::from(body))
            .await
    }

    /// A text to warn of, if a copy stays.
    async fn delete_copy(&self, copies: &Copies<'_>, part: &Candidate, options: &Value) -> Option<String> {
        let asked = copies.request(Method::DELETE, None);
        let body = Bytes::from(options.to_string());
        let why = match self.send(&part.forward, (asked, JSON, body), copies.pending).await {
            Ok((status, _)) if status.is_success() || status == StatusCode::NOT_FOUND => return None,
            Ok((status, body)) => message_of(&body).unwrap_or_else(|| status.to_string()),
            Err(fault) => fault.to_string(),
        };
        let (cluster, kind) = (&part.forward.target.cluster, copies.resource.kind());
        Some(format!(
            "the copy of this object ({kind}) in member cluster {cluster} was not deleted: {why}"
        ))
    }
}
