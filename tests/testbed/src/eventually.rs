//! Waiting in tests: one helper and one patience variable, so that a slow machine needs one setting and not fifty.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// Seconds that [`eventually`] waits when `PORTOLAN_TEST_PATIENCE_SECONDS` does not say otherwise.
const DEFAULT_PATIENCE_SECONDS: u64 = 60;
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// What a probe of [`eventually`] may answer: `Option`, `Result` or `bool`.
pub trait Outcome {
    /// What is waited for.
    type Value;
    /// The value if the probe succeeded, else what it saw instead.
    fn settle(self) -> Result<Self::Value, String>;
}

impl<T> Outcome for Option<T> {
    type Value = T;
    fn settle(self) -> Result<T, String> {
        self.ok_or_else(|| "None".to_owned())
    }
}

impl<T, E: Debug> Outcome for Result<T, E> {
    type Value = T;
    fn settle(self) -> Result<T, String> {
        self.map_err(|error| format!("{error:?}"))
    }
}

impl Outcome for bool {
    type Value = ();
    fn settle(self) -> Result<(), String> {
        if self { Ok(()) } else { Err("false".to_owned()) }
    }
}

/// How long tests wait for something to become true.
pub fn patience() -> Duration {
    #[expect(
        clippy::disallowed_methods,
        reason = "a library for tests has no args.rs; this is its one test setting"
    )]
    let configured = std::env::var("PORTOLAN_TEST_PATIENCE_SECONDS").ok();
    let seconds = configured
        .and_then(|text| text.parse().ok())
        .unwrap_or(DEFAULT_PATIENCE_SECONDS);
    Duration::from_secs(seconds)
}

/// Asks `probe` again and again until it succeeds; panics with `what` and the last answer when patience runs out.
/// A probe that hangs is cut off at the same moment.
pub async fn eventually<F, Fut>(what: &str, probe: F) -> <Fut::Output as Outcome>::Value
where
    F: FnMut() -> Fut,
    Fut: Future<Output: Outcome>,
{
    match within(patience(), probe).await {
        Ok(value) => value,
        #[expect(clippy::panic, reason = "this is an assertion")]
        Err(last) => panic!("{what}: not within {:?}; last: {last}", patience()),
    }
}

/// [`eventually`] with its own limit and without the panic.
pub(crate) async fn within<F, Fut>(limit: Duration, mut probe: F) -> Result<<Fut::Output as Outcome>::Value, String>
where
    F: FnMut() -> Fut,
    Fut: Future<Output: Outcome>,
{
    let deadline = Instant::now() + limit;
    let mut pause = FIRST_PAUSE;
    let mut last = "the first probe did not return".to_owned();
    loop {
        match timeout_at(deadline, probe()).await.map(Outcome::settle) {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(seen)) => last = seen,
            Err(_) => return Err(format!("a probe did not return in time; before it: {last}")),
        }
        if Instant::now() + pause > deadline {
            return Err(last);
        }
        sleep(pause).await;
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn asks_until_the_probe_succeeds() {
        let mut calls = 0;
        let value = within(Duration::from_secs(5), || {
            calls += 1;
            std::future::ready((calls == 4).then_some("yes"))
        });
        assert_eq!(value.await, Ok("yes"));
    }

    #[tokio::test(start_paused = true)]
    async fn tells_the_last_answer() {
        let failed = within(Duration::from_secs(5), || async { Err::<(), _>("still no") }).await;
        assert_eq!(failed, Err("\"still no\"".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn cuts_off_a_probe_that_hangs() {
        let failed = within(Duration::from_secs(5), std::future::pending::<bool>).await;
        assert!(failed.is_err_and(|last| last.contains("did not return")));
    }
}
