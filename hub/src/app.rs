//! Puts the hub together: one function per part, nothing bound before [`build`].

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use portolan_runtime::admin::{AdminPages, AdminServer};
use portolan_runtime::metrics::Registry;
use portolan_runtime::program::{self, Drain};
use portolan_runtime::tls::{self, ClientAuth, IdentityStore, TlsIncoming};
use portolan_runtime::{Backoff, Chain, Readiness, ReadyHandle, Tasks, Telemetry};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::access::AccessReviewer;
use crate::acks::Acks;
use crate::admin;
use crate::ages;
use crate::args::Config;
use crate::bootstrap::Tokens;
use crate::ca::{self, Authorities, Roots};
use crate::children::ChildWriter;
use crate::compile::{Memo, State};
use crate::distribute::{Distributor, Pasts, Published};
use crate::enroll::{Enroller, MAX_ENROLMENTS};
use crate::finalize::Finalizers;
use crate::index::Index;
use crate::lead::{self, Leader, Mandate, Pulse};
use crate::ledger::Store;
use crate::metrics::Metrics;
use crate::own_tokens::OwnTokens;
use crate::people::Signer;
use crate::pins::Pins;
use crate::rotation::{self, Rotation};
use crate::routers::Routers;
use crate::separation::Separating;
use crate::server::{self, Services};
use crate::shares::Arbiter;
use crate::splice::Door;
use crate::status::StatusWriter;
use crate::stream::{AgentService, AgentSessions, RouterService};
use crate::vouched::Vouched;
use crate::watch::{Anew, Watch};
use crate::webhook;

mod follow;

use follow::Follower;

/// A hub API server that has not answered a request by then is down. Watches have a client without it.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// A hub API server that has not connected by then is tried again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// What sessions get to end by themselves; streams carry nothing that would be lost.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);
/// Longest wait between two tries of something that the start needs.
const START_RETRY_MAX: Duration = Duration::from_secs(5);

/// What the parts share.
struct Parts {
    config: Config,
    /// Client for requests with one answer.
    client: Client,
    /// Client for watches, which are silent for minutes.
    watching: Client,
    index: Arc<Index>,
    anew: Anew,
    acks: Arc<Acks>,
    shares: Arc<Arbiter>,
    worlds: watch::Sender<Option<Published>>,
    metrics: Metrics,
    registry: Registry,
    readiness: Readiness,
    tasks: Tasks,
}

/// Binds all ports, answers on admin at once, and starts everything else. `tasks` is the whole program's.
pub async fn build(config: Config, telemetry: Telemetry, tasks: &Tasks) -> anyhow::Result<Drain> {
    let admin = AdminServer::bind(config.admin_bind).await?;
    let listener = TcpListener::bind(config.bind)
        .await
        .with_context(|| format!("cannot bind the hub to {}", config.bind))?;
    let webhook = TcpListener::bind(config.webhook_bind)
        .await
        .with_context(|| format!("cannot bind the webhook to {}", config.webhook_bind))?;
    let (bind, asked_at, admin_addr) = (listener.local_addr()?, webhook.local_addr()?, admin.addr);
    let (client, watching) = clients(config.kubeconfig.as_deref()).await?;
    let registry = Registry::new("hub");
    let metrics = Metrics::default();
    registry.root(|root| metrics.register(root));

    // The last to be ready, known from the first: a readiness of no parts would be true.
    let readiness = Readiness::new();
    let serving = readiness.task("grpc");
    let parts = Parts {
        client,
        watching,
        index: Arc::default(),
        anew: Anew::default(),
        acks: Arc::default(),
        shares: Arc::default(),
        worlds: watch::Sender::new(None),
        metrics,
        registry: registry.clone(),
        readiness,
        tasks: tasks.child(),
        config,
    };
    let pages = AdminPages::new(parts.readiness.clone(), registry, telemetry).remote(parts.config.admin_remote);
    let dump = admin::configz(
        &parts.config,
        parts.index.clone(),
        parts.acks.clone(),
        parts.shares.clone(),
        parts.worlds.subscribe(),
    );
    let shards = admin::Pages::new(
        parts.index.clone(),
        parts.acks.clone(),
        parts.worlds.subscribe(),
        parts.config.settings.clone(),
    );
    admin.serve(tasks, pages.configz(dump).extra(shards.routes()));
    let addresses = [("bind", bind), ("webhook", asked_at), ("admin", admin_addr)];
    program::write_addresses(parts.config.addresses_file.as_deref(), addresses)?;
    tracing::info!(%bind, webhook = %asked_at, admin = %admin_addr, "bound");

    let work = parts.tasks.clone();
    let drain = Drain::new(parts.readiness.clone(), tasks.clone(), SHUTDOWN_DEADLINE);
    work.spawn_service("start", Box::pin(parts.start(listener, webhook, serving)));
    Ok(drain.after(work, SHUTDOWN_DEADLINE))
}

