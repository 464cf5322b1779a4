//! How often the children of one root may be weighed anew because objects have come and gone. Pure.
//!
//! What moves for one member's counts is every member's: so a member that says now this and now that, or lies, must not keep
//! the pairs of others moving. Nothing bounds how wrong its counts are but [`MAX_COUNTED`](crate::facts::MAX_COUNTED); what is
//! bounded is how often anything follows from them. Edits of the root take no turn.

use jiff::{SignedDuration, Timestamp};

/// Between two looks at what a root's pairs weigh; doubled by each move of late.
const WAIT: SignedDuration = SignedDuration::from_mins(10);
/// The longest wait. As long a calm takes one doubling off.
const WAIT_MAX: SignedDuration = SignedDuration::from_hours(24);
/// More moves of late are not counted: the wait is the longest by then.
const MOVES_MAX: u32 = 9;

/// When the children of a root may be weighed next.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Turn {
    /// `None`: at once, as not all of its clusters were counted.
    next: Option<Timestamp>,
    /// How often pairs moved of late because counts had changed, and when last.
    moves: u32,
    moved: Option<Timestamp>,
}

impl Turn {
    /// Whether counts alone are no reason yet.
    pub(super) fn is_waiting(&self, now: Timestamp) -> bool {
        // A clock that was set back keeps nothing waiting longer than it would at most.
        self.next
            .is_some_and(|next| now < next && next.duration_since(now) <= WAIT_MAX)
    }

    /// After a look at `now`. `complete`: all clusters were counted; `moved`: pairs moved for nothing else than counts.
    pub(super) fn after(&self, now: Timestamp, complete: bool, moved: bool) -> Self {
        let mut after = self.clone();
        if moved {
            let calm = self
                .moved
                .map(|moved| now.duration_since(moved).as_hours() / WAIT_MAX.as_hours());
            let forgiven = calm.and_then(|days| u32::try_from(days.max(0)).ok()).unwrap_or(0);
            after.moves = self.moves.saturating_sub(forgiven).saturating_add(1).min(MOVES_MAX);
            after.moved = Some(now);
        }
        let since_move = after.moved.map_or(now, |moved| moved + after.wait());
        after.next = complete.then_some(since_move.max(now + WAIT));
        after
    }

    /// From one move to the next.
    fn wait(&self) -> SignedDuration {
        (WAIT * 2_i32.pow(self.moves.saturating_sub(1))).min(WAIT_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_second(minutes * 60).unwrap()
    }

    /// Looked at each minute of some days, always with a reason to move: when it does.
    fn moves(days: i64) -> Vec<i64> {
        let mut turn = Turn::default();
        let mut moves = Vec::new();
        for minute in 0..days * 24 * 60 {
            if !turn.is_waiting(at(minute)) {
                turn = turn.after(at(minute), true, true);
                moves.push(minute);
            }
        }
        moves
    }

    #[test]
    fn who_wobbles_for_ever_moves_pairs_once_a_day() {
        let moves = moves(10);
        assert_eq!(moves[..6], [0, 10, 30, 70, 150, 310]);
        let rest: Vec<_> = moves.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(rest[8..].iter().all(|minutes| *minutes == 24 * 60), "{rest:?}");
    }

    #[test]
    fn a_calm_day_takes_one_doubling_off() {
        let day = 24 * 60;
        let mut turn = Turn::default();
        for minute in [0, 10, 30] {
            turn = turn.after(at(minute), true, true);
        }
        assert_eq!(turn.moves, 3);
        // Looks that move nothing wait for the last move, too.
        let looked = turn.after(at(40), true, false);
        assert!(looked.is_waiting(at(69)) && !looked.is_waiting(at(70)));
        assert_eq!(turn.after(at(30 + 2 * day), true, true).moves, 2);
    }

    #[test]
    fn nothing_waits_before_all_is_counted_or_for_a_clock_that_was_set_back() {
        let turn = Turn::default();
        assert!(!turn.after(at(0), false, false).is_waiting(at(1)));
        let turn = turn.after(at(10_000), true, true);
        assert!(turn.is_waiting(at(10_009)) && !turn.is_waiting(at(10_010)));
        assert!(!turn.is_waiting(at(0)));
    }
}
