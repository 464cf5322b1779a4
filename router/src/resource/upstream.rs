//! The way to each member cluster: its connections, its breakers and its bulkhead, one transport for its whole life.
//!
//! [`Upstreams`] follows the snapshot: a member whose endpoints and CA stay the same keeps its connections and breaker
//! states over any number of swaps. TLS is verified with the member's own CA bundle, always. Not here: whether a
//! request may go and what comes of a failure (`dispatch`), HTTP/1.1 upgrades (`upgrade`, which dials through here).

mod body;
mod connection;
mod endpoint;
mod exchange;
mod gather;
mod metrics;
mod pool;
pub(crate) mod retry;
#[cfg(test)]
pub(crate) mod scripted;
pub(crate) mod socket;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{Request, Response};
use parking_lot::Mutex;
use portolan_runtime::Tasks;
use portolan_wire::v1;
use thiserror::Error;
use tokio::sync::watch;

pub(crate) use self::body::{Body, BodyError, ClientBody, Delivered, Ended, Ending, MAX_BODY_BYTES, Merged};
use self::connection::{Tuning, UNARY, WATCH};
pub(crate) use self::endpoint::ConnectError;
use self::endpoint::Dialer;
pub(crate) use self::gather::{gather, gather_request};
pub(crate) use self::metrics::UpstreamCollector;
pub(crate) use self::pool::PoolSize;
use self::pool::{Pool, Slot};
use self::retry::RetryBudget;
use crate::resource::breaker::{self, Breaker};
use crate::resource::bulkhead::{Bulkhead, TARGET_IN_FLIGHT, TARGET_QUEUE};
use crate::value::fault::Fault;
use crate::value::snapshot::{Snapshot, Target};
use crate::value::traffic::TrafficClass;

/// Why a member did not answer.
#[derive(Debug, Clone, Error)]
pub(crate) enum UpstreamError {
    /// No connection: nothing was sent.
    #[error("member cluster {cluster} cannot be reached: {source}")]
    Connect {
        cluster: Arc<str>,
        #[source]
        source: ConnectError,
    },
    /// The member refused the stream, or was closing: it vouches that nothing ran.
    #[error("member cluster {cluster} refused the request: {reason}")]
    Refused { cluster: Arc<str>, reason: String },
    /// The connection or stream broke: the request may have run.
    #[error("the connection to member cluster {cluster} broke: {reason}")]
    Lost {
        cluster: Arc<str>,
        reason: String,
        /// Another request was told of the same break: one lost connection is one failure, however many were on it.
        told: bool,
    },
    /// The client's body failed before the member answered.
    #[error(transparent)]
    Body(BodyError),
    /// It was not sent: a new snapshot plans it otherwise.
    #[error(transparent)]
    Withdrawn(Fault),
    /// The request cannot be put on the wire; ours to answer for.
    #[error("the request cannot be sent: {0}")]
    Request(String),
}

/// One member cluster.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) cluster: Arc<str>,
    /// An error when the target's endpoints or CA cannot be used: every request says so.
    transport: Result<Transport, ConnectError>,
    /// By [`TrafficClass`].
    breakers: [Arc<Breaker>; 3],
    /// Of unary requests, so that a slow member holds no more of the router than its share.
    pub(crate) bulkhead: Bulkhead,
    pub(crate) retries: RetryBudget,
    /// What its last failure was. A mutex: written by failures, read by refusals.
    last_failure: Mutex<Option<Arc<str>>>,
}

#[derive(Debug)]
struct Transport {
    dialer: Arc<Dialer>,
    unary: Pool,
    watch: Pool,
}

/// How members are connected to.
#[derive(Debug, Clone, Copy)]
struct Settings {
    connect_timeout: Duration,
    unary: Tuning,
    watch: Tuning,
}

/// All member clusters of the current snapshot.
#[derive(Debug)]
pub(crate) struct Upstreams {
    // ArcSwap: every request looks its member up, and reconcile must not make one wait.
    members: ArcSwap<HashMap<Arc<str>, Member>>,
    // A mutex: reconcile reads, changes and stores; two at once would lose one's changes. Never held over an await.
    writer: Mutex<()>,
    settings: Settings,
    tasks: Tasks,
    /// Counts transitions of breakers and changes of the set of members. A watch: only the latest matters.
    changed: watch::Sender<u64>,
}

#[derive(Debug, Clone)]
struct Member {
    target: Arc<Target>,
    upstream: Arc<Upstream>,
}

