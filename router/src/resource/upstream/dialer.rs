//! From a target's endpoints to an open connection: which endpoint, which of its addresses, and what comes of failures.
//!
//! The rules are pure (`failover`, `addresses`); here they meet the clock, the network and the log. An endpoint that is ejected has a task
//! that probes it when its time is over. Callers: `pool` for HTTP/2, `upgrade` for HTTP/1.1, `readyz` for a look.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use http::uri::Authority;
use parking_lot::Mutex;
use portolan_runtime::Tasks;

use super::addresses::Ages;
use super::endpoint::{ConnectError, Dialed, Endpoint, Protocol, Trust, Way};
use super::failover::{Choice, Failover, Failure, HealthReport, MAX_ENDPOINTS, Pace};
use super::proof;
use super::resolve::Resolver;
use super::stagger::{Won, staggered};
use crate::value::snapshot;

/// Before the next address of a name is tried beside one that has not answered yet.
const ADDRESS_PAUSE: Duration = Duration::from_millis(500);

/// When an endpoint was dialled, once its name was known to mean something.
type Begun = OnceLock<Instant>;

/// Opens connections to one target.
#[derive(Debug)]
pub(crate) struct Dialer {
    /// For the tasks that it starts, which end with it.
    me: Weak<Self>,
    cluster: Arc<str>,
    endpoints: Vec<Endpoint>,
    /// A mutex: touched by each stream and dial, never across an await.
    failover: Mutex<Failover>,
    /// By endpoint: whether it has failed since it answered, so that answers need not take the mutex.
    failing: Vec<AtomicBool>,
    /// By endpoint: counts its answers.
    answers: Vec<AtomicUsize>,
    pub(super) trust: Trust,
    means: Means,
}

/// What dialers are made with.
#[derive(Debug, Clone)]
pub(super) struct Means {
    /// For one endpoint, all that belongs to a connection included.
    pub(super) connect_timeout: Duration,
    pub(super) pace: Pace,
    pub(super) ages: Ages,
    pub(super) resolver: Resolver,
    pub(super) tasks: Tasks,
}

/// One endpoint of a member, for metrics and pages.
#[derive(Debug, Clone)]
pub(crate) struct EndpointStatus {
    pub(crate) cluster: Arc<str>,
    /// Its place in the spec.
    pub(crate) endpoint: usize,
    pub(crate) authority: Authority,
    pub(crate) health: HealthReport,
    /// With the connections to each.
    pub(crate) addresses: Vec<(SocketAddr, usize)>,
}

impl Dialer {
    pub(super) fn new(target: &snapshot::Target, means: Means) -> Result<Arc<Self>, ConnectError> {
        let trust = Trust::new(&target.ca_pem)?;
        let endpoints = target
            .endpoints
            .iter()
            .take(MAX_ENDPOINTS)
            .map(|endpoint| Endpoint::new(endpoint, means.ages));
        let endpoints = endpoints.collect::<Result<Vec<_>, _>>()?;
        Ok(Arc::new_cyclic(|me| Self {
            me: me.clone(),
            cluster: target.cluster.clone(),
            failover: Mutex::new(Failover::new(endpoints.len(), means.pace)),
            failing: endpoints.iter().map(|_| AtomicBool::new(false)).collect(),
            answers: endpoints.iter().map(|_| AtomicUsize::new(0)).collect(),
            endpoints,
            trust,
            means,
        }))
    }

    /// Whom the next stream is for.
    pub(super) fn choose(&self) -> Choice {
        self.failover.lock().choose(Instant::now(), draw())
    }

    /// Whose.
    pub(super) fn cluster(&self) -> &str {
        &self.cluster
    }

    /// How many there are.
    pub(super) fn endpoints(&self) -> usize {
        self.endpoints.len()
    }

    /// Whether there is another way than the one that a connection takes.
    pub(super) fn has_alternatives(&self) -> bool {
        self.endpoints.len() > 1
            || self
                .endpoints
                .iter()
                .any(|endpoint| endpoint.addresses.lock().len() > 1)
    }

    /// A connection to the endpoint whose turn it is, or to another if that one cannot be connected to in its time.
    /// `ready` makes the protocol's own greeting part of what an endpoint must manage in that time.
    pub(crate) async fn dial<T, F>(&self, protocol: Protocol, ready: impl Fn(Dialed) -> F) -> Result<T, ConnectError>
    where
        F: Future<Output = Result<T, ConnectError>>,
    {
        let order = self.failover.lock().order(Instant::now(), draw());
        let pause = self.means.pace.next_after;
        let begun: Vec<Begun> = order.iter().map(|_| Begun::new()).collect();
        let attempts = order.iter().zip(&begun);
        let attempts = attempts
            .map(|(at, begun)| self.try_endpoint((*at, begun), protocol, &ready))
            .collect();
        let Won { value, passed_over } = staggered(attempts, pause)
            .await
            .map_err(|error| error.unwrap_or_else(none))?;
        for late in passed_over {
            // Not while its name was looked up: that is no fault of its own.
            if begun[late].get().is_some_and(|began| began.elapsed() >= pause) {
                self.failed(order[late], Failure::Silent, &"another endpoint answered before it");
            }
        }
        Ok(value)
    }

