//! A hub cluster with the hub's program in it, and the two ends of its streams that tests play.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;

use anyhow::Context as _;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Client;
use kube::api::{Api, DeleteParams};
use parking_lot::Mutex;
use portolan_crds::labels::{LabelKeys, WEBHOOK_AUTHORS};
use portolan_crds::{Bucketing, MemberCluster, ShardingConfig};
use portolan_runtime::pki::{self, CertificateAuthority};
use portolan_runtime::tls::{self, IdentityStore, TrustStore};
use portolan_testbed::{Cluster, Testbed, eventually};
use portolan_tests::ctl;
use portolan_tests::daemon::{Daemon, Launch};
use portolan_tests::hub_cluster;
pub(crate) use portolan_tests::hub_cluster::{CANARY, facts_of};
use portolan_tests::programs::admin_get;
use portolan_tests::programs::argument;
use portolan_wire::client::HubLink;
use portolan_wire::identity::Identity;
use portolan_wire::protocol::{CURSOR_FORMAT_2, OPERATORS, POLICIES, PROTOCOL};
use portolan_wire::v1;
use portolan_wire::v1::enroll_response::Outcome;
use portolan_wire::v1::router_control_client::RouterControlClient;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

/// A bundle as far as the hub looks: PEM of SEQUENCE { INTEGER 1 }, in base64.
const CA_BUNDLE: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1BTUNBUUU9Ci0tLS0tRU5EIENFUlRJRklDQVRFLS0tLS0K";

pub(crate) struct Scene {
    testbed: Testbed,
    pub(crate) hub: Daemon,
    launch: Launch,
    /// Of agents that joined.
    identities: Mutex<BTreeMap<String, Arc<IdentityStore>>>,
    _dir: tempfile::TempDir,
}

impl Scene {
    /// The hub's program beside a cluster without Portolan's kinds.
    pub(crate) async fn bare() -> anyhow::Result<Self> {
        tls::install_crypto_provider();
        let testbed = Testbed::start(&["hub"]).await?;
        let dir = tempfile::tempdir()?;
        let kubeconfig = argument(testbed.cluster("hub").kubeconfig_path());
        let arguments = [
            "--kubeconfig",
            &kubeconfig,
            "--bind",
            "127.0.0.1:0",
            "--routers-of",
            "portolan-hub",
            "--log-level",
            "debug,h2=info,hyper=info",
        ];
        let launch = Launch {
            name: "hub".to_owned(),
            program: "portolan-hub".to_owned(),
            arguments: arguments.map(str::to_owned).to_vec(),
            env: Vec::new(),
            dir: dir.path().to_owned(),
        };
        let hub = Daemon::start(launch.clone()).await?;
        Ok(Self {
            testbed,
            hub,
            launch,
            identities: Mutex::default(),
            _dir: dir,
        })
    }

