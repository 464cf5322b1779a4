//! A count of what happened in all and within the last minute, in parts of ten seconds. Pure.

use super::Tick;

/// Parts of a minute.
const PARTS: usize = 6;
/// Nanoseconds of a part.
const PART: u64 = 10_000_000_000;

/// What was counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recent {
    total: u64,
    /// Of the last minute, by part of time modulo [`PARTS`].
    parts: [u32; PARTS],
    /// The newest part, counted from the beginning of time.
    newest: u64,
}

impl Recent {
    /// One more, now.
    pub(crate) fn count(&mut self, now: Tick) {
        let part = now.nanoseconds() / PART;
        for passed in 1..=part.saturating_sub(self.newest).min(PARTS as u64) {
            self.parts[index(self.newest + passed)] = 0;
        }
        self.newest = self.newest.max(part);
        let counted = &mut self.parts[index(self.newest)];
        *counted = counted.saturating_add(1);
        self.total = self.total.saturating_add(1);
    }

    /// All of them.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Those of the last fifty to sixty seconds.
    pub(crate) fn last_minute(&self, now: Tick) -> u64 {
        let part = now.nanoseconds() / PART;
        let late = |back: &u64| self.newest >= *back && self.newest - back + PARTS as u64 > part;
        let parts = (0..PARTS as u64).filter(late);
        parts.map(|back| u64::from(self.parts[index(self.newest - back)])).sum()
    }
}

fn index(part: u64) -> usize {
    usize::try_from(part % PARTS as u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_last_minute_is_what_was_counted_in_its_parts(steps in vec(0..90_000_000_000_u64, 1..60), wait in 0..90_000_000_000_u64) {
            let mut recent = Recent::default();
            let (mut now, mut all) = (Tick::default(), Vec::new());
            for step in steps {
                now = now.after(step);
                recent.count(now);
                all.push(now);
            }
            let now = now.after(wait);
            let part = |at: &Tick| at.nanoseconds() / PART;
            let expected = all.iter().filter(|at| part(&now) - part(at) < PARTS as u64).count();
            prop_assert_eq!(recent.last_minute(now), expected as u64);
            prop_assert_eq!(recent.total(), all.len() as u64);
        }
    }
}
