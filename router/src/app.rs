//! Wiring: `build` takes the addresses and starts every part, and says in which order they end. One function per
//! part, no rules. Caller: `main`.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use portolan_runtime::admin::{AdminPages, AdminServer};
use portolan_runtime::metrics::Registry;
use portolan_runtime::program::{self, Drain};
use portolan_runtime::telemetry::Keeper;
use portolan_runtime::tls::{self, ALPN_HTTP, CaFile, ClientAuth, DEFAULT_RELOAD_PERIOD, IdentityStore, TrustStore};
use portolan_runtime::{Chain, Readiness, Tasks, Telemetry};
use portolan_wire::client::{CaNews, HubLink};
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Handle;

use crate::accept::{self, AcceptConfig};
use crate::admin::Pages;
use crate::args::{Config, MIN_WAITING};
use crate::edge::metrics::RequestMetrics;
use crate::edge::{Edge, EdgeParts};
use crate::resource::access::{Access, HubReviews, MemberApi};
use crate::resource::ended::EndedFile;
use crate::resource::enroll::{Enroller, HubCa, identity_file};
use crate::resource::injected::InjectedFaults;
use crate::resource::load::{self, Load, LoadMetrics};
use crate::resource::policies::PolicyCollector;
use crate::resource::queues::QueueMetrics;
use crate::resource::routing::{RoutingCollector, RoutingStore};
use crate::resource::subscribe::{HubMetrics, HubState, StateFileHealth, Subscriber};
use crate::stage::admit::metrics::AdmitMetrics;
use crate::stage::admit::{Admit, Limits, within_memory};
use crate::stage::discovery::Discovery;
use crate::stage::discovery::DiscoveryMetrics;
use crate::stage::dispatch::{DispatchMetrics, Dispatcher, OwnRequests, Prober};
use crate::stage::fanout::metrics::FanOutMetrics;
use crate::stage::fanout::open::{OpenCollector, OpenWatches};
use crate::stage::identify::Identifier;
use crate::stage::identify::metrics::IdentifyMetrics;

/// From a client's handshake to its first request whose sender is known; longer than a member takes to review a token.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);
/// Connections that the kernel keeps until they are accepted: of what finds no place it forgets the first packet, and clients
/// send that again after a second at the earliest. The kernel takes no more than its own `somaxconn`, mostly 4,096.
const BACKLOG: u32 = 16_384;
/// For admin connections and the last writes, after the traffic is drained.
const CONTROL_DRAIN: Duration = Duration::from_secs(3);

/// Where a router can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Operators and people.
    pub bind: SocketAddr,
    /// The admin server.
    pub admin: SocketAddr,
}

/// A running router.
pub struct Bound {
    /// With their real ports.
    pub addresses: Addresses,
    /// No new clients → watches end → the rest has until the deadline → cut.
    pub drain: Drain,
}

/// What ends a listener, and what its connections.
struct Ends {
    accepting: Tasks,
    clients: Tasks,
}

/// What the parts share.
struct Parts {
    config: Config,
    routing: Arc<RoutingStore>,
    reviews: HubReviews,
    identity: Arc<IdentityStore>,
    hub_ca: Arc<TrustStore>,
    metrics: Metrics,
    /// Merged watches.
    open: Arc<OpenWatches>,
    readiness: Readiness,
    registry: Registry,
    /// Exports spans of requests that were not sampled.
    keeper: Option<Keeper>,
}

/// Counters of the parts, each of which owns its own.
#[derive(Default)]
struct Metrics {
    hub: HubMetrics,
    admit: AdmitMetrics,
    load: LoadMetrics,
    queue: QueueMetrics,
    identify: IdentifyMetrics,
    discovery: DiscoveryMetrics,
    dispatch: DispatchMetrics,
    requests: Arc<RequestMetrics>,
    /// Of the policies, which report them.
    injected: Arc<InjectedFaults>,
}

