//! How often something happened in all, and within the last minute.

/// Of the minute, each counted by itself.
const PARTS: u64 = 6;
const PART_SECONDS: u64 = 10;

/// One count. Time is an argument: whole seconds that do not go back.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Minute {
    total: u64,
    parts: [u64; PARTS as usize],
    /// Number of the newest part.
    newest: u64,
}

impl Minute {
    pub(super) fn add(&mut self, now: u64) {
        self.forget(now);
        self.total += 1;
        self.parts[Self::place(self.newest)] += 1;
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Of the last fifty to sixty seconds.
    pub(super) fn last_minute(&self, now: u64) -> u64 {
        let mut then = *self;
        then.forget(now);
        then.parts.iter().sum()
    }

    fn forget(&mut self, now: u64) {
        let newest = (now / PART_SECONDS).max(self.newest);
        for passed in self.newest..newest.min(self.newest + PARTS) {
            self.parts[Self::place(passed + 1)] = 0;
        }
        self.newest = newest;
    }

    fn place(part: u64) -> usize {
        usize::try_from(part % PARTS).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_a_minute_old_is_not_of_the_last(mut times in proptest::collection::vec(0_u64..300, 0..60), look in 0_u64..120) {
            times.sort_unstable();
            let mut count = Minute::default();
            for time in &times {
                count.add(*time);
            }
            let now = times.last().copied().unwrap_or_default() + look;
            let within = |seconds: u64| times.iter().filter(|time| *time + seconds > now).count() as u64;
            let told = count.last_minute(now);
            prop_assert!((within(50)..=within(60)).contains(&told), "{} of {:?} at {}", told, times, now);
            prop_assert_eq!(count.total(), times.len() as u64);
        }
    }
}
