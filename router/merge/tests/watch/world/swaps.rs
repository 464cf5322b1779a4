//! What ends or changes a merged watch from outside: the client's connection, the shard's configuration, labels.

use bytes::Bytes;
use portolan_merge::watch::{Act, Start, WatchLeg};

use super::{Line, Session, World, member_of};

impl World {
    /// The client's connection ends: by plan, or anywhere.
    pub(super) fn cut_client(&mut self) {
        let planned = self.dice.percent(40);
        let Some(session) = &mut self.session else { return };
        if planned {
            session.merge.close(&mut session.out);
            self.flush();
            if let Some(session) = &mut self.session {
                let bytes = std::mem::take(&mut session.wire);
                self.client.read(&bytes, &self.truth);
                self.client.whole();
            }
        } else {
            self.deliver();
        }
        self.drop_session();
    }

    /// The other one is looked at from now on; the connection of this one is lost, or stands still.
    pub(super) fn change_client(&mut self) {
        self.deliver();
        if self.dice.percent(50) {
            self.drop_session();
        }
        let Some(seat) = &mut self.twin else { return };
        std::mem::swap(&mut self.client, &mut seat.client);
        std::mem::swap(&mut self.session, &mut seat.session);
        std::mem::swap(&mut self.paging, &mut seat.paging);
        std::mem::swap(&mut self.own, &mut seat.own);
        let routers = &self.routers;
        let differs = |session: &Session| session.universe != routers[session.router].shard.universe();
        if self.session.as_ref().is_some_and(differs) {
            self.replan();
        }
    }

    /// The client is without its connection.
    pub(super) fn drop_session(&mut self) {
        let Some(mut session) = self.session.take() else { return };
        self.own = Some(session.merge.sent().clone());
        if self.all && self.half_open.len() < 2 && self.dice.percent(30) {
            self.run_on(&mut session);
            self.half_open.push(session);
        } else {
            self.forget(session);
        }
    }

    /// The router notices that a client is gone.
    pub(super) fn notice(&mut self) {
        if let Some(mut session) = self.half_open.pop() {
            self.run_on(&mut session);
            self.forget(session);
        }
    }

    pub(super) fn forget(&mut self, session: Session) {
        self.routers[session.router].resume.end(self.clock, session.stream);
    }

    /// What members tell goes on to a client that is gone.
    fn run_on(&mut self, session: &mut Session) {
        for index in 0..session.legs.len() {
            let line = &mut session.legs[index];
            let Some(stream) = &mut line.stream else { continue };
            self.truth.members[line.member].feed(stream);
            let chunk = Bytes::from(std::mem::take(&mut stream.bytes));
            let mut act = session
                .merge
                .push(index, chunk, &mut session.out)
                .expect("members speak well here");
            while let Some(this) = act {
                match this {
                    Act::Restart { leg, .. } => session.legs[leg].stream = None,
                    Act::Expired { .. } => session.legs.clear(),
                }
                act = session.merge.next_act();
            }
            if session.legs.is_empty() {
                return;
            }
        }
        session.merge.flush(&mut session.out);
        while session.out.pop().is_some() {}
    }

    pub(super) fn reconfigure(&mut self) {
        self.truth.reconfigure(&mut self.dice);
        self.tell();
    }

    /// An agent has labelled a member's objects, or its labels cannot be relied on any more. What was asked one way may be
    /// asked the other way from now on, with the same cursor.
    pub(super) fn flip(&mut self) {
        let member = self.dice.below(self.truth.members.len());
        self.truth.labelled[member] = !self.truth.labelled[member];
        self.tally.flips += 1;
        if self.dice.percent(60) {
            self.replan();
        }
    }

    pub(super) fn replan(&mut self) {
        let Some(router) = self.session.as_ref().map(|session| session.router) else {
            return;
        };
        self.tally.replans += 1;
        let shard = self.routers[router].shard.clone();
        if self.is_outside(&shard) {
            return self.leave_scope();
        }
        let universe = shard.universe();
        let legs = self.plan(&shard, &universe, |_| Start::Sync);
        let Some(session) = &mut self.session else { return };
        if self.trace {
            println!("replan {legs:?}");
        }
        let acts = session.merge.replan(&universe, legs.clone(), &mut session.out);
        session.universe = universe;
        session.labelled.clone_from(&self.truth.labelled);
        // Nor is mended who wins a name, which members that come or go change too.
        let member = |leg: &WatchLeg| (member_of(leg), leg.uid_hash);
        let members: Vec<_> = legs.iter().map(member).collect();
        let before: Vec<_> = session.legs.iter().map(|line| (line.member, line.life)).collect();
        let same = before == members;
        let stay = before.iter().all(|line| members.contains(line));
        session.mendable &= !self.client.listing && (!self.truth.setting.unique || same) && (session.anew || stay);
        let mut old: Vec<Line> = std::mem::take(&mut session.legs);
        for (member, life) in members {
            let kept = old.iter().position(|line| (line.member, line.life) == (member, life));
            let asked = self.truth.asked(&shard, member, session.labelled[member]);
            session.legs.push(match kept.map(|index| old.swap_remove(index)) {
                Some(line) => Line {
                    before: Some(line.asked),
                    asked,
                    ..line
                },
                None => Line::new(member, life, asked),
            });
        }
        for act in acts {
            self.act(Some(act));
        }
        for line in self.session.iter_mut().flat_map(|session| &mut session.legs) {
            line.before = None;
        }
    }
}
