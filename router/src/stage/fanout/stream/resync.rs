//! What becomes of a leg that connects, ends or breaks while the client's stream goes on, and of the stream when its plan
//! changes.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use portolan_merge::watch::{Act, Expiry, Listing, Start};
use portolan_runtime::{Backoff, Wakes};
use tokio::time::Instant;

use super::{Failed, LegStream, Link, MergedWatch, RETRY_FIRST, RETRY_MOST, Reason, SHORTEST};
use crate::decision::plan::FanOut;
use crate::resource::upstream::Body;
use crate::stage::fanout::connect::{Answered, Away, Wish, connect, watch_legs};
use crate::stage::fanout::listing::{Coming, NotListed, come, come_on, list};
use crate::stage::fanout::open::{LegState, OpenLeg};
use crate::stage::inject::WatchInjection;
use crate::stage::reply;
use crate::value::event_boundary::EventBoundary;
use crate::value::fault::Fault;
use crate::value::media::Shape;

/// Between two looks whether a member serves a kind now.
const ABSENT_FIRST: Duration = Duration::from_secs(5);
const ABSENT_MOST: Duration = Duration::from_mins(1);
/// A leg that was up for so long is connected again without much ado.
const STABLE: Duration = Duration::from_secs(10);
/// A member that cannot be read, or refuses what a changed share needs, so often at the same place will not do better: only a
/// list of the client's gets past it.
const ATTEMPTS: u32 = 3;
/// Streams of seconds that did not come to the version that the member named: it named one that it does not have.
const HURRIED: u32 = 20;

/// In metrics.
fn reason_of(cause: Expiry) -> &'static str {
    match cause {
        Expiry::Compacted => "compacted",
        Expiry::Memory => "memory",
        Expiry::Changed => "changed",
        Expiry::Metadata => "metadata",
        Expiry::Member => "member",
    }
}

/// What a member says that has forgotten where a watch stood.
fn gone(shape: Shape) -> Bytes {
    let fault = Fault::Expired("too old resource version".to_owned());
    reply::error_event(&fault, shape.media())
}

impl LegStream {
    pub(super) fn new(link: Link, waker: Waker, shown: Arc<OpenLeg>) -> Self {
        let live = matches!(link, Link::Live(_));
        if live {
            shown.set_state(LegState::Live, None);
        }
        Self {
            link,
            waker,
            shown,
            backoff: Backoff::new(RETRY_FIRST, RETRY_MOST),
            since: live.then(Instant::now),
            parked: false,
            touched: live,
            unreadable: 0,
            refused: 0,
            hurried: 0,
            short: 0,
            seen: 0,
            through: false,
            held_by: None,
            injection: None,
        }
    }

    /// With what is ordered for its member's part of the watch.
    pub(super) fn injected(mut self, watch: Option<&Arc<WatchInjection>>, shape: Shape) -> Self {
        self.injection = watch.and_then(|watch| watch.leg(&self.shown.cluster));
        if let Some(injection) = &self.injection {
            self.shown.set_injection(injection.clone());
        }
        self.link = match std::mem::replace(&mut self.link, Link::Idle) {
            Link::Live(body) => Link::Live(self.inject(shape, body)),
            other => other,
        };
        self
    }

    /// A stream of its member, with what is ordered for it.
    fn inject(&self, shape: Shape, body: Body) -> Body {
        match &self.injection {
            Some(injection) => injection.inject(EventBoundary::of_media(shape.media()), body),
            None => body,
        }
    }

    fn wait(&mut self, reason: Reason) -> Duration {
        // Who ends all that is asked is not asked without a pause for having been listed.
        let through = std::mem::take(&mut self.through) && self.short == 0;
        if through || (reason == Reason::Replanned && self.since.is_some()) {
            // Nothing went wrong with it.
            self.since = None;
            self.backoff.reset();
            return Duration::ZERO;
        }
        if self.since.take().is_some_and(|since| since.elapsed() >= STABLE) {
            self.backoff.reset();
        }
        let wait = self.backoff.next(&mut rand::rng());
        if reason == Reason::Absent {
            // Nobody waits for it, and every watch of the kind looks.
            return (ABSENT_FIRST + wait * 10).min(ABSENT_MOST);
        }
        wait
    }
}

impl MergedWatch {
    /// Legs that failed before the stream began.
    pub(super) fn settle_failed(&mut self) {
        for index in 0..self.legs.len() {
            let link = &mut self.legs[index].link;
            if !matches!(link, Link::Failed(_)) {
                if matches!(link, Link::Connecting(_)) {
                    self.without(index, Reason::Away);
                }
                continue;
            }
            let Link::Failed(Failed { reason, why }) = std::mem::replace(link, Link::Idle) else {
                continue;
            };
            self.without(index, reason);
            self.lost(index, reason, &why);
        }
    }