impl Parts {
    /// Starts in order: watches, CA, webhook, door; once the facts are complete this replica may lead, and follows until then. Runs
    /// until the hub stops.
    async fn start(self, listener: TcpListener, asked: TcpListener, serving: ReadyHandle) -> anyhow::Result<()> {
        let facts_ready = self.start_watches();
        let ca = Arc::new(Authorities::new(&self.load_ca().await)?);
        let identity = self.serving_identity(&ca)?;
        self.serve_webhook(asked, identity.clone())?;
        self.spawn("index-time", self.index.clone().pass_time());
        let this = self.this(&listener)?;
        let told = this.identity.clone();
        let knows = (self.acks.clone(), self.index.clone());
        let election = lead::election(self.client.clone(), &self.config.namespace, this, knows);
        let (role, pulse) = (election.role(), election.pulse());
        let tls = tls::server_config(identity, ClientAuth::Optional(ca.trust().clone()), tls::ALPN_GRPC)?;
        let door = Door::new(role.clone(), self.metrics.clone());
        let incoming = TlsIncoming::behind(listener, tls, &self.tasks, move |stream| door.clone().admit(stream))?;
        facts_ready.wait_ready().await;
        self.tasks.spawn_critical("lead", election.run(self.tasks.token()));
        let follower = Follower {
            parts: self,
            ca,
            incoming,
            identity: told,
            pulse,
            role,
            serving,
        };
        // Large, and moved.
        Box::pin(follower.follow()).await
    }

    /// What the Lease says while this replica leads.
    fn this(&self, listener: &TcpListener) -> anyhow::Result<Leader> {
        let bound = Some(listener.local_addr()?).filter(|bound| !bound.ip().is_unspecified());
        let address = self.config.replica_address.clone();
        let address = address.or_else(|| bound.map(|bound| bound.to_string()));
        let name = address.as_deref().unwrap_or("portolan-hub");
        Ok(Leader {
            identity: format!("{name}_{:016x}", rand::random::<u64>()),
            address,
            pod: self.config.pod_name.clone(),
            settings: self.config.agreed.clone(),
        })
    }

    /// All watches; the returned readiness is theirs alone.
    fn start_watches(&self) -> Readiness {
        let facts_ready = Readiness::new();
        for (name, watch) in [
            ("memberclusters", Watch::members(self.watching.clone())),
            ("shardingconfigs", Watch::shards(self.watching.clone())),
            ("routers", Watch::routers(self.watching.clone(), &self.config.namespace)),
            ("circuitbreakers", Watch::circuit_breakers(self.watching.clone())),
            ("faultinjections", Watch::fault_injections(self.watching.clone())),
            (
                "fault-switch",
                Watch::fault_switch(self.watching.clone(), &self.config.namespace),
            ),
        ] {
            let ready = [facts_ready.task(name), self.readiness.task(name)];
            self.spawn(
                "watch",
                watch.run(self.index.clone(), ready, self.metrics.clone(), self.anew.clone()),
            );
        }
        facts_ready
    }

    /// Runs what one replica alone does. In order: pins, ledger and the compiler, then all that writes, then streams.
    async fn lead(
        self,
        ca: Arc<Authorities>,
        incoming: TlsIncoming,
        (pulse, serving): (Pulse, ReadyHandle),
    ) -> anyhow::Result<()> {
        let ready = self.readiness.task("ca");
        let catch_up = || rotation::catch_up(&self.client, &self.config.namespace, &ca);
        retry("read the hub CA", &ready, catch_up).await;
        ready.ready();
        self.publish_ca(&ca).await;
        let pins = Pins::new(self.client.clone(), &self.config.namespace, self.index.clone());
        self.load_pins(&pins).await;
        let (ledger, stored) = self.open_ledger().await?;
        // After the term: what an earlier hub went by was there before, and nobody is granted anything any more by anything later.
        self.anew.list().await;
        let term = ledger.term();
        self.metrics.lead(term);
        self.shares.begin(term);
        let shares = self
            .shares
            .clone()
            .run(self.worlds.subscribe(), self.index.clone(), self.metrics.clone());
        self.spawn("shares", shares);
        let (order, separates) = watch::channel(false);
        let distributor = self.distributor(ledger, separates);
        self.tasks
            .spawn_service("distribute", async { Ok(distributor.run(stored).await?) });
        self.spawn_writers(&ca);
        self.spawn("versions", pins.clone().keep_history());
        self.spawn("separation", self.separating(order).run());
        let services = self.services(ca, pins, &Mandate { term, pulse });
        serving.ready();
        tracing::info!(term, "serving");
        server::serve(incoming, services, self.tasks.clone()).await
    }

