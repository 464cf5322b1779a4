//! How a merged watch begins: which members are asked from where, how long they are waited for, and who has the last word
//! before the first byte.
//!
//! A client that has a position goes on with one member alone, the others' slots are held. A client that has none needs all
//! of them, unless the user chose `PartialStart`. What only a list can mend is told within a stream, as API servers do:
//! several clients repeat a refused start for ever. Caller: `fanout`.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, VIA, WARNING};
use http::{HeaderMap, Response, StatusCode};
use portolan_merge::cursor::{Cursor, Slot};
use portolan_merge::query::{Begin, CollectionQuery, Judge, LegQuery, QueryFault, WatchAsk};
use portolan_merge::watch::{Start, WatchLeg, WatchMerge, WatchSpec};
use rand::RngExt as _;
use tokio::time::Instant;

use super::accept::{Accepted, Shape};
use super::connect::{Answered, Away, Connecting, Shared, Wish, connect};
use super::leg::{self, Asking, Overrides};
use super::stream::{Begun, Failed, Link, MergedWatch, Reason};
use super::{Fan, FanOuts};
use crate::fault::Fault;
use crate::plan::FanOut;
use crate::reply::{self, Format};
use crate::rewrite;
use crate::snapshot::{Snapshot, Unavailable};
use crate::upstream::{Body, Ending, Merged};

/// For the others, once a member's events could flow.
const BRIEF: Duration = Duration::from_secs(2);
/// Of a watch whose client names no end, as an API server's: at least this, at most twice.
const LEAST: Duration = Duration::from_mins(30);
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
}

/// Answers the request; the body is the watch.
pub(super) async fn watch(fanouts: &Arc<FanOuts>, fan: Fan) -> Result<Response<Body>, Fault> {
    let Fan { plan, asking, snapshot } = fan;
    let query = CollectionQuery::parse(|key| asking.asked.query.first(key).map(std::borrow::Cow::into_owned));
    let slots: Vec<usize> = plan.legs.iter().map(|leg| leg.slot).collect();
    let begin = match query.watch(&plan.universe, &slots) {
        Ok(WatchAsk::Open {
            cursor,
            legs,
            initial_events,
        }) => Plan {
            resumes: cursor.slots().iter().any(|slot| matches!(slot, Slot::At(_))),
            cursor,
            begins: legs.into_iter().map(|(_, begin)| begin).collect(),
            initial_events,
        },
        Ok(WatchAsk::Judge(judge)) => return refuse(fanouts, &asking, &plan, snapshot, judge).await,
        Err(QueryFault::BadRequest(why)) => return Err(Fault::BadRequest(why)),
        Err(QueryFault::Expired(why)) => match query.raw().and_then(|raw| fanouts.resume(&asking, &plan, raw)) {
            Some(cursor) => Plan::resume(cursor, &slots),
            None => return Ok(expired(fanouts, &asking, why)),
        },
    };
    fanouts.open.metrics.started(begin.word());
    let bookmarks = query.bookmarks();
    let shared = Arc::new(Shared {
        fanouts: fanouts.clone(),
        accepted: Accepted::of(&asking.headers),
        ends: Instant::now() + lifetime(&asking),
        asking,
    });
    Opening::new(shared, Arc::new(plan), begin, bookmarks, &snapshot)
        .run(&snapshot)
        .await
}

