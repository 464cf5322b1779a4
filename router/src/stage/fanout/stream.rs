//! The body of a merged watch: reads its legs when it is read itself, and writes what the merge core makes of them.
//!
//! One struct, no task: a client that does not read makes its members wait, and nobody else. Each leg has a waker of its own
//! (`wake`), so a wake-up reads what woke it. It ends as API servers end watches: after a bookmark, between two events,
//! never by a reset. What becomes of a leg that ends is in `resync`. Made by `watch`; read by hyper, or by `socket`.

mod resync;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame};
use portolan_merge::watch::{Output, WatchMerge};
use portolan_runtime::{Backoff, Wakes};
use tokio::time::{Instant, Sleep};

use super::Told;
use super::connect::{Connecting, Shared};
use super::listing::{ComingLeg, ListingLeg};
use super::open::{LegState, OpenLeg, Registered};
use crate::decision::plan::{FanLeg, FanOut};
use crate::resource::upstream::{Body, BodyError, Ended, Ending};
use crate::stage::inject::{StreamInjection, WatchInjection};
use crate::stage::replan::{FanVerdict, Verdict, WatchedFan};
use crate::value::media::Shape;

/// Made in one go before it is handed on: legs that always have something must not keep the client waiting.
const ROUND_BYTES: usize = 64 << 10;
/// Chunks read in one go, for the same reason, when nothing of them is the client's.
const ROUND_CHUNKS: usize = 64;
/// Pieces are joined up to this: an event and its bookmark go out in one frame.
const JOINED_BYTES: usize = 16 << 10;
/// A watch that ends sooner without an event is an error to client-go, which lists anew.
const SHORTEST: Duration = Duration::from_millis(1200);
/// A planned end waits so long for a change of the shard to be told by members that are there: what its client is told of it before,
/// it is told once more when it comes back.
const CHANGING: Duration = Duration::from_millis(700);
/// Between two attempts to connect a leg: at first, and at most. A member that is back is noticed within the latter, and its
/// breaker lets few of the attempts through meanwhile.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MOST: Duration = Duration::from_secs(4);

/// What `watch` has found out before the first byte.
pub(super) struct Begun {
    pub(super) shared: Arc<Shared>,
    pub(super) plan: Arc<FanOut>,
    pub(super) merge: WatchMerge,
    pub(super) told: Told,
    pub(super) shape: Shape,
    /// One per leg.
    pub(super) links: Vec<Link>,
    pub(super) watched: WatchedFan,
    pub(super) ending: Ending,
}

/// A leg's connection.
pub(super) enum Link {
    Live(Body),
    Connecting(Connecting),
    /// What the client holds of it is listed.
    Listing(ListingLeg),
    /// What came to its share is listed.
    Coming(ComingLeg),
    /// It failed before the stream began, for this reason.
    Failed(Failed),
    Idle,
}

/// Why a leg has no stream.
#[derive(Debug, Clone)]
pub(super) struct Failed {
    pub(super) reason: Reason,
    pub(super) why: String,
}

/// In metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// The member ended it.
    Ended,
    /// The connection broke.
    Broken,
    /// It cannot be reached, or not now.
    Away,
    /// It refuses what it served before.
    Refused,
    /// It does not serve the kind.
    Absent,
    /// What it sent cannot be read.
    Unreadable,
    /// Its objects are read anew.
    Relist,
    /// A swap changed what it is asked.
    Replanned,
    /// A fault that was ordered cut it.
    Injected,
}

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Broken => "broken",
            Self::Away => "away",
            Self::Refused => "refused",
            Self::Absent => "absent",
            Self::Unreadable => "unreadable",
            Self::Relist => "relist",
            Self::Replanned => "replanned",
            Self::Injected => "injected",
        }
    }
}

struct LegStream {
    link: Link,
    waker: Waker,
    shown: Arc<OpenLeg>,
    backoff: Backoff,
    /// When it last became live.
    since: Option<Instant>,
    /// Not read until the others' initial events are over.
    parked: bool,
    /// Something was read of it that is not shown yet.
    touched: bool,
    /// Times in a row that it could not be read, that it refused what a changed share has to be asked for, and that it ended
    /// sooner for its next bookmark.
    unreadable: u32,
    refused: u32,
    hurried: u32,
    /// Times in a row that its member ended it at once, and what was seen of the member when it was connected last.
    short: u32,
    seen: u64,
    /// What it was connected for has been read: whatever is asked next is asked at once.
    through: bool,
    /// While it is listed what the client holds: as the client was answered from.
    held_by: Option<Box<FanLeg>>,
    /// Faults that are ordered for it, whatever connections it goes over.
    injection: Option<Arc<StreamInjection>>,
}

