//! A token bucket in whole numbers: nothing is rounded, so it does not matter how often or when one looks.
//!
//! A router may have a share of a bucket that routers have together: then tokens come at that share of its rate, and it
//! keeps that share of its burst. A level is counted in parts of which a token has `interval × MILLIONTHS`: in each nanosecond
//! come `limit × share` of them. The bounds of [`Rate`] keep all products far below 2¹²⁸. Pure; the laws are in `tests`.

use std::time::Duration;

use super::Tick;
use super::takes::Takes;
use crate::value::policy::Rate;

/// Of a whole bucket.
pub(crate) const MILLIONTHS: u32 = 1_000_000;

/// What is in a bucket, or in a router's share of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bucket {
    level: u128,
    /// When the level was that.
    at: Tick,
    /// Of the bucket, in millionths.
    share: u32,
}

impl Bucket {
    /// With all that it may hold.
    pub(crate) fn full(rate: &Rate, share: u32, now: Tick) -> Self {
        let share = share.min(MILLIONTHS);
        Self {
            level: capacity(rate, share),
            at: now,
            share,
        }
    }

    /// With nothing in it.
    pub(crate) fn empty(share: u32, now: Tick) -> Self {
        Self {
            level: 0,
            at: now,
            share: share.min(MILLIONTHS),
        }
    }

    /// What has come since it was looked at last. A time before that changes nothing.
    pub(crate) fn advance(&mut self, rate: &Rate, now: Tick) {
        let passed = now.since(self.at);
        if passed > 0 {
            let came = u128::from(passed) * u128::from(rate.limit) * u128::from(self.share);
            self.level = (self.level + came).min(capacity(rate, self.share));
            self.at = now;
        }
    }

    /// Whether so many tokens are there, as it was looked at last.
    pub(crate) fn has(&self, rate: &Rate, tokens: u32) -> bool {
        parts(rate, tokens) <= self.level
    }

    /// Takes so many tokens. The caller has looked whether they are there.
    pub(crate) fn take(&mut self, rate: &Rate, tokens: u32) {
        self.level = self.level.saturating_sub(parts(rate, tokens));
    }

    /// Takes a token at each of these moments, none of which is before it was looked at last. All were there then.
    pub(crate) fn take_each(&mut self, rate: &Rate, takes: &Takes) {
        let (token, coming) = (parts(rate, 1), u64::from(rate.limit) * u64::from(self.share));
        let came = |passed: u64| u128::from(passed) * u128::from(coming);
        let never_full = self.level + came(takes.last.since(self.at));
        let never_full = never_full.saturating_sub(token * u128::from(takes.count));
        let corner = takes.least(coming, token);
        let full = capacity(rate, self.share) + came(corner.ago);
        let full = full.saturating_sub(token * u128::from(corner.takes));
        self.level = never_full.min(full);
        self.at = self.at.max(takes.last);
    }

    /// How many tokens are there, as it was looked at last, up to `most`.
    pub(crate) fn affords(&self, rate: &Rate, most: u32) -> u32 {
        if self.has(rate, most) {
            return most;
        }
        u32::try_from(self.tokens(rate)).unwrap_or(most)
    }

    /// So many tokens that were taken at that time are not spent, with a share that has not shrunk since. What came meanwhile may
    /// have found no room if they had been there all the time: that much is not given.
    pub(crate) fn give(&mut self, rate: &Rate, tokens: u32, taken: Tick, now: Tick) {
        self.advance(rate, now);
        let came = u128::from(self.at.since(taken)) * u128::from(rate.limit) * u128::from(self.share);
        let given = parts(rate, tokens).saturating_sub(came);
        self.level = (self.level + given).min(capacity(rate, self.share));
    }

    /// Whether there is ever room for so many tokens.
    pub(crate) fn holds(&self, rate: &Rate, tokens: u32) -> bool {
        parts(rate, tokens) <= capacity(rate, self.share)
    }

    /// How long until so many tokens are there if none are taken; `None`: never.
    pub(crate) fn wait(&self, rate: &Rate, tokens: u32) -> Option<Duration> {
        let wanted = parts(rate, tokens);
        let missing = wanted.saturating_sub(self.level);
        let in_a_nanosecond = u128::from(rate.limit) * u128::from(self.share);
        if missing == 0 {
            return Some(Duration::ZERO);
        }
        if in_a_nanosecond == 0 || wanted > capacity(rate, self.share) {
            return None;
        }
        let nanoseconds = missing.div_ceil(in_a_nanosecond);
        u64::try_from(nanoseconds).ok().map(Duration::from_nanos)
    }

    /// Whole tokens that are there, as it was looked at last.
    pub(crate) fn tokens(&self, rate: &Rate) -> u64 {
        u64::try_from(self.level / parts(rate, 1)).unwrap_or(u64::MAX)
    }

    /// Whether no more can come.
    pub(crate) fn is_full(&self, rate: &Rate) -> bool {
        self.level >= capacity(rate, self.share)
    }

