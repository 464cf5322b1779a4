//! What is compared, and the measurements, the same at the fast backend and at a real API server.
//!
//! Subjects take turns in short rounds, so that what else the machine does falls on all of them alike.

use std::time::Duration;

use anyhow::Context as _;
use http::header::{ACCEPT, AUTHORIZATION};
use http::{HeaderMap, HeaderValue};

use crate::load::{self, Client, Route};
use crate::report::{GetRow, LatencyRow, WatchRow, median};
use crate::usage::{self, count};

/// Requests in flight in the throughput rows.
const AT_ONCE: usize = 64;
/// Connections of the throughput and latency rows.
const CONNECTIONS: usize = 4;
/// Requests of each subject before anything counts: caches, connections, page faults.
const WARM_UP: usize = 500;
/// Of latencies, in thousandths.
const QUANTILES: [usize; 2] = [500, 990];
/// For the memory of a process to come to rest after its watches are open.
const SETTLE: Duration = Duration::from_secs(2);
const EVENTS_PATIENCE: Duration = Duration::from_mins(1);
/// GETs beside the idle watches.
const BESIDE: usize = 200;

/// One way to the same objects.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) route: Route,
    /// The process between client and server; `None` when there is none.
    pub(crate) proxy: Option<i32>,
}

impl Subject {
    pub(crate) fn new(name: &'static str, route: Route, proxy: Option<i32>) -> Self {
        Self { name, route, proxy }
    }
}

/// GETs of one subject until it is the next one's turn: within minutes machines grow faster and slower by tenths.
const TURN: usize = 4_000;

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount {
    pub(crate) rounds: usize,
    /// Requests of one subject in one round.
    pub(crate) requests: usize,
    pub(crate) rate: u32,
    /// Requests of one subject in one round of the open loop.
    pub(crate) paced: usize,
    pub(crate) watches: usize,
    pub(crate) watches_per_connection: usize,
}

/// As Kubernetes clients send it.
pub(crate) fn bearer(token: &str) -> anyhow::Result<HeaderMap> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).context("the token is not one line")?;
    value.set_sensitive(true);
    Ok(HeaderMap::from_iter([
        (AUTHORIZATION, value),
        (ACCEPT, HeaderValue::from_static("application/json")),
    ]))
}

/// CPU seconds of the three parties.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    proxy: f64,
    server: f64,
    client: f64,
}

impl Used {
    fn now(subject: &Subject, server: i32) -> anyhow::Result<Self> {
        let this = i32::try_from(std::process::id()).context("a process id")?;
        Ok(Self {
            proxy: subject.proxy.map_or(Ok(0.0), usage::cpu_seconds)?,
            server: usage::cpu_seconds(server)?,
            client: usage::cpu_seconds(this)?,
        })
    }

    fn add_difference(&mut self, from: Self, to: Self) {
        self.proxy += to.proxy - from.proxy;
        self.server += to.server - from.server;
        self.client += to.client - from.client;
    }
}

/// GETs as fast as they are answered.
pub(crate) async fn gets(subjects: &[Subject], server: i32, path: &str, amount: Amount) -> anyhow::Result<Vec<GetRow>> {
    let clients = warm(subjects, path, amount).await?;
    let mut sums = vec![(Used::default(), Duration::ZERO, Vec::new()); subjects.len()];
    let turns = amount.requests.div_ceil(TURN).max(1);
    let (turns, each) = (amount.rounds * turns, amount.requests / turns);
    for _ in 0..turns {
        for ((subject, client), (used, elapsed, latencies)) in subjects.iter().zip(&clients).zip(&mut sums) {
            let before = Used::now(subject, server)?;
            let timings = client.burst(path, each, AT_ONCE).await;
            let timings = timings.with_context(|| subject.name)?;
            used.add_difference(before, Used::now(subject, server)?);
            *elapsed += timings.elapsed;
            latencies.extend(timings.latencies);
        }
    }
    let requests = count(turns * each);
    let per_100k = |seconds: f64| seconds * 100_000.0 / requests;
    // The first subject is the direct one.
    let floor = sums.first().map_or(0.0, |(used, ..)| used.server);
    let row = |(subject, (used, elapsed, _)): (&Subject, &(Used, Duration, Vec<Duration>))| GetRow {
        name: subject.name,
        requests_per_second: requests / elapsed.as_secs_f64(),
        proxy_cpu: subject.proxy.map(|_| per_100k(used.proxy)),
        server_cpu: per_100k(used.server),
        client_cpu: per_100k(used.client),
        ratio: subject.proxy.map(|_| used.proxy / floor),
    };
    Ok(subjects.iter().zip(&sums).map(row).collect())
}