    /// The same with the kinds installed, ready.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let scene = Self::bare().await?;
        scene.install().await?;
        scene.hub.ready().await;
        // Again: only now there is a CA that the API server can be told.
        scene.install().await?;
        Ok(scene)
    }

    pub(crate) async fn install(&self) -> anyhow::Result<()> {
        let kubeconfig = argument(self.testbed.cluster("hub").kubeconfig_path());
        let webhook = self.hub.webhook_url();
        let install = ["install", "--hub-kubeconfig", &kubeconfig, "--webhook-url", &webhook];
        ctl::ok(&install).await.map(drop)
    }

    /// From now on ShardingConfigs are written without the hub's leave.
    pub(crate) async fn unasked(&self) {
        let webhooks = Api::<ValidatingWebhookConfiguration>::all(self.client().await);
        let params = DeleteParams::default();
        webhooks.delete(WEBHOOK_AUTHORS, &params).await.unwrap();
        eventually("the webhook is gone", || async {
            webhooks.get_opt(WEBHOOK_AUTHORS).await.ok()?.is_none().then_some(())
        })
        .await;
    }

    /// A second hub beside the first.
    pub(crate) async fn another_hub(&self) -> anyhow::Result<Daemon> {
        let launch = Launch {
            name: "another-hub".to_owned(),
            ..self.launch.clone()
        };
        Daemon::start(launch).await
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        self.testbed.cluster("hub")
    }

    /// Path of the hub cluster's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> String {
        argument(self.cluster().kubeconfig_path())
    }

    pub(crate) async fn client(&self) -> Client {
        self.testbed.cluster("hub").client().await.unwrap()
    }

    /// Creates or changes a MemberCluster.
    pub(crate) async fn member(&self, name: &str, spec: Value) {
        hub_cluster::put_member(&self.client().await, name, spec).await.unwrap();
    }

    /// Creates or changes a ShardingConfig in namespace ops of the hub.
    pub(crate) async fn shard(&self, name: &str, spec: Value) {
        let client = self.client().await;
        // The API server hears of webhooks that come and go a moment later.
        let put = || hub_cluster::put_shard(&client, name, spec.clone());
        eventually("the ShardingConfig is written", put).await;
    }

    /// Waits until a condition of a MemberCluster has this status and reason; returns its message.
    pub(crate) async fn member_says(&self, name: &str, condition: &str, wanted: &str) -> String {
        let api = Api::<MemberCluster>::all(self.client().await);
        let status = || async { Some(json!(api.get(name).await.ok()?.status?)) };
        says(&format!("{name}: {condition} {wanted}"), condition, wanted, status).await
    }

    /// The same of a ShardingConfig.
    pub(crate) async fn shard_says(&self, name: &str, condition: &str, wanted: &str) -> String {
        self.shard_of_says(("ops", name), condition, wanted).await
    }

    /// The same of any namespace's.
    pub(crate) async fn shard_of_says(&self, (author, name): (&str, &str), condition: &str, wanted: &str) -> String {
        let api = Api::<ShardingConfig>::namespaced(self.client().await, author);
        let status = || async {
            let object = api.get(name).await.ok()?;
            let (generation, status) = (object.metadata.generation, object.status?);
            (status.observed_generation == generation).then(|| json!(status))
        };
        says(&format!("{name}: {condition} {wanted}"), condition, wanted, status).await
    }

    /// Waits until the status of a ShardingConfig's present generation has no such condition.
    pub(crate) async fn shard_lacks(&self, name: &str, condition: &str) {
        let api = Api::<ShardingConfig>::namespaced(self.client().await, "ops");
        eventually(&format!("{name} has no condition {condition}"), || async {
            let object = api.get(name).await.map_err(|error| error.to_string())?;
            let status = object.status.ok_or("no status")?;
            let is_present = status.observed_generation == object.metadata.generation;
            let has = status.conditions.iter().any(|found| found.type_ == condition);
            (is_present && !has)
                .then_some(())
                .ok_or(format!("{:?}", status.conditions))
        })
        .await;
    }

    /// The status of a ShardingConfig as it is now.
    pub(crate) async fn shard_status(&self, name: &str) -> Value {
        let api = Api::<ShardingConfig>::namespaced(self.client().await, "ops");
        json!(api.get(name).await.unwrap().status)
    }

    /// What the hub's program counts, as Prometheus reads it.
    pub(crate) async fn metrics(&self) -> String {
        admin_get(self.hub.admin(), "/metrics").await.unwrap()
    }

    /// Makes a bootstrap token that is good until `expires`.
    pub(crate) async fn token(&self, kind: &str, name: &str, expires: &str) -> String {
        let client = self.client().await;
        hub_cluster::bootstrap_token(&client, kind, name, expires)
            .await
            .unwrap()
    }

    /// Asks for an agent's certificate with a key of its own.
    pub(crate) async fn enroll(&self, token: &str, csr: &[u8], facts: v1::MemberFacts) -> Result<Outcome, Status> {
        hub_cluster::enroll(self.channel(None).await, token, csr, facts).await
    }

    /// Lets a cluster join and opens its agent's stream.
    pub(crate) async fn join(&self, cluster: &str) -> Agent {
        self.member(cluster, good_member(cluster)).await;
        let token = self.token("agent", cluster, "2099-01-01T00:00:00Z").await;
        let joined = hub_cluster::join(self.channel(None).await, &token, cluster).await;
        self.identities.lock().insert(cluster.to_owned(), joined.unwrap());
        self.agent(cluster).await
    }

    pub(crate) async fn agent(&self, cluster: &str) -> Agent {
        let store = self.identities.lock().get(cluster).cloned();
        let channel = self.channel_with(&self.ca().await, store);
        Agent(hub_cluster::Agent::connect(channel, cluster, CANARY).await.unwrap())
    }

    /// A router that acknowledges everything, and what it holds. It enrols anew: its Router object takes the place of the one before.
    pub(crate) async fn router(&self, name: &str, held: Held) -> Router {
        let enrolled = hub_cluster::enroll_router(self.channel(None).await, &self.client().await, name).await;
        self.router_of(enrolled.unwrap(), held).await
    }

    /// The router that enrolled with this identity, connected again.
    pub(crate) async fn router_of(&self, identity: Arc<IdentityStore>, held: Held) -> Router {
        let (outbox, messages) = mpsc::channel(16);
        let known = held.iter().map(|(name, version)| v1::KnownResource {
            r#ref: Some(name.clone()),
            version: version.clone(),
        });
        let hello = v1::RouterHello {
            protocol: PROTOCOL,
            capabilities: [CURSOR_FORMAT_2, OPERATORS, POLICIES].map(str::to_owned).to_vec(),
            known: known.collect(),
            ..Default::default()
        };
        let hello = v1::router_message::Kind::Hello(hello);
        outbox.send(v1::RouterMessage { kind: Some(hello) }).await.unwrap();
        let channel = self.channel_with(&self.ca().await, Some(identity.clone()));
        let mut client = RouterControlClient::new(channel);
        let updates = client
            .connect(ReceiverStream::new(messages))
            .await
            .unwrap()
            .into_inner();
        Router {
            outbox,
            updates,
            identity,
            held,
            views: BTreeMap::new(),
            shares: None,
            transactions: 0,
        }
    }

    pub(crate) async fn channel(&self, identity: Option<&Identity>) -> Channel {
        let ca = self.ca().await;
        let store = identity.map(|identity| hub_cluster::identity(&ca, identity).unwrap());
        self.channel_with(&ca, store)
    }

    pub(crate) async fn ca(&self) -> CertificateAuthority {
        hub_cluster::ca(&self.client().await).await.unwrap()
    }

    fn channel_with(&self, ca: &CertificateAuthority, store: Option<Arc<IdentityStore>>) -> Channel {
        let trust: Arc<TrustStore> = TrustStore::from_pem(ca.pem()).unwrap();
        let link = HubLink::new(self.hub.bind(), trust, store.unwrap_or_else(IdentityStore::empty));
        link.unwrap().channel()
    }

    /// Nothing that the hub has said holds a token or a key.
    pub(crate) async fn leaks_nothing(&self) {
        let configz = portolan_tests::programs::admin_get(self.hub.admin(), "/configz")
            .await
            .unwrap();
        let metrics = portolan_tests::programs::admin_get(self.hub.admin(), "/metrics")
            .await
            .unwrap();
        for (place, text) in [
            ("log", self.hub.log().unwrap()),
            ("configz", configz),
            ("metrics", metrics),
        ] {
            assert!(!text.contains(CANARY), "a token in {place}");
            assert!(!text.contains("PRIVATE KEY"), "a key in {place}");
        }
    }
}