    /// Of the bucket, in millionths.
    pub(crate) fn share(&self) -> u32 {
        self.share
    }

    /// This part of the bucket, in millionths, comes with all that it may hold, as far as there is room for it.
    pub(crate) fn fill(&mut self, rate: &Rate, part: u32) {
        let filled = self.level + capacity(rate, part.min(MILLIONTHS));
        self.level = filled.min(capacity(rate, self.share));
    }

    /// Another share from now on. What is there stays, as far as there is room for it: a share that grows makes no tokens, and
    /// as many as fit into all shares fit into the bucket.
    pub(crate) fn reshare(&mut self, rate: &Rate, share: u32, now: Tick) {
        self.advance(rate, now);
        self.share = share.min(MILLIONTHS);
        self.level = self.level.min(capacity(rate, self.share));
    }
}

fn parts(rate: &Rate, tokens: u32) -> u128 {
    u128::from(tokens) * u128::from(rate.interval) * u128::from(MILLIONTHS)
}

fn capacity(rate: &Rate, share: u32) -> u128 {
    u128::from(rate.burst) * u128::from(share) * u128::from(rate.interval)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn rate() -> impl Strategy<Value = Rate> {
        let tokens = || prop_oneof![0..20_u32, Just(u32::MAX), any::<u32>()];
        let interval = prop_oneof![1..100_u64, Just(1_000_000_000), Just(u64::MAX), 1..=u64::MAX];
        (tokens(), tokens(), interval).prop_map(|(burst, limit, interval)| Rate { burst, limit, interval })
    }

    /// Of which a token comes as often as it is asked for.
    fn usual() -> impl Strategy<Value = Rate> {
        (1..100_u32, 1..100_u32).prop_map(|(burst, limit)| Rate {
            burst,
            limit,
            interval: 1_000_000_000,
        })
    }

    fn share() -> impl Strategy<Value = u32> {
        prop_oneof![Just(MILLIONTHS), Just(0), 0..=MILLIONTHS]
    }

    proptest! {
        #[test]
        fn looking_more_often_makes_and_loses_nothing(
            rate in rate(), share in share(), steps in vec(0..u64::MAX / 64, 1..20), taken in any::<u32>(),
        ) {
            let mut often = Bucket::full(&rate, share, Tick::default());
            often.take(&rate, taken);
            let mut once = often.clone();
            let mut now = Tick::default();
            for step in steps {
                now = now.after(step);
                often.advance(&rate, now);
                often.advance(&rate, now);
                often.advance(&rate, Tick::default());
            }
            once.advance(&rate, now);
            prop_assert_eq!(often, once);
        }

        #[test]
        fn tokens_taken_afterwards_leave_what_tokens_taken_at_once_would(
            rate in prop_oneof![rate(), usual()],
            share in share(),
            spent in prop_oneof![0..20_u32, any::<u32>()],
            steps in vec(prop_oneof![0..50_000_000_u64, 0..3_000_000_000_u64], 1..70),
            later in 0..5_000_000_000_u64,
        ) {
            let mut once = Bucket::full(&rate, share, Tick::default());
            once.take(&rate, spent);
            let mut now = Tick::default();
            let moments: Vec<_> = steps.iter().map(|step| { now = now.after(*step); now }).collect();
            let afforded = once.affords(&rate, u32::try_from(moments.len()).unwrap());
            let moments = &moments[..usize::try_from(afforded).unwrap()];
            let mut afterwards = once.clone();
            for at in moments {
                once.advance(&rate, *at);
                prop_assert!(once.has(&rate, 1));
                once.take(&rate, 1);
            }
            if let Some(takes) = Takes::at(moments.iter().rev().copied()) {
                afterwards.take_each(&rate, &takes);
            }
            prop_assert_eq!(&afterwards, &once);
            afterwards.advance(&rate, now.after(later));
            once.advance(&rate, now.after(later));
            prop_assert_eq!(afterwards, once);
        }

        #[test]
        fn in_any_time_no_more_pass_than_burst_and_what_came(
            rate in rate(), share in share(), asks in vec((0..5_000_000_000_u64, 0..4_u32), 1..100),
        ) {
            let mut bucket = Bucket::full(&rate, share, Tick::default());
            let (mut now, mut passed) = (Tick::default(), 0_u128);
            for (step, tokens) in asks {
                now = now.after(step);
                bucket.advance(&rate, now);
                prop_assert!(bucket.level <= capacity(&rate, share));
                if bucket.has(&rate, tokens) {
                    bucket.take(&rate, tokens);
                    passed += parts(&rate, tokens);
                }
                let came = u128::from(now.since(Tick::default())) * u128::from(rate.limit) * u128::from(share);
                prop_assert!(passed + bucket.level <= capacity(&rate, share) + came);
            }
        }

        #[test]
        fn after_the_wait_they_are_there_and_not_before(
            rate in rate(), share in share(), taken in any::<u32>(), tokens in 1..50_u32,
        ) {
            let mut bucket = Bucket::full(&rate, share, Tick::default());
            bucket.take(&rate, taken);
            match bucket.wait(&rate, tokens) {
                None => {
                    bucket.advance(&rate, Tick::default().after(u64::MAX));
                    // 584 years may not be enough, either.
                    prop_assert!(!bucket.has(&rate, tokens));
                }
                Some(wait) => {
                    let wait = u64::try_from(wait.as_nanos()).unwrap();
                    let mut then = bucket.clone();
                    then.advance(&rate, Tick::default().after(wait));
                    prop_assert!(then.has(&rate, tokens));
                    if wait > 0 {
                        bucket.advance(&rate, Tick::default().after(wait - 1));
                        prop_assert!(!bucket.has(&rate, tokens));
                    }
                }
            }
        }

        /// Routers that a bucket is divided among, as the hub divides it: who gets less is told first.
        #[test]
        fn shares_that_move_never_hold_more_than_the_bucket(
            rate in rate(), moves in vec((0..3_usize, 0..3_usize, share(), 0..10_000_000_000_u64, 0..3_u32), 1..60),
        ) {
            let start = Tick::default();
            let mut routers = [MILLIONTHS / 2, MILLIONTHS / 4, MILLIONTHS / 4]
                .map(|share| Bucket::full(&rate, share, start));
            let (mut now, mut passed) = (start, 0_u128);
            for (from, to, wanted, step, tokens) in moves {
                now = now.after(step);
                for router in &mut routers {
                    router.advance(&rate, now);
                    if router.has(&rate, tokens) {
                        router.take(&rate, tokens);
                        passed += parts(&rate, tokens);
                    }
                }
                let moved = wanted.min(routers[from].share());
                let shrunk = routers[from].share() - moved;
                routers[from].reshare(&rate, shrunk, now);
                let grown = routers[to].share() + moved;
                routers[to].reshare(&rate, grown, now);
                let held: u128 = routers.iter().map(|router| router.level).sum();
                prop_assert!(held <= capacity(&rate, MILLIONTHS));
                let came = u128::from(now.since(start)) * u128::from(rate.limit) * u128::from(MILLIONTHS);
                prop_assert!(passed + held <= capacity(&rate, MILLIONTHS) + came);
            }
        }
    }

    #[test]
    fn tokens_that_come_back_are_those_for_which_none_came_meanwhile() {
        let rate = Rate {
            burst: 10,
            limit: 10,
            interval: 1_000_000_000,
        };
        let tenths = |count: u64| Tick::default().after(count * 100_000_000);
        let left_after = |tenths_later: u64, burst_taken: u32| {
            let mut bucket = Bucket::full(&rate, MILLIONTHS, Tick::default());
            bucket.take(&rate, burst_taken);
            bucket.give(&rate, burst_taken, Tick::default(), tenths(tenths_later));
            bucket.tokens(&rate)
        };
        assert_eq!((left_after(0, 8), left_after(4, 8)), (10, 10));
        let mut bucket = Bucket::full(&rate, MILLIONTHS, Tick::default());
        bucket.take(&rate, 8);
        bucket.advance(&rate, tenths(8));
        bucket.take(&rate, 10);
        bucket.give(&rate, 8, Tick::default(), tenths(8));
        assert_eq!(
            bucket.tokens(&rate),
            0,
            "without it the bucket had stayed full, and is empty now"
        );
        bucket.give(&rate, 8, tenths(5), tenths(8));
        assert_eq!(bucket.tokens(&rate), 5);
    }

    #[test]
    fn a_share_that_grows_makes_no_tokens_and_one_that_shrinks_keeps_what_fits() {
        let rate = Rate {
            burst: 10,
            limit: 10,
            interval: 1_000_000_000,
        };
        let now = Tick::default();
        let mut bucket = Bucket::full(&rate, MILLIONTHS / 2, now);
        assert_eq!(bucket.tokens(&rate), 5);
        bucket.reshare(&rate, MILLIONTHS, now);
        assert_eq!(bucket.tokens(&rate), 5);
        bucket.reshare(&rate, MILLIONTHS * 3 / 10, now);
        assert_eq!((bucket.tokens(&rate), bucket.is_full(&rate)), (3, true));
        bucket.reshare(&rate, 0, now);
        bucket.advance(&rate, now.after(60_000_000_000));
        assert_eq!((bucket.tokens(&rate), bucket.wait(&rate, 1)), (0, None));
    }

    #[test]
    fn a_bucket_of_a_token_lets_one_pass_in_each_interval() {
        let rate = Rate {
            burst: 1,
            limit: 1,
            interval: 1_000_000_000,
        };
        let mut bucket = Bucket::full(&rate, MILLIONTHS, Tick::default());
        bucket.take(&rate, 1);
        assert_eq!(bucket.wait(&rate, 1), Some(Duration::from_secs(1)));
        bucket.advance(&rate, Tick::default().after(999_999_999));
        assert!(!bucket.has(&rate, 1));
        bucket.advance(&rate, Tick::default().after(1_000_000_000));
        assert!(bucket.has(&rate, 1) && !bucket.has(&rate, 2));
    }
}