    /// A connection to this endpoint.
    pub(super) async fn dial_at<T, F>(&self, at: usize, ready: impl Fn(Dialed) -> F) -> Result<T, ConnectError>
    where
        F: Future<Output = Result<T, ConnectError>>,
    {
        self.try_endpoint((at, &Begun::new()), Protocol::Http2, &ready).await
    }

    /// A connection to this endpoint, whatever it does; what comes of it counts for nothing.
    pub(super) async fn look_at(&self, at: usize) -> Result<Dialed, ConnectError> {
        let keep = |dialed| std::future::ready(Ok(dialed));
        let dialed = self.connect((at, &Begun::new()), Protocol::Http1, &keep).await?;
        dialed.trusted(&self.trust.store)
    }

    /// The endpoint answered a request over this way.
    pub(super) fn answered(&self, way: &Way) {
        self.said_something(way.endpoint);
        // Whatever becomes of others: a restart goes from one address to the next.
        way.answered();
        let failing = self.failing.get(way.endpoint);
        if failing.is_some_and(|failing| failing.swap(false, Ordering::Relaxed)) {
            self.failover.lock().answered(way.endpoint);
        }
    }

    /// It answers, if not what somebody waits for.
    pub(super) fn said_something(&self, at: usize) {
        if let Some(answers) = self.answers.get(at) {
            answers.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts what the endpoint has answered; wraps around.
    pub(super) fn answers(&self, way: &Way) -> usize {
        let answers = self.answers.get(way.endpoint);
        answers.map_or(0, |answers| answers.load(Ordering::Relaxed))
    }

    /// A request has not been answered for long, that was sent when the endpoint had answered so many. Only one that has
    /// answered nobody since is late: else it is the request that takes long.
    pub(super) fn late(&self, way: &Way, answered: usize) {
        if self.answers(way) == answered {
            self.failed(way.endpoint, Failure::Late, &"it answers no requests");
        }
    }

    /// Not an API server answered, but what stands before one and does not reach it.
    pub(super) fn answered_for(&self, way: &Way, status: http::StatusCode) {
        self.failed(way.endpoint, Failure::Gateway, &status);
    }

    /// An open connection broke.
    pub(super) fn broke(&self, way: &Way, why: &dyn std::fmt::Display) {
        way.broke();
        if let Some(failing) = self.failing.get(way.endpoint) {
            failing.store(true, Ordering::Relaxed);
        }
        // One address of several is no endpoint: the next connection tries another.
        let endpoint = self.endpoints.get(way.endpoint);
        if endpoint.is_some_and(|endpoint| endpoint.addresses.lock().has_sound()) {
            let (cluster, endpoint) = (&*self.cluster, way.endpoint);
            tracing::debug!(cluster, endpoint, %why, "an address of several failed");
            return;
        }
        self.failed(way.endpoint, Failure::Broken, why);
    }

    /// Asks what the name of an endpoint means, if that was long ago.
    pub(super) fn refresh(&self, at: usize) {
        let Some(endpoint) = self.endpoints.get(at) else { return };
        if !endpoint.is_named() || !endpoint.addresses.lock().is_due(Instant::now()) {
            return;
        }
        let me = self.me.clone();
        self.means.tasks.spawn("upstream-resolve", async move {
            if let Some(dialer) = me.upgrade() {
                // An error: it never had an address, and nobody is connected to it.
                let _ = dialer.endpoints[at].resolve(&dialer.means.resolver).await;
            }
        });
    }

    pub(super) fn report(&self) -> Vec<EndpointStatus> {
        let health = self.failover.lock().report(Instant::now());
        let each = |(at, (endpoint, health)): (usize, (&Endpoint, HealthReport))| EndpointStatus {
            cluster: self.cluster.clone(),
            endpoint: at,
            authority: endpoint.authority.clone(),
            health,
            addresses: endpoint.addresses.lock().report(),
        };
        self.endpoints.iter().zip(health).enumerate().map(each).collect()
    }

    async fn try_endpoint<T, F>(
        &self,
        (at, begun): (usize, &Begun),
        protocol: Protocol,
        ready: &impl Fn(Dialed) -> F,
    ) -> Result<T, ConnectError>
    where
        F: Future<Output = Result<T, ConnectError>>,
    {
        // One that is ejected must show more than others: it may connect faster than one that serves, and answer nobody.
        let ejected = self.failover.lock().ejected_until(at).is_some();
        if ejected {
            self.connect((at, begun), Protocol::Http2, &proof::prove).await?;
        }
        let connected = self.connect((at, begun), protocol, ready).await;
        match &connected {
            Ok(_) => self.connected(at),
            Err(error) => {
                if let Some(failure) = error.failure() {
                    self.failed(at, failure, error);
                }
            }
        }
        connected
    }

    async fn connect<T, F>(
        &self,
        (at, begun): (usize, &Begun),
        protocol: Protocol,
        ready: &impl Fn(Dialed) -> F,
    ) -> Result<T, ConnectError>
    where
        F: Future<Output = Result<T, ConnectError>>,
    {
        let endpoint = &self.endpoints[at];
        // The resolver has a time-out of its own, and its time is none of the endpoint's.
        let addresses = endpoint.resolved(&self.means.resolver).await?;
        let _ = begun.set(Instant::now());
        let connect = async {
            let attempt =
                |address| async move { ready(endpoint.connect((at, address), protocol, &self.trust).await?).await };
            let attempts = addresses.iter().copied().map(attempt).collect();
            let won = staggered(attempts, ADDRESS_PAUSE).await;
            let won = won.map_err(|error| error.unwrap_or_else(none))?;
            for late in won.passed_over {
                endpoint.addresses.lock().failed(Instant::now(), addresses[late]);
            }
            Ok(won.value)
        };
        match tokio::time::timeout(self.means.connect_timeout, connect).await {
            Ok(connected) => connected,
            Err(_) => Err(ConnectError::Timeout {
                address: endpoint.address(),
                after: self.means.connect_timeout,
            }),
        }
    }

    fn connected(&self, at: usize) {
        if self.failover.lock().connected(Instant::now(), at) {
            self.tell_back(at);
        }
    }

    fn failed(&self, at: usize, why: Failure, reason: &dyn std::fmt::Display) {
        let ejected = {
            let mut failover = self.failover.lock();
            let ejected = failover.failed(Instant::now(), at, why);
            // Under the lock, and after: an answer that comes between must not take the sign away and leave the points.
            if let Some(failing) = self.failing.get(at) {
                failing.store(true, Ordering::Relaxed);
            }
            ejected
        };
        let Some(time) = ejected else { return };
        let (cluster, endpoint, word) = (&*self.cluster, &self.endpoints[at].authority, why.word());
        tracing::warn!(cluster, %endpoint, word, ?time, %reason, "endpoint ejected: others of the member serve");
        let (probing, stop) = (probe(self.me.clone(), at, time), self.means.tasks.token());
        self.means.tasks.spawn("upstream-endpoint-probe", async move {
            stop.run_until_cancelled(probing).await;
        });
    }

    /// Whether the endpoint is ejected still, and if so, for how long.
    async fn probe(&self, at: usize) -> Option<Duration> {
        let now = Instant::now();
        {
            let mut failover = self.failover.lock();
            if !failover.probe(now, at) {
                // Somebody who had no other way has brought it back; or it was ejected once more since.
                let left = failover.ejected_until(at)?.saturating_duration_since(now);
                return (!left.is_zero()).then_some(left);
            }
        }
        let probed = self.connect((at, &Begun::new()), Protocol::Http2, &proof::prove).await;
        let time = self.failover.lock().probed(Instant::now(), at, probed.is_ok());
        match &probed {
            Ok(()) => self.tell_back(at),
            Err(reason) => {
                let (cluster, endpoint) = (&*self.cluster, &self.endpoints[at].authority);
                tracing::debug!(cluster, %endpoint, ?time, %reason, "endpoint stays ejected");
            }
        }
        time
    }

    fn tell_back(&self, at: usize) {
        let (cluster, endpoint) = (&*self.cluster, &self.endpoints[at].authority);
        tracing::info!(cluster, %endpoint, "endpoint is back: it gets a growing share");
    }
}

/// Probes an ejected endpoint whenever its time is over, until it is back.
async fn probe(dialer: Weak<Dialer>, at: usize, mut time: Duration) {
    loop {
        // Later by up to a tenth: other routers have ejected it at the same moment.
        tokio::time::sleep(time.mul_f64(1.0 + draw() / 10.0)).await;
        let Some(dialer) = dialer.upgrade() else { return };
        match dialer.probe(at).await {
            Some(longer) => time = longer,
            None => return,
        }
    }
}

fn none() -> ConnectError {
    ConnectError::Unusable("there is none".to_owned())
}

/// Even, in [0, 1).
fn draw() -> f64 {
    rand::random()
}
