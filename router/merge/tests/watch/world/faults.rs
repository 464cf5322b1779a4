//! What goes wrong with members and their streams.

use super::World;

impl World {
    /// What was added to histories of late. True if that was the step.
    pub(super) fn later_fault(&mut self) -> bool {
        let setting = &self.truth.setting;
        let (apart, restores, days) = (setting.apart, setting.restores, setting.days);
        if apart && self.dice.percent(6) {
            self.disturb_router();
        } else if (apart || days) && self.dice.percent(4) {
            self.reconfigure();
        } else if restores && self.dice.percent(2) {
            // A router that the hub does not reach would go on as natively: nothing is promised there.
            self.tally.restores += 1;
            self.truth.restore(&mut self.dice);
            self.mend_routers();
        } else if days && self.dice.percent(3) {
            self.tally.days += 1;
            self.pass_a_day();
        } else {
            return false;
        }
        true
    }

    pub(super) fn disturb_member(&mut self) {
        let index = self.dice.below(self.truth.members.len());
        let compaction = self.truth.setting.compaction;
        let member = &mut self.truth.members[index];
        match self.dice.below(4) {
            0 => member.up = false,
            1 => member.up = true,
            2 => member.epoch += 1,
            _ if compaction => {
                let back = self.dice.next() % 4;
                member.compact(member.version.saturating_sub(back));
            }
            _ => {}
        }
    }

    pub(super) fn line(&mut self) -> Option<usize> {
        let legs = self.session.as_ref()?.legs.len();
        (legs > 0).then(|| self.dice.below(legs))
    }

    pub(super) fn disturb_stream(&mut self) {
        let Some(index) = self.line() else { return };
        let compaction = self.truth.setting.compaction;
        let kind = self.dice.below(4);
        let cut = self.dice.next();
        let Some(session) = &mut self.session else { return };
        let Some(stream) = &mut session.legs[index].stream else {
            return;
        };
        match kind {
            0 => stream.ended = true,
            1 => stream.fail(500, "InternalError"),
            2 if compaction => stream.fail(410, "Expired"),
            _ => {
                let keep = usize::try_from(cut).unwrap_or(usize::MAX) % (stream.bytes.len() + 1);
                stream.bytes.truncate(keep);
                stream.ended = true;
            }
        }
    }

    pub(super) fn bookmark_member(&mut self) {
        let Some(index) = self.line() else { return };
        let Some(session) = &mut self.session else { return };
        let line = &mut session.legs[index];
        if let Some(stream) = &mut line.stream {
            self.truth.members[line.member].feed(stream);
            stream.mark(false);
        }
    }

    pub(super) fn give_up(&mut self) {
        let Some(index) = self.line() else { return };
        let Some(session) = &self.session else { return };
        let away = !self.reaches(session.router, session.legs[index].member);
        if let Some(session) = &mut self.session
            && self.partial
            && away
        {
            let act = session.merge.give_up(index, &mut session.out);
            self.act(act);
        }
    }
}