/// Takes the addresses, then starts everything. Clients run on `traffic`, all else on the caller's runtime.
pub async fn build(config: Config, tasks: &Tasks, traffic: Handle, telemetry: Telemetry) -> anyhow::Result<Bound> {
    make_folder(&config.hub.state_dir)?;
    let earlier_answered = take_ended(&config.hub.state_dir);
    let listener = listen(config.bind, &traffic).with_context(|| format!("cannot bind {}", config.bind))?;
    let admin = AdminServer::bind(config.admin_bind).await?;
    let addresses = Addresses {
        bind: listener.local_addr()?,
        admin: admin.addr,
    };

    let (accepting, clients, members) = (tasks.child(), tasks.child(), tasks.child());
    let mut parts = parts(config, tasks, members.on(traffic.clone()))?;
    parts.keeper = telemetry.keeper();
    register(&parts, &parts.registry);
    start_admin(admin, &parts, telemetry, tasks);
    if earlier_answered {
        parts.routing.writes.earlier_are_answered();
    }
    start_hub(&parts, tasks)?;
    let prober = Prober::new(parts.routing.clone());
    tasks.spawn_service("look-at-members", async move {
        prober.run().await;
        Ok(())
    });
    let ends = Ends {
        accepting: accepting.on(traffic.clone()),
        clients: clients.on(traffic),
    };
    start_clients(listener, &parts, ends, tasks)?;
    let named = [("bind", addresses.bind), ("admin", addresses.admin)];
    program::write_addresses(parts.config.addresses_file.as_deref(), named)?;
    tracing::info!(bind = %addresses.bind, admin = %addresses.admin, "listening");
    // Whose watch ends comes back at once, and must not find the listener of before: what it holds then is reset.
    let drain = Drain::new(parts.readiness, tasks.clone(), CONTROL_DRAIN)
        .after(accepting, CONTROL_DRAIN)
        .after(clients, parts.config.timeouts.drain)
        .after(members, CONTROL_DRAIN);
    Ok(Bound { addresses, drain })
}

/// Under `portolan_router_<part>_`: counters, which the parts tell, and state, which is read at each scrape.
fn register(parts: &Parts, registry: &Registry) {
    let metrics = &parts.metrics;
    registry.scope("hub", |part| {
        metrics.hub.register(part);
        parts.identity.register(part);
        parts.hub_ca.register(part);
    });
    registry.scope("admit", |part| metrics.admit.register(part));
    registry.scope("load", |part| metrics.load.register(part));
    registry.scope("queue", |part| metrics.queue.register(part));
    registry.scope("identify", |part| metrics.identify.register(part));
    registry.scope("discovery", |part| metrics.discovery.register(part));
    registry.scope("dispatch", |part| metrics.dispatch.register(part));
    registry.scope("faults", |part| metrics.injected.register(part));
    registry.scope("requests", |part| metrics.requests.register(part));
    registry.scope("fanout", |part| parts.open.metrics.register(part));
    let policies = &parts.routing.load().policies;
    registry.scope("policy", |part| policies.metrics.register(part));
    registry.root(|root| {
        root.register_collector(Box::new(PolicyCollector(policies.clone())));
        root.register_collector(Box::new(RoutingCollector(parts.routing.clone())));
        root.register_collector(Box::new(OpenCollector(parts.open.clone())));
    });
}

fn parts(config: Config, tasks: &Tasks, members: Tasks) -> anyhow::Result<Parts> {
    let hub_ca = CaFile(config.hub.ca.clone())
        .follow(tasks, DEFAULT_RELOAD_PERIOD)
        .context("--hub-ca")?;
    let routing = RoutingStore::new(config.timeouts.connect, members);
    let metrics = Metrics {
        injected: routing.load().policies.injected.clone(),
        ..Metrics::default()
    };
    Ok(Parts {
        config,
        routing,
        reviews: HubReviews::default(),
        identity: IdentityStore::empty(),
        hub_ca,
        metrics,
        open: OpenWatches::new(FanOutMetrics::default()),
        readiness: Readiness::new(),
        registry: Registry::new("router"),
        keeper: None,
    })
}