    /// Whether the initial events of the whole wait for a leg that is not there: not for one that has nothing of the kind,
    /// and not of a client's first list where the user has said so.
    fn without(&mut self, index: usize, reason: Reason) {
        let act = if reason == Reason::Absent {
            self.merge.absent(index, &mut self.out)
        } else if self.shared.may_leave_out(&self.legs[index].shown.cluster) {
            self.merge.give_up(index, &mut self.out)
        } else {
            None
        };
        self.act(act, Reason::Relist, "its initial events were cut off");
    }

    pub(super) fn push(&mut self, index: usize, data: Bytes) {
        self.legs[index].touched = true;
        let seen = self.merge.leg_state(index).seen;
        let pushed = self.merge.push(index, data, &mut self.out);
        if self.merge.leg_state(index).seen > seen {
            // Not any chunk: the first of those that a frame is in says nothing yet.
            self.legs[index].unreadable = 0;
        }
        let foreign = self.merge.take_foreign(index);
        if foreign > 0 {
            self.foreign(index, foreign);
        }
        match pushed {
            Ok(act) => {
                self.act(act, Reason::Relist, "the member has forgotten where it was");
            }
            Err(error) => {
                self.unreadable(index, error.to_string());
            }
        }
        self.next_acts();
    }

    /// Its member has ended it. One that ends a watch at once, again and again, does not go on from there, and does not say so: it is
    /// read anew, as one that has forgotten where the watch stood.
    pub(super) fn ended(&mut self, index: usize) {
        let view = self.merge.leg_state(index);
        let leg = &mut self.legs[index];
        let young = leg.since.is_some_and(|since| since.elapsed() < SHORTEST);
        let is_short = view.synced && young && view.seen == leg.seen;
        leg.short = if is_short { leg.short + 1 } else { 0 };
        if !is_short || !leg.short.is_multiple_of(ATTEMPTS) {
            return self.lost(index, Reason::Ended, "the member ended it");
        }
        let why = format!("the member ended it at once {} times, without an event", leg.short);
        tracing::warn!(cluster = %leg.shown.cluster, why, "a leg of a watch is read anew");
        self.push(index, gone(self.shape));
    }

    fn foreign(&self, index: usize, events: u64) {
        let cluster = &self.legs[index].shown.cluster;
        // A tenant that copies labels can bring it about at will: the metric is what is to be looked at.
        tracing::debug!(%cluster, events, "a member sent objects of namespaces that it was not asked for");
        self.shared.fanouts.open.metrics.foreign(cluster, events);
    }

    /// What a member sent cannot be read: once more, some times.
    fn unreadable(&mut self, index: usize, why: String) {
        let leg = &mut self.legs[index];
        tracing::warn!(cluster = %leg.shown.cluster, why, "a leg of a watch cannot be read");
        leg.unreadable += 1;
        if leg.unreadable >= ATTEMPTS {
            self.forget(Reason::Unreadable.as_str(), why);
        } else {
            self.lost(index, Reason::Unreadable, &why);
        }
    }

    /// True if something was done: a leg may have a connection that nobody has polled.
    pub(super) fn next_acts(&mut self) -> bool {
        let mut acted = false;
        while let Some(act) = self.merge.next_act() {
            self.act(Some(act), Reason::Relist, "its objects are read anew");
            acted = true;
        }
        acted
    }

    pub(super) fn lost(&mut self, index: usize, reason: Reason, why: &str) {
        let act = self.merge.lost(index);
        self.act(Some(act), reason, why);
        self.next_acts();
    }

    fn act(&mut self, act: Option<Act>, reason: Reason, why: &str) {
        match act {
            None => {}
            Some(Act::Expired { cause, why }) => self.forget(reason_of(cause), why),
            Some(Act::Restart { leg, start }) => self.restart(leg, start, reason, why),
        }
    }

    /// What no event can tell the client it finds out by a list, which would have to wait for members that are away.
    pub(super) fn list_untold(&mut self) {
        let away = |leg: &LegStream| leg.shown.state() == LegState::Held;
        if self.merge.has_untold() && !self.legs.iter().any(away) {
            self.merge.expire_untold();
        }
    }

    /// The position of the client is worth nothing any more: it has to list again.
    fn forget(&mut self, reason: &'static str, why: String) {
        // What was ordered is no member's.
        let ordered = |leg: &LegStream| leg.injection.as_ref().is_some_and(|injection| injection.has_expired());
        let reason = if self.legs.iter().any(ordered) {
            "injected"
        } else {
            reason
        };
        let event = reply::error_event(&Fault::Expired(why), self.shape.media());
        self.expire(reason, event);
    }

