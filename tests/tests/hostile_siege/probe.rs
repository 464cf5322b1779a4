//! A tenant that goes on asking: what failed, and how long it waited.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::Method;
use portolan_tests::door::{Door, Line, request};
use serde_json::json;
use tokio::task::JoinSet;

const PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct Probe {
    stop: Arc<AtomicBool>,
    #[allow(dead_code, reason = "`chaos`, which has this file too, waits for nothing")]
    rounds: Arc<AtomicUsize>,
    task: JoinSet<Seen>,
}

/// What it has seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) answered: usize,
    pub(crate) failures: Vec<String>,
    pub(crate) waited: Vec<Duration>,
}

impl Probe {
    /// Begins to list, write and read at `path`, in turn, on one connection, as clients do.
    pub(crate) fn start(door: Door, path: &'static str) -> Self {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::<AtomicUsize>::default());
        let (stopped, ended) = (stop.clone(), rounds.clone());
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut seen = Seen::default();
            match door.open().await {
                Ok(line) => {
                    while !stopped.load(Ordering::Relaxed) {
                        seen.round(&line, path).await;
                        ended.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                Err(error) => seen.failures.push(format!("no connection: {error:#}")),
            }
            ended.store(usize::MAX, Ordering::Relaxed);
            seen
        });
        Self { stop, rounds, task }
    }

    #[allow(dead_code, reason = "as above")]
    /// How often it has listed, written and read so far; more than any number once it has ended.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.load(Ordering::Relaxed)
    }

    pub(crate) async fn end(mut self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.task.join_next().await.unwrap().unwrap()
    }
}

impl Seen {
    async fn round(&mut self, line: &Line, path: &str) {
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "probe"},
            "data": {"round": self.waited.len().to_string()},
        });
        let get = |path: &str| request(Method::GET, path, &[], &[]).unwrap();
        let apply = [("content-type", "application/apply-patch+yaml")];
        let own = format!("{path}/probe?fieldManager=probe");
        let requests = [
            get(path),
            request(Method::PATCH, &own, &apply, object.to_string().as_bytes()).unwrap(),
            get(&format!("{path}/probe")),
        ];
        for request in requests {
            let asked = Instant::now();
            match line.ask(request).await {
                Ok(answer) if matches!(answer.status, 200 | 201) => self.answered += 1,
                Ok(answer) => self.failures.push(format!("{} {}", answer.status, answer.message())),
                Err(error) => self.failures.push(format!("{error:#}")),
            }
            self.waited.push(asked.elapsed());
        }
    }

    /// In milliseconds.
    fn percentile(&self, percent: usize) -> u128 {
        let mut sorted = self.waited.clone();
        sorted.sort_unstable();
        let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted.get(at).map_or(0, Duration::as_millis)
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [half, most, all] = [50, 99, 100].map(|percent| self.percentile(percent));
        write!(
            f,
            "{} answered, p50 {half} ms, p99 {most} ms, longest {all} ms",
            self.answered
        )
    }
}