fn start_admin(admin: AdminServer, parts: &Parts, telemetry: Telemetry, tasks: &Tasks) {
    let pages = Pages {
        routing: parts.routing.clone(),
        hub: parts.metrics.hub.clone(),
        open: parts.open.clone(),
        config: format!("{:?}", parts.config),
    };
    let configz = pages.clone();
    let pages = AdminPages::new(parts.readiness.clone(), parts.registry.clone(), telemetry)
        .configz(move || configz.configz())
        .extra(pages.routes())
        .remote(parts.config.admin_remote);
    admin.serve(tasks, pages);
}

/// Enrolment and the hub's stream. The state file is served before anything is asked of the hub.
fn start_hub(parts: &Parts, tasks: &Tasks) -> anyhow::Result<()> {
    let hub = &parts.config.hub;
    let link = HubLink::new(&hub.endpoint, parts.hub_ca.clone(), parts.identity.clone())?;
    let ready = parts.readiness.task("identity");
    let (news, ca) = (
        Arc::<CaNews>::default(),
        HubCa::new(CaFile(hub.ca.clone()), &hub.state_dir, parts.hub_ca.clone()),
    );
    ca.recall();
    let enroller = Enroller::new(link.clone(), hub.proof.clone(), hub.state_dir.clone(), ready)
        .in_pod(hub.pod.clone())
        .trusting(news.clone(), ca);
    let health = StateFileHealth::new(parts.metrics.hub.clone(), parts.readiness.task("state-file"));
    let state = HubState::new(parts.routing.clone(), &hub.state_dir)
        .held_to_format_1(hub.held_to_format_1)
        .forgotten_at_end(hub.forget_at_end.then(|| identity_file(&hub.state_dir)))
        .telling(health);
    let ready = parts.readiness.task("snapshot");
    let mut subscriber =
        Subscriber::new(link, state, parts.reviews.clone(), parts.metrics.hub.clone(), ready).telling(news);
    let known = enroller.load();
    if known {
        parts.routing.alone.begin_after_another();
    }
    let serving = subscriber.load_last_good();
    parts.routing.recall_kinds(&hub.state_dir);
    let remember = parts
        .routing
        .clone()
        .remember_kinds(hub.state_dir.clone(), tasks.clone());
    tasks.spawn("remember-kinds", remember);
    // Nothing to wait for would ever come; a router that can at least serve its last state does.
    anyhow::ensure!(
        known || serving || enroller.has_proof(),
        "no identity in {} yet: give --bootstrap-token-file, or --token-file and --cluster",
        hub.state_dir.display()
    );
    tasks.spawn_service("enroll", enroller.run());
    tasks.spawn_critical("subscribe", subscriber.run(tasks.clone()));
    Ok(())
}

fn start_clients(listener: TcpListener, parts: &Parts, ends: Ends, tasks: &Tasks) -> anyhow::Result<()> {
    let Ends { accepting, clients } = ends;
    let serving = match &parts.config.serving {
        Some(files) => files
            .follow(tasks, DEFAULT_RELOAD_PERIOD)
            .context("--tls-cert and --tls-key")?,
        None => parts.identity.clone(),
    };
    parts.registry.scope("serving", |part| serving.register(part));
    let tls = tls::server_config(serving, ClientAuth::Optional(parts.hub_ca.clone()), ALPN_HTTP)?;
    let limits = AcceptConfig {
        max_connections: parts.config.limits.connections,
        handshake_timeout: parts.config.timeouts.handshake,
        head_timeout: parts.config.timeouts.head,
        known_within: KNOWN_WITHIN,
        connection_age: parts.config.timeouts.connection_age,
    };
    let edge = edge(parts, clients.clone(), tasks);
    // Dropped, it closes the listener.
    accepting.spawn_service("accept", accept::serve(listener, edge, tls, limits, clients));
    Ok(())
}

