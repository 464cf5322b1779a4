//! Brings what is recorded of a leader lock to where the lock is now, before it is used there
//! (`docs/semantics.md#leader-election`). What is written is `lease::moved`'s; here it is done, as the caller.

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use serde_json::Value;

use super::{JSON, MAX_METADATA_BYTES, Pending, Preflight};
use crate::decision::lease::{Step, step};
use crate::decision::plan::{Forward, LockMove, Rewrite};
use crate::resource::upstream::{Body, gather};
use crate::stage::dispatch::Dispatched;
use crate::value::classify::{classify, path_in};
use crate::value::fault::Fault;
use crate::value::snapshot::LeaseName;
use crate::value::traffic::Traffic;

/// Tries, each of which fails because another router was faster. Two do it once each.
const ATTEMPTS: usize = 5;

/// One kind of lock at its two places.
struct Places<'a> {
    collection: &'a str,
    new: Forward,
    old: Forward,
    pending: Pending<'a>,
}

/// What a member answered about a lock.
enum Answer {
    /// It is there, or was written.
    Lock(Value),
    /// There is none, or another than was read.
    Other,
    Forbidden,
}

impl Preflight {
    /// To where `forward` goes.
    pub(super) async fn bring(&self, moved: &LockMove, forward: &Forward, pending: Pending<'_>) -> Result<(), Fault> {
        let LockMove { shard, mark, .. } = moved;
        let locks = &self.routing.locks;
        let is_brought = |collection: &String| locks.is_brought(shard, mark, collection);
        let Some(asked) = moved.collections.first().filter(|asked| !is_brought(asked)) else {
            return Ok(());
        };
        let (from, names) = &moved.from;
        let target = pending.routing.snapshot.targets.get(from);
        let target = target.ok_or_else(|| forward.unavailable(format!("member cluster {from} is not known")))?;
        let places = |collection| Places {
            collection,
            new: at(forward.clone(), forward.rewrite.lease.as_ref()),
            old: at(
                Forward {
                    target: target.clone(),
                    ..forward.clone()
                },
                Some(names),
            ),
            pending,
        };
        let mut brought = Vec::new();
        let mut whole = true;
        for collection in moved.collections.iter().filter(|collection| !is_brought(collection)) {
            let is_there = self.bring_one(&places(collection), moved).await?;
            if is_there {
                brought.push(collection.clone());
                continue;
            }
            // Another caller may: the handover waits for one, or runs out.
            whole = false;
            if collection == asked {
                let user = &forward.act_as.user;
                return Err(Fault::Forbidden(format!(
                    "{user} may not read or write the leader lock where it was, in member cluster {from}, from where it is to be brought"
                )));
            }
        }
        locks.brought(shard, mark, brought, whole);
        Ok(())
    }

    /// False: the caller may not.
    async fn bring_one(&self, places: &Places<'_>, moved: &LockMove) -> Result<bool, Fault> {
        let name = &moved.from.1.client;
        for _ in 0..ATTEMPTS {
            // In this order: see `lease::moved`.
            let new = match self.lock(places, &places.new, (Method::GET, Some(name)), None).await? {
                Answer::Lock(new) => Some(new),
                Answer::Other => None,
                Answer::Forbidden => return Ok(false),
            };
            let old = match self.lock(places, &places.old, (Method::GET, Some(name)), None).await? {
                Answer::Lock(old) => Some(old),
                Answer::Other => None,
                Answer::Forbidden => return Ok(false),
            };
            let how = match &new {
                Some(_) => (Method::PUT, Some(name)),
                None => (Method::POST, None),
            };
            let Step::Write { record, marked } = step(new, old, &moved.mark) else {
                return Ok(true);
            };
            match self.lock(places, &places.new, how, Some(record)).await? {
                Answer::Lock(_) => {}
                Answer::Other => continue,
                Answer::Forbidden => return Ok(false),
            }
            match self
                .lock(places, &places.old, (Method::PUT, Some(name)), Some(marked))
                .await?
            {
                Answer::Lock(_) => return Ok(true),
                Answer::Other => {}
                Answer::Forbidden => return Ok(false),
            }
        }
        Err(places.new.unavailable(format!(
            "the leader lock {name} is being brought here by others, or its namespace is not there"
        )))
    }

    /// One request about the lock at one place.
    async fn lock(
        &self,
        places: &Places<'_>,
        forward: &Forward,
        (method, name): (Method, Option<&String>),
        lock: Option<Value>,
    ) -> Result<Answer, Fault> {
        let pending = places.pending;
        let path = match name {
            None => places.collection.to_owned(),
            Some(name) => path_in(places.collection, name)
                .ok_or_else(|| Fault::Internal(format!("there is no lock of name {name}")))?,
        };
        let uri: Uri = path
            .parse()
            .map_err(|_| Fault::Internal(format!("{path} is no path")))?;
        let mut asked = classify(&method, &uri, &HeaderMap::new())?;
        asked.impersonate.clone_from(&pending.asked.impersonate);
        let body = lock.map_or(Body::Empty, |lock| Body::from(bytes::Bytes::from(lock.to_string())));
        let traffic = Traffic::of(&asked);
        let forward = Forward {
            traffic,
            ..forward.clone()
        };
        let cluster = forward.target.cluster.clone();
        let leg = pending.leg(asked, forward);
        let (mut head, ()) = Request::new(()).into_parts();
        head.method = method;
        head.headers.insert(ACCEPT, JSON);
        head.headers.insert(CONTENT_TYPE, JSON);
        // Whatever became of this one, what the client asks was not sent.
        let unknown = |why: String| {
            places.new.unavailable(format!(
                "the leader lock is on its way, and member cluster {cluster} did not do its part: {why}"
            ))
        };
        let sent = self.dispatcher.dispatch(leg, head, body).await;
        let Dispatched { response, seat, .. } = sent.map_err(|fault| unknown(fault.to_string()))?;
        let (head, body) = response.into_parts();
        let bytes = gather(body, MAX_METADATA_BYTES).await;
        let bytes = bytes.map_err(|error| unknown(error.to_string()))?;
        drop(seat);
        match head.status {
            status if status.is_success() => {
                let lock = serde_json::from_slice(&bytes).map_err(|error| unknown(error.to_string()))?;
                Ok(Answer::Lock(lock))
            }
            StatusCode::NOT_FOUND | StatusCode::CONFLICT => Ok(Answer::Other),
            StatusCode::FORBIDDEN => Ok(Answer::Forbidden),
            other => Err(unknown(format!("it answered {}", other.as_u16()))),
        }
    }
}

/// The lock of these names, and nothing but it.
fn at(forward: Forward, names: Option<&LeaseName>) -> Forward {
    Forward {
        rewrite: Rewrite {
            lease: names.cloned(),
            ..Rewrite::default()
        },
        needs: Vec::new(),
        warning: None,
        grant: None,
        replicas: None,
        ..forward
    }
}