    fn restart(&mut self, index: usize, start: Start, reason: Reason, why: &str) {
        let leg = &mut self.legs[index];
        self.shared
            .fanouts
            .open
            .metrics
            .restarted(&leg.shown.cluster, reason.as_str());
        leg.shown.restarted();
        let state = match (reason, start) {
            (Reason::Absent, _) => LegState::Absent,
            (Reason::Relist | Reason::Replanned, _) => LegState::Relisting,
            (_, _) => LegState::Held,
        };
        tracing::debug!(cluster = %leg.shown.cluster, reason = reason.as_str(), why, ?start, "a leg of a watch is connected again");
        leg.shown.set_state(state, Some(why));
        leg.parked = false;
        let wait = leg.wait(reason);
        leg.link = if let Start::Exact(version) = start {
            let now = &self.plan.legs[index];
            let mut held_by = leg.held_by.take().unwrap_or_else(|| Box::new(now.clone()));
            held_by.held.clone_from(&now.held);
            held_by.forward.target.clone_from(&now.forward.target);
            let asked = held_by.as_ref().clone();
            leg.held_by = Some(held_by);
            let listing = self.merge.listing(index);
            let fields = self.merge.selects_only(index).filter(|_| leg.refused == 0);
            Link::Listing(list(&self.shared, asked, (listing, version), fields, wait))
        } else if let Start::Came(version) = start {
            leg.held_by = None;
            let asked = self.plan.legs[index].clone();
            let fields = self.merge.selects_only(index).filter(|_| leg.refused == 0);
            Link::Coming(come(&self.shared, asked, (self.shape, version), fields, wait))
        } else {
            leg.held_by = None;
            let hurries = self.merge.is_catching_up(index);
            leg.hurried = if hurries { leg.hurried + 1 } else { 0 };
            if leg.hurried > HURRIED {
                let why = format!(
                    "member cluster {} does not come to the version it named",
                    leg.shown.cluster
                );
                return self.forget(reason_of(Expiry::Member), why);
            }
            let wish = Wish {
                query: Wish::of(start, self.merge.watch_list_disabled(index)),
                shape: Some(self.shape),
                // Not all that serve lists know this selector: who has refused is asked for all that is the caller's.
                fields: self.merge.selects_only(index).filter(|_| leg.refused == 0),
                hurries,
                wait,
            };
            Link::Connecting(connect(&self.shared, &self.plan, index, wish, None))
        };
        self.wakes.set(index);
    }

    /// A leg's member has listed what the client holds, or not.
    pub(super) fn listed(&mut self, index: usize, listed: Result<Listing, NotListed>) {
        self.legs[index].link = Link::Idle;
        let act = match listed {
            Ok(listing) => {
                self.legs[index].through = true;
                self.merge.listed(index, listing, &mut self.out)
            }
            Err(NotListed::NoMemory) => self.merge.unlisted(index),
            // Not all that serve lists know this selector: who has refused is asked for all.
            Err(NotListed::Never(why)) if self.legs[index].refused == 0 && self.merge.selects_only(index).is_some() => {
                self.legs[index].refused = 1;
                return self.lost(index, Reason::Refused, &why);
            }
            Err(NotListed::Never(why)) => return self.forget(Reason::Refused.as_str(), why),
            Err(NotListed::Unreadable(why)) => return self.unreadable(index, why),
            Err(NotListed::Answered(answered)) => return self.connected(index, *answered),
        };
        self.act(act, Reason::Replanned, "what the client holds is known");
        self.next_acts();
    }

    /// A leg's member has listed some of what came, or will not.
    pub(super) fn came(&mut self, index: usize, came: Result<(Bytes, Option<Box<Coming>>), NotListed>) {
        self.legs[index].link = Link::Idle;
        match came {
            Ok((events, next)) => {
                let leg = &mut self.legs[index];
                leg.through = next.is_none();
                if let Some(next) = next {
                    leg.link = Link::Coming(come_on(next));
                }
                self.push(index, events);
            }
            Err(NotListed::Never(why)) if self.legs[index].refused == 0 && self.merge.selects_only(index).is_some() => {
                self.legs[index].refused = 1;
                self.lost(index, Reason::Refused, &why);
            }
            Err(NotListed::Answered(answered)) if !matches!(*answered, Answered::Gone) => {
                self.connected(index, *answered);
            }
            Err(other) => {
                tracing::debug!(cluster = %self.legs[index].shown.cluster, ?other, "what came is read by a watch");
                let act = self.merge.reads_what_came_by_watching(index);
                self.act(act, Reason::Relist, "its member does not list what came");
                self.next_acts();
            }
        }
    }

