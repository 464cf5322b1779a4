//! Many clients that connect at once, and what became of each.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use http::Method;
use portolan_tests::door::request;
use tokio::task::JoinSet;

use crate::connects_within;
use crate::operators::Client;

/// What clients saw.
pub(crate) struct Storm {
    took: Duration,
    connected: Vec<Duration>,
    answered: Vec<Duration>,
    /// How often each happened.
    failures: BTreeMap<String, usize>,
}

/// When one client had its connection and its answer, from when it began.
type Outcome = Result<(Duration, Duration), String>;

impl Storm {
    /// So many clients, of these callers in turn.
    pub(crate) async fn run(callers: &[Client], clients: usize) -> Self {
        let begun = Instant::now();
        let mut all = JoinSet::new();
        for client in callers.iter().cycle().take(clients).cloned() {
            all.spawn(comes_back(client));
        }
        let mut storm = Self {
            took: Duration::ZERO,
            connected: Vec::new(),
            answered: Vec::new(),
            failures: BTreeMap::new(),
        };
        while let Some(outcome) = all.join_next().await {
            match outcome.unwrap() {
                Ok((connected, answered)) => {
                    storm.connected.push(connected);
                    storm.answered.push(answered);
                }
                Err(why) => *storm.failures.entry(why).or_default() += 1,
            }
        }
        storm.took = begun.elapsed();
        storm.connected.sort_unstable();
        storm.answered.sort_unstable();
        storm
    }

    pub(crate) fn took(&self) -> Duration {
        self.took
    }

    /// Each with how often it happened.
    pub(crate) fn failures(&self) -> Vec<String> {
        let told = |(why, times): (&String, &usize)| format!("{times} × {why}");
        self.failures.iter().map(told).collect()
    }
}

/// Connects as a client library does, and asks once.
async fn comes_back(client: Client) -> Outcome {
    let begun = Instant::now();
    let line = tokio::time::timeout(connects_within(), client.door.open()).await;
    let line = line.map_err(|_| "no connection in time".to_owned())?;
    let line = line.map_err(|error| format!("no connection: {error:#}"))?;
    let connected = begun.elapsed();
    let get = request(Method::GET, &client.path, &[], &[]).map_err(|error| error.to_string())?;
    let answer = line.ask(get).await.map_err(|error| format!("no answer: {error:#}"))?;
    if answer.status == 200 {
        Ok((connected, begun.elapsed()))
    } else {
        Err(format!("{}: {}", answer.status, answer.message()))
    }
}

impl fmt::Display for Storm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |all: &[Duration], percent: usize| {
            let last = all.len().saturating_sub(1);
            all.get(last * percent / 100).copied().unwrap_or_default()
        };
        let failed: usize = self.failures.values().sum();
        write!(
            f,
            "{} answered, {failed} not, in {:.1?}",
            self.answered.len(),
            self.took
        )?;
        for (what, all) in [("connected", &self.connected), ("answered", &self.answered)] {
            write!(
                f,
                "; {what} p50 {:.1?} p99 {:.1?} last {:.1?}",
                at(all, 50),
                at(all, 99),
                at(all, 100)
            )?;
        }
        Ok(())
    }
}

/// The figure of a line of metrics that begins with this; 0 if there is none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts, some of them told as 2.0"
)]
pub(crate) fn counter(metrics: &str, begins: &str) -> u64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(begins));
    let figure: Option<f64> = line.and_then(|rest| rest.trim_start_matches("{}").trim().parse().ok());
    figure.unwrap_or_default() as u64
}

/// What the router counts of it, refusals by their bound.
pub(crate) fn of_router(metrics: &str) -> String {
    let told = |line: &&str| {
        let names = [
            "admit_refused",
            "queue_refused",
            "identify_reviews_total",
            "load_shed_total",
            "process_resident",
        ];
        names
            .iter()
            .any(|name| line.starts_with(&format!("portolan_router_{name}")))
            && !line.ends_with(" 0")
    };
    let lines = metrics.lines().filter(told);
    lines
        .map(|line| line.trim_start_matches("portolan_router_"))
        .collect::<Vec<_>>()
        .join(", ")
}
