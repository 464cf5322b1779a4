//! The tokens of one router, by the shares that it keeps to.

use super::*;

/// What a router has of buckets, in parts of which all of one holds `WHOLE` for each millisecond that it takes to fill it.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// Of each rule that it knows, those too that are laid aside.
    pub(super) levels: BTreeMap<SharedLimit, u64>,
    /// Of no router before, and not begun with.
    pub(super) fresh: BTreeMap<SharedLimit, u32>,
}

/// How long a bucket takes to fill, in milliseconds.
const FILLS_IN: u64 = 100_000;
/// All that a bucket holds.
pub(super) const BURST: u64 = WHOLE as u64 * FILLS_IN;

impl Tokens {
    pub(super) fn come(&mut self, shares: &BTreeMap<SharedLimit, u32>, milliseconds: u64) {
        for (rule, level) in &mut self.levels {
            let share = shares.get(rule).copied().unwrap_or_default();
            *level += u64::from(share) * milliseconds.min(FILLS_IN);
        }
        self.follow(shares);
    }

    pub(super) fn give_up(&mut self, told: &BTreeMap<SharedLimit, u32>) {
        self.fresh.retain(|rule, part| {
            *part = told.get(rule).copied().unwrap_or_default().min(*part);
            *part > 0
        });
    }

    pub(super) fn follow(&mut self, shares: &BTreeMap<SharedLimit, u32>) {
        for (rule, level) in &mut self.levels {
            let share = shares.get(rule).copied().unwrap_or_default();
            if share > 0 {
                *level += u64::from(self.fresh.remove(rule).unwrap_or_default()) * FILLS_IN;
            }
            *level = (*level).min(u64::from(share) * FILLS_IN);
        }
    }

    /// What it would let pass now of this rule, in millionths of the bucket.
    pub(super) fn of(&self, rule: &SharedLimit) -> u64 {
        self.levels.get(rule).map_or(0, |level| level / FILLS_IN)
    }
}
