//! The way to each member cluster: its connections, its breakers and its queues, one transport for its whole life.
//!
//! [`Upstreams`] is of one snapshot; `resource::routing` swaps both at once. A member whose endpoints and CA stay the same
//! keeps its connections and breaker states over any number of swaps; where only the CA changes, those that it still vouches for. TLS is verified with the member's own CA bundle, always. Not here: whether a
//! request may go and what comes of a failure (`dispatch`), HTTP/1.1 upgrades (`upgrade`, which dials through here).

mod addresses;
mod body;
mod by_hand;
mod connection;
mod dialer;
mod doubt;
mod endpoint;
mod exchange;
mod failover;
mod figures;
mod gather;
mod last_answer;
mod places;
mod pool;
mod proof;
mod readyz;
mod resolve;
pub(crate) mod retry;
mod said;
#[cfg(test)]
pub(crate) mod scripted;
pub(crate) mod socket;
mod stagger;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Request, Response};
use parking_lot::Mutex;
use portolan_runtime::Tasks;
use portolan_wire::v1;
use thiserror::Error;
use tokio::sync::watch;

use self::addresses::{AGES, Ages};
pub(crate) use self::body::{Body, BodyError, ClientBody, Delivered, Ended, Ending, MAX_BODY_BYTES, Merged};
use self::connection::{Tuning, UNARY, WATCH};
pub(crate) use self::dialer::EndpointStatus;
use self::dialer::{Dialer, Means};
pub(crate) use self::endpoint::ConnectError;
pub(crate) use self::failover::State as EndpointState;
use self::failover::{PACE, Pace};
pub(crate) use self::figures::BreakerStatus;
pub(crate) use self::gather::{gather, gather_request};
use self::last_answer::LastAnswer;
use self::places::Places;
pub(crate) use self::places::{First, Place};
pub(crate) use self::pool::PoolSize;
use self::pool::{Pool, Slot};
pub(crate) use self::proof::AUDIT_ID;
use self::readyz::Looks;
use self::resolve::Resolver;
use self::retry::RetryBudget;
use crate::resource::breaker::{self, Breaker, SLOW_LIST, SLOW_UNARY};
use crate::resource::queues::{Queues, Room};
use crate::value::fault::Fault;
use crate::value::hashed::HashMap;
use crate::value::snapshot::Target;
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
        /// How much of it.
        broke: Broke,
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

/// How much of a connection broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broke {
    /// All of it.
    Connection,
    /// All of it, of which another request was told: one lost connection is one failure, however many were on it.
    Known,
    /// The request's stream.
    Stream,
    /// The request's stream, because of what was asked: a server of Go's resets one whose head it cannot read, before it
    /// knows whose it is.
    Request,
}

/// One member cluster.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) cluster: Arc<str>,
    /// What it was made of.
    target: Arc<Target>,
    /// An error when the target's endpoints or CA cannot be used: every request says so.
    transport: Result<Transport, ConnectError>,
    /// By [`TrafficClass`].
    breakers: [Arc<Breaker>; 5],
    /// So that a slow member holds no more of the router than its share, and no tenant all of that.
    pub(crate) queues: Queues,
    /// So that no single request that was admitted finds these full.
    pub(crate) room: Room,
    /// Of each tenant, so that none keeps the member's own places from others.
    pub(crate) places: Places,
    pub(crate) retries: RetryBudget,
    /// When it answered callers last.
    last_answer: LastAnswer,
    /// What its last failure was. A mutex: written by failures, read by refusals.
    last_failure: Mutex<Option<Arc<str>>>,
    /// Whether it is there at all.
    looks: Looks,
    /// Its agent says that it is not ready.
    suspicious: AtomicBool,
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
    /// How endpoints leave and come back.
    pace: Pace,
    /// How long a name means what it meant.
    ages: Ages,
}

/// Makes connections to members, and keeps those that a swap does not concern.
#[derive(Debug)]
pub(crate) struct Connector {
    settings: Settings,
    resolver: Resolver,
    tasks: Tasks,
    /// Counts what the hub is to be told: transitions of breakers, changes of the set of members, answers after a pause. A watch: only the latest matters.
    changed: watch::Sender<u64>,
    /// Counts reasons to look at members. A watch as well.
    looks: watch::Sender<u64>,
}

/// All members of one moment.
#[derive(Debug, Default)]
pub(crate) struct Upstreams(HashMap<Arc<str>, Arc<Upstream>>);

impl Connector {
    /// Connections are tasks of `tasks`.
    pub(crate) fn new(connect_timeout: Duration, tasks: Tasks) -> Self {
        let settings = Settings {
            connect_timeout,
            unary: UNARY,
            watch: WATCH,
            pace: PACE,
            ages: AGES,
        };
        Self::with(&settings, tasks)
    }

