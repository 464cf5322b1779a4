//! How long a member takes to answer, against its own pace of minutes ago.
//!
//! By size of the answer, in histograms of one minute each. An answer *lags* when it took several times what half of the
//! answers took then, longer than nearly all of them did, and as long as a person would call slow: a member that was idle
//! and is busy now takes many times what it took. Pure. Called by `shared`; what comes of many that lag is `core`'s.

use std::time::{Duration, Instant};

/// Minutes that are kept, the present one included.
const MINUTES: usize = 12;
/// The latest ones say how it is now, not how it was.
const RECENT: usize = 2;
/// Answers from which a pace can be told.
const ENOUGH: u32 = 100;
/// Of half of the answers then.
const TIMES_MEDIAN: f64 = 5.0;
/// Of nine in ten then.
const TIMES_MOST: f64 = 1.5;
/// Two for each doubling of [`LEAST`], in seconds: up to a minute and a half.
const BUCKETS: usize = 40;
/// Seconds.
const LEAST: f64 = 0.000_1;

/// How large an answer is, as far as its head tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Small,
    Middling,
    Large,
    Untold,
}

impl Size {
    pub(crate) fn of(bytes: Option<u64>) -> Self {
        match bytes {
            None => Self::Untold,
            Some(..4_096) => Self::Small,
            Some(..262_144) => Self::Middling,
            Some(_) => Self::Large,
        }
    }
}

/// This router's own lateness from which on times say nothing of a member, as part of what is slow.
const OWN_PART: u32 = 10;

/// How long a read took, up to the head of its answer or until now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Took {
    pub(crate) time: Duration,
    /// How late this router's own timers were meanwhile.
    pub(crate) late: Duration,
}

impl Took {
    /// Whether it says something of the member, where what takes less than `slow` is not slow.
    pub(super) fn tells(&self, slow: Duration) -> bool {
        self.late * OWN_PART <= slow
    }
}

/// Of one class of traffic to one member.
#[derive(Debug, Default)]
pub(super) struct Pace {
    of: [History; 4],
}

#[derive(Debug, Default)]
struct History {
    minutes: [Histogram; MINUTES],
    current: usize,
    since: Option<Instant>,
    /// Half of the answers of minutes ago took less than the first, nine in ten less than the second, in seconds.
    before: Option<(f64, f64)>,
}

