//! Wiring: a checked [`Config`] becomes running tasks. One function per subsystem; no rules here.
//!
//! `build` binds the admin server and starts the life of the agent as one critical task: join, then everything else.
//! Caller: `main`, and tests that run an agent in their own process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kube::Client;
use portolan_runtime::admin::{AdminPages, AdminServer};
use portolan_runtime::backoff::until_ok;
use portolan_runtime::metrics::Registry;
use portolan_runtime::program::{self, Drain};
use portolan_runtime::{Readiness, ReadyHandle, Tasks, Telemetry};
use portolan_wire::client::{enroll_until_done, keep_enrolled};
use portolan_wire::v1 as wire;
use tokio::sync::watch;

use crate::admin::State;
use crate::admission::{Admission, Covered};
use crate::args::Config;
use crate::callers::Callers;
use crate::facts::FactStore;
use crate::fence::{Fence, Orders};
use crate::join::Joiner;
use crate::join::bootstrap::BootstrapSource;
use crate::join::identity::{AgentIdentity, IdentitySecret};
use crate::lead::Holder;
use crate::member::Repeats;
use crate::metrics::Metrics;
use crate::mint::{Mint, Tokens, Wanted};
use crate::prove::Prover;
use crate::report::Subjects;
use crate::settings::Settings;
use crate::stream::Stream;
use crate::sweep::Sweeper;
use crate::sweep::pacer::Pacer;
use crate::terms::Terms;
use crate::{allowed, health, lead, member, namespaces, nodes};

/// Tasks get this long to end after a signal: nothing of theirs must be finished, only not cut mid-write.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);
/// Time for the write that gives the Lease back.
const LEASE_DEADLINE: Duration = Duration::from_secs(2);
/// The admin server has only to finish its last answers.
const ADMIN_DEADLINE: Duration = Duration::from_secs(3);

/// A started agent.
pub struct Bound {
    /// Address of the admin server.
    pub admin: SocketAddr,
    /// Whether it has joined and told its facts.
    pub readiness: Readiness,
    /// The work, then the admin server.
    pub drain: Drain,
}

/// Senders of what tasks find out; receivers go to `report` and `admin`.
struct Senders {
    heartbeats: watch::Sender<Option<health::Beat>>,
    tokens: watch::Sender<Tokens>,
    allowed: watch::Sender<Option<wire::Allowed>>,
    policies: watch::Sender<Option<wire::AdmissionPolicies>>,
    excess: watch::Sender<Option<wire::CallerExcess>>,
    fences: watch::Sender<Option<wire::Fences>>,
    nodes: watch::Sender<Option<wire::NodeNames>>,
}

/// What every task needs.
#[derive(Clone)]
struct Agent {
    config: Config,
    client: Client,
    /// For the sweeps.
    paced_client: Client,
    metrics: Metrics,
    tasks: Tasks,
    subjects: Subjects,
    settings: watch::Sender<Option<Arc<Settings>>>,
    routers: watch::Sender<Wanted>,
    fences: watch::Sender<Orders>,
    identity: watch::Sender<Option<Arc<AgentIdentity>>>,
}

/// Binds, writes the addresses file and starts. Returns before the agent has joined: readiness tells.
pub async fn build(config: Config, telemetry: Telemetry) -> anyhow::Result<Bound> {
    let kubeconfig = config.member.kubeconfig.as_deref();
    let client = member::connect(kubeconfig, Repeats::Client).await?;
    let paced_client = member::connect(kubeconfig, Repeats::Caller).await?;
    let bound = AdminServer::bind(config.admin_bind).await?;
    let admin = bound.addr;
    let (readiness, root) = (Readiness::new(), Tasks::new());
    let tasks = root.child();
    let registry = Registry::new("agent");
    let metrics = Metrics::default();
    registry.scope("labels", |part| metrics.register_labels(part));
    registry.scope("member", |part| metrics.register_member(part));
    registry.scope("hub", |part| metrics.register_hub(part));
    let (subjects, senders) = subjects();
    let (settings, identity) = (watch::Sender::new(None), watch::Sender::new(None));
    let state = State {
        config: config.clone(),
        subjects: subjects.clone(),
        settings: settings.subscribe(),
        identity: identity.subscribe(),
    };
    let pages = AdminPages::new(readiness.clone(), registry, telemetry)
        .configz(move || state.dump())
        .remote(config.admin_remote);
    bound.serve(&root, pages);
    program::write_addresses(config.addresses_file.as_deref(), [("admin", admin)]).context("--addresses-file")?;
    let agent = Agent {
        config,
        client,
        paced_client,
        metrics,
        tasks: tasks.clone(),
        subjects,
        settings,
        routers: watch::Sender::new(None),
        fences: watch::Sender::new(Orders::default()),
        identity,
    };
    let ready = readiness.task("hub");
    ready.not_ready("a look at who works");
    let leading = root.child();
    let role = agent.take_part(&leading);
    let lives = async move {
        lead::stand_by(role, &ready).await;
        ready.not_ready("an identity of this cluster, see the log");
        agent.live(senders, ready).await
    };
    // Boxed: the whole life of the program is one large future.
    tasks.spawn_service("agent", Box::pin(lives));
    // The Lease is given back once nothing works any more.
    let drain = Drain::new(readiness.clone(), root, ADMIN_DEADLINE)
        .after(tasks, SHUTDOWN_DEADLINE)
        .after(leading, LEASE_DEADLINE);
    Ok(Bound {
        admin,
        readiness,
        drain,
    })
}