    fn with(settings: &Settings, tasks: Tasks) -> Self {
        Self {
            settings: *settings,
            resolver: Resolver::system(),
            tasks,
            changed: watch::Sender::new(0),
            looks: watch::Sender::new(0),
        }
    }

    /// Connections to these members: those of `before` where nothing changed, else new ones, which dial nothing yet.
    pub(crate) fn follow(&self, before: &Upstreams, targets: &HashMap<Arc<str>, Arc<Target>>) -> Upstreams {
        let follow = |(cluster, target): (&Arc<str>, &Arc<Target>)| {
            let upstream = match before.0.get(cluster) {
                Some(upstream) if upstream.serves(target) => upstream.clone(),
                // A new address starts with closed breakers: what is known is of the old one.
                _ => Arc::new(Upstream::new(target, self)),
            };
            upstream.configure(&target.breaker);
            (cluster.clone(), upstream)
        };
        Upstreams(targets.iter().map(follow).collect())
    }

    /// The set of members has changed.
    pub(crate) fn changed(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Changes with what the hub is to be told; see [`Upstreams::breakers`] and [`Upstreams::answered_until`].
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Changes when there may be reason to look at a member; see [`Upstream::wants_look`].
    pub(crate) fn looks(&self) -> watch::Receiver<u64> {
        self.looks.subscribe()
    }
}

impl Upstreams {
    pub(crate) fn get(&self, cluster: &str) -> Option<&Arc<Upstream>> {
        self.0.get(cluster)
    }

    /// Members.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Members whose `/readyz` is to be looked at now.
    pub(crate) fn to_look_at(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.0.values().filter(|upstream| upstream.wants_look())
    }
}

impl Upstream {
    fn new(target: &Arc<Target>, connector: &Connector) -> Self {
        let breaker = |class| {
            let settings = breaker_settings(&target.breaker, class);
            Breaker::looking(settings, connector.changed.clone(), connector.looks.clone())
        };
        Self {
            cluster: target.cluster.clone(),
            target: target.clone(),
            transport: Transport::new(target, connector),
            breakers: TrafficClass::ALL.map(breaker),
            queues: Queues::default(),
            room: Room::new(target.cluster.clone()),
            places: Places::default(),
            retries: RetryBudget::default(),
            last_answer: LastAnswer::now(connector.changed.clone()),
            last_failure: Mutex::new(None),
            looks: Looks::new(connector.looks.clone()),
            suspicious: AtomicBool::new(false),
        }
    }

    /// Whether this target can be reached over what was made for the one before. A CA bundle is replaced on the way: members
    /// rotate theirs under load.
    fn serves(&self, target: &Target) -> bool {
        self.target.endpoints == target.endpoints
            && match &self.transport {
                Ok(transport) => transport.trusts(&self.cluster, &target.ca_pem),
                Err(_) => self.target.ca_pem == target.ca_pem,
            }
    }

    fn configure(&self, settings: &v1::Breaker) {
        // The agent's word opens nothing alone: the router looks for itself.
        if settings.suspicious && !self.suspicious.swap(settings.suspicious, Ordering::Relaxed) {
            self.suspect();
        }
        self.suspicious.store(settings.suspicious, Ordering::Relaxed);
        for class in TrafficClass::ALL {
            let breaker = self.breaker(class);
            breaker.configure(breaker_settings(settings, class));
            breaker.by_hand(by_hand::of(class, &settings.by_hand));
        }
    }

    pub(crate) fn breaker(&self, class: TrafficClass) -> &Arc<Breaker> {
        let [unary, list, watch, upgrade, review] = &self.breakers;
        match class {
            TrafficClass::Unary => unary,
            TrafficClass::List => list,
            TrafficClass::Watch => watch,
            TrafficClass::Upgrade => upgrade,
            TrafficClass::TokenReview => review,
        }
    }

    /// A request failed by the member's fault: whoever is refused because of it is told why.
    pub(crate) fn failed(&self, why: &dyn std::fmt::Display) {
        *self.last_failure.lock() = Some(why.to_string().into());
    }

    pub(crate) fn last_failure(&self) -> Option<Arc<str>> {
        self.last_failure.lock().clone()
    }

    /// It answered a caller's request with success. What comes later of the same answer is not counted: whoever reads it
    /// was there when it began.
    pub(crate) fn answered(&self) {
        self.last_answer.answered();
    }

    /// When it did last, in seconds of Unix time; at the earliest when this router first knew of it, as another may have gone
    /// before it in its name.
    pub(crate) fn last_answer(&self) -> i64 {
        self.last_answer.at()
    }