    /// A leg's member has answered.
    pub(super) fn connected(&mut self, index: usize, answered: Answered) {
        let cluster = self.plan.legs[index].cluster().clone();
        match answered {
            Answered::Live(response) => {
                if self.shared.accepted.shape(response.headers()) != Some(self.shape) {
                    let why = format!("member cluster {cluster} answered in another format than the others");
                    return self.lost(index, Reason::Unreadable, &why);
                }
                let leg = &mut self.legs[index];
                leg.link = Link::Live(leg.inject(self.shape, response.into_body()));
                leg.since = Some(Instant::now());
                leg.seen = self.merge.leg_state(index).seen;
                leg.touched = true;
                if !self.merge.is_telling_change(index) {
                    leg.refused = 0;
                }
                let synced = self.merge.leg_state(index).synced;
                let state = if synced { LegState::Live } else { LegState::Relisting };
                leg.shown.set_state(state, None);
            }
            Answered::Absent(_) => {
                self.without(index, Reason::Absent);
                self.lost(index, Reason::Absent, "the member does not serve the kind");
            }
            Answered::Gone => {
                self.push(index, gone(self.shape));
            }
            Answered::Refused(response) => {
                // Before 1.32 members know no watch-list, and say so.
                if response.status() == http::StatusCode::UNPROCESSABLE_ENTITY {
                    self.merge.disable_watch_list(index);
                }
                let why = format!("member cluster {cluster} answered {}", response.status());
                let changes = self.merge.is_telling_change(index);
                let leg = &mut self.legs[index];
                leg.refused = if changes { leg.refused + 1 } else { 0 };
                if leg.refused >= ATTEMPTS {
                    self.forget(Reason::Refused.as_str(), why);
                } else {
                    self.lost(index, Reason::Refused, &why);
                }
            }
            Answered::Away(Away { why, .. }) => {
                self.without(index, Reason::Away);
                self.lost(index, Reason::Away, &why);
            }
        }
    }

    /// Goes on under the same plan with other targets. Who served nothing of the kind may do so now, and is asked at once.
    pub(super) fn renew(&mut self, plan: Arc<FanOut>) {
        self.plan = plan;
        for index in 0..self.legs.len() {
            if self.legs[index].shown.state() == LegState::Absent {
                self.legs[index].backoff.reset();
                self.lost(index, Reason::Replanned, "what members serve has changed");
            }
        }
    }

    /// Goes on under another plan.
    pub(in crate::stage::fanout) fn replan(&mut self, plan: Arc<FanOut>) {
        let mut before = std::mem::take(&mut self.legs);
        let running = self.plan.clone();
        let acts = self.merge.replan(
            &plan.universe,
            watch_legs(&self.shared.asking.asked, &plan, &[]),
            &mut self.out,
        );
        // Versions of another cluster under the same name are no measure for this one's.
        before.retain(|old| {
            let uid = |plan: &FanOut| {
                let leg = plan.legs.iter().find(|leg| *old.shown.cluster == **leg.cluster())?;
                Some(leg.forward.target.cluster_uid.clone())
            };
            uid(&self.plan) == uid(&plan)
        });
        self.plan = plan;
        self.wakes = Wakes::new(self.plan.legs.len() + 1);
        self.control = self.wakes.waker(self.plan.legs.len());
        let open = self.shared.fanouts.open.clone();
        for (index, leg) in self.plan.legs.iter().enumerate() {
            let waker = self.wakes.waker(index);
            let kept = before.iter().position(|old| *old.shown.cluster == **leg.cluster());
            self.legs.push(if let Some(at) = kept {
                LegStream {
                    waker,
                    parked: false,
                    ..before.swap_remove(at)
                }
            } else {
                let leg = LegStream::new(Link::Idle, waker, open.leg(leg.cluster()));
                leg.injected(self.shared.asking.injection.as_ref(), self.shape)
            });
        }
        for (stream, leg) in self.legs.iter().zip(&self.plan.legs) {
            let selector = leg.forward.rewrite.selector.clone();
            stream.shown.set_shows(leg.share.namespaces.clone(), selector);
        }
        self.shown
            .watch
            .set_legs(self.legs.iter().map(|leg| leg.shown.clone()).collect());
        for act in acts {
            if let Act::Restart {
                leg,
                start: Start::Exact(_),
            } = act
                && self.legs[leg].held_by.is_none()
            {
                let mut running = running.legs.iter();
                let held_by = running.find(|old| old.cluster() == self.plan.legs[leg].cluster());
                self.legs[leg].held_by = held_by.cloned().map(Box::new);
            }
            self.act(Some(act), Reason::Replanned, "the caller's shard has changed");
        }
        self.next_acts();
    }
}
