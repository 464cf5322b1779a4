//! A merged watch whose members are being asked: who is waited for, whose word decides, and what the stream begins with.
//!
//! Caller: `watch`, which has read the client's words.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, USER_AGENT, VIA, WARNING};
use http::{Response, StatusCode};
use portolan_merge::query::{Begin, LegQuery};
use portolan_merge::watch::{Start, WatchMerge, WatchSpec};
use tokio::time::Instant;

use super::{Plan, content_type, passed};
use crate::decision::plan::{FanLeg, FanOut};
use crate::decision::rewrite;
use crate::resource::routing::Routing;
use crate::resource::upstream::{Body, Ending, Merged};
use crate::stage::fanout::absence;
use crate::stage::fanout::connect::{Answered, Away, Connecting, Shared, Wish, connect, watch_legs};
use crate::stage::fanout::leg::Asking;
use crate::stage::fanout::stream::{Begun, Failed, Link, MergedWatch, Reason};
use crate::value::event_boundary::EventBoundary;
use crate::value::fault::Fault;
use crate::value::media::Shape;

/// For the others, once a member's events could flow: where what they hold would be missing at first.
const BRIEF: Duration = Duration::from_secs(2);
/// Where the client goes on: who comes later is joined to the stream, and the client hears of the others meanwhile.
const RESUMES: Duration = Duration::from_millis(500);

/// How libraries name themselves that take any object without its other fields, required ones too: client-go (so also kubectl and
/// controller-runtime), other programs of Go, fabric8.
const LENIENT: [&str; 3] = ["kubernetes/", "Go-http-client/", "fabric8-kubernetes-client/"];
/// And those that check what is required: the official clients, old and new, but for custom resources in Python, which come as they are.
const CHECKING: [&str; 2] = ["OpenAPI-Generator/", "Kubernetes Java Client/"];

