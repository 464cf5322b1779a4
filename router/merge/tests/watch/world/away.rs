//! A member is away for long, or only its agent is not heard: labels of its objects do not count then, and it is asked in another
//! way. To the client nothing of that may matter but that it hears nothing of that member.

use std::collections::BTreeSet;

use portolan_merge::cursor::is_cursor;

use super::World;
use crate::client::{Cache, Manner};
use crate::shard::NAMESPACES;

/// Which member had which namespace since the member is away.
type Had = BTreeSet<(&'static str, usize)>;

impl World {
    /// From when all is at rest to when the member is back.
    pub(super) fn outlast(&mut self) {
        let setting = &self.truth.setting;
        let members: Vec<usize> = self.truth.shard.members().collect();
        if setting.unique || setting.whole || self.truth.scope.is_some() || members.len() < 2 {
            return;
        }
        if self.small || self.budget.is_none() {
            return;
        }
        self.rest();
        let member = *self.dice.pick(&members);
        let away = self.dice.percent(60);
        let was_labelled = std::mem::replace(&mut self.truth.labelled[member], false);
        self.truth.members[member].up = !away;
        self.replan();
        let absent = away.then_some(member);
        let expired = self.tally.expired;
        let mut had = Had::new();
        self.note_owners(&mut had);
        for _ in 0..=self.dice.below(3) {
            self.busy(absent, &mut had);
            self.settle_without(absent);
            self.knows_the_others(member, &had);
            self.comes_back(absent);
        }
        self.settle_without(absent);
        self.knows_the_others(member, &had);
        assert_eq!(self.tally.expired, expired, "expired while a member was away");
        self.tally.outlasted += 1;
        self.truth.members[member].up = true;
        self.truth.labelled[member] = was_labelled;
        if self.dice.percent(50) {
            self.replan();
        }
    }

    /// Objects change, and whose namespaces are: one that is nobody's is given to a member, or taken away from one.
    fn busy(&mut self, absent: Option<usize>, had: &mut Had) {
        for _ in 0..self.dice.below(6) {
            self.truth.change(&mut self.dice);
        }
        if self.truth.setting.views && self.dice.percent(70) {
            let namespace = *self.dice.pick(&NAMESPACES);
            let to = self.dice.below(self.truth.members.len());
            // What somebody had is given to nobody again: what another had may be there now, which is not known before the member is
            // back; and whether what is back was there before is not known either.
            let owned = self.truth.shard.owner.contains_key(namespace);
            if owned || !had.iter().any(|(had, _)| *had == namespace) {
                self.truth.grant_or_take(namespace, to, absent);
                self.note_owners(had);
                self.mend_routers();
            }
        }
        for _ in 0..self.dice.below(6) {
            self.truth.change(&mut self.dice);
        }
    }

    fn note_owners(&self, had: &mut Had) {
        let owner = self.truth.shard.owner.iter();
        had.extend(owner.map(|(namespace, member)| (*namespace, *member)));
    }

    /// All that can be had without this member arrives.
    fn settle_without(&mut self, absent: Option<usize>) {
        for round in 0..60 {
            self.connect_client();
            if round % 10 == 9 {
                self.bookmark_all();
            }
            let legs = self.session.as_ref().map_or(0, |session| session.legs.len());
            for leg in 0..legs {
                let is_there = |world: &Self| {
                    let line = world.session.as_ref().and_then(|session| session.legs.get(leg));
                    line.is_some_and(|line| Some(line.member) != absent)
                };
                while is_there(self) && self.shovel_leg(leg) {}
            }
            self.wake();
            if let Some(session) = &mut self.session {
                let bytes = std::mem::take(&mut session.wire);
                self.client.read(&bytes, &self.truth);
            }
        }
    }

    /// The client holds all that the other members have in namespaces that are theirs, and nothing of those that are nobody's.
    fn knows_the_others(&self, member: usize, had: &Had) {
        let of_others = |namespace: &str| !had.iter().any(|(had, of)| *had == namespace && *of == member);
        let union = self.truth.union().into_iter();
        let truth: Cache = union
            .filter(|((namespace, _), _)| of_others(namespace))
            .map(|(key, object)| (key, (object.uid, object.version)))
            .collect();
        let held = self.client.cache.iter();
        let held: Cache = held
            .filter(|((namespace, _), _)| of_others(namespace))
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect();
        assert_eq!(
            held, truth,
            "what the other members have, while member {member} is away or not vouched for"
        );
    }

    /// The client's stream ends as planned, and it goes on from there.
    fn comes_back(&mut self, absent: Option<usize>) {
        if self.client.manner == Manner::NoBookmarks || self.client.listing {
            return;
        }
        let Some(session) = &mut self.session else {
            panic!("no stream: a list would have to wait for the member that is away");
        };
        session.merge.close(&mut session.out);
        self.flush();
        if let Some(session) = &mut self.session {
            let bytes = std::mem::take(&mut session.wire);
            self.client.read(&bytes, &self.truth);
        }
        let resume = self.client.resume.as_deref();
        assert!(resume.is_some_and(is_cursor), "no bookmark before the end: {resume:?}");
        self.drop_session();
        self.settle_without(absent);
        assert!(self.session.is_some(), "it cannot go on from its bookmark");
    }
}
