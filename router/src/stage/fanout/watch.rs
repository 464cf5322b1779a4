//! How a merged watch begins: which members are asked from where, how long they are waited for, and who has the last word
//! before the first byte.
//!
//! A client that has a position goes on with one member alone, the others' slots are held. A client that has none needs all
//! of them, unless it has never seen anything either and the user chose `PartialStart`. What only a list can mend is told within a stream, as API servers do:
//! several clients repeat a refused start for ever. Caller: `fanout`.

mod opening;
pub(super) mod since;

use std::sync::Arc;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, VIA};
use http::{Response, StatusCode};
use portolan_merge::cursor::{Cursor, Slot};
use portolan_merge::query::{Begin, CollectionQuery, InvalidQuery, QueryFault, WatchAsk};
use portolan_merge::watch::Start;
use rand::RngExt as _;
use tokio::time::Instant;

use self::opening::Opening;
use self::since::Since;
use super::connect::Shared;
use super::leg::{self, Asking, Overrides};
use super::{Fan, FanOuts, Told, refused_by};
use crate::decision::plan::FanOut;
use crate::decision::rewrite;
use crate::resource::routing::Routing;
use crate::resource::upstream::Body;
use crate::stage::reply;
use crate::value::fault::Fault;
use crate::value::media::{Accepted, Shape};

/// Of a watch whose client names no end, as an API server's: at least this, at most twice.
const LEAST: Duration = Duration::from_mins(30);
/// Until a client asks again for what there is no memory for: others' watches end in minutes.
const FULL_SECONDS: u32 = 10;
/// Seconds that a client may name: a year, so that no clock overflows.
const MOST_SECONDS: u64 = 365 * 24 * 3600;

/// From where the whole begins.
struct Plan {
    cursor: Cursor,
    /// Of each leg, as the client's words have it.
    begins: Vec<Begin>,
    initial_events: bool,
    /// The client has a position to go on from.
    resumes: bool,
    told: Told,
    /// It holds nothing yet that it could take for deleted.
    first: bool,
}

/// Answers the request; the body is the watch.
pub(super) async fn watch(fanouts: &Arc<FanOuts>, fan: Fan) -> Result<Response<Body>, Fault> {
    if fan.plan.unique && fanouts.names.is_short() {
        return Err(Fault::TooManyRequests {
            message: "the watches of cluster-scoped kinds have no memory left for more names".to_owned(),
            retry_after_seconds: FULL_SECONDS,
            cluster: None,
        });
    }
    let accepted = Accepted::of(&fan.asking.headers)?;
    let query = CollectionQuery::parse(|key| fan.asking.asked.query.first(key).map(std::borrow::Cow::into_owned));
    since::refuse_left(&fan.plan, &query)?;
    let Some(Since { plan, now, nothing }) = since::since(&fan, &query) else {
        return Ok(expired(fanouts, &accepted, since::UNKNOWN.to_owned()));
    };
    let Fan { asking, routing, .. } = fan;
    let slots: Vec<usize> = plan.legs.iter().map(|leg| leg.slot).collect();
    let begin = match query.watch(&plan.universe, &slots) {
        _ if nothing => Plan::resume(Cursor::new(&plan.universe), fanouts.begin(&asking, &plan), &slots),
        Ok(WatchAsk::Open {
            cursor,
            legs,
            initial_events,
        }) => Plan {
            resumes: cursor.slots().iter().any(|slot| matches!(slot, Slot::At(_))),
            cursor,
            begins: legs.into_iter().map(|(_, begin)| begin).collect(),
            initial_events,
            told: fanouts.begin(&asking, &plan),
            first: query.is_first(),
        },
        Ok(WatchAsk::Invalid(invalid)) => return refuse(fanouts, &asking, &plan, routing, invalid).await,
        Err(QueryFault::BadRequest(why)) => return Err(Fault::BadRequest(why)),
        Err(fault) => match position(fanouts, (&asking, &plan), &routing, query.raw()).await {
            Some((cursor, told)) => Plan::resume(cursor, told, &slots),
            None => return Ok(expired(fanouts, &accepted, fault.to_string())),
        },
    };
    fanouts.open.metrics.started(begin.word());
    let members = plan.clusters().filter(|_| begin.first).cloned().collect();
    let never_shown = fanouts.never_shown(&plan, &asking.caller, members).await;
    let bookmarks = query.bookmarks();
    let shared = Arc::new(Shared {
        fanouts: fanouts.clone(),
        accepted,
        never_shown,
        ends: Instant::now() + lifetime(&asking),
        asking,
    });
    Opening::new(shared, (plan, now), begin, bookmarks, &routing)
        .run(&routing)
        .await
}

