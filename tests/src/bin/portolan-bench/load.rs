//! Load from one process: HTTP/2 connections, requests as fast as answers come or at a fixed pace, and watches.
//!
//! The client speaks `h2` itself, so that it costs little beside what it measures. Not here: what is measured and how it
//! is told (`measure`, `report`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use futures::stream::{self, FuturesUnordered, StreamExt as _};
use h2::RecvStream;
use h2::client::SendRequest;
use http::{HeaderMap, Request, Response, Uri};
use portolan_runtime::Tasks;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::pace;

/// Nothing here may hang: a request that takes longer ends the benchmark. By valgrind much takes fifty times as long.
const PATIENCE: Duration = Duration::from_mins(2);
/// Between two looks whether a subject answers yet.
const AGAIN: Duration = Duration::from_millis(50);
/// Watches opened at a time.
const OPENING: usize = 64;
/// Answers are about a kilobyte, lists of the preparation some more.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// Where to connect and what to ask.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) address: SocketAddr,
    pub(crate) tls: Arc<ClientConfig>,
    /// Before every path: `/clusters/east` for the explicit view.
    pub(crate) prefix: String,
    pub(crate) headers: HeaderMap,
}

/// Open connections of one route.
pub(crate) struct Client {
    route: Route,
    connections: Vec<SendRequest<Bytes>>,
    tasks: Tasks,
}

/// What a burst of requests took.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timings {
    /// From when a request should have left to the end of its answer, sorted.
    pub(crate) latencies: Vec<Duration>,
    pub(crate) elapsed: Duration,
}

impl Timings {
    /// Of the sorted latencies; `share` in thousandths.
    pub(crate) fn quantile(&self, thousandths: usize) -> Duration {
        let last = self.latencies.len().saturating_sub(1);
        self.latencies
            .get(last * thousandths / 1000)
            .copied()
            .unwrap_or_default()
    }
}

impl Client {
    pub(crate) fn new(route: Route) -> Self {
        Self {
            route,
            connections: Vec::new(),
            tasks: Tasks::new(),
        }
    }

    /// With so many open connections.
    pub(crate) async fn connected(route: Route, connections: usize) -> anyhow::Result<Self> {
        let mut client = Self::new(route);
        for _ in 0..connections {
            client.connect().await?;
        }
        Ok(client)
    }

    async fn connect(&mut self) -> anyhow::Result<()> {
        let address = self.route.address;
        let opened = tokio::time::timeout(PATIENCE, open(&self.route)).await;
        let (send, connection) = opened
            .with_context(|| format!("{address} does not shake hands"))?
            .with_context(|| format!("cannot connect to {address}"))?;
        self.tasks.spawn("bench-connection", async move {
            // What breaks a connection is told by the requests on it.
            let _ = connection.await;
        });
        self.connections.push(send);
        Ok(())
    }