pub(crate) async fn says<F: Future<Output = Option<Value>>>(
    what: &str,
    condition: &str,
    wanted: &str,
    status: impl Fn() -> F,
) -> String {
    eventually(what, || async {
        let status = status().await.context("no status yet")?;
        let found = status["conditions"]
            .as_array()
            .and_then(|all| all.iter().find(|c| c["type"] == condition));
        let found = found.with_context(|| format!("no condition {condition}"))?;
        let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        let present = format!("{}/{}", text("status"), text("reason"));
        anyhow::ensure!(present == wanted, "is {present}: {}", text("message"));
        anyhow::Ok(text("message"))
    })
    .await
}

/// Names and versions, as routers tell them.
pub(crate) type Held = Vec<(v1::ResourceRef, String)>;

pub(crate) struct Agent(hub_cluster::Agent);

impl Agent {
    pub(crate) async fn say(&self, kind: v1::agent_message::Kind) {
        self.0.say(kind).await.unwrap();
    }

    /// All that an agent reports of a small cluster, but its routers' tokens: those follow by themselves.
    pub(crate) async fn report(&self, namespaces: &[&str], callers: &[&str]) {
        use v1::agent_message::Kind;
        let caller = |name: &&str| v1::CallerFact {
            namespace: "ops".to_owned(),
            pod: (*name).to_owned(),
            uid: format!("uid-{name}"),
            service_account: "operator".to_owned(),
            labels: [("app".to_owned(), "operator".to_owned())].into(),
            phase: "Running".to_owned(),
            created_unix_seconds: None,
            ..v1::CallerFact::default()
        };
        let coverage = v1::CoverageFact {
            kind: Some(v1::KindRef {
                group: String::new(),
                resource: "pods".to_owned(),
            }),
            labelled: 2,
            total: 2,
            complete: true,
            rule: None,
            at_admission: Some(true),
            by_bucket: Vec::new(),
        };
        let allowed = v1::Allowed {
            service_accounts: vec!["ops/operator".to_owned()],
            users: Vec::new(),
            ..v1::Allowed::default()
        };
        let upserted = namespaces.iter().map(|name| labelled(name)).collect();
        self.say(Kind::Namespaces(v1::NamespaceDelta {
            reset: true,
            upserted,
            removed: vec![],
            ..v1::NamespaceDelta::default()
        }))
        .await;
        let upserted = callers.iter().map(caller).collect();
        self.say(Kind::Callers(v1::CallerDelta {
            reset: true,
            upserted,
            removed: vec![],
            ..v1::CallerDelta::default()
        }))
        .await;
        self.say(Kind::Coverage(v1::CoverageDelta {
            reset: true,
            upserted: vec![coverage],
            removed: vec![],
            ..v1::CoverageDelta::default()
        }))
        .await;
        self.say(Kind::Allowed(allowed)).await;
    }
}