impl Plan {
    fn resume(cursor: Cursor, slots: &[usize]) -> Self {
        let begin = |slot: &usize| match cursor.slot(*slot) {
            Slot::At(version) => Begin::At(version),
            Slot::Sync | Slot::Unasked => Begin::Sync { not_older: None },
        };
        Self {
            begins: slots.iter().map(begin).collect(),
            cursor,
            initial_events: false,
            resumes: true,
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

/// The legs of a plan for the merge core; those without a start of their own begin with what is there.
pub(super) fn watch_legs(plan: &FanOut, starts: &[Start]) -> Vec<WatchLeg> {
    let leg = |(index, leg): (usize, &crate::plan::FanLeg)| WatchLeg {
        cluster: leg.cluster().clone(),
        slot: leg.slot,
        filter: leg.filter.clone(),
        asks: leg.asks(),
        start: starts.get(index).copied().unwrap_or(Start::Sync),
    };
    plan.legs.iter().enumerate().map(leg).collect()
}

/// A watch whose members are being asked.
struct Opening {
    shared: Arc<Shared>,
    plan: Arc<FanOut>,
    begin: Plan,
    bookmarks: bool,
    /// As the merge core wants them.
    starts: Vec<Start>,
    /// Members that were asked without a marker after they had refused one.
    plain: Vec<bool>,
    legs: Vec<Asked>,
}

enum Asked {
    Waiting(Connecting),
    Answered(Answered),
}

impl Opening {
    fn new(shared: Arc<Shared>, plan: Arc<FanOut>, begin: Plan, bookmarks: bool, snapshot: &Arc<Snapshot>) -> Self {
        let legs = plan.legs.len();
        let mut opening = Self {
            shared,
            plan,
            begin,
            bookmarks,
            starts: Vec::new(),
            plain: vec![false; legs],
            legs: Vec::new(),
        };
        // How to ask follows from the whole, whatever the format will be.
        let core = opening.core(Shape::Json);
        for index in 0..opening.plan.legs.len() {
            let start = core.start(index);
            opening.starts.push(start);
            let wish = Wish {
                query: opening.query(index, start),
                shape: None,
                wait: Duration::ZERO,
            };
            let connecting = connect(&opening.shared, &opening.plan, index, wish, Some(snapshot.clone()));
            opening.legs.push(Asked::Waiting(connecting));
        }
        opening
    }

    /// The client's own words where the merge core has no others.
    fn query(&self, leg: usize, start: Start) -> LegQuery {
        match (self.begin.begins[leg], start) {
            (begin @ Begin::Sync { .. }, Start::Sync) => begin.query(),
            _ => Wish::of(start, false),
        }
    }

    /// Before 1.32 members know no watch-list, and refuse a marker that only the router asked for.
    fn ask_plainly(&mut self, index: usize) {
        let start = self.starts[index];
        let wish = Wish {
            query: Wish::of(start, true),
            shape: None,
            wait: Duration::ZERO,
        };
        self.legs[index] = Asked::Waiting(connect(&self.shared, &self.plan, index, wish, None));
    }

    fn core(&self, shape: Shape) -> WatchMerge {
        WatchMerge::new(WatchSpec {
            format: shape.watch(),
            bookmarks: self.bookmarks,
            initial_events: self.begin.initial_events,
            cursor: self.begin.cursor.clone(),
            legs: watch_legs(&self.plan, &self.begin.starts()),
            unique: self.plan.unique,
            cluster_column: shape == Shape::Table,
            shadow: Some(self.shared.fanouts.shadows.clone()),
        })
    }

    async fn run(mut self, snapshot: &Snapshot) -> Result<Response<Body>, Fault> {
        self.wait().await;
        if let Some(refused) = self.take(|answered| matches!(answered, Answered::Refused(_)))
            && let Answered::Refused(response) = refused
        {
            return Ok(passed(response));
        }
        let Some((shape, kind)) = self.shape() else {
            return self.nobody();
        };
        if !self.goes_without()
            && let Some(away) = self.first_away()
        {
            return Err(away);
        }
        Ok(self.stream(snapshot, shape, kind))
    }

    /// Whether it may begin with some members only.
    fn goes_without(&self) -> bool {
        self.begin.resumes || self.plan.unavailable == Unavailable::PartialStart
    }

    /// Until all have answered, or somebody has and the others were waited for briefly.
    async fn wait(&mut self) {
        let goes_without = self.goes_without();
        let mut brief = std::pin::pin!(tokio::time::sleep(BRIEF));
        let mut begun = false;
        poll_fn(|cx| {
            let (mut waiting, mut enough, mut hopeless) = (false, false, false);
            for index in 0..self.legs.len() {
                waiting |= self.poll_leg(index, cx);
                match &self.legs[index] {
                    Asked::Answered(Answered::Live(_) | Answered::Gone) => enough |= goes_without,
                    Asked::Answered(Answered::Refused(_)) => enough = true,
                    // Without this one there is no beginning, whatever the others say.
                    Asked::Answered(Answered::Away(_)) => hopeless |= !goes_without,
                    Asked::Answered(Answered::Absent(_)) | Asked::Waiting(_) => {}
                }
            }
            if !waiting || hopeless {
                return Poll::Ready(());
            }
            if enough && !begun {
                begun = true;
                brief.as_mut().reset(Instant::now() + BRIEF);
            }
            if begun { brief.as_mut().poll(cx) } else { Poll::Pending }
        })
        .await;
    }

    /// True while it waits.
    fn poll_leg(&mut self, index: usize, cx: &mut Context<'_>) -> bool {
        while let Asked::Waiting(connecting) = &mut self.legs[index] {
            let Poll::Ready(answered) = connecting.as_mut().poll(cx) else {
                return true;
            };
            let unknown = |response: &Response<Body>| response.status() == StatusCode::UNPROCESSABLE_ENTITY;
            let ours = !matches!(self.begin.begins[index], Begin::Sync { .. }) && !self.plain[index];
            self.legs[index] = Asked::Answered(answered);
            if let Asked::Answered(Answered::Refused(response)) = &self.legs[index]
                && ours
                && unknown(response)
            {
                self.plain[index] = true;
                self.ask_plainly(index);
            }
        }
        false
    }

    fn take(&mut self, which: impl Fn(&Answered) -> bool) -> Option<Answered> {
        let at = self
            .legs
            .iter()
            .position(|leg| matches!(leg, Asked::Answered(answered) if which(answered)))?;
        match self.legs.remove(at) {
            Asked::Answered(answered) => Some(answered),
            Asked::Waiting(_) => None,
        }
    }

    /// What the first member that serves it chose.
    fn shape(&self) -> Option<(Shape, HeaderValue)> {
        self.legs.iter().find_map(|leg| match leg {
            Asked::Answered(Answered::Live(response)) => {
                let shape = self.shared.accepted.shape(response.headers())?;
                Some((shape, response.headers().get(CONTENT_TYPE)?.clone()))
            }
            // It says so within the stream.
            Asked::Answered(Answered::Gone) => {
                let shape = self.shared.accepted.own();
                Some((shape, content_type(shape)))
            }
            _ => None,
        })
    }

    /// No member's events can flow.
    fn nobody(mut self) -> Result<Response<Body>, Fault> {
        let alone = self.legs.len() == 1;
        if let Some(Answered::Away(Away {
            answer: Some(answer), ..
        })) = self.take(|answered| alone && matches!(answered, Answered::Away(Away { answer: Some(_), .. })))
        {
            return Ok(passed(answer));
        }
        if let Some(away) = self.first_away() {
            return Err(away);
        }
        match self.take(|answered| matches!(answered, Answered::Absent(_))) {
            Some(Answered::Absent(response)) => Ok(passed(response)),
            _ => Err(Fault::TooManyRequests {
                message: "no member cluster answered in a format that can be merged".to_owned(),
                retry_after_seconds: 1,
                cluster: None,
            }),
        }
    }

    fn first_away(&self) -> Option<Fault> {
        let legs = || self.legs.iter().zip(&self.plan.legs);
        let away = legs().find_map(|(asked, leg)| match asked {
            Asked::Answered(Answered::Away(away)) => Some((leg, away.why.clone())),
            _ => None,
        });
        let silent = || {
            let (_, leg) = legs().find(|(asked, _)| matches!(asked, Asked::Waiting(_)))?;
            Some((leg, format!("member cluster {} does not answer", leg.cluster())))
        };
        let (leg, why) = away.or_else(silent)?;
        Some(Fault::TooManyRequests {
            message: format!("a watch begins when all members of the shard can be asked: {why}"),
            retry_after_seconds: 1,
            cluster: Some(leg.cluster().to_string()),
        })
    }

    fn stream(self, snapshot: &Snapshot, shape: Shape, kind: HeaderValue) -> Response<Body> {
        let merge = self.core(shape);
        let Self { shared, plan, legs, .. } = self;
        let mut missing = Vec::new();
        let links = legs.into_iter().zip(&plan.legs).map(|(asked, leg)| {
            let link = link(&shared, shape, asked);
            if !matches!(link, Link::Live(_)) {
                missing.push(leg.cluster().clone());
            }
            link
        });
        let links = links.collect();
        let mut head = Response::new(Body::Empty);
        let headers = head.headers_mut();
        headers.insert(CONTENT_TYPE, kind);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        headers.append(VIA, rewrite::VIA_VALUE);
        warn(headers, &plan, &missing);
        let fanouts = &shared.fanouts;
        let asking = &shared.asking;
        // Registered before the first byte: no swap from here on is missed.
        let watched = fanouts
            .recheck
            .watch_fan(plan.clone(), &asking.asked, &asking.caller, snapshot);
        let drain = Box::pin(fanouts.tasks.token().cancelled_owned());
        let ending = Ending::default();
        let stream = MergedWatch::new(Begun {
            merge,
            shape,
            links,
            drain,
            watched,
            plan,
            shared,
            ending: ending.clone(),
        });
        *head.body_mut() = Body::Merged(Merged::ending(stream, ending));
        head
    }
}

fn link(shared: &Shared, shape: Shape, asked: Asked) -> Link {
    let failed = |reason, why: &str| {
        Link::Failed(Failed {
            reason,
            why: why.to_owned(),
        })
    };
    match asked {
        Asked::Waiting(connecting) => Link::Connecting(connecting),
        Asked::Answered(Answered::Live(response)) if shared.accepted.shape(response.headers()) == Some(shape) => {
            Link::Live(response.into_body())
        }
        Asked::Answered(Answered::Live(_)) => failed(Reason::Unreadable, "the member chose another format"),
        Asked::Answered(Answered::Absent(_)) => failed(Reason::Absent, "the member does not serve the kind"),
        Asked::Answered(Answered::Gone) => Link::Connecting(Box::pin(std::future::ready(Answered::Gone))),
        Asked::Answered(Answered::Refused(response)) => failed(Reason::Refused, response.status().as_str()),
        Asked::Answered(Answered::Away(away)) => failed(Reason::Away, &away.why),
    }
}

/// What the plan and the missing members have to say to whoever reads headers.
fn warn(headers: &mut HeaderMap, plan: &FanOut, missing: &[Arc<str>]) {
    let audited = plan.legs.iter().find_map(|leg| leg.forward.warning.clone());
    let without = missing
        .iter()
        .map(|cluster| format!("member cluster {cluster} is not there yet: its events follow when it is"));
    for text in audited.into_iter().chain(without) {
        if let Some(value) = rewrite::warning(&text) {
            headers.append(WARNING, value);
        }
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
    snapshot: Arc<Snapshot>,
    judge: Judge,
) -> Result<Response<Body>, Fault> {
    for leg in &plan.legs {
        let overrides = Overrides {
            query: judge.0.clone(),
            ..Overrides::default()
        };
        match leg::start(fanouts, asking, leg, &overrides, snapshot.clone()).await {
            Ok(response) if response.status().is_client_error() => return Ok(passed(response)),
            Ok(_) => break,
            // The next one knows it as well.
            Err(fault) => tracing::debug!(%fault, "a member cannot be asked what is wrong with a request"),
        }
    }
    Err(match Judge::fault() {
        QueryFault::BadRequest(why) => Fault::BadRequest(why),
        QueryFault::Expired(why) => Fault::Expired(why),
    })
}

/// One `ERROR` event and the end, with 200: only so does every client list anew.
fn expired(fanouts: &FanOuts, asking: &Asking, why: String) -> Response<Body> {
    fanouts.open.metrics.expired("position");
    let shape = Accepted::of(&asking.headers).own();
    let format = match shape {
        Shape::Json | Shape::Table => Format::Json,
        Shape::Protobuf => Format::Protobuf,
    };
    let mut response = Response::new(Body::from(reply::error_event(&Fault::Expired(why), format)));
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