/// State of one breaker, as the hub and metrics are told.
#[derive(Debug, Clone)]
pub(crate) struct BreakerStatus {
    pub(crate) cluster: Arc<str>,
    pub(crate) class: TrafficClass,
    pub(crate) report: breaker::Report,
}

impl Upstreams {
    /// Knows no member before the first [`Self::reconcile`]. Connections are tasks of `tasks`, which must be cancelled
    /// only when clients are drained: it ends them with all their streams.
    pub(crate) fn new(connect_timeout: Duration, tasks: Tasks) -> Arc<Self> {
        let settings = Settings {
            connect_timeout,
            unary: UNARY,
            watch: WATCH,
        };
        Self::with(settings, tasks)
    }

    fn with(settings: Settings, tasks: Tasks) -> Arc<Self> {
        Arc::new(Self {
            members: ArcSwap::default(),
            writer: Mutex::new(()),
            settings,
            tasks,
            changed: watch::Sender::new(0),
        })
    }

    /// Follows a swap: keeps, makes, remakes and drops members. Cheap when nothing changed. Streams of a member that
    /// was dropped or remade run on to their end on the old connections.
    pub(crate) fn reconcile(&self, snapshot: &Snapshot) {
        let _writer = self.writer.lock();
        let old = self.members.load_full();
        let mut members = HashMap::with_capacity(snapshot.targets.len());
        for (cluster, target) in snapshot.targets.iter() {
            let upstream = match old.get(cluster) {
                Some(member) if same_transport(&member.target, target) => member.upstream.clone(),
                // A new address starts with closed breakers: what is known is of the old one.
                _ => Arc::new(Upstream::new(target, self)),
            };
            upstream.configure(&target.breaker);
            members.insert(
                cluster.clone(),
                Member {
                    target: target.clone(),
                    upstream,
                },
            );
        }
        let members = Arc::new(members);
        self.members.store(members.clone());
        for (cluster, member) in old.iter() {
            if !members
                .get(cluster)
                .is_some_and(|kept| Arc::ptr_eq(&kept.upstream, &member.upstream))
            {
                member.upstream.close();
            }
        }
        self.changed.send_modify(|count| *count += 1);
    }

    pub(crate) fn get(&self, cluster: &str) -> Option<Arc<Upstream>> {
        self.members.load().get(cluster).map(|member| member.upstream.clone())
    }

    /// All breakers there are.
    pub(crate) fn breakers(&self) -> Vec<BreakerStatus> {
        let members = self.members.load();
        let mut all: Vec<_> = members
            .values()
            .flat_map(|member| member.upstream.breaker_states())
            .collect();
        all.sort_by(|a, b| (&a.cluster, a.class).cmp(&(&b.cluster, b.class)));
        all
    }

