//! Attempts one after the other, the next before the last has failed if that takes long; the first success wins.
//!
//! RFC 8305's "happy eyeballs", for addresses of a name and for endpoints of a member. Caller: `dialer`.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;

/// What the first attempt that succeeded gave.
#[derive(Debug)]
pub(super) struct Won<T> {
    pub(super) value: T,
    /// Attempts before it that had the pause at least and had not ended.
    pub(super) passed_over: Vec<usize>,
}

/// Starts the next when the last has failed, or when nothing has happened for `pause`. The error is the last attempt's;
/// `None` without any.
pub(super) async fn staggered<T, E, F>(attempts: Vec<F>, pause: Duration) -> Result<Won<T>, Option<E>>
where
    F: Future<Output = Result<T, E>>,
{
    let mut waiting = attempts.into_iter().enumerate();
    let mut running = FuturesUnordered::new();
    let mut pending = BTreeMap::new();
    let mut failure = None;
    loop {
        if let Some((at, attempt)) = waiting.next() {
            pending.insert(at, Instant::now());
            running.push(async move { (at, attempt.await) });
        }
        let is_last = waiting.len() == 0;
        tokio::select! {
            biased;
            ended = running.next() => match ended {
                Some((at, Ok(value))) => {
                    let late = pending.into_iter().filter(|(other, since)| *other < at && since.elapsed() >= pause);
                    return Ok(Won { value, passed_over: late.map(|(other, _)| other).collect() });
                }
                Some((at, Err(error))) => {
                    pending.remove(&at);
                    failure = Some(error);
                }
                None => return Err(failure),
            },
            () = tokio::time::sleep(pause), if !is_last => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::future::BoxFuture;
    use tokio::time::{Instant, sleep};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    type Attempt = BoxFuture<'static, Result<u32, u32>>;

    fn after(seconds: u32, outcome: Result<u32, u32>) -> Attempt {
        async move {
            sleep(SECOND * seconds).await;
            outcome
        }
        .boxed()
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_starts_after_a_failure_or_a_pause() {
        let began = Instant::now();
        let attempts = vec![after(0, Err(0)), after(100, Ok(1)), after(1, Ok(2)), after(0, Ok(3))];
        let won = staggered(attempts, SECOND * 5).await.unwrap();
        assert_eq!((won.value, won.passed_over), (2, vec![1]));
        assert_eq!(began.elapsed(), SECOND * 6);
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_one_may_still_win() {
        let won = staggered(vec![after(7, Ok(0)), after(100, Ok(1))], SECOND * 5)
            .await
            .unwrap();
        assert_eq!((won.value, won.passed_over), (0, vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn all_fail_or_there_are_none() {
        let failed = staggered(vec![after(9, Err(0)), after(1, Err(1))], SECOND).await;
        assert_eq!(failed.unwrap_err(), Some(0));
        assert_eq!(staggered(Vec::<Attempt>::new(), SECOND).await.unwrap_err(), None);
    }
}
