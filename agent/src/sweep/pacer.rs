//! How fast labels are written: one pace for all sweeps together, set by what the API server answers.
//!
//! Turns are handed out in order and spaced evenly, with a second's worth saved up while idle, so that a single drift is
//! repaired at once. A first sweep begins gently; the pace doubles each second while answers come as quickly as ever, up to
//! a ceiling. It halves when the API server pushes back (429, 503, 504, no answer), where nothing is sent until it wants to
//! be asked again, and is lowered while answers take much longer than they can: requests that wait in a queue of Priority and
//! Fairness are seen by that alone. Callers: `sweep::patch`, `uninstall`.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until};

/// Turns saved up while idle, as time.
const BURST: Duration = Duration::from_secs(1);
/// Patches under way at a time: at 30 ms each they make a thousand a second. An API server that takes longer slows them
/// down by that alone.
const ROOMS: usize = 32;
/// A second's turns at first, and at least.
const FIRST: f64 = 100.0;
const LEAST: f64 = 5.0;
/// What each good answer adds to a second's turns: twice as many in a second; more slowly where there was a limit before.
const MORE: f64 = 1.0;
const MORE_AFTER_LIMIT: f64 = 0.2;
/// What is left of the pace after a refusal, and while answers are slow.
const AFTER_REFUSAL: f64 = 0.5;
const WHILE_SLOW: f64 = 0.8;
/// Between two of these: answers to what was sent at the old pace come in still.
const SETTLE: Duration = Duration::from_secs(1);
/// Nothing is sent for so long after a refusal that does not say how long.
const HOLD: Duration = Duration::from_secs(1);
/// An API server that wants to be left alone for longer is asked nevertheless: it may have said so of one request.
const LONGEST_HOLD: Duration = Duration::from_secs(30);
/// Answers that take this much longer than twice the quickest one ever seen are slow.
const SLOW: f64 = 0.2;
/// Weight of one answer in how long they take of late.
const WEIGHT: f64 = 1.0 / 16.0;

/// Clones share the pace.
#[derive(Debug, Clone)]
pub(crate) struct Pacer {
    most: f64,
    // A mutex: held for a few instructions per patch.
    pace: Arc<Mutex<Pace>>,
    rooms: Arc<Semaphore>,
}

#[derive(Debug)]
struct Pace {
    per_second: f64,
    next: Instant,
    lowered: Instant,
    has_met_limit: bool,
    /// Seconds of the quickest answer, and of those of late.
    quickest: f64,
    of_late: f64,
}

/// What an answer tells about how busy the API server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// It has dealt with the request in this time.
    Took(Duration),
    /// It would not or could not, and wants to be asked again after this time, if it says so.
    Refused(Option<Duration>),
}

impl Pacer {
    /// At most `most` turns a second.
    pub(crate) fn new(most: NonZeroU32) -> Self {
        let (now, most) = (Instant::now(), f64::from(most.get()));
        Self {
            most,
            pace: Arc::new(Mutex::new(Pace {
                per_second: most.min(FIRST),
                next: now,
                lowered: now,
                has_met_limit: false,
                quickest: f64::INFINITY,
                of_late: 0.0,
            })),
            rooms: Arc::new(Semaphore::new(ROOMS)),
        }
    }

    /// Waits for the next turn, which lasts until it is dropped. One that is dropped while waiting is lost, not handed on.
    pub(crate) async fn turn(&self) -> SemaphorePermit<'_> {
        let room = self.rooms.acquire().await.expect("the semaphore is never closed");
        let turn = {
            let mut pace = self.pace.lock();
            let earliest = Instant::now().checked_sub(BURST).unwrap_or(pace.next);
            let turn = pace.next.max(earliest);
            pace.next = turn + Duration::from_secs_f64(1.0 / pace.per_second);
            turn
        };
        sleep_until(turn).await;
        room
    }

    /// Takes note of an answer.
    pub(crate) fn answered(&self, load: Load) {
        self.pace.lock().take(load, self.most);
    }

    /// Turns a second, at present.
    pub(crate) fn per_second(&self) -> f64 {
        self.pace.lock().per_second
    }
}