/// The body of one merged watch.
pub(super) struct MergedWatch {
    shared: Arc<Shared>,
    plan: Arc<FanOut>,
    merge: WatchMerge,
    /// Held for its end.
    _told: Told,
    shape: Shape,
    legs: Vec<LegStream>,
    out: Output,
    /// After all else, instead of a bookmark.
    last: Option<Bytes>,
    wakes: Arc<Wakes>,
    /// Wakes for `ends`.
    control: Waker,
    ends: Pin<Box<Sleep>>,
    begun: Instant,
    watched: WatchedFan,
    shown: Registered,
    /// The leg to begin with.
    next: usize,
    /// Nothing more is read.
    over: bool,
    ending: Ending,
}

impl MergedWatch {
    pub(super) fn new(begun: Begun) -> Self {
        let Begun {
            shared,
            plan,
            merge,
            told,
            shape,
            links,
            watched,
            ending,
        } = begun;
        let wakes = Wakes::new(links.len() + 1);
        let open = &shared.fanouts.open;
        let injection = shared.asking.injection.as_ref();
        let legs: Vec<LegStream> = links
            .into_iter()
            .zip(&plan.legs)
            .enumerate()
            .map(|(index, (link, leg))| {
                let leg = LegStream::new(link, wakes.waker(index), open.leg(leg.cluster()));
                leg.injected(injection, shape)
            })
            .collect();
        for (stream, leg) in legs.iter().zip(&plan.legs) {
            let selector = leg.forward.rewrite.selector.clone();
            stream.shown.set_shows(leg.share.namespaces.clone(), selector);
        }
        let shown = legs.iter().map(|leg| leg.shown.clone()).collect();
        let shown = open.register(&shared.asking.caller, &shared.asking.asked, plan.fence, shown);
        if let Some(injection) = injection.and_then(WatchInjection::client) {
            shown.watch.set_injection(injection);
        }
        let mut stream = Self {
            control: wakes.waker(legs.len()),
            ends: Box::pin(tokio::time::sleep_until(shared.ends)),
            begun: Instant::now(),
            shared,
            plan,
            merge,
            _told: told,
            shape,
            legs,
            out: Output::default(),
            last: None,
            wakes,
            watched,
            shown,
            next: 0,
            over: false,
            ending,
        };
        stream.settle_failed();
        stream
    }

    /// Faults that are ordered for what the client sees.
    pub(super) fn injection(&self) -> Option<Arc<StreamInjection>> {
        self.shown.watch.injection().cloned()
    }

    fn control(&mut self, cx: &Context<'_>) {
        while !self.over
            && let Some(verdict) = self.watched.poll(cx)
        {
            match verdict {
                FanVerdict::Over(verdict) => self.replanned(verdict),
                FanVerdict::Renewed(plan) => self.renew(plan),
                FanVerdict::Replanned(plan) => self.replan(plan),
            }
        }
        let drains = self.watched.drains();
        if self.over || !(self.wakes.take(self.legs.len()) || drains) {
            return;
        }
        let mut cx = Context::from_waker(&self.control);
        let due = self.ends.as_mut().poll(&mut cx).is_ready();
        let until = if drains && !due && self.says_too_little() {
            Some((self.begun + SHORTEST).min(self.ends.deadline()))
        } else if due && !drains && self.is_changing() {
            // A little at a time: it is over at once when it is told.
            Some(Instant::now() + CHANGING / 35).filter(|until| *until < self.shared.ends + CHANGING)
        } else {
            None
        };
        if let Some(until) = until {
            self.ends.as_mut().reset(until);
            if self.ends.as_mut().poll(&mut cx).is_pending() {
                return;
            }
        }
        match (drains, due) {
            (true, _) => self.end(Ended::Drained),
            (false, true) => self.end(Ended::Complete),
            (false, false) => {}
        }
    }

    /// Whether a member that is there is telling a change of the shard.
    fn is_changing(&self) -> bool {
        let mut legs = self.legs.iter().enumerate();
        legs.any(|(index, leg)| self.merge.is_changing(index) && leg.shown.state() != LegState::Held)
    }

    fn says_too_little(&self) -> bool {
        let counts = self.merge.counts();
        counts.events + counts.bookmarks == 0 && self.begun.elapsed() < SHORTEST
    }

    /// The planned end.
    fn end(&mut self, ended: Ended) {
        self.merge.close(&mut self.out);
        self.ending.set(ended);
        self.over = true;
    }

    /// The end that a swap brings.
    fn replanned(&mut self, verdict: Verdict) {
        match verdict.last_event(self.shape.media()) {
            None => self.end(Ended::Replanned),
            Some(event) => {
                self.ending.set(Ended::Replanned);
                self.expire("changed", event);
            }
        }
    }

    /// The end that makes the client list again.
    fn expire(&mut self, reason: &'static str, event: Bytes) {
        self.shared.fanouts.open.metrics.expired(reason);
        self.last = Some(event);
        self.over = true;
    }