pub(crate) struct Router {
    outbox: mpsc::Sender<v1::RouterMessage>,
    updates: Streaming<v1::RouterUpdate>,
    pub(crate) identity: Arc<IdentityStore>,
    pub(crate) held: Held,
    /// Policies by the name of the view that names them, as far as they were told on this stream.
    views: BTreeMap<String, Vec<String>>,
    /// What it was told last of limits that routers have together.
    pub(crate) shares: Option<v1::Shares>,
    pub(crate) transactions: usize,
}

impl Router {
    pub(crate) async fn say(&self, kind: v1::router_message::Kind) {
        self.outbox.send(v1::RouterMessage { kind: Some(kind) }).await.unwrap();
    }

    /// Follows the hub until `enough`.
    pub(crate) async fn follow(&mut self, what: &str, enough: impl Fn(&Self) -> bool) {
        let follow = async {
            while !enough(self) {
                self.next().await;
            }
        };
        let outcome = tokio::time::timeout(portolan_testbed::patience(), follow).await;
        assert!(outcome.is_ok(), "never: {what}");
    }

    /// Goes on following the hub while this is done: who does not acknowledge for a minute is no router any more.
    pub(crate) async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = work.as_mut() => return done,
                () = self.next() => {}
            }
        }
    }

    /// One update; a transaction is acknowledged at its end.
    async fn next(&mut self) {
        use v1::router_update::Kind;
        match self.updates.message().await.unwrap().unwrap().kind {
            Some(Kind::Resource(resource)) => {
                let name = resource.reference().unwrap();
                self.held.retain(|(held, _)| *held != name);
                if let Some(v1::resource::Body::CallerView(view)) = resource.body {
                    self.views.insert(name.name.clone(), view.policies);
                }
                self.held.push((name, resource.version));
            }
            Some(Kind::Removed(name)) => self.held.retain(|(held, _)| *held != name),
            Some(Kind::Commit(commit)) => {
                self.transactions += 1;
                self.say(v1::router_message::Kind::Ack(v1::Ack { nonce: commit.nonce }))
                    .await;
            }
            Some(Kind::Shares(shares)) => self.shares = Some(shares),
            _ => {}
        }
    }

    /// The version of the resource of this name that it holds.
    pub(crate) fn version(&self, name: &str) -> Option<String> {
        let held = self.held.iter().find(|(held, _)| held.name == name);
        held.map(|(_, version)| version.clone())
    }

    /// The policies that hold a caller, by the name of its view.
    pub(crate) fn held_by(&self, view: &str) -> Vec<String> {
        self.views.get(view).cloned().unwrap_or_default()
    }

    pub(crate) fn holds(&self, name: &str) -> bool {
        self.held.iter().any(|(held, _)| held.name == name)
    }
}

pub(crate) fn csr() -> Vec<u8> {
    pki::signing_request(&pki::new_private_key().unwrap()).unwrap()
}

pub(crate) fn good_member(cluster: &str) -> Value {
    let endpoint = json!({"url": format!("https://{cluster}.example:6443")});
    json!({"accept": true, "endpoints": [endpoint], "caBundle": CA_BUNDLE})
}

/// A shard whose callers run in `home`.
pub(crate) fn shard_spec(home: &str, namespaces: &[&str]) -> Value {
    json!({
        "selector": {"matchLabels": {"app": "operator"}},
        "callerClusters": [home],
        "clusters": [{"name": home, "namespaces": namespaces}],
    })
}

/// As an agent labels it.
fn labelled(name: &str) -> v1::NamespaceFact {
    let (keys, bucketing) = (LabelKeys::default(), Bucketing::default());
    let labels = [
        (keys.namespace().to_owned(), name.to_owned()),
        (keys.sharding_hash().to_owned(), bucketing.bucket_of(name).to_string()),
        // Of every Namespace, by its API server.
        ("kubernetes.io/metadata.name".to_owned(), name.to_owned()),
    ];
    v1::NamespaceFact {
        name: name.to_owned(),
        labels: labels.into(),
        ..Default::default()
    }
}