fn edge(parts: &Parts, clients: Tasks, tasks: &Tasks) -> Arc<Edge> {
    let Parts {
        config,
        routing,
        metrics,
        ..
    } = parts;
    let own = OwnRequests {
        routing: routing.clone(),
    };
    let members: Arc<dyn MemberApi> = Arc::new(own.clone());
    let access = Access::new(parts.reviews.clone(), members.clone());
    let folder = config.hub.state_dir.clone();
    access.recall(&folder);
    tasks.spawn("remember", access.clone().remember(folder, tasks.clone()));
    let discovery = discovery(parts, own, &clients, tasks);
    let admit = admit(parts, &clients, tasks);
    let identity = config.identity.clone();
    let identifier = Identifier::new(identity, members.clone(), admit.clone(), metrics.identify.clone());
    let forget = identifier.forget();
    tasks.spawn_service("forget-tokens", async move {
        forget.await;
        Ok(())
    });
    Edge::new(EdgeParts {
        routing: routing.clone(),
        admit,
        identifier,
        access,
        dispatcher: Arc::new(
            Dispatcher::new(clients.clone(), metrics.dispatch.clone())
                .measured(metrics.queue.clone())
                .beside(metrics.load.lateness()),
        ),
        injected: metrics.injected.clone(),
        open: parts.open.clone(),
        discovery,
        metrics: metrics.requests.clone(),
        sampling: config.sampling,
        tail: metrics.requests.tail(parts.keeper.clone(), config.tail),
        explicit_host: config.explicit_host.clone(),
        readiness: parts.readiness.clone(),
        request_timeout: config.timeouts.request,
        tasks: clients,
    })
}

/// Measures on the runtime of `clients` how late requests are served, and elsewhere the rest.
fn admit(parts: &Parts, clients: &Tasks, tasks: &Tasks) -> Arc<Admit> {
    let limits = &parts.config.limits;
    let load = Load::new(limits.shed, parts.metrics.load.clone());
    let metrics = parts.metrics.admit.clone().measured(parts.metrics.queue.clone());
    let metrics = metrics.counting(parts.metrics.injected.clone());
    let waiting = within_memory(limits.waiting, load::memory_limit(limits.memory));
    let (bytes, wanted) = (waiting, limits.waiting);
    tracing::info!(bytes, wanted, "memory that requests may have while they wait");
    if waiting < limits.waiting.min(MIN_WAITING) {
        tracing::warn!(
            bytes,
            "little memory for requests that wait: clients that come at once are refused; give this process more"
        );
    }
    let counts = Limits {
        requests: limits.requests,
        streams: limits.streams,
        waiting,
    };
    let admit = Admit::new(counts, load.clone(), metrics);
    let held = admit.clone();
    load.follow_delay(clients);
    load.follow_memory(limits.memory, move || held.bytes_held(), tasks);
    admit
}

/// What members serve is read before somebody asks.
fn discovery(parts: &Parts, own: OwnRequests, clients: &Tasks, tasks: &Tasks) -> Arc<Discovery> {
    let discovery = Discovery::new(own, parts.metrics.discovery.clone(), clients.clone());
    tasks.spawn("discovery-warm", discovery.clone().warm(tasks.clone()));
    discovery
}

/// On the runtime that accepts from it: a listener is woken by the one it was made on.
fn listen(address: SocketAddr, traffic: &Handle) -> std::io::Result<TcpListener> {
    let _on_traffic = traffic.enter();
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Whether the state folder tells that no write of earlier processes is open. Where it cannot be asked nobody knows.
fn take_ended(state_dir: &Path) -> bool {
    EndedFile::in_folder(state_dir).take().unwrap_or_else(|error| {
        tracing::warn!(error = %Chain(&error), "the end of earlier processes is not known");
        false
    })
}

fn make_folder(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
        .create(path)
        .with_context(|| format!("cannot create the state folder {}", path.display()))
}

#[cfg(test)]
mod tests;
