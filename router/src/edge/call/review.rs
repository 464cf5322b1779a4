//! A review: the member that its body asks about answers it, or all do, and a yes is one of all. Nobody is answered 503: what
//! cannot be found out is a no that says so, as every API server has it (`docs/semantics.md#reviews`).

use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use http::{Response, StatusCode};
use tracing::Instrument as _;

use super::{Admitted, Body, Call, Choose, Fault, Forward, Identified, Leg, Served, span};
use crate::decision::plan::reviews::{self, Known, Part, ReviewRequest, Reviewed};
use crate::resource::upstream::{gather, gather_request};
use crate::stage::identify;
use crate::stage::replan;
use crate::value::media::content_type;
use crate::value::review::{self, About, Kind, No};
use crate::value::snapshot::Caller;

/// Of a member's answer: what was asked, and some words.
const MOST_BYTES: usize = 4 << 20;

/// A review on its way.
struct Question<'a> {
    kind: Kind,
    body: Bytes,
    request: &'a Identified,
}

/// What a member said; or why nothing.
type Said = Result<Response<Bytes>, Unsaid>;

/// Why a member said nothing.
enum Unsaid {
    /// It cannot be asked now.
    Away(String),
    /// It is not to be asked by this caller.
    Refused(Fault),
}

impl Call<'_> {
    pub(super) async fn review(
        &self,
        mut request: Identified,
        admitted: Admitted,
        mut body: Body,
    ) -> Result<Served, Fault> {
        let resource = request.asked.resource.as_ref();
        let kind = resource.and_then(|resource| Kind::of(request.asked.verb, resource));
        let kind = kind.ok_or_else(|| Fault::Internal("a review of no known kind".to_owned()))?;
        let body = gather_request(&mut body).await?;
        let about = kind.read(content_type(&request.head.headers), &body);
        let reviewed = self.who_answers(&mut request, about.as_ref()).await?;
        let question = Question {
            kind,
            body,
            request: &request,
        };
        let response = match reviewed {
            Reviewed::Outside(message) => question.no(&No::Because(message)),
            Reviewed::One(part) => {
                let said = self.ask(&question, part).await;
                question.answer(said)?
            }
            Reviewed::Holder(choose) => {
                let part = self.holder(&question, choose).await;
                let said = self.ask(&question, part).await;
                question.answer(said)?
            }
            Reviewed::All(parts) => {
                let asked = parts.into_iter().map(|part| self.ask(&question, part));
                question.all(join_all(asked).await)?
            }
        };
        Ok(Served {
            deadline: Some(request.deadline),
            ..Served::of(response.map(Body::from), admitted)
        })
    }

    /// By what is known now; what may have been granted meanwhile is asked for first.
    async fn who_answers(&self, request: &mut Identified, about: Option<&About>) -> Result<Reviewed, Fault> {
        let (reviewed, lacks_grant) = self.planned_review(request, about)?;
        let (Caller::Pod(view), Some(namespace)) = (&request.caller, about.and_then(About::namespace)) else {
            return Ok(reviewed);
        };
        let store = &self.edge.parts.routing;
        if !lacks_grant || !self.edge.grants.ask(store, view, namespace).await {
            return Ok(reviewed);
        }
        let routing = store.load();
        if let Some(caller) = replan::current(&request.caller, &routing.snapshot) {
            (request.routing, request.caller) = (routing, caller);
        }
        Ok(self.planned_review(request, about)?.0)
    }

    fn planned_review(&self, request: &Identified, about: Option<&About>) -> Result<(Reviewed, bool), Fault> {
        let routing = &request.routing;
        let shard = shard_of(&request.caller);
        let known = Known {
            authenticated_by: match about {
                Some(About::NonResource(uid)) => shard.and_then(|shard| self.edge.authenticated.member(shard, uid)),
                _ => None,
            },
            signed_by: match about {
                Some(About::Token(token)) => identify::signer(token, &routing.snapshot.keys),
                _ => None,
            },
        };
        let planned = ReviewRequest {
            caller: &request.caller,
            asked: &request.asked,
            snapshot: &routing.snapshot,
            kinds: &routing.kinds,
        };
        reviews::review(planned, about, &known)
    }

    async fn holder(&self, question: &Question<'_>, choose: Box<Choose>) -> Part {
        let mut none = Body::Empty;
        let pending = self.pending(question.request);
        let chosen = self.edge.preflight.choose(*choose, pending, &mut none);
        chosen.instrument(span::preflight("choose")).await
    }

    async fn ask(&self, question: &Question<'_>, part: Part) -> Said {
        let forward = part.map_err(Unsaid::of)?;
        let cluster = forward.target.cluster.clone();
        let request = question.request;
        let mut body = Body::from(question.body.clone());
        let checked = Box::pin(self.edge.preflight.check(&forward, self.pending(request), &mut body));
        checked.await.map_err(Unsaid::of)?;
        let leg = self.leg(forward, request);
        let dispatched = self.edge.parts.dispatcher.dispatch(leg, request.head.clone(), body);
        let answer = Box::pin(dispatched)
            .await
            .map_err(|fault| Unsaid::Away(fault.to_string()))?;
        let (head, body) = answer.response.into_parts();
        if head.status.is_server_error() || head.status == StatusCode::TOO_MANY_REQUESTS {
            return Err(Unsaid::Away(format!(
                "member cluster {cluster} answered {}",
                head.status.as_u16()
            )));
        }
        let bytes = gather(body, MOST_BYTES).await;
        let bytes =
            bytes.map_err(|error| Unsaid::Away(format!("the answer of member cluster {cluster} broke: {error}")))?;
        if let (Kind::Token, Some(shard)) = (question.kind, shard_of(&request.caller))
            && let Some(uid) = review::authenticated(&head.headers, &bytes)
        {
            self.edge.authenticated.note(shard, uid, &cluster);
        }
        Ok(Response::from_parts(head, bytes))
    }

    fn leg(&self, forward: Box<Forward>, request: &Identified) -> Leg {
        Leg {
            forward,
            asked: request.asked.clone(),
            routing: request.routing.clone(),
            caller: request.caller.clone(),
            deadline: Some(request.deadline),
            received: self.received.clone(),
            // It changes nothing: where it goes was decided by its body, and is not looked at again.
            replanner: None,
            running: false,
        }
    }
}