/// A watch whose members are being asked.
pub(super) struct Opening {
    shared: Arc<Shared>,
    plan: Arc<FanOut>,
    /// What it goes on under, if the client stands in an older view.
    now: Option<Arc<FanOut>>,
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
    pub(super) fn new(
        shared: Arc<Shared>,
        (plan, now): (Arc<FanOut>, Option<Arc<FanOut>>),
        begin: Plan,
        bookmarks: bool,
        routing: &Arc<Routing>,
    ) -> Self {
        let legs = plan.legs.len();
        let mut opening = Self {
            shared,
            plan,
            now,
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
                fields: None,
                hurries: false,
                wait: Duration::ZERO,
            };
            let connecting = connect(&opening.shared, &opening.plan, index, wish, Some(routing.clone()));
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
            fields: None,
            hurries: false,
            wait: Duration::ZERO,
        };
        self.legs[index] = Asked::Waiting(connect(&self.shared, &self.plan, index, wish, None));
    }

    fn core(&self, shape: Shape) -> WatchMerge {
        let mut merge = WatchMerge::new(WatchSpec {
            format: shape.watch(),
            bookmarks: self.bookmarks,
            initial_events: self.begin.initial_events,
            cursor: self.begin.cursor.clone(),
            legs: watch_legs(&self.shared.asking.asked, &self.plan, &self.begin.starts()),
            unique: self.plan.unique,
            cluster_column: shape == Shape::Table,
            known_objects: Some(self.shared.fanouts.memory(&self.plan).clone()),
        })
        .bounded(self.shared.fanouts.frames.clone());
        if self.shared.hides_objects() {
            merge = merge.hiding_objects();
        }
        if !reads_metadata(&self.shared.asking) {
            merge = merge.of_whole_objects();
        }
        if self.plan.only_member {
            merge = merge.in_order();
        }
        if self.now.is_some() {
            merge = merge.of_older_view();
        }
        merge
    }

    pub(super) async fn run(mut self, routing: &Routing) -> Result<Response<Body>, Fault> {
        self.wait().await;
        if let Some(refused) = self.take(|answered| matches!(answered, Answered::Refused(_)))
            && let Answered::Refused(response) = refused
        {
            return Ok(passed(response));
        }
        let Some((shape, kind)) = self.shape() else {
            return self.nobody();
        };
        if let Some(away) = self.first_away(|cluster| !self.goes_without(cluster)) {
            return Err(away);
        }
        Ok(self.stream(routing, shape, kind))
    }

    /// Whether it may begin without this member.
    fn goes_without(&self, cluster: &str) -> bool {
        self.begin.resumes || self.shared.may_leave_out(cluster)
    }

    /// Until all have answered, or somebody has and the others were waited for briefly.
    async fn wait(&mut self) {
        let patience = if self.begin.resumes { RESUMES } else { BRIEF };
        let mut brief = std::pin::pin!(tokio::time::sleep(patience));
        let mut begun = false;
        poll_fn(|cx| {
            let (mut waiting, mut needed, mut begins, mut refused, mut hopeless) = (false, false, false, false, false);
            for index in 0..self.legs.len() {
                let goes_without = self.goes_without(self.plan.legs[index].cluster());
                let waits = self.poll_leg(index, cx);
                waiting |= waits;
                needed |= waits && !goes_without;
                match &self.legs[index] {
                    Asked::Answered(Answered::Live(_) | Answered::Gone) => begins = true,
                    Asked::Answered(Answered::Refused(_)) => refused = true,
                    // Without this one there is no beginning, whatever the others say.
                    Asked::Answered(Answered::Away(_)) => hopeless |= !goes_without,
                    Asked::Answered(Answered::Absent(_)) | Asked::Waiting(_) => {}
                }
            }
            if !waiting || hopeless {
                return Poll::Ready(());
            }
            if (refused || (begins && !needed)) && !begun {
                begun = true;
                brief.as_mut().reset(Instant::now() + patience);
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
            let ours = !self.begin.initial_events && !self.plain[index];
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
        if let Some(away) = self.first_away(|_| true) {
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

    /// The first member, of those that are `needed`, whose events cannot flow.
    fn first_away(&self, needed: impl Fn(&str) -> bool) -> Option<Fault> {
        let legs = || {
            let legs = self.legs.iter().zip(&self.plan.legs);
            legs.filter(|(_, leg)| needed(leg.cluster()))
        };
        let away = legs().find_map(|(asked, leg)| match asked {
            Asked::Answered(Answered::Away(away)) => Some((leg, away)),
            _ => None,
        });
        if let Some(refusal) = away.and_then(|(_, away)| away.policy.clone()) {
            return Some(Fault::Policy(refusal));
        }
        let away = away.map(|(leg, away)| (leg, away.why.clone()));
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

    fn stream(self, routing: &Routing, shape: Shape, kind: HeaderValue) -> Response<Body> {
        let mut merge = self.core(shape).recorded(self.begin.told.sent());
        for (leg, _) in self.plain.iter().enumerate().filter(|(_, plain)| **plain) {
            merge.disable_watch_list(leg);
        }
        let Self {
            shared,
            plan,
            now,
            legs,
            begin,
            ..
        } = self;
        let mut missing: Vec<_> = plan.without().filter_map(|text| rewrite::warning(&text)).collect();
        let links = legs.into_iter().zip(&plan.legs).map(|(asked, leg)| {
            let link = link(&shared, shape, asked);
            missing.extend(without(&shared, leg, &link));
            link
        });
        let links = links.collect();
        let mut head = head(&plan, kind, missing);
        let fanouts = &shared.fanouts;
        let asking = &shared.asking;
        // Registered before the first byte: no swap from here on is missed.
        let watched = fanouts.replanner.watch_fan(
            now.as_ref().unwrap_or(&plan).clone(),
            &asking.asked,
            &asking.caller,
            routing,
        );
        let ending = Ending::default();
        let mut stream = MergedWatch::new(Begun {
            merge,
            told: begin.told,
            shape,
            links,
            watched,
            plan,
            shared,
            ending: ending.clone(),
        });
        if let Some(now) = now {
            stream.replan(now);
        }
        let injection = stream.injection();
        let body = Body::Merged(Merged::ending(stream, ending));
        *head.body_mut() = match injection {
            Some(injection) => injection.inject(EventBoundary::of_media(shape.media()), body),
            None => body,
        };
        head
    }
}

/// What comes before the first event. `missing`: what the client is to be told that it does not get.
fn head(plan: &FanOut, kind: HeaderValue, missing: Vec<HeaderValue>) -> Response<Body> {
    let mut head = Response::new(Body::Empty);
    let headers = head.headers_mut();
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.append(VIA, rewrite::VIA_VALUE);
    let audited = plan.legs.iter().find_map(|leg| leg.forward.warning.as_deref());
    for warning in audited.and_then(rewrite::warning).into_iter().chain(missing) {
        headers.append(WARNING, warning);
    }
    head
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

/// What is said of a member that the watch begins without.
fn without(shared: &Shared, leg: &FanLeg, link: &Link) -> Option<HeaderValue> {
    match link {
        Link::Live(_) => None,
        Link::Failed(failed) if failed.reason == Reason::Absent => absence::warning(&shared.asking.asked, leg),
        _ => rewrite::warning(&format!(
            "member cluster {} is not there yet: its events follow when it is",
            leg.cluster()
        )),
    }
}

/// Whether the client reads an object of metadata alone. kube-rs drops such an event with an error where fields are required, and
/// keeps the object: it asks without `Accept`, which all others send, and does not name itself.
fn reads_metadata(asking: &Asking) -> bool {
    let custom = asking
        .asked
        .resource
        .as_ref()
        .is_some_and(|resource| !resource.is_built_in());
    let agent = asking.headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok());
    let mut products = agent.unwrap_or_default().split_whitespace();
    let known = products.find_map(|product| {
        let is = |names: &[&str]| names.iter().any(|name| product.starts_with(name));
        if is(&LENIENT) {
            return Some(true);
        }
        let python = product.ends_with("/python");
        is(&CHECKING).then_some(custom && python)
    });
    known.unwrap_or_else(|| asking.headers.contains_key(ACCEPT))
}