/// GETs at a fixed pace.
pub(crate) async fn latencies(subjects: &[Subject], path: &str, amount: Amount) -> anyhow::Result<Vec<LatencyRow>> {
    let clients = warm(subjects, path, amount).await?;
    let mut all = vec![[(Vec::new(), 0.0), (Vec::new(), 0.0)]; subjects.len()];
    for _ in 0..amount.rounds {
        for ((subject, client), quantiles) in subjects.iter().zip(&clients).zip(&mut all) {
            let timings = client.paced(path, amount.rate, amount.paced).await;
            let timings = timings.with_context(|| subject.name)?;
            // Of rounds the median: one in which the machine stood still would be all that is seen.
            for ((rounds, middle), thousandths) in quantiles.iter_mut().zip(QUANTILES) {
                *middle = median(rounds, timings.quantile(thousandths).as_secs_f64() * 1000.0);
            }
        }
    }
    let of = |[(_, p50), (_, p99)]: &[(Vec<f64>, f64); 2]| (*p50, *p99);
    let direct = all.first().map(of).unwrap_or_default();
    let row = |(subject, quantiles)| {
        let subject: &Subject = subject;
        let (p50, p99) = of(quantiles);
        LatencyRow {
            name: subject.name,
            p50,
            p99,
            added_p50: p50 - direct.0,
            added_p99: p99 - direct.1,
        }
    };
    Ok(subjects.iter().zip(&all).map(row).collect())
}

/// Memory per idle watch, and that all of them are alive: each tells of one event.
pub(crate) async fn watches<E>(
    subject: &Subject,
    (get, watch): (&str, &str),
    amount: Amount,
    emit: impl FnOnce() -> E,
) -> anyhow::Result<WatchRow>
where
    E: Future<Output = anyhow::Result<()>>,
{
    let proxy = subject.proxy.context("nothing stands between client and server")?;
    // Apart from the watches, whose connections may be full.
    let client = Client::connected(subject.route.clone(), 1).await?;
    client.warm(get, WARM_UP.min(amount.requests), AT_ONCE).await?;
    tokio::time::sleep(SETTLE).await;
    let before = usage::resident_kib(proxy)?;
    let begun = std::time::Instant::now();
    let mut watcher = Client::new(subject.route.clone());
    let mut open = watcher
        .watch(watch, amount.watches, amount.watches_per_connection)
        .await
        .context("opening watches")?;
    let opening = begun.elapsed();
    tokio::time::sleep(SETTLE).await;
    let after = usage::resident_kib(proxy)?;
    let beside = client.burst(get, BESIDE, 1).await.context("GETs beside watches")?;
    let (emitted, heard) = tokio::join!(emit(), load::await_events(&mut open, EVENTS_PATIENCE));
    emitted?;
    Ok(WatchRow {
        name: subject.name,
        watches: amount.watches,
        kib: (after - before) / count(amount.watches),
        opening: opening.as_secs_f64(),
        beside_p99: beside.quantile(990).as_secs_f64() * 1000.0,
        events: heard?.as_secs_f64(),
    })
}

async fn warm(subjects: &[Subject], path: &str, amount: Amount) -> anyhow::Result<Vec<Client>> {
    let mut clients = Vec::with_capacity(subjects.len());
    for subject in subjects {
        let client = Client::connected(subject.route.clone(), CONNECTIONS).await;
        let client = client.with_context(|| subject.name)?;
        let warm = client.warm(path, WARM_UP.min(amount.requests), AT_ONCE).await;
        warm.with_context(|| subject.name)?;
        clients.push(client);
    }
    Ok(clients)
}
