//! Tokens that requests took one after another, brought to buckets afterwards: each then holds what it would if every token
//! had been taken when it was.
//!
//! A request that meets a thousand limits would else write to a thousand buckets. A bucket that is never full meanwhile
//! loses so many tokens and gets what came in all that time. One that was full at a take has, after the last one, what it
//! holds, less the takes from that one on, plus what came since; of all takes the one by which least is left tells. Which that is
//! depends on the rate alone, and only corners of a hull come into question: takes from one on, by the time since it. So the hull
//! is made once for all buckets, and each looks its corner up. Pure; the law is in `bucket`.

use super::Tick;

/// Takes of one token each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Takes {
    pub(super) count: u64,
    /// When the last one was.
    pub(super) last: Tick,
    /// From the last take on backwards; the time of a take grows from corner to corner.
    corners: Vec<Corner>,
}

/// A take since which a bucket may have the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Corner {
    /// Takes from this one on.
    pub(super) takes: u64,
    /// Nanoseconds from it to the last one.
    pub(super) ago: u64,
    /// Both, less those of the corner before.
    step: (u64, u64),
}

impl Takes {
    /// At these moments, the latest first; `None`: at none.
    pub(crate) fn at(mut latest_first: impl Iterator<Item = Tick>) -> Option<Self> {
        let last = latest_first.next()?;
        let mut takes = Self {
            count: 1,
            last,
            corners: vec![Corner {
                takes: 1,
                ago: 0,
                step: (1, 0),
            }],
        };
        for at in latest_first {
            takes.count += 1;
            takes.add(takes.count, last.since(at));
        }
        Some(takes)
    }

    fn add(&mut self, takes: u64, ago: u64) {
        while let Some(corner) = self.corners.last() {
            let step = (takes - corner.takes, ago - corner.ago);
            // The first one stays: nobody can take less than the last token.
            if self.corners.len() == 1 || is_steeper(step, corner.step) {
                self.corners.push(Corner { takes, ago, step });
                return;
            }
            self.corners.pop();
        }
    }

    /// By which a bucket that was full has the least, if in each nanosecond come so many parts, and a token has `token` of them.
    pub(super) fn least(&self, coming: u64, token: u128) -> Corner {
        let falls =
            |corner: &Corner| u128::from(coming) * u128::from(corner.step.1) < token * u128::from(corner.step.0);
        let falling = self.corners.partition_point(falls);
        self.corners[falling.saturating_sub(1)]
    }
}

/// Whether one step takes more time for a take than another.
fn is_steeper(one: (u64, u64), other: (u64, u64)) -> bool {
    u128::from(one.1) * u128::from(other.0) > u128::from(other.1) * u128::from(one.0)
}
