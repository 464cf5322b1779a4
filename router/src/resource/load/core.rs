//! What follows from what was measured. Pure: figures and time are arguments.
//!
//! Each signal has three thresholds. Over one the router sheds at once; it stops step by step, once the signal has been well
//! below for a while, or anywhere below for longer: what was shed comes again, and must not bring back what it was shed for.

use std::fmt;
use std::time::{Duration, Instant};

/// Below a threshold by this part of it, and for so long, before less is shed.
const RELEASE: f64 = 0.9;
const HOLD: Duration = Duration::from_secs(2);
/// Below a threshold at all for so long sheds less, too: what a router needs for what it always does, a large cache or an
/// allocator that gives nothing back, may be just below for ever.
const SETTLED: Duration = Duration::from_secs(20);
/// Of each new lateness in the smoothed one; and one alone counts as at most so many thresholds, so that no single stall
/// sheds anything.
const WEIGHT: f64 = 0.2;
const SPIKE: f64 = 4.0;

/// When to shed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Settings {
    /// Part of the memory limit in use, from which on lists are shed; starts of watches and single requests at a third and two
    /// thirds of the rest more. 1: never.
    pub(crate) memory: f64,
    /// Lateness of timers, smoothed over about a second, from which on lists are shed; starts of watches at twice, single
    /// requests at three times as much. Zero: never.
    pub(crate) delay: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            memory: 0.8,
            delay: Duration::from_millis(500),
        }
    }
}

/// What is shed; each with those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Level {
    Nothing = 0,
    Lists = 1,
    WatchStarts = 2,
    Singles = 3,
}

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    Memory,
    Delay,
}

/// What is shed now, and why.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Shedding {
    pub(crate) level: Level,
    pub(crate) reason: Reason,
    /// Part of the limit, or seconds.
    value: f64,
}

/// Both signals.
#[derive(Debug)]
pub(super) struct Core {
    memory: Signal,
    delay: Signal,
}

/// One figure with its thresholds.
#[derive(Debug)]
struct Signal {
    /// Of lists, of starts of watches, of single requests.
    thresholds: [f64; 3],
    value: f64,
    level: Level,
    /// Since when it is low enough for less.
    low_since: Option<Instant>,
    /// Since when it is below the threshold of what is shed.
    under_since: Option<Instant>,
}

impl Level {
    const ALL: [Self; 4] = [Self::Nothing, Self::Lists, Self::WatchStarts, Self::Singles];

    /// As in metrics: what is shed last.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Lists => "list",
            Self::WatchStarts => "watch",
            Self::Singles => "single",
        }
    }

    /// The one that it is shed over.
    fn threshold(self, thresholds: &[f64; 3]) -> Option<f64> {
        thresholds.get((self as usize).checked_sub(1)?).copied()
    }

    fn below(self) -> Self {
        Self::ALL[(self as usize).saturating_sub(1)]
    }
}

impl Reason {
    pub(crate) const ALL: [Self; 2] = [Self::Memory, Self::Delay];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Delay => "delay",
        }
    }
}

impl fmt::Display for Shedding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            Reason::Memory => write!(f, "{:.0} % of its memory is in use", self.value * 100.0),
            Reason::Delay => write!(f, "its timers are {:.0} ms late", self.value * 1000.0),
        }
    }
}

impl Core {
    pub(super) fn new(settings: Settings) -> Self {
        let never = [f64::INFINITY; 3];
        let rest = (1.0 - settings.memory) / 3.0;
        let memory = if settings.memory < 1.0 {
            [0.0, 1.0, 2.0].map(|step| settings.memory + step * rest)
        } else {
            never
        };
        let delay = if settings.delay.is_zero() {
            never
        } else {
            [1.0, 2.0, 3.0].map(|times| settings.delay.as_secs_f64() * times)
        };
        Self {
            memory: Signal::new(memory),
            delay: Signal::new(delay),
        }
    }

