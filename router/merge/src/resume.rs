//! What ended watch streams had sent last, so that their clients go on instead of relisting.
//!
//! Clients that never ask for bookmarks, and those whose last bookmark was cut off, resume from the version of the last
//! object they read, which is one member's and says nothing of the others. For some minutes the router knows better.
//! Memory only, of one router: whoever comes back to another one relists. Time is handed in; the router's `fanout` calls it.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::cursor::{Cursor, Slot};
use crate::token::Binding;
use crate::watch::Sent;

/// Bounds of [`Resume`].
#[derive(Clone, Copy, Debug)]
pub struct ResumeBounds {
    /// How long an ended stream is remembered.
    pub keep: Duration,
    /// How many ended streams are remembered.
    pub streams: usize,
    /// How many positions are remembered; what bounds the bytes, some 24 for each.
    pub positions: usize,
}

impl Default for ResumeBounds {
    /// Five minutes are longer than any client backs off; 2,000 informers of one router that all lost their streams at once, 12 MiB.
    fn default() -> Self {
        Self {
            keep: Duration::from_mins(5),
            streams: 4_000,
            positions: 512 * 1024,
        }
    }
}

/// The ended streams of one router, oldest first.
#[derive(Debug)]
pub struct Resume {
    bounds: ResumeBounds,
    ended: VecDeque<Ended>,
    /// How many ended streams each request has: most lookups find none and should not walk.
    known: HashMap<u64, u32>,
    positions: usize,
}

#[derive(Debug)]
struct Ended {
    at: Duration,
    key: u64,
    sent: Sent,
    positions: usize,
}

impl Resume {
    /// A memory of no streams yet.
    pub fn new(bounds: ResumeBounds) -> Self {
        Self {
            bounds,
            ended: VecDeque::new(),
            known: HashMap::new(),
            positions: 0,
        }
    }

    /// A stream of this caller and request ended at `now` (since any fixed moment, never backwards).
    pub fn remember(&mut self, now: Duration, binding: &Binding, sent: Sent) {
        self.forget_old(now);
        let positions = sent.positions();
        // Of one that ended in the middle of initial events it is kept that it may be the client's own.
        let unclear = sent.unclear();
        let nothing = positions == 0 && unclear.is_none();
        if nothing || positions > self.bounds.positions || self.bounds.streams == 0 {
            return;
        }
        let sent = unclear.unwrap_or(sent);
        while self.ended.len() >= self.bounds.streams || self.positions + positions > self.bounds.positions {
            self.forget_oldest();
        }
        self.positions += positions;
        *self.known.entry(binding.key()).or_default() += 1;
        self.ended.push_back(Ended {
            at: now,
            key: binding.key(),
            sent,
            positions,
        });
    }

    /// Where a client of this caller and request stands, whose last event was an object of version `raw`. Of several
    /// streams that sent it, the position that misses nothing of any; none if one of them may have sent it and cannot say
    /// what it meant there.
    pub fn find(&mut self, now: Duration, binding: &Binding, raw: u64) -> Option<Cursor> {
        self.forget_old(now);
        self.known.get(&binding.key())?;
        let mut found: Option<Cursor> = None;
        for ended in self.ended.iter().filter(|ended| ended.key == binding.key()) {
            let Some(cursor) = ended.sent.resume(raw) else {
                if ended.sent.may_have_sent(raw) {
                    return None;
                }
                continue;
            };
            found = Some(match found {
                None => cursor,
                Some(other) => earlier(&other, &cursor)?,
            });
        }
        found
    }

    /// How many streams are remembered.
    pub fn len(&self) -> usize {
        self.ended.len()
    }

    /// Whether no stream is remembered.
    pub fn is_empty(&self) -> bool {
        self.ended.is_empty()
    }

    /// How many positions are remembered.
    pub fn positions(&self) -> usize {
        self.positions
    }