    /// All that writes to objects of the hub cluster by what is published.
    fn spawn_writers(&self, ca: &Arc<Authorities>) {
        let (client, namespace) = (&self.client, &self.config.namespace);
        let (index, acks) = (self.index.clone(), self.acks.clone());
        let status = StatusWriter::new(client.clone(), namespace, index, acks, &self.shares);
        self.spawn("status", status.run(self.worlds.subscribe(), self.metrics.clone()));
        let finalizers = Finalizers::new(client.clone(), self.index.clone());
        self.spawn(
            "finalizers",
            finalizers.run(self.worlds.subscribe(), self.metrics.clone()),
        );
        let children = ChildWriter::new(client.clone(), self.index.clone());
        self.spawn("children", children.run(self.worlds.subscribe(), self.metrics.clone()));
        let people = Signer::new(client.clone(), ca.clone());
        self.spawn("people", people.run(self.watching.clone()));
        let ages = ages::MemberAges::new(self.index.clone());
        self.registry.root(|root| root.register_collector(Box::new(ages)));
        let rotation = Rotation::new(client.clone(), namespace, self.index.clone(), ca.clone());
        self.spawn("ca-rotation", rotation.run());
        self.spawn("webhook-trust", ca::keep_webhooks_trusting(client.clone(), ca.clone()));
    }

    async fn load_ca(&self) -> Roots {
        let ready = self.readiness.task("ca");
        let load = || ca::load_or_create(&self.client, &self.config.namespace);
        let roots = retry("load or make the hub CA", &ready, load).await;
        ready.ready();
        roots
    }

    async fn publish_ca(&self, ca: &Authorities) {
        let (ready, current) = (self.readiness.task("ca-published"), ca.current());
        let publish = || ca::publish(&self.client, &self.config.namespace, current.bundle());
        retry("publish the certificate of the hub CA", &ready, publish).await;
        ready.ready();
    }

    fn separating(&self, order: watch::Sender<bool>) -> Separating {
        Separating {
            client: self.client.clone(),
            namespace: self.config.namespace.clone(),
            index: self.index.clone(),
            acks: self.acks.clone(),
            worlds: self.worlds.subscribe(),
            order,
        }
    }

    fn distributor(&self, ledger: Store, separates: watch::Receiver<bool>) -> Distributor {
        Distributor {
            separates,
            index: self.index.clone(),
            acks: self.acks.clone(),
            settings: self.config.settings.clone(),
            metrics: self.metrics.clone(),
            ledger,
            worlds: self.worlds.clone(),
            reborn: false,
            confirmed: Instant::now(),
            memo: Memo::default(),
            pasts: Pasts::default(),
            renewals_heard: 0,
        }
    }

    async fn load_pins(&self, pins: &Pins) {
        let ready = self.readiness.task("pins");
        retry("read the members' pins", &ready, || pins.load()).await;
        ready.ready();
    }

    /// Fails where the ledger, or statuses of before there was one, do not tell who has what.
    async fn open_ledger(&self) -> anyhow::Result<(Store, State)> {
        let ready = self.readiness.task("ledger");
        let open = || async {
            let (client, namespace) = (self.client.clone(), &self.config.namespace);
            match Store::open(client, namespace, &self.index, (self.metrics.clone(), term_of_now())).await {
                Err(error) if error.is_final() => Ok(Err(error)),
                Err(error) => Err(error),
                Ok(opened) => Ok(Ok(opened)),
            }
        };
        let opened = retry("open the ledger", &ready, open).await?;
        ready.ready();
        Ok(opened)
    }

