//! A caller that goes on asking the same thing, and remembers what went wrong and how long it ever waited.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::Method;
use portolan_tests::door::{Door, request};
use tokio::task::JoinSet;

const PAUSE: Duration = Duration::from_millis(30);

pub(crate) struct Pulse {
    stop: Arc<AtomicBool>,
    task: JoinSet<Beats>,
}

/// What it has seen.
#[derive(Debug, Default)]
pub(crate) struct Beats {
    pub(crate) answered: usize,
    pub(crate) failures: Vec<String>,
    pub(crate) slowest: Duration,
}

impl Pulse {
    /// Begins to GET `path` on one connection, which it keeps as clients do.
    pub(crate) fn start(door: Door, path: &'static str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut beats = Beats::default();
            let line = match door.open().await {
                Ok(line) => line,
                Err(error) => {
                    beats.failures.push(format!("no connection: {error:#}"));
                    return beats;
                }
            };
            while !stopped.load(Ordering::Relaxed) {
                let asked = Instant::now();
                match line.ask(request(Method::GET, path, &[], &[]).expect("a request")).await {
                    Ok(answer) if answer.status == 200 => beats.answered += 1,
                    Ok(answer) => beats.failures.push(format!("{} {}", answer.status, answer.message())),
                    Err(error) => beats.failures.push(format!("{error:#}")),
                }
                beats.slowest = beats.slowest.max(asked.elapsed());
                tokio::time::sleep(PAUSE).await;
            }
            beats
        });
        Self { stop, task }
    }

    pub(crate) async fn end(mut self) -> Beats {
        self.stop.store(true, Ordering::Relaxed);
        self.task.join_next().await.unwrap().unwrap()
    }

    /// Ends it: everything was answered, and nothing took as long as a request that waits for another member would.
    pub(crate) async fn assert_untouched(self) {
        let beats = self.end().await;
        assert!(beats.failures.is_empty(), "{beats:?}");
        assert!(beats.answered > 4, "{beats:?}");
        let wait = crate::configured("PORTOLAN_REQUEST_TIMEOUT");
        assert!(beats.slowest < wait * 7 / 8, "{beats:?}");
    }
}