    fn forget_old(&mut self, now: Duration) {
        while self
            .ended
            .front()
            .is_some_and(|ended| now.saturating_sub(ended.at) >= self.bounds.keep)
        {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(ended) = self.ended.pop_front() else { return };
        self.positions -= ended.positions;
        if let Some(known) = self.known.get_mut(&ended.key) {
            *known -= 1;
            if *known == 0 {
                self.known.remove(&ended.key);
            }
        }
    }
}

/// The slots' smaller positions. None where one client waits for a member's state and the other has it: to begin anew
/// would never tell the latter of what was deleted.
fn earlier(one: &Cursor, other: &Cursor) -> Option<Cursor> {
    if one.epoch() != other.epoch() || one.slots().len() != other.slots().len() {
        return None;
    }
    let mut slots = one.slots().iter().zip(other.slots()).enumerate();
    slots.try_fold(one.clone(), |earlier, (index, slots)| match slots {
        (Slot::At(a), Slot::At(b)) => Some(earlier.with(index, Slot::At(*a.min(b)))),
        (a, b) => (a == b).then_some(earlier),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::Universe;

    const MINUTE: Duration = Duration::from_mins(1);

    fn universe() -> Universe {
        Universe::new("s", ["a".to_owned(), "b".to_owned()])
    }

    fn at(a: u64, b: u64) -> Cursor {
        let mut cursor = Cursor::new(&universe());
        cursor.set(0, Slot::At(a));
        cursor.set(1, Slot::At(b));
        cursor
    }

    fn sent(base: &Cursor, events: &[(usize, u64)]) -> Sent {
        Sent::over(base, events)
    }

    fn of(user: &str) -> Binding {
        Binding::new(["s", user, "/api/v1/pods"])
    }

    #[test]
    fn a_position_is_found_by_its_own_caller_until_its_time_is_over() {
        let mut resume = Resume::new(ResumeBounds::default());
        resume.remember(MINUTE, &of("ann"), sent(&at(10, 20), &[(0, 11), (1, 25), (0, 12)]));
        assert_eq!(resume.find(MINUTE * 2, &of("ann"), 25), Some(at(11, 25)));
        assert_eq!(resume.find(MINUTE * 2, &of("ann"), 12), Some(at(12, 25)));
        assert_eq!(resume.find(MINUTE * 2, &of("ann"), 13), None, "never sent");
        assert_eq!(resume.find(MINUTE * 2, &of("bob"), 25), None, "another caller");
        assert_eq!(resume.find(MINUTE * 6, &of("ann"), 25), None, "too late");
        assert_eq!((resume.len(), resume.positions()), (0, 0));
        assert!(resume.known.is_empty());
    }

    #[test]
    fn of_two_streams_the_position_that_misses_nothing() {
        let mut resume = Resume::new(ResumeBounds::default());
        resume.remember(MINUTE, &of("ann"), sent(&at(10, 20), &[(1, 25), (0, 11)]));
        resume.remember(MINUTE, &of("ann"), sent(&at(10, 20), &[(0, 11)]));
        assert_eq!(resume.find(MINUTE, &of("ann"), 11), Some(at(11, 20)));
    }

    #[test]
    fn who_waits_and_who_has_it_are_not_mixed() {
        let mut waits = Cursor::new(&universe());
        waits.set(0, Slot::At(10));
        waits.set(1, Slot::Sync);
        let mut resume = Resume::new(ResumeBounds::default());
        resume.remember(MINUTE, &of("ann"), sent(&waits, &[(0, 11)]));
        assert!(resume.find(MINUTE, &of("ann"), 11).is_some());
        resume.remember(MINUTE, &of("ann"), sent(&at(10, 20), &[(0, 11)]));
        assert_eq!(resume.find(MINUTE, &of("ann"), 11), None);
    }

    #[test]
    fn a_stream_that_cannot_say_what_it_meant_is_not_passed_over() {
        let mut resume = Resume::new(ResumeBounds::default());
        resume.remember(MINUTE, &of("ann"), sent(&at(10, 20), &[(0, 11), (0, 30)]));
        assert!(resume.find(MINUTE, &of("ann"), 30).is_some());
        // Both members' 30: which of them this client has read cannot be told.
        resume.remember(MINUTE, &of("ann"), sent(&at(10, 20), &[(0, 30), (1, 30)]));
        assert_eq!(resume.find(MINUTE, &of("ann"), 30), None);
        assert!(resume.find(MINUTE, &of("ann"), 11).is_some());
    }

    #[test]
    fn a_stream_that_ended_in_its_initial_events_is_remembered() {
        let mut resume = Resume::new(ResumeBounds::default());
        resume.remember(MINUTE, &of("ann"), sent(&at(10, 20), &[(0, 11), (0, 30)]));
        resume.remember(MINUTE, &of("ann"), Sent::default());
        assert_eq!(resume.len(), 1, "nothing was sent there");
        let mut unclear = sent(&at(10, 20), &[(1, 25)]);
        unclear.poison();
        resume.remember(MINUTE * 2, &of("ann"), unclear);
        assert_eq!(resume.find(MINUTE * 2, &of("ann"), 11), None, "it may have sent it");
        assert!(
            resume.find(MINUTE * 2, &of("ann"), 30).is_some(),
            "it has sent nothing so high"
        );
        assert_eq!((resume.len(), resume.positions()), (2, 2));
    }

    #[test]
    fn who_resumed_and_was_told_nothing_goes_on_where_it_was() {
        let mut quiet = Sent::over(&at(11, 25), &[]);
        quiet.begin_with(25, at(11, 25));
        let mut resume = Resume::new(ResumeBounds::default());
        resume.remember(MINUTE, &of("ann"), quiet);
        assert_eq!(resume.find(MINUTE * 5, &of("ann"), 25), Some(at(11, 25)));
        assert_eq!(resume.find(MINUTE * 5, &of("ann"), 11), None);
        // Another stream sent the other member's 25: it is not the only one that is asked.
        resume.remember(MINUTE * 2, &of("ann"), sent(&at(24, 30), &[(0, 25)]));
        assert_eq!(resume.find(MINUTE * 5, &of("ann"), 25), Some(at(11, 25)));
    }

    #[test]
    fn a_stream_of_which_nothing_can_be_told_is_not_passed_over() {
        let mut blind = sent(&at(10, 20), &[(0, 11)]);
        blind.renumber();
        blind.rebase(&at(11, 20));
        let mut resume = Resume::new(ResumeBounds::default());
        resume.remember(MINUTE, &of("ann"), blind);
        resume.remember(MINUTE, &of("ann"), sent(&at(10, 30), &[(0, 11)]));
        assert_eq!(resume.find(MINUTE, &of("ann"), 11), None);
    }

    #[test]
    fn streams_and_positions_are_bounded_and_the_oldest_goes_first() {
        let bounds = ResumeBounds {
            keep: MINUTE,
            streams: 3,
            positions: 5,
        };
        let mut resume = Resume::new(bounds);
        for round in 0..20 {
            resume.remember(MINUTE, &of("ann"), sent(&at(1, 1), &[(0, 100 + round)]));
            assert!(resume.len() <= 3 && resume.positions() <= 5);
        }
        assert!(resume.find(MINUTE, &of("ann"), 116).is_none());
        assert!(resume.find(MINUTE, &of("ann"), 117).is_some());
        resume.remember(MINUTE, &of("bob"), sent(&at(1, 1), &[(0, 2), (0, 3), (0, 4), (0, 5)]));
        assert_eq!((resume.len(), resume.positions()), (2, 5));
        resume.remember(
            MINUTE,
            &of("bob"),
            sent(&at(1, 1), &[(0, 2), (0, 3), (0, 4), (0, 5), (0, 6), (0, 7)]),
        );
        assert_eq!(
            (resume.len(), resume.positions()),
            (2, 5),
            "too large for all of the memory"
        );
    }
}