    /// A request of this class was answered: breakers of other traffic need not wait for some of their own to find out. Lists
    /// and single requests that timed out are their own to tell: they come anyway.
    pub(crate) fn answers(&self, answered: TrafficClass) {
        for class in TrafficClass::ALL.into_iter().filter(|class| *class != answered) {
            let rare = !matches!(class, TrafficClass::Unary | TrafficClass::List);
            let whatever = rare && answered == TrafficClass::Unary;
            self.changed(class, self.breaker(class).recover(whatever));
        }
    }

    /// Both halves at once.
    #[cfg(test)]
    pub(crate) async fn send(
        &self,
        long: bool,
        first: bool,
        request: Request<Body>,
    ) -> Result<Response<Body>, UpstreamError> {
        let slot = self.slot(long, first).await?;
        self.exchange(slot, request).await
    }

    /// The first half of a request over HTTP/2: waits for a connection. `long`: of those for watches. `first`: before requests that
    /// wait for one.
    pub(crate) async fn slot(&self, long: bool, first: bool) -> Result<Slot, UpstreamError> {
        let transport = self.transport()?;
        let pool = if long { &transport.watch } else { &transport.unary };
        pool.acquire(first).await.map_err(|source| self.unreachable(source))
    }

    /// The second half: awaits the answer's head. The URI is path and query; authority is the endpoint's.
    pub(crate) async fn exchange(&self, slot: Slot, request: Request<Body>) -> Result<Response<Body>, UpstreamError> {
        exchange::exchange(&self.cluster, slot, request).await
    }

    /// A connection of its own for `upgrade`, HTTP/1.1.
    pub(crate) async fn connect_http1(&self) -> Result<endpoint::Dialed, UpstreamError> {
        let dialer = &self.transport()?.dialer;
        let dialed = dialer
            .dial(endpoint::Protocol::Http1, |dialed| std::future::ready(Ok(dialed)))
            .await;
        let dialed = dialed.and_then(|dialed| dialed.trusted(&dialer.trust.store));
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

    fn breaker_states(&self) -> impl Iterator<Item = BreakerStatus> {
        TrafficClass::ALL.into_iter().map(|class| BreakerStatus {
            cluster: self.cluster.clone(),
            class,
            report: self.breaker(class).report(),
            callers: self.breaker(class).refused_callers(),
        })
    }
}

impl Transport {
    fn new(target: &Target, connector: &Connector) -> Result<Self, ConnectError> {
        let means = Means {
            connect_timeout: connector.settings.connect_timeout,
            pace: connector.settings.pace,
            ages: connector.settings.ages,
            resolver: connector.resolver.clone(),
            tasks: connector.tasks.clone(),
        };
        let dialer = Dialer::new(target, means)?;
        Ok(Self {
            unary: Pool::new(dialer.clone(), connector.settings.unary, connector.tasks.clone()),
            watch: Pool::new(dialer.clone(), connector.settings.watch, connector.tasks.clone()),
            dialer,
        })
    }

    /// Trusts this bundle from now on: new connections are verified with it, open ones that it would not let be get no more
    /// streams. False if it cannot be used.
    fn trusts(&self, cluster: &str, ca_pem: &str) -> bool {
        let trust = &self.dialer.trust.store;
        if trust.pem() == ca_pem {
            return true;
        }
        if trust.set_pem(ca_pem).is_err() {
            return false;
        }
        tracing::info!(cluster, "the member's CA bundle has changed");
        for pool in [&self.unary, &self.watch] {
            pool.leave(|way| !way.is_trusted(trust));
        }
        true
    }

    /// Nothing came over one of the connections: where there are other ways, the dead are found before their next ping.
    fn check(&self) {
        if self.dialer.has_alternatives() {
            self.unary.check();
            self.watch.check();
        }
    }
}

/// Whoever was routed to the member is done: no more requests. Streams run on to their end.
impl Drop for Transport {
    fn drop(&mut self) {
        self.unary.close();
        self.watch.close();
    }
}

/// The member's own thresholds; zero means the router's default. Half of what counts failures while it is under suspicion.
fn breaker_settings(wire: &v1::Breaker, class: TrafficClass) -> breaker::Settings {
    let default = breaker::Settings::default();
    let millis = |value: u32, default| {
        if value == 0 {
            default
        } else {
            Duration::from_millis(value.into())
        }
    };
    let sooner = if wire.suspicious { 2 } else { 1 };
    let count = |value: u32, default: u32| (if value == 0 { default } else { value }).div_ceil(sooner);
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
        slow: match class {
            TrafficClass::List | TrafficClass::Watch => millis(wire.slow_list_milliseconds, SLOW_LIST),
            TrafficClass::Unary | TrafficClass::Upgrade | TrafficClass::TokenReview => {
                millis(wire.slow_unary_milliseconds, SLOW_UNARY)
            }
        },
    }
}

#[cfg(test)]
mod tests;