    fn serving_identity(&self, ca: &Arc<Authorities>) -> anyhow::Result<Arc<IdentityStore>> {
        let hosts = self.config.serving_hosts();
        let identity = IdentityStore::new(ca::serving_identity(ca.current().root(), &hosts)?);
        let renewal = ca::keep_serving_identity(ca.clone(), hosts, identity.clone(), self.tasks.clone());
        self.tasks.spawn("serving-certificate", renewal);
        self.registry.root(|root| {
            identity.register(root);
            root.register_collector(Box::new(ages::CaEnd(ca.clone())));
        });
        Ok(identity)
    }

    /// From now on: writes that it is asked about wait for no facts.
    fn serve_webhook(&self, listener: TcpListener, identity: Arc<IdentityStore>) -> anyhow::Result<()> {
        let tls = tls::server_config(identity, ClientAuth::None, tls::ALPN_HTTP1)?;
        let reviewer = AccessReviewer::new(self.client.clone());
        let served = webhook::serve(listener, tls, reviewer, self.tasks.clone());
        self.tasks.spawn_service("webhook", served);
        Ok(())
    }

    fn services(&self, ca: Arc<Authorities>, pins: Pins, mandate: &Mandate) -> Services {
        let sessions = Arc::<AgentSessions>::default();
        let vouched = Vouched::new(self.index.clone(), self.config.routers_of.iter().cloned());
        let (client, namespace) = (self.client.clone(), &self.config.namespace);
        let enrolled = Routers::new(client, namespace, self.index.clone(), vouched.clone());
        Services {
            enrollment: Enroller {
                ca: ca.clone(),
                index: self.index.clone(),
                tokens: Tokens::new(self.client.clone(), &self.config.namespace),
                pins: pins.clone(),
                agents: sessions.clone(),
                own_tokens: OwnTokens::new(self.client.clone()),
                vouched,
                router_hosts: self.config.router_hosts.clone(),
                audience: self.config.audience.clone(),
                routers: enrolled.clone(),
                metrics: self.metrics.clone(),
                permits: Arc::new(Semaphore::new(MAX_ENROLMENTS)),
            },
            routers: RouterService {
                worlds: self.worlds.subscribe(),
                index: self.index.clone(),
                acks: self.acks.clone(),
                offers: Arc::default(),
                shares: self.shares.clone(),
                access: AccessReviewer::new(self.client.clone()),
                routers: enrolled,
                ca: ca.clone(),
                longest_lease: self.config.settings.longest_lease,
                mandate: mandate.clone(),
                metrics: self.metrics.clone(),
                tasks: self.tasks.clone(),
            },
            agents: AgentService {
                index: self.index.clone(),
                worlds: self.worlds.subscribe(),
                sessions,
                pins,
                ca,
                mandate: mandate.clone(),
                metrics: self.metrics.clone(),
                tasks: self.tasks.clone(),
            },
        }
    }

    /// A task that must run as long as the hub does.
    fn spawn(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_service(name, async {
            work.await;
            Ok(())
        });
    }
}

/// Terms are beyond the time at which their hub began to lead, in seconds: also of a ledger that was set back, or made anew, so that
/// routers and agents that remember the last one take the next.
fn term_of_now() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or_default()
}

/// Tries until it works: at a cluster's first start namespaces, permissions and API servers come in any order.
async fn retry<T, E, F>(what: &'static str, ready: &ReadyHandle, attempt: impl Fn() -> F) -> T
where
    E: std::error::Error + 'static,
    F: Future<Output = Result<T, E>>,
{
    let mut backoff = Backoff::new(Duration::from_millis(200), START_RETRY_MAX);
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => {
                let error = Chain(&error).to_string();
                tracing::warn!(error, "cannot {what}");
                ready.not_ready(format!("a chance to {what}: {error}"));
            }
        }
        backoff.sleep().await;
    }
}

async fn clients(kubeconfig: Option<&Path>) -> anyhow::Result<(Client, Client)> {
    let mut config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path)?;
            kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("cannot use kubeconfig {}", path.display()))?
        }
        None => kube::Config::incluster().context("no --kubeconfig, and not in a cluster's Pod")?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    let make = |config| Client::try_from(config).context("cannot make a client of the hub's API server");
    let watching = make(config.clone())?;
    config.read_timeout = Some(READ_TIMEOUT);
    Ok((make(config)?, watching))
}