    /// One GET; fails unless it is answered 200. Returns the body.
    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        let mut body = Vec::new();
        self.read(path, |chunk| body.extend_from_slice(chunk)).await?;
        Ok(body)
    }

    /// One GET whose body is given away as it comes.
    pub(crate) async fn read(&self, path: &str, take: impl FnMut(&[u8])) -> anyhow::Result<()> {
        let request = self.request(path)?;
        let mut answer = self.answer(0, request).await?;
        read_all(answer.body_mut(), take).await
    }

    /// A burst that nobody times. Begins when one GET is answered: a router that has just begun may still miss the hub.
    pub(crate) async fn warm(&self, path: &str, count: usize, at_once: usize) -> anyhow::Result<()> {
        let begun = Instant::now();
        while let Err(error) = self.get(path).await {
            if begun.elapsed() > PATIENCE {
                return Err(error.context("warming up"));
            }
            tokio::time::sleep(AGAIN).await;
        }
        self.burst(path, count, at_once).await.context("warming up")?;
        Ok(())
    }

    fn request(&self, path: &str) -> anyhow::Result<Request<()>> {
        let uri = format!("https://{}{}{path}", self.route.address, self.route.prefix);
        let mut request = Request::get(uri.parse::<Uri>()?).body(())?;
        *request.headers_mut() = self.route.headers.clone();
        Ok(request)
    }

    async fn answer(&self, connection: usize, request: Request<()>) -> anyhow::Result<Response<RecvStream>> {
        let send = &self.connections[connection % self.connections.len()];
        tokio::time::timeout(PATIENCE, exchange(send.clone(), request))
            .await
            .context("no answer")?
    }

    /// `count` requests, `at_once` at a time, spread over the connections.
    pub(crate) async fn burst(&self, path: &str, count: usize, at_once: usize) -> anyhow::Result<Timings> {
        let request = self.request(path)?;
        let begun = Instant::now();
        let mut running = FuturesUnordered::new();
        let mut latencies = Vec::with_capacity(count);
        for number in 0..count {
            if running.len() >= at_once
                && let Some(latency) = running.next().await
            {
                latencies.push(latency?);
            }
            running.push(self.timed(number, request.clone(), Instant::now()));
        }
        while let Some(latency) = running.next().await {
            latencies.push(latency?);
        }
        let elapsed = begun.elapsed();
        latencies.sort_unstable();
        Ok(Timings { latencies, elapsed })
    }

    /// `rate` requests a second whether or not earlier ones are answered; each counts from when it was due.
    pub(crate) async fn paced(&self, path: &str, rate: u32, count: usize) -> anyhow::Result<Timings> {
        let request = self.request(path)?;
        let begun = Instant::now();
        let mut due = pace::start(rate, count)?;
        let mut running = FuturesUnordered::new();
        let mut latencies = Vec::with_capacity(count);
        let (mut number, mut more) = (0, true);
        while more || !running.is_empty() {
            tokio::select! {
                next = due.recv(), if more => match next {
                    Some(due) => {
                        running.push(self.timed(number, request.clone(), due));
                        number += 1;
                    }
                    None => more = false,
                },
                Some(latency) = running.next() => latencies.push(latency?),
            }
        }
        ensure!(
            latencies.len() == count,
            "the client fell behind its pace: only {number} requests left"
        );
        let elapsed = begun.elapsed();
        latencies.sort_unstable();
        Ok(Timings { latencies, elapsed })
    }

    async fn timed(&self, number: usize, request: Request<()>, due: Instant) -> anyhow::Result<Duration> {
        let mut answer = self.answer(number, request).await?;
        read_all(answer.body_mut(), |_| {}).await?;
        Ok(due.elapsed())
    }

    /// Opens `count` watches, `per_connection` on each connection, and returns them once all are answered.
    pub(crate) async fn watch(
        &mut self,
        path: &str,
        count: usize,
        per_connection: usize,
    ) -> anyhow::Result<Vec<RecvStream>> {
        let request = self.request(path)?;
        let mut watches = Vec::with_capacity(count);
        while watches.len() < count {
            // One after the other: a router takes a connection that asks nothing for ten seconds for a stranger's.
            let connection = self.connections.len();
            self.connect().await?;
            let each = per_connection.min(count - watches.len());
            let mut opening = stream::iter(0..each)
                .map(|_| self.answer(connection, request.clone()))
                .buffer_unordered(OPENING);
            while let Some(answer) = opening.next().await {
                watches.push(answer?.into_body());
            }
        }
        Ok(watches)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Ends the connections: their tasks wait for senders that live here.
        self.connections.clear();
        self.tasks.cancel();
    }
}

/// Waits until every watch has told of an event; returns how long the last one took.
pub(crate) async fn await_events(watches: &mut [RecvStream], patience: Duration) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let all = watches.len();
    let mut events: FuturesUnordered<_> = watches.iter_mut().map(next_chunk).collect();
    let mut seen = 0;
    let heard = async {
        while let Some(event) = events.next().await {
            event?;
            seen += 1;
        }
        anyhow::Ok(())
    };
    match tokio::time::timeout(patience, heard).await {
        Ok(outcome) => outcome?,
        Err(_) => bail!("only {seen} of {all} watches told of an event within {patience:?}"),
    }
    Ok(begun.elapsed())
}

async fn next_chunk(stream: &mut RecvStream) -> anyhow::Result<()> {
    let chunk = stream.data().await.context("a watch ended")?.context("a watch broke")?;
    stream.flow_control().release_capacity(chunk.len())?;
    Ok(())
}

type Connection = h2::client::Connection<tokio_rustls::client::TlsStream<TcpStream>, Bytes>;

async fn open(route: &Route) -> anyhow::Result<(SendRequest<Bytes>, Connection)> {
    let tcp = TcpStream::connect(route.address).await?;
    tcp.set_nodelay(true)?;
    let name = ServerName::from(route.address.ip());
    let tls = TlsConnector::from(route.tls.clone()).connect(name, tcp).await?;
    let opened = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .enable_push(false)
        .handshake(tls)
        .await?;
    Ok(opened)
}

async fn exchange(send: SendRequest<Bytes>, request: Request<()>) -> anyhow::Result<Response<RecvStream>> {
    let mut send = send.ready().await.context("the connection takes no request")?;
    let (answer, _) = send.send_request(request, true)?;
    let mut answer = answer.await.context("the request failed")?;
    if answer.status() != http::StatusCode::OK {
        let mut body = Vec::new();
        read_all(answer.body_mut(), |chunk| body.extend_from_slice(chunk)).await?;
        bail!("answered {}: {}", answer.status(), String::from_utf8_lossy(&body));
    }
    Ok(answer)
}

async fn read_all(body: &mut RecvStream, mut take: impl FnMut(&[u8])) -> anyhow::Result<()> {
    while let Some(chunk) = body.data().await {
        let chunk = chunk.context("the answer broke off")?;
        body.flow_control().release_capacity(chunk.len())?;
        take(&chunk);
    }
    Ok(())
}
