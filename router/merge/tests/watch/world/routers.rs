//! The routers that serve the client: what each knows of the shard, of members and of streams, and for how long it is alone.

use std::time::Duration;

use portolan_merge::cursor::is_cursor;
use portolan_merge::query::CollectionQuery;
use portolan_merge::resume::{Resume, ResumeBounds};

use super::World;
use crate::shard::Shard;

const DAY: Duration = Duration::from_hours(24);

#[derive(Debug)]
pub(super) struct Router {
    /// The shard as the hub told it last.
    pub(super) shard: Shard,
    /// Its memory of streams.
    pub(super) resume: Resume,
    /// Members that it cannot reach.
    cut: Vec<bool>,
    /// It cannot reach the hub.
    hub_away: bool,
    /// When it was started in place of one before it.
    began: Option<Duration>,
    /// Since when it does not run.
    stopped: Option<Duration>,
}

impl Router {
    pub(super) fn new(shard: &Shard, bounds: ResumeBounds) -> Self {
        Self {
            shard: shard.clone(),
            resume: Resume::new(bounds),
            cut: vec![false; shard.joined.len()],
            hub_away: false,
            began: None,
            stopped: None,
        }
    }
}

impl World {
    /// The one that the client's next request comes to.
    pub(super) fn router(&mut self) -> usize {
        let running = |router: &usize| self.routers[*router].stopped.is_none();
        let running: Vec<usize> = (0..self.routers.len()).filter(running).collect();
        match running[..] {
            [only] => only,
            _ => *self.dice.pick(&running),
        }
    }

    /// Whether this router can ask the member.
    pub(super) fn reaches(&self, router: usize, member: usize) -> bool {
        self.truth.members[member].up && !self.routers[router].cut[member]
    }

    /// The hub tells routers what there is, but those that it does not reach, or not yet.
    pub(super) fn tell(&mut self) {
        for router in 0..self.routers.len() {
            let late = self.truth.setting.apart && self.dice.percent(40);
            if !late && !self.routers[router].hub_away {
                self.tell_router(router);
            }
        }
    }

    fn tell_router(&mut self, router: usize) {
        let shard = self.truth.shard.clone();
        let changed = self.routers[router].shard.universe() != shard.universe();
        self.routers[router].shard = shard;
        if changed && self.session.as_ref().is_some_and(|session| session.router == router) {
            self.replan();
        }
    }

    /// As `FanOuts::caught_up` of the router: who may have seen a newer view is answered once this router has it too. False:
    /// the hub cannot be asked for it, 429.
    pub(super) fn catch_up(&mut self, router: usize, query: &CollectionQuery) -> bool {
        if !query.may_be_newer(&self.routers[router].shard.universe()) {
            return true;
        }
        if self.routers[router].hub_away {
            self.tally.hub_away += 1;
            return false;
        }
        self.tally.caught_up += 1;
        self.tell_router(router);
        true
    }

    /// For how long no other router, nor this one before it was started, can have served the client: as the hub tells it.
    pub(super) fn alone(&self, router: usize) -> Duration {
        let own = &self.routers[router];
        if own.hub_away {
            return Duration::ZERO;
        }
        let others = self.routers.iter().enumerate().filter(|(other, _)| *other != router);
        let since = others
            .map(|(_, other)| other.stopped.unwrap_or(self.clock))
            .chain(own.began);
        let lasts = since.map(|since| self.clock.saturating_sub(since));
        lasts.min().unwrap_or(Duration::MAX)
    }

    /// A router loses a member that others reach, or the hub, or its life; or finds it again.
    pub(super) fn disturb_router(&mut self) {
        let member = self.dice.below(self.truth.members.len());
        let what = if self.truth.setting.apart {
            self.dice.below(8)
        } else {
            0
        };
        let last = self.routers.len() - 1;
        let router = if self.truth.setting.apart {
            self.dice.below(last + 1)
        } else {
            last
        };
        let disturbed = &mut self.routers[router];
        match what {
            0 | 1 => disturbed.cut[member] = !disturbed.cut[member],
            2 | 3 => {
                disturbed.hub_away = !disturbed.hub_away;
                if !disturbed.hub_away {
                    self.tell_router(router);
                }
            }
            4 => self.tell_router(router),
            _ if disturbed.stopped.is_some() => self.start(router),
            _ => self.stop(router),
        }
    }

    /// Its streams end, and with it what it remembers of them; the last one goes on.
    fn stop(&mut self, router: usize) {
        let runs = self.routers.iter().filter(|router| router.stopped.is_none());
        if runs.count() == 1 {
            return;
        }
        self.routers[router].stopped = Some(self.clock);
        if self.session.as_ref().is_some_and(|session| session.router == router) {
            self.own = self.session.take().map(|session| session.merge.sent().clone());
        }
        let seats = self.twin.iter_mut();
        for seat in seats.filter(|seat| seat.session.as_ref().is_some_and(|session| session.router == router)) {
            seat.own = seat.session.take().map(|session| session.merge.sent().clone());
        }
        self.half_open.retain(|session| session.router != router);
    }

    fn start(&mut self, router: usize) {
        self.routers[router] = Router {
            began: Some(self.clock),
            ..Router::new(&self.truth.shard, self.bounds)
        };
    }

    /// Everybody reaches everybody, and knows what there is.
    pub(super) fn mend_routers(&mut self) {
        for router in 0..self.routers.len() {
            if self.routers[router].stopped.is_some() {
                self.start(router);
            }
            self.routers[router].cut.fill(false);
            self.routers[router].hub_away = false;
            self.tell_router(router);
        }
    }

    /// More than a day passes: every stream has ended, who comes with an object's version has done so long since, and the
    /// hub has forgotten what left before.
    pub(super) fn pass_a_day(&mut self) {
        self.drop_session();
        let twin = self.twin.as_mut().and_then(|seat| seat.session.take());
        for session in self.half_open.drain(..).chain(twin).collect::<Vec<_>>() {
            self.forget(session);
        }
        for client in self
            .twin
            .iter_mut()
            .map(|seat| &mut seat.client)
            .chain([&mut self.client])
        {
            client.resume = client.resume.take().filter(|text| is_cursor(text));
        }
        self.clock += DAY;
        self.truth.shard.forget_departures();
        self.tell();
    }
}