impl Question<'_> {
    /// The answer of the one member that was asked.
    fn answer(&self, said: Said) -> Result<Response<Bytes>, Fault> {
        match said {
            Ok(answer) => Ok(answer),
            Err(Unsaid::Refused(fault)) => Err(fault),
            Err(Unsaid::Away(why)) => Ok(self.no(&No::Unknown(why))),
        }
    }

    /// What all say together: a no of one is a no, and so is what one cannot be asked.
    fn all(&self, said: Vec<Said>) -> Result<Response<Bytes>, Fault> {
        let (mut yes, mut unknown, mut refused) = (None, None, None);
        for one in said {
            match one {
                Ok(answer) if !answer.status().is_success() => return Ok(answer),
                Ok(answer) => match review::allowed(answer.headers(), answer.body()) {
                    Some(true) => yes = yes.or(Some(answer)),
                    Some(false) => return Ok(answer),
                    None => unknown = unknown.or(Some("a member's answer cannot be read".to_owned())),
                },
                Err(Unsaid::Away(why)) => unknown = unknown.or(Some(why)),
                Err(Unsaid::Refused(fault)) => refused = refused.or(Some(fault)),
            }
        }
        match (yes, unknown, refused) {
            (None, None, Some(fault)) => Err(fault),
            (_, Some(why), _) => Ok(self.no(&No::Unknown(why))),
            (_, None, Some(fault)) => Ok(self.no(&No::Unknown(fault.to_string()))),
            (Some(answer), None, None) => Ok(answer),
            (None, None, None) => Err(Fault::Internal("a review that no member was asked".to_owned())),
        }
    }

    /// As an API server answers: what was asked, with a status.
    fn no(&self, no: &No) -> Response<Bytes> {
        let (content_type, body) = self.kind.answer(no, &self.request.head.headers, &self.body);
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = StatusCode::CREATED;
        response.headers_mut().insert(http::header::CONTENT_TYPE, content_type);
        response
    }
}

impl Unsaid {
    fn of(fault: Fault) -> Self {
        match fault {
            Fault::Forbidden(_) => Self::Refused(fault),
            other => Self::Away(other.to_string()),
        }
    }
}

fn shard_of(caller: &Caller) -> Option<&Arc<str>> {
    match caller {
        Caller::Pod(view) => view.shard(),
        Caller::Person { .. } => None,
    }
}