impl Pace {
    fn take(&mut self, load: Load, most: f64) {
        let now = Instant::now();
        match load {
            Load::Refused(again) => {
                self.next = self.next.max(now + again.unwrap_or(HOLD).min(LONGEST_HOLD));
                self.lower(now, AFTER_REFUSAL);
            }
            Load::Took(took) => {
                let took = took.as_secs_f64();
                self.quickest = self.quickest.min(took);
                self.of_late += (took - self.of_late) * WEIGHT;
                if self.of_late > 2.0 * self.quickest + SLOW {
                    self.lower(now, WHILE_SLOW);
                } else {
                    let more = if self.has_met_limit { MORE_AFTER_LIMIT } else { MORE };
                    self.per_second = (self.per_second + more).min(most);
                }
            }
        }
    }

    fn lower(&mut self, now: Instant, factor: f64) {
        if now.duration_since(self.lowered) < SETTLE && self.has_met_limit {
            return;
        }
        self.per_second = (self.per_second * factor).max(LEAST.min(self.per_second));
        self.lowered = now;
        self.has_met_limit = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pacer(most: u32) -> Pacer {
        Pacer::new(NonZeroU32::new(most).unwrap())
    }

    /// Turns in this time, of which each takes `took` and is answered by `answer`.
    async fn turns(pacer: &Pacer, time: Duration, took: Duration, answer: Load) -> usize {
        let until = Instant::now() + time;
        let worker = || async {
            let mut turns = 0;
            while Instant::now() < until
                && let Ok(turn) = tokio::time::timeout_at(until, pacer.turn()).await
            {
                tokio::time::sleep(took).await;
                pacer.answered(answer);
                drop(turn);
                turns += 1;
            }
            turns
        };
        futures::future::join_all((0..64).map(|_| worker()))
            .await
            .into_iter()
            .sum()
    }

    async fn good_turns(pacer: &Pacer, seconds: u64, milliseconds: u64) -> usize {
        let took = Duration::from_millis(milliseconds);
        turns(pacer, Duration::from_secs(seconds), took, Load::Took(took)).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_then_the_pace() {
        let pacer = pacer(10);
        tokio::time::sleep(Duration::from_mins(1)).await;
        let started = Instant::now();
        for _ in 0..11 {
            drop(pacer.turn().await);
        }
        assert!(started.elapsed() <= Duration::from_millis(2), "{:?}", started.elapsed());
        for _ in 0..20 {
            drop(pacer.turn().await);
        }
        let took = started.elapsed();
        assert!(
            took > Duration::from_millis(1900) && took < Duration::from_millis(2200),
            "{took:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn where_it_is_free_a_thousand_a_second_after_a_gentle_start() {
        let pacer = pacer(1000);
        let first = good_turns(&pacer, 1, 5).await;
        assert!(first <= 320, "{first} in the first second");
        good_turns(&pacer, 5, 5).await;
        let then = good_turns(&pacer, 10, 5).await;
        assert!((9_500..=11_100).contains(&then), "{then} in ten seconds");
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_told_to_wait_waits_and_then_goes_more_slowly() {
        let pacer = pacer(1000);
        good_turns(&pacer, 10, 5).await;
        for _ in 0..20 {
            pacer.answered(Load::Refused(Some(Duration::from_secs(7))));
        }
        assert!(
            (pacer.per_second() - 500.0).abs() < 1.0,
            "twenty answers of one moment count once"
        );
        let refused = Instant::now();
        drop(pacer.turn().await);
        assert!(refused.elapsed() >= Duration::from_secs(7));
        let refusals = turns(
            &pacer,
            Duration::from_mins(1),
            Duration::from_millis(5),
            Load::Refused(None),
        );
        let refused = refusals.await;
        assert!(
            refused <= 64 * 60 && pacer.per_second() <= LEAST,
            "{refused} in a minute"
        );
        good_turns(&pacer, 120, 5).await;
        assert!(pacer.per_second() > 900.0, "it comes back: {}", pacer.per_second());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_answers_slow_it_down_and_a_long_way_does_not() {
        let busy = pacer(1000);
        good_turns(&busy, 10, 5).await;
        good_turns(&busy, 20, 800).await;
        assert!(busy.per_second() < 100.0, "{}", busy.per_second());
        let far = pacer(1000);
        let turns = good_turns(&far, 20, 150).await;
        assert!(turns > 20 * 150, "{turns}");
    }
}