    /// Part of the limit that is in use; `None`: there is no limit, or nobody knows. Whether what is shed has changed.
    pub(super) fn memory(&mut self, in_use: Option<f64>, now: Instant) -> bool {
        let before = self.level();
        self.memory.set(in_use.unwrap_or(0.0), now);
        self.level() != before
    }

    /// How late a timer woke up.
    pub(super) fn late(&mut self, by: Duration, now: Instant) -> bool {
        let before = self.level();
        let by = by.as_secs_f64().min(self.delay.thresholds[0] * SPIKE);
        let smoothed = self.delay.value + (by - self.delay.value) * WEIGHT;
        self.delay.set(smoothed, now);
        self.level() != before
    }

    pub(super) fn level(&self) -> Level {
        self.memory.level.max(self.delay.level)
    }

    /// Why what is shed `from` this level on is: for want of memory before anything else.
    pub(super) fn shedding(&self, from: Level) -> Option<Shedding> {
        let signals = [(Reason::Memory, &self.memory), (Reason::Delay, &self.delay)];
        let (reason, signal) = signals.into_iter().find(|(_, signal)| signal.level >= from)?;
        Some(Shedding {
            level: signal.level,
            reason,
            value: signal.value,
        })
    }

    /// Part of the memory in use, and smoothed lateness in seconds.
    pub(super) fn values(&self) -> (f64, f64) {
        (self.memory.value, self.delay.value)
    }
}

impl Signal {
    fn new(thresholds: [f64; 3]) -> Self {
        Self {
            thresholds,
            value: 0.0,
            level: Level::Nothing,
            low_since: None,
            under_since: None,
        }
    }