/// Where a client stands that comes with the version of an object: on the one member that can have sent it, where the
/// stream stood that sent it, or, of a kind that is young, on the primary.
async fn position(
    fanouts: &Arc<FanOuts>,
    (asking, plan): (&Asking, &FanOut),
    routing: &Arc<Routing>,
    raw: Option<u64>,
) -> Option<(Cursor, Told)> {
    let raw = raw?;
    match &*plan.legs {
        [leg] if plan.only_member => {
            let mut cursor = Cursor::new(&plan.universe);
            cursor.set(leg.slot, Slot::At(raw));
            Some((cursor, fanouts.begin(asking, plan)))
        }
        _ => match fanouts.resume(asking, plan, raw) {
            None => Box::pin(fanouts.from_young((asking, plan), routing, raw)).await,
            found => found,
        },
    }
}

impl Plan {
    fn resume(cursor: Cursor, told: Told, slots: &[usize]) -> Self {
        let begin = |slot: &usize| match cursor.slot(*slot) {
            Slot::At(version) => Begin::At(version),
            Slot::Sync | Slot::Unasked => Begin::Sync { not_older: None },
        };
        Self {
            begins: slots.iter().map(begin).collect(),
            cursor,
            initial_events: false,
            resumes: true,
            told,
            first: false,
        }
    }

    /// For metrics.
    fn word(&self) -> &'static str {
        match (self.initial_events, self.resumes) {
            (true, _) => "watch-list",
            (false, true) => "resumed",
            (false, false) => "fresh",
        }
    }

    fn starts(&self) -> Vec<Start> {
        let start = |begin: &Begin| match *begin {
            Begin::At(version) => Start::At(version),
            Begin::Any => Start::Any,
            Begin::Recent => Start::Recent,
            Begin::Sync { .. } => Start::Sync,
            Begin::Latest => Start::At(0),
        };
        self.begins.iter().map(start).collect()
    }
}

/// A member's own answer, to a client that would have got it from any API server.
pub(super) fn passed(response: Response<Body>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    rewrite::clean_response(&mut head.headers);
    Response::from_parts(head, body)
}

/// A member says what is wrong with the words of the request.
async fn refuse(
    fanouts: &FanOuts,
    asking: &Asking,
    plan: &FanOut,
    routing: Arc<Routing>,
    invalid: InvalidQuery,
) -> Result<Response<Body>, Fault> {
    for leg in &plan.legs {
        let overrides = Overrides {
            query: invalid.0.clone(),
            ..Overrides::default()
        };
        match leg::start(fanouts, asking, leg, &overrides, routing.clone()).await {
            Ok(response) if response.status().is_client_error() => {
                return Ok(refused_by(plan, leg.cluster(), passed(response)));
            }
            Ok(_) => break,
            Err(fault @ Fault::Forbidden(_)) => return Err(fault),
            // The next one knows it as well.
            Err(fault) => tracing::debug!(%fault, "a member cannot be asked what is wrong with a request"),
        }
    }
    Err(match InvalidQuery::fault() {
        QueryFault::BadRequest(why) => Fault::BadRequest(why),
        fault => Fault::Expired(fault.to_string()),
    })
}

/// One `ERROR` event and the end, with 200: only so does every client list anew.
fn expired(fanouts: &FanOuts, accepted: &Accepted, why: String) -> Response<Body> {
    fanouts.open.metrics.expired("position");
    let shape = accepted.own();
    let mut response = Response::new(Body::from(reply::error_event(&Fault::Expired(why), shape.media())));
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type(shape));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.append(VIA, rewrite::VIA_VALUE);
    response
}

fn content_type(shape: Shape) -> HeaderValue {
    HeaderValue::from_static(match shape {
        Shape::Json | Shape::Table => "application/json",
        Shape::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
    })
}

/// How long the client's stream goes on: as it asks, else as an API server does.
fn lifetime(asking: &Asking) -> Duration {
    let wanted = asking.asked.query.first("timeoutSeconds");
    match wanted.and_then(|text| text.parse::<u64>().ok()) {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds.min(MOST_SECONDS)),
        _ => LEAST + rand::rng().random_range(Duration::ZERO..LEAST),
    }
}
