//! When requests of an open loop are due.
//!
//! A thread of its own, because tokio's timers tick by the millisecond and a request would wait for the next tick. What
//! the thread oversleeps counts as latency, in every row alike. Caller: `load`.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::mpsc;

/// Requests that are due and not yet taken; a client that is further behind gives up, and `load` says so.
const BEHIND: usize = 16_384;

/// Gives out `count` times, `rate` a second.
pub(crate) fn start(rate: u32, count: usize) -> anyhow::Result<mpsc::Receiver<Instant>> {
    let (give, due) = mpsc::channel(BEHIND);
    let between = Duration::from_secs(1) / rate.max(1);
    let run = move || {
        let mut next = Instant::now();
        for _ in 0..count {
            if let Some(left) = next.checked_duration_since(Instant::now()) {
                std::thread::sleep(left);
            }
            if give.try_send(next).is_err() {
                return;
            }
            next += between;
        }
    };
    std::thread::Builder::new()
        .name("pace".to_owned())
        .spawn(run)
        .context("cannot start a thread")?;
    Ok(due)
}