#[derive(Debug, Clone, Copy)]
struct Histogram([u32; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Pace {
    /// Counts an answer; whether it lags, if that can be told. What took less than `slow` does not.
    pub(super) fn took(&mut self, took: Duration, size: Size, slow: Duration, now: Instant) -> Option<bool> {
        let history = &mut self.of[size as usize];
        history.advance(now);
        let seconds = took.as_secs_f64();
        let count = &mut history.minutes[history.current].0[bucket(seconds)];
        *count = count.saturating_add(1);
        history.lags(took, slow)
    }

    /// Whether a request that has waited for so long lags already, however large its answer may be; `None` as above.
    pub(super) fn waits(&self, waited: Duration, slow: Duration) -> Option<bool> {
        let known = self.of.iter().filter_map(|history| history.lags(waited, slow));
        known.reduce(|all, lags| all && lags)
    }
}

impl History {
    fn lags(&self, took: Duration, slow: Duration) -> Option<bool> {
        let (median, most) = self.before?;
        let seconds = took.as_secs_f64();
        Some(took >= slow && seconds > median * TIMES_MEDIAN && seconds > most * TIMES_MOST)
    }

    fn advance(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let steps = now.saturating_duration_since(since).as_secs() / 60;
        if steps == 0 {
            return;
        }
        for _ in 0..steps.min(MINUTES as u64) {
            self.current = (self.current + 1) % MINUTES;
            self.minutes[self.current] = Histogram::default();
        }
        self.since = Some(since + Duration::from_mins(steps));
        let mut all = Histogram::default();
        for back in RECENT..MINUTES {
            let minute = &self.minutes[(self.current + MINUTES - back) % MINUTES];
            for (sum, count) in all.0.iter_mut().zip(minute.0) {
                *sum = sum.saturating_add(count);
            }
        }
        self.before = all.below(2, 1).zip(all.below(10, 9));
    }
}

impl Histogram {
    /// What `part` of `parts` took less than; `None` if there are too few to say.
    fn below(&self, parts: u32, part: u32) -> Option<f64> {
        let total = self.0.iter().fold(0_u32, |sum, count| sum.saturating_add(*count));
        if total < ENOUGH {
            return None;
        }
        let wanted = u64::from(total) * u64::from(part);
        let mut sum = 0_u64;
        for (index, count) in self.0.iter().enumerate() {
            sum += u64::from(*count) * u64::from(parts);
            if sum >= wanted {
                return Some(upper(index));
            }
        }
        None
    }
}

/// The bucket of a time, whose bounds are a factor of the square root of two apart.
fn bucket(seconds: f64) -> usize {
    (0..BUCKETS - 1)
        .find(|index| seconds <= upper(*index))
        .unwrap_or(BUCKETS - 1)
}

fn upper(bucket: usize) -> f64 {
    let bucket = u32::try_from(bucket).unwrap_or(u32::MAX);
    LEAST * std::f64::consts::SQRT_2.powf(f64::from(bucket) + 1.0)
}

#[cfg(test)]
impl Pace {
    /// As if all answers of minutes ago had taken so long.
    pub(super) fn learn(&mut self, pace: Duration, now: Instant) {
        for history in &mut self.of {
            history.since = Some(now);
            history.before = Some((pace.as_secs_f64(), pace.as_secs_f64()));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One answer every 100 ms, as `took` says of each, for so many seconds; how many lagged.
    fn answer(pace: &mut Pace, now: &mut Instant, seconds: u32, took: impl Fn(u32) -> Duration) -> u32 {
        let mut lagged = 0;
        for number in 0..seconds * 10 {
            *now += Duration::from_millis(100);
            lagged += u32::from(pace.took(took(number), Size::Small, Duration::ZERO, *now) == Some(true));
        }
        lagged
    }

    #[test]
    fn nothing_is_told_before_there_is_a_pace_and_a_slower_one_becomes_its_own() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let (fast, slow) = (Duration::from_millis(5), Duration::from_millis(50));
        assert_eq!(answer(&mut pace, &mut now, 60, |_| slow), 0);
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        assert_eq!(answer(&mut pace, &mut now, 240, |_| fast), 0);
        assert_eq!(
            answer(&mut pace, &mut now, 30, |_| slow),
            300,
            "ten times slower than itself"
        );
        let none = Duration::ZERO;
        assert_eq!(
            pace.took(slow, Size::Large, none, now),
            None,
            "of that size nothing is known"
        );
        assert_eq!(
            (pace.waits(fast, none), pace.waits(slow, none)),
            (Some(false), Some(true))
        );
        assert_eq!(Pace::default().waits(slow, none), None);
        answer(&mut pace, &mut now, 15 * 60, |_| slow);
        assert_eq!(answer(&mut pace, &mut now, 10, |_| slow), 0, "that is how it is now");
    }

    #[test]
    fn what_is_not_slow_does_not_lag_however_fast_it_was() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        answer(&mut pace, &mut now, 240, |_| Duration::from_millis(3));
        let slow = Duration::from_millis(500);
        for (took, lags) in [(60, false), (499, false), (500, true)] {
            let took = Duration::from_millis(took);
            assert_eq!(pace.took(took, Size::Small, slow, now), Some(lags), "{took:?}");
            assert_eq!(pace.waits(took, slow), Some(lags), "{took:?}");
        }
        let tells = |late| {
            Took {
                time: slow,
                late: Duration::from_millis(late),
            }
            .tells(slow)
        };
        assert!(tells(50) && !tells(51));
    }

    #[test]
    fn what_was_always_spread_does_not_lag() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        // Two kinds of requests, of which the mix changes.
        let mixed = |slow: u32| move |number: u32| Duration::from_millis(if number % 10 < slow { 300 } else { 3 });
        answer(&mut pace, &mut now, 300, mixed(2));
        assert_eq!(answer(&mut pace, &mut now, 60, mixed(9)), 0);
    }

    proptest! {
        /// Whatever its pace: one in a hundred lags at most when one in a hundred is slow, most when all are ten times slower.
        #[test]
        fn a_hundredth_is_a_hundredth(base in 1_u64..2_000, times in 10_u32..100) {
            let (mut pace, mut now) = (Pace::default(), Instant::now());
            let spread = move |number: u32| Duration::from_micros(base * 100) * (5 + number % 10) / 10;
            answer(&mut pace, &mut now, 240, spread);
            let some = |number: u32| if number.is_multiple_of(100) { spread(number) * times } else { spread(number) };
            prop_assert!(answer(&mut pace, &mut now, 60, some) <= 6);
            prop_assert!(answer(&mut pace, &mut now, 20, |number| spread(number) * 10) >= 120);
        }
    }
}