    /// Sizes of the unary and the watch pool of each member.
    pub(crate) fn pools(&self) -> Vec<(Arc<str>, PoolSize, PoolSize)> {
        let members = self.members.load();
        let mut all: Vec<_> = members
            .iter()
            .filter_map(|(cluster, member)| {
                let transport = member.upstream.transport.as_ref().ok()?;
                Some((cluster.clone(), transport.unary.size(), transport.watch.size()))
            })
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Changes when a breaker or the set of members does; see [`Self::breakers`] for the states then.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

/// Whether `new` can be reached over what was made for `old`.
fn same_transport(old: &Target, new: &Target) -> bool {
    old.endpoints == new.endpoints && old.ca_pem == new.ca_pem
}

impl Upstream {
    fn new(target: &Target, all: &Upstreams) -> Self {
        let breaker = || Breaker::new(breaker_settings(&target.breaker), all.changed.clone());
        Self {
            cluster: target.cluster.clone(),
            transport: Transport::new(target, all),
            breakers: [breaker(), breaker(), breaker()],
            bulkhead: Bulkhead::new(TARGET_IN_FLIGHT, TARGET_QUEUE),
            retries: RetryBudget::default(),
            last_failure: Mutex::new(None),
        }
    }

    fn configure(&self, settings: &v1::Breaker) {
        for breaker in &self.breakers {
            breaker.configure(breaker_settings(settings));
        }
    }

    pub(crate) fn breaker(&self, class: TrafficClass) -> &Arc<Breaker> {
        let [unary, watch, upgrade] = &self.breakers;
        match class {
            TrafficClass::Unary => unary,
            TrafficClass::Watch => watch,
            TrafficClass::Upgrade => upgrade,
        }
    }

    /// A request failed by the member's fault: whoever is refused because of it is told why.
    pub(crate) fn failed(&self, why: &dyn std::fmt::Display) {
        *self.last_failure.lock() = Some(why.to_string().into());
    }

    pub(crate) fn last_failure(&self) -> Option<Arc<str>> {
        self.last_failure.lock().clone()
    }

    /// A unary request was answered: breakers of rarer traffic need not wait for some of their own to find out.
    pub(crate) fn answers(&self) {
        let [_, watch, upgrade] = &self.breakers;
        for (class, breaker) in [(TrafficClass::Watch, watch), (TrafficClass::Upgrade, upgrade)] {
            if let Some(transition) = breaker.recover() {
                let (from, to) = (transition.from.as_str(), transition.to.as_str());
                tracing::info!(cluster = %self.cluster, class = class.as_str(), from, to, reason = %transition.why, "breaker changed");
            }
        }
    }

    /// Sends over HTTP/2 and awaits the answer's head. `long`: over the connections of watches. `first`: before
    /// requests that wait for a connection. The URI is path and query; authority is the endpoint's.
    pub(crate) async fn send(
        &self,
        long: bool,
        first: bool,
        request: Request<Body>,
    ) -> Result<Response<Body>, UpstreamError> {
        let slot = self.slot(long, first).await?;
        self.exchange(slot, request).await
    }

    /// The first half of [`Self::send`]: waits for a connection.
    pub(crate) async fn slot(&self, long: bool, first: bool) -> Result<Slot, UpstreamError> {
        let transport = self.transport()?;
        let pool = if long { &transport.watch } else { &transport.unary };
        pool.acquire(first).await.map_err(|source| self.unreachable(source))
    }

    /// The second half.
    pub(crate) async fn exchange(&self, slot: Slot, request: Request<Body>) -> Result<Response<Body>, UpstreamError> {
        exchange::exchange(&self.cluster, slot, request).await
    }

    /// A connection of its own for `upgrade`, HTTP/1.1.
    pub(crate) async fn connect_http1(&self) -> Result<endpoint::Dialed, UpstreamError> {
        let dialer = &self.transport()?.dialer;
        let dialed = dialer
            .dial(endpoint::Protocol::Http1, |dialed| std::future::ready(Ok(dialed)))
            .await;
        dialed.map_err(|source| self.unreachable(source))
    }

    fn transport(&self) -> Result<&Transport, UpstreamError> {
        self.transport.as_ref().map_err(|error| self.unreachable(error.clone()))
    }

    fn unreachable(&self, source: ConnectError) -> UpstreamError {
        UpstreamError::Connect {
            cluster: self.cluster.clone(),
            source,
        }
    }

    fn close(&self) {
        if let Ok(transport) = &self.transport {
            transport.unary.close();
            transport.watch.close();
        }
    }

    fn breaker_states(&self) -> impl Iterator<Item = BreakerStatus> {
        [TrafficClass::Unary, TrafficClass::Watch, TrafficClass::Upgrade]
            .into_iter()
            .map(|class| BreakerStatus {
                cluster: self.cluster.clone(),
                class,
                report: self.breaker(class).report(),
            })
    }
}

impl Transport {
    fn new(target: &Target, all: &Upstreams) -> Result<Self, ConnectError> {
        let dialer = Arc::new(Dialer::new(target, all.settings.connect_timeout)?);
        Ok(Self {
            unary: Pool::new(dialer.clone(), all.settings.unary, all.tasks.clone()),
            watch: Pool::new(dialer.clone(), all.settings.watch, all.tasks.clone()),
            dialer,
        })
    }
}

/// The member's own thresholds; zero means the router's default.
fn breaker_settings(wire: &v1::Breaker) -> breaker::Settings {
    let default = breaker::Settings::default();
    let millis = |value: u32, default| {
        if value == 0 {
            default
        } else {
            Duration::from_millis(value.into())
        }
    };
    let count = |value: u32, default| if value == 0 { default } else { value };
    breaker::Settings {
        consecutive_failures: count(wire.consecutive_failures, default.consecutive_failures),
        failure_ratio: if wire.failure_ratio > 0.0 {
            wire.failure_ratio
        } else {
            default.failure_ratio
        },
        min_requests: count(wire.min_requests, default.min_requests),
        window: millis(wire.window_milliseconds, default.window),
        open_for: millis(wire.open_for_milliseconds, default.open_for),
        max_open_for: millis(wire.max_open_for_milliseconds, default.max_open_for),
    }
}

#[cfg(test)]
mod tests;