    /// Reads legs in turn. True when none of them has more to say now.
    fn read_legs(&mut self) -> bool {
        let count = self.legs.len();
        let mut chunks = 0;
        loop {
            let mut read = false;
            for step in 0..count {
                let index = (self.next + step) % count;
                if !self.wakes.take(index) {
                    continue;
                }
                if matches!(self.legs[index].link, Link::Live(_)) && self.merge.paused(index) {
                    self.legs[index].parked = true;
                    continue;
                }
                read = true;
                if self.read(index) {
                    self.wakes.set(index);
                }
                chunks += 1;
                if self.over {
                    return true;
                }
                if self.out.len() >= ROUND_BYTES || chunks >= ROUND_CHUNKS {
                    self.next = (index + 1) % count;
                    return false;
                }
            }
            if !self.unpark() && !read {
                return true;
            }
        }
    }

    /// Reads one chunk of one leg. True if there may be another.
    fn read(&mut self, index: usize) -> bool {
        let LegStream { link, waker, .. } = &mut self.legs[index];
        let mut cx = Context::from_waker(waker);
        match link {
            Link::Idle | Link::Failed(_) => return false,
            Link::Connecting(connecting) => match connecting.as_mut().poll(&mut cx) {
                Poll::Pending => return false,
                Poll::Ready(answered) => self.connected(index, answered),
            },
            Link::Listing(listing) => match listing.as_mut().poll(&mut cx) {
                Poll::Pending => return false,
                Poll::Ready(listed) => self.listed(index, listed),
            },
            Link::Coming(coming) => match coming.as_mut().poll(&mut cx) {
                Poll::Pending => return false,
                Poll::Ready(came) => self.came(index, came),
            },
            Link::Live(body) => match Pin::new(body).poll_frame(&mut cx) {
                Poll::Pending => return false,
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.push(index, data);
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    let ordered = matches!(error, BodyError::Injected(_));
                    let reason = if ordered { Reason::Injected } else { Reason::Broken };
                    self.lost(index, reason, &error.to_string());
                }
                Poll::Ready(None) => self.ended(index),
            },
        }
        true
    }

    fn unpark(&mut self) -> bool {
        let mut any = false;
        for (index, leg) in self.legs.iter_mut().enumerate() {
            if leg.parked && !self.merge.paused(index) {
                leg.parked = false;
                self.wakes.set(index);
                any = true;
            }
        }
        any
    }

    /// What is ready, joined if it is small.
    fn take(&mut self) -> Option<Bytes> {
        let Some(first) = self.out.pop() else {
            return self.last.take();
        };
        let chunk = if self.out.is_empty() || first.len() >= JOINED_BYTES {
            first
        } else {
            let room = (first.len() + self.out.len()).min(JOINED_BYTES * 2);
            let mut joined = BytesMut::with_capacity(room);
            joined.extend_from_slice(&first);
            while joined.len() < JOINED_BYTES
                && let Some(next) = self.out.pop()
            {
                joined.extend_from_slice(&next);
            }
            joined.freeze()
        };
        let counts = self.merge.counts();
        let (events, bookmarks) = self.shown.watch.sent(chunk.len(), counts.events, counts.bookmarks);
        let open = &self.shared.fanouts.open;
        open.metrics.sent(events, bookmarks);
        self.shown.watch.set_handed(Some(open.now()));
        if self.out.is_empty() {
            self.show();
        }
        Some(chunk)
    }

    /// What the legs have come to, for fences and pages.
    fn show(&mut self) {
        // Mostly nothing was, and the clock is dear.
        let mut now = None;
        for (index, leg) in self.legs.iter_mut().enumerate() {
            if !std::mem::take(&mut leg.touched) {
                continue;
            }
            let now = *now.get_or_insert_with(|| self.shared.fanouts.open.now());
            let view = self.merge.leg_state(index);
            leg.shown.advance(view.slot, view.seen, now);
            if view.synced && leg.shown.state() == LegState::Relisting {
                leg.shown.set_state(LegState::Live, None);
            }
        }
    }
}

impl http_body::Body for MergedWatch {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(chunk) = self.take() {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        if self.over {
            return Poll::Ready(None);
        }
        self.shown.watch.set_handed(None);
        self.wakes.register(cx.waker());
        self.control(cx);
        // Another set, if the plan changed.
        self.wakes.register(cx.waker());
        let mut quiet = self.over || self.read_legs();
        if quiet && !self.over {
            let this = &mut *self;
            this.merge.flush(&mut this.out);
            this.list_untold();
            quiet = !this.next_acts();
        }
        if let Some(chunk) = self.take() {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        if self.over {
            return Poll::Ready(None);
        }
        self.show();
        if !quiet {
            // All of it was nobody's, or a leg is connected anew; others have a turn before the rest.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There is one per member and open watch; with its registry entry and the merge core's part it must stay far below
    /// what its HTTP/2 stream costs.
    #[test]
    fn what_an_idle_leg_costs_is_pinned() {
        let leg = size_of::<LegStream>() + size_of::<OpenLeg>() + size_of::<crate::decision::plan::FanLeg>();
        assert!(leg <= 2048, "{leg} bytes per leg");
        let watch = size_of::<MergedWatch>() + size_of::<Shared>();
        assert!(watch <= 3072, "{watch} bytes per watch");
    }
}
