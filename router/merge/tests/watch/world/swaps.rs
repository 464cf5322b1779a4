//! What ends or changes a merged watch from outside: the client's connection, the shard's configuration, labels.

use portolan_merge::watch::Start;

use super::{Line, World, binding, member_of};
use crate::truth::Truth;

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

    /// The other one has the connection from now on; this one is cut off as if it had lost it.
    pub(super) fn change_client(&mut self) {
        self.deliver();
        self.drop_session();
        self.paging = None;
        if let Some((client, ended)) = &mut self.twin {
            std::mem::swap(&mut self.client, client);
            std::mem::swap(&mut self.ended, ended);
        }
    }

    pub(super) fn drop_session(&mut self) {
        if let Some(session) = self.session.take() {
            self.resume
                .remember(self.clock, &binding(), session.merge.sent().clone());
            self.ended = Some(session.merge.sent().clone());
        }
    }

    pub(super) fn reconfigure(&mut self) {
        self.truth.reconfigure(&mut self.dice);
        self.replan();
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
        self.tally.replans += 1;
        let universe = self.truth.universe();
        let legs = self.plan(&universe, |_| Start::Sync);
        let Some(session) = &mut self.session else { return };
        if self.trace {
            println!("replan {legs:?}");
        }
        let acts = session.merge.replan(&universe, legs.clone(), &mut session.out);
        session.universe = universe;
        session.labelled.clone_from(&self.truth.labelled);
        // Nor is mended who wins a name, which members that come or go change too.
        let members = session.legs.iter().map(|line| Truth::name(line.member));
        let same = members.eq(legs.iter().map(|leg| leg.cluster.to_string()));
        session.mendable &= !self.client.listing && (!self.truth.setting.unique || same);
        let mut old: Vec<Line> = std::mem::take(&mut session.legs);
        for leg in &legs {
            let kept = old.iter().position(|line| Truth::name(line.member) == *leg.cluster);
            session.legs.push(match kept {
                Some(index) => old.swap_remove(index),
                None => Line {
                    member: member_of(leg),
                    stream: None,
                    wants: None,
                },
            });
        }
        for act in acts {
            self.act(Some(act));
        }
    }
}