    fn set(&mut self, value: f64, now: Instant) {
        self.value = value;
        let over = self.thresholds.iter().filter(|&&threshold| value >= threshold).count();
        let wanted = Level::ALL[over];
        if wanted > self.level {
            self.level = wanted;
            (self.low_since, self.under_since) = (None, None);
            return;
        }
        let Some(threshold) = self.level.threshold(&self.thresholds) else {
            return;
        };
        let long = |since: &mut Option<Instant>, holds: bool, time: Duration| {
            *since = holds.then(|| since.unwrap_or(now));
            since.is_some_and(|since| now.saturating_duration_since(since) >= time)
        };
        let low = long(&mut self.low_since, value < threshold * RELEASE, HOLD);
        let under = long(&mut self.under_since, value < threshold, SETTLED);
        if low || under {
            self.level = self.level.below();
            // Of the next step; whether it is low enough for that one, the next figure tells.
            (self.low_since, self.under_since) = (Some(now), Some(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn want_of_memory_is_the_reason_wherever_it_is_one() {
        let (mut core, now) = (Core::new(Settings::default()), Instant::now());
        core.memory(Some(0.85), now);
        for _ in 0..100 {
            core.late(Duration::from_secs(9), now);
        }
        let reason = |from| core.shedding(from).map(|why| why.reason);
        assert_eq!(reason(Level::Lists), Some(Reason::Memory));
        assert_eq!(
            reason(Level::Singles),
            Some(Reason::Delay),
            "of memory there is enough for these"
        );
    }

    #[test]
    fn lists_first_then_starts_of_watches_then_single_requests() {
        let now = Instant::now();
        let mut core = Core::new(Settings::default());
        for (in_use, level) in [
            (0.79, Level::Nothing),
            (0.81, Level::Lists),
            (0.87, Level::WatchStarts),
            (0.94, Level::Singles),
        ] {
            let before = core.level();
            assert_eq!(core.memory(Some(in_use), now), before != level);
            assert_eq!(core.level(), level, "{in_use}");
        }
        assert_eq!(
            core.shedding(Level::Lists).unwrap().to_string(),
            "94 % of its memory is in use"
        );
    }

    #[test]
    fn less_is_shed_step_by_step_and_not_at_once() {
        let mut now = Instant::now();
        let mut core = Core::new(Settings::default());
        core.memory(Some(1.2), now);
        assert!(!core.memory(Some(0.1), now), "it may come again");
        for level in [Level::WatchStarts, Level::Lists, Level::Nothing] {
            now += SECOND;
            assert!(!core.memory(Some(0.1), now));
            now += SECOND;
            assert!(core.memory(Some(0.1), now));
            assert_eq!(core.level(), level);
        }
        assert_eq!(core.shedding(Level::Lists), None);
    }

    #[test]
    fn what_hovers_below_a_threshold_does_not_flap() {
        let mut now = Instant::now();
        let mut core = Core::new(Settings::default());
        core.memory(Some(0.81), now);
        for _ in 0..100 {
            now += SECOND;
            assert!(!core.memory(Some(0.75), now));
            assert!(!core.memory(Some(0.8), now));
        }
        assert_eq!(core.level(), Level::Lists);
    }

    #[test]
    fn what_stays_below_a_threshold_is_not_shed_for_for_ever() {
        for in_use in [0.73, 0.76, 0.79] {
            let mut now = Instant::now();
            let mut core = Core::new(Settings::default());
            core.memory(Some(0.95), now);
            let mut took = 0;
            while core.level() != Level::Nothing {
                now += SECOND;
                took += 1;
                core.memory(Some(in_use), now);
                assert!(took <= 45, "{in_use}: {:?} is shed for ever", core.level());
            }
            assert!(took >= 20, "{in_use}: {took} s: what is shed comes again");
        }
    }

    #[test]
    fn one_stall_sheds_nothing_and_lasting_lateness_does() {
        let now = Instant::now();
        let mut core = Core::new(Settings::default());
        assert!(!core.late(Duration::from_mins(1), now), "the machine was asleep");
        for _ in 0..50 {
            core.late(Duration::ZERO, now);
        }
        let late = Duration::from_millis(1_200);
        let took = (1..20).find(|_| core.late(late, now)).unwrap();
        assert!(took < 5, "{took} samples");
        for _ in 0..20 {
            core.late(late, now);
        }
        assert_eq!(core.level(), Level::WatchStarts, "twice the threshold, not three times");
    }

    #[test]
    fn a_signal_that_is_off_sheds_nothing() {
        let now = Instant::now();
        let off = Settings {
            memory: 1.0,
            delay: Duration::ZERO,
        };
        let mut core = Core::new(off);
        for _ in 0..100 {
            assert!(!core.memory(Some(5.0), now) && !core.late(SECOND * 60, now));
        }
    }

    proptest! {
        /// Whatever is measured: more is shed only over a threshold, less only well below and not twice within the time of
        /// one step; and what is calm long enough sheds nothing.
        #[test]
        fn never_more_than_the_figures_say_and_never_for_ever(
            figures in proptest::collection::vec((0.0_f64..1.2, 0_u64..1_500, 0_u64..3_000), 0..200),
        ) {
            let mut now = Instant::now();
            let mut core = Core::new(Settings::default());
            let mut fell = None;
            for (memory, late, wait) in figures {
                now += Duration::from_millis(wait);
                let before = core.memory.level;
                core.memory(Some(memory), now);
                if core.memory.level > before {
                    prop_assert!(memory >= core.memory.thresholds[core.memory.level as usize - 1]);
                    fell = None;
                } else if core.memory.level < before {
                    prop_assert_eq!(core.memory.level, before.below());
                    prop_assert!(memory < core.memory.thresholds[before as usize - 1]);
                    prop_assert!(fell.is_none_or(|at| now - at >= HOLD));
                    fell = Some(now);
                }
                core.late(Duration::from_millis(late), now);
                prop_assert!(core.delay.level == Level::Nothing || core.delay.value > 0.0);
            }
            for _ in 0..200 {
                now += Duration::from_millis(100);
                core.memory(Some(0.2), now);
                core.late(Duration::ZERO, now);
            }
            prop_assert_eq!(core.level(), Level::Nothing);
        }
    }
}