fn subjects() -> (Subjects, Senders) {
    let (heartbeats, tokens, allowed, policies, excess, fences, nodes) = (
        watch::Sender::new(None),
        watch::Sender::new(Tokens::new()),
        watch::Sender::new(None),
        watch::Sender::new(None),
        watch::Sender::new(None),
        watch::Sender::new(None),
        watch::Sender::new(None),
    );
    let subjects = Subjects {
        namespaces: Arc::new(FactStore::new()),
        callers: Arc::new(FactStore::new()),
        coverage: Arc::new(FactStore::new()),
        heartbeats: heartbeats.subscribe(),
        tokens: tokens.subscribe(),
        allowed: allowed.subscribe(),
        policies: policies.subscribe(),
        excess: excess.subscribe(),
        fences: fences.subscribe(),
        nodes: nodes.subscribe(),
    };
    let senders = Senders {
        heartbeats,
        tokens,
        allowed,
        policies,
        excess,
        fences,
        nodes,
    };
    (subjects, senders)
}

impl Agent {
    /// Works once it is this one's turn; ends the program if it is another's then.
    fn take_part(&self, leading: &Tasks) -> watch::Receiver<lead::Role> {
        let member = &self.config.member;
        let election = lead::election(self.client.clone(), &member.namespace, &self.config.replica);
        let role = election.role();
        leading.spawn_critical("lead", election.run(leading.token()));
        role
    }

    /// Observers start at once; the stream starts when there is an identity; all end with the program.
    async fn live(self, senders: Senders, ready: ReadyHandle) -> anyhow::Result<()> {
        self.spawn_labelling(senders.policies.clone());
        self.spawn_observers(senders);
        let joiner = self.joiner();
        enroll_until_done(&joiner).await;
        ready.not_ready("a stream to the hub");
        // What the hello says.
        let facts = until_ok("read the facts of this cluster", || member::facts(&self.client)).await;
        self.spawn_stream(&joiner, facts, ready);
        keep_enrolled(&joiner).await;
        Ok(())
    }

    fn joiner(&self) -> Joiner {
        let namespace = &self.config.member.namespace;
        Joiner {
            client: self.client.clone(),
            source: BootstrapSource {
                hub: self.config.hub.clone(),
                hub_ca: self.config.hub_ca.clone(),
                token_file: self.config.bootstrap_token_file.clone(),
                namespace: namespace.clone(),
            },
            secret: IdentitySecret::new(self.client.clone(), namespace),
            current: self.identity.clone(),
            refused: Arc::default(),
            news: Arc::default(),
        }
    }

    fn spawn_observers(&self, senders: Senders) {
        let (client, metrics) = (&self.client, &self.metrics);
        self.spawn(
            "health",
            health::run(client.clone(), senders.heartbeats, metrics.clone()),
        );
        self.spawn(
            "allowed",
            allowed::run(client.clone(), senders.allowed, metrics.clone()),
        );
        let fence = Fence {
            client: client.clone(),
            kubeconfig: self.config.member.kubeconfig.clone(),
            namespaces: self.subjects.namespaces.clone(),
            told: senders.fences,
        };
        self.spawn("fence", fence.run(self.fences.subscribe()));
        let mint = Mint::new(client.clone(), senders.tokens, metrics.clone());
        self.spawn("mint", mint.run(self.tasks.clone(), self.routers.subscribe()));
        let inventory = namespaces::run(client.clone(), self.subjects.namespaces.clone(), metrics.clone());
        self.spawn("namespaces", inventory);
        self.spawn("nodes", nodes::run(client.clone(), senders.nodes, metrics.clone()));
        let callers = self.subjects.callers.clone();
        let callers = Callers::new(client.clone(), callers, senders.excess, metrics.clone());
        self.spawn("callers", callers.run(self.tasks.clone(), self.settings.subscribe()));
    }

    /// Nothing is written before the hub's first configuration.
    fn spawn_labelling(&self, policies: watch::Sender<Option<wire::AdmissionPolicies>>) {
        let (plan, covered) = (watch::Sender::new(None), watch::Sender::new(Covered::default()));
        let admission = Admission {
            client: self.client.clone(),
            covered: covered.clone(),
            told: policies,
            metrics: self.metrics.clone(),
        };
        self.spawn("admission", admission.run(plan.subscribe()));
        let sweeper = Sweeper {
            client: self.paced_client.clone(),
            pacer: Pacer::new(self.config.member.labels_per_second),
            tasks: self.tasks.clone(),
            metrics: self.metrics.clone(),
            coverage: self.subjects.coverage.clone(),
            plan,
            covered: covered.subscribe(),
        };
        self.spawn("sweeper", sweeper.run(self.settings.subscribe()));
    }

    fn spawn_stream(&self, joiner: &Joiner, facts: wire::MemberFacts, ready: ReadyHandle) {
        let prover = Prover {
            client: self.client.clone(),
            namespace: self.config.member.namespace.clone(),
        };
        let member = &self.config.member;
        let stream = Stream {
            client: self.client.clone(),
            holder: Holder::new(self.client.clone(), &member.namespace, &self.config.replica),
            prover,
            identity: self.identity.subscribe(),
            subjects: self.subjects.clone(),
            settings: self.settings.clone(),
            routers: self.routers.clone(),
            fences: self.fences.clone(),
            refused: joiner.refused.clone(),
            news: joiner.news.clone(),
            facts,
            terms: Terms::new(joiner.secret.clone()),
            ready,
            metrics: self.metrics.clone(),
        };
        self.spawn("stream", stream.run());
    }

    /// A task that runs until the program ends; its own end is a fault.
    fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        // Boxed here: what is spawned is moved through some frames, and some of these are large.
        let future = Box::pin(future);
        self.tasks.spawn_service(name, async {
            future.await;
            Ok(())
        });
    }
}
