//! A hub in one process for tests: the real gRPC port, services, index and compiler; of the API server only a scripted
//! store of objects. What a real API server does is tested in `tests/`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::api::{ApiResource, DynamicObject};
use parking_lot::Mutex;
use portolan_crds::{MemberCluster, labels};
use portolan_runtime::pki::{self, CertificateAuthority, Issued, LeafSpec, Usage};
use portolan_runtime::tls::{self, ClientAuth, Identity as TlsIdentity, IdentityStore, TlsIncoming, TrustStore};
use portolan_runtime::{Secret, Tasks};
use portolan_wire::client::HubLink;
use portolan_wire::identity::Identity;
use portolan_wire::protocol::{CURSOR_FORMAT_2, HELD_LOCKS, OPERATORS};
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;
use portolan_wire::v1::agent_control_client::AgentControlClient;
use portolan_wire::v1::enrollment_client::EnrollmentClient;
use portolan_wire::v1::router_control_client::RouterControlClient;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::Channel;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::access::AccessReviewer;
use crate::acks::Acks;
use crate::bootstrap::{Tokens, key_hash};
use crate::ca::{self, Authorities, Roots};
use crate::compile::{Memo, State};
use crate::distribute::{Distributor, Pasts, Published};
use crate::enroll::{Enroller, MAX_ENROLMENTS};
use crate::index::Index;
use crate::lead::Mandate;
use crate::ledger::Store;
use crate::metrics::Metrics;
use crate::own_tokens::OwnTokens;
use crate::pins::Pins;
use crate::routers::Routers;
use crate::server::{self, Services};
use crate::settings::Settings;
use crate::shares::Arbiter;
use crate::stream::{AgentService, AgentSessions, RouterService};
use crate::vouched::Vouched;

mod api;
mod ends;
mod signer;

pub(crate) use api::{Faults, Objects, SharedFaults, faulty_api, scripted_api, sharding_rights};
pub(crate) use ends::{Received, TestAgent, TestRouter};
pub(crate) use signer::Signer;

/// Everything in tests happens at once or never.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
const NAMESPACE: &str = "portolan-system";
/// A bundle as far as validation looks: PEM of SEQUENCE { INTEGER 1 }, in base64.
pub(crate) const CA_BUNDLE: &str =
    "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1BTUNBUUU9Ci0tLS0tRU5EIENFUlRJRklDQVRFLS0tLS0K";

/// The running hub.
pub(crate) struct TestHub {
    pub(crate) ca: Arc<Authorities>,
    pub(crate) index: Arc<Index>,
    pub(crate) acks: Arc<Acks>,
    pub(crate) shares: Arc<Arbiter>,
    pub(crate) worlds: watch::Sender<Option<Published>>,
    pub(crate) sessions: Arc<AgentSessions>,
    /// By path, as the scripted API server keeps them.
    pub(crate) objects: Objects,
    /// Of that API server.
    pub(crate) faults: SharedFaults,
    /// Permits of enrolments.
    pub(crate) enrolments: Arc<Semaphore>,
    /// Of agents that joined.
    identities: Mutex<BTreeMap<String, Arc<IdentityStore>>>,
    address: String,
    tasks: Tasks,
}

/// Of a CA that was just made.
pub(crate) fn authorities() -> Authorities {
    Authorities::new(&Roots::alone(
        CertificateAuthority::generate("portolan hub CA").unwrap(),
    ))
    .unwrap()
}

impl Drop for TestHub {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

impl TestHub {
    /// With members east and west, accepted and not joined.
    pub(crate) async fn start() -> Self {
        let objects = Objects::default();
        let faults = SharedFaults::default();
        let client = faulty_api(objects.clone(), faults.clone());
        let ca = Arc::new(authorities());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let hub = Self {
            ca: ca.clone(),
            index: Arc::default(),
            acks: Arc::default(),
            shares: Arc::default(),
            worlds: watch::Sender::new(None),
            sessions: Arc::default(),
            objects,
            faults,
            enrolments: Arc::new(Semaphore::new(MAX_ENROLMENTS)),
            identities: Mutex::default(),
            address: listener.local_addr().unwrap().to_string(),
            tasks: Tasks::new(),
        };
        for cluster in ["east", "west"] {
            hub.member(cluster, true);
        }
        for router in ["gateway", "part"] {
            hub.objects.lock().insert(router_path(router), new_router(router));
        }
        tell_routers(&hub.objects, &hub.index);
        let hosts = ["127.0.0.1".to_owned()];
        let serving = IdentityStore::new(ca::serving_identity(ca.current().root(), &hosts).unwrap());
        let tls = tls::server_config(serving, ClientAuth::Optional(ca.trust().clone()), tls::ALPN_GRPC).unwrap();
        let incoming = TlsIncoming::new(listener, tls, &hub.tasks).unwrap();
        let serve = server::serve(incoming, hub.services(&client), hub.tasks.clone());
        hub.tasks.spawn_critical("grpc", serve);
        let watch = watch_routers(hub.objects.clone(), hub.index.clone());
        hub.tasks.spawn("watch-routers", watch);
        let shares = hub
            .shares
            .clone()
            .run(hub.worlds.subscribe(), hub.index.clone(), Metrics::default());
        hub.tasks.spawn("shares", shares);
        let (distributor, stored) = distributor(client, &hub.index, &hub.acks, &hub.worlds).await;
        hub.tasks.spawn("distribute", async {
            distributor.run(stored).await.unwrap();
        });
        hub.until("there is a world", |hub| hub.worlds.borrow().is_some().then_some(()))
            .await;
        hub
    }

    fn services(&self, client: &Client) -> Services {
        let pins = Pins::new(client.clone(), NAMESPACE, self.index.clone());
        let vouched = Vouched::new(self.index.clone(), ["east".to_owned(), "west".to_owned()]);
        let routers = Routers::new(client.clone(), NAMESPACE, self.index.clone(), vouched.clone());
        Services {
            enrollment: Enroller {
                ca: self.ca.clone(),
                index: self.index.clone(),
                tokens: Tokens::new(client.clone(), NAMESPACE),
                pins: pins.clone(),
                agents: self.sessions.clone(),
                own_tokens: OwnTokens::new(client.clone()),
                vouched,
                router_hosts: vec!["router.test".to_owned()],
                audience: labels::DEFAULT_AUDIENCE.to_owned(),
                routers: routers.clone(),
                metrics: Metrics::default(),
                permits: self.enrolments.clone(),
            },
            routers: RouterService {
                worlds: self.worlds.subscribe(),
                index: self.index.clone(),
                acks: self.acks.clone(),
                offers: Arc::default(),
                shares: self.shares.clone(),
                access: AccessReviewer::new(client.clone()),
                routers,
                ca: self.ca.clone(),
                longest_lease: Settings::default().longest_lease,
                mandate: Mandate::default(),
                metrics: Metrics::default(),
                tasks: self.tasks.clone(),
            },
            agents: AgentService {
                index: self.index.clone(),
                worlds: self.worlds.subscribe(),
                sessions: self.sessions.clone(),
                pins,
                ca: self.ca.clone(),
                mandate: Mandate::default(),
                metrics: Metrics::default(),
                tasks: self.tasks.clone(),
            },
        }
    }

    pub(crate) fn member(&self, cluster: &str, accept: bool) {
        let endpoint = json!({"url": format!("https://{cluster}.example")});
        let spec = json!({"accept": accept, "endpoints": [endpoint], "caBundle": CA_BUNDLE});
        let kind = ApiResource::erase::<MemberCluster>(&());
        let mut object = DynamicObject::new(cluster, &kind).data(json!({"spec": spec}));
        object.metadata.uid = Some(format!("object-{cluster}"));
        self.index.write(|facts| facts.apply_member(&object));
    }

    /// Makes a bootstrap token.
    pub(crate) fn token(&self, kind: &str, name: &str, expires: &str) -> String {
        let id = format!("tok{:03}", self.objects.lock().len());
        let half = "0123456789abcdef0123456789abcdef";
        let hash = portolan_runtime::hex(Sha256::digest(half));
        let encode = |text: &str| base64::Engine::encode(&base64::prelude::BASE64_STANDARD, text);
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "type": portolan_crds::labels::SECRET_TYPE_BOOTSTRAP,
            "metadata": {"name": format!("portolan-bootstrap-{id}"), "namespace": NAMESPACE, "resourceVersion": "1"},
            "data": {
                "kind": encode(kind), "name": encode(name), "token-hash": encode(&hash), "expires": encode(expires),
                "sans": encode("gateway.example,127.0.0.1"), "subscription": encode("everything"),
            },
        });
        let path = format!("/api/v1/namespaces/{NAMESPACE}/secrets/portolan-bootstrap-{id}");
        self.objects.lock().insert(path, object);
        format!("{id}.{half}")
    }

    pub(crate) fn good_token(&self, kind: &str, name: &str) -> String {
        let hour = jiff::SignedDuration::from_hours(1);
        self.token(kind, name, &(Timestamp::now() + hour).to_string())
    }

    /// A channel; with a certificate of the hub CA if an identity is given.
    pub(crate) fn channel(&self, identity: Option<&Identity>) -> Channel {
        let store = identity.map(|identity| {
            let gateway = matches!(identity, Identity::Router(_)).then_some(Subscription::Everything);
            let issued = self.issue(identity, gateway.as_ref());
            if let (Identity::Router(name), Some(gateway)) = (identity, &gateway) {
                self.enrolled(name, &issued.cert_pem, gateway);
            }
            IdentityStore::new(TlsIdentity::from_pem(&issued.cert_pem, &issued.key_pem).unwrap())
        });
        self.channel_with(store)
    }

    /// A certificate of the hub CA.
    fn issue(&self, identity: &Identity, subscription: Option<&Subscription>) -> Issued {
        let leaf = LeafSpec {
            common_name: identity.common_name(),
            organization: identity.organizations().into_iter().next(),
            hosts: Vec::new(),
            uris: subscription.map(Subscription::to_uris).unwrap_or_default(),
            ttl: Duration::from_hours(1),
            usage: Usage::Client,
        };
        self.ca.current().of(identity).issue(&leaf).unwrap()
    }

    /// Keeps the object of a router as if it had enrolled with this certificate, and tells the index.
    fn enrolled(&self, name: &str, cert_pem: &str, subscription: &Subscription) {
        let der = CertificateDer::from_pem_slice(cert_pem.as_bytes()).unwrap();
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        let key = json!(key_hash(certificate.public_key().raw));
        let mut objects = self.objects.lock();
        let router = objects.entry(router_path(name)).or_insert_with(|| new_router(name));
        router["spec"]["subscription"] = json!(subscription.scopes());
        router["spec"]["keyHashes"].as_array_mut().unwrap().push(key);
        drop(objects);
        tell_routers(&self.objects, &self.index);
    }

    /// As `portolanctl router forget` does.
    pub(crate) fn forget_router(&self, name: &str) {
        assert!(self.objects.lock().remove(&router_path(name)).is_some());
    }

    /// The Router object as it is.
    pub(crate) fn router_object(&self, name: &str) -> Option<serde_json::Value> {
        self.objects.lock().get(&router_path(name)).cloned()
    }

    /// A router whose certificate says this subscription, and that asks for `asked`.
    pub(crate) async fn subscriber(&self, subscription: &Subscription, asked: &[&str]) -> Result<TestRouter, Status> {
        let issued = self.issue(&Identity::Router("part".to_owned()), Some(subscription));
        self.enrolled("part", &issued.cert_pem, subscription);
        let identity = TlsIdentity::from_pem(&issued.cert_pem, &issued.key_pem).unwrap();
        let hello = v1::RouterHello {
            protocol: portolan_wire::protocol::PROTOCOL,
            capabilities: [CURSOR_FORMAT_2, HELD_LOCKS, OPERATORS].map(str::to_owned).into(),
            subscription: asked.iter().map(|&scope| scope.to_owned()).collect(),
            ..v1::RouterHello::default()
        };
        self.router_over(self.channel_with(Some(IdentityStore::new(identity))), hello)
            .await
    }

    /// As an enrolled program: with the certificate it was issued and its key.
    pub(crate) fn channel_as(&self, issued: &v1::Issued, key: &Secret) -> Channel {
        let identity = TlsIdentity::from_pem(&issued.certificate_pem, key).unwrap();
        self.channel_with(Some(IdentityStore::new(identity)))
    }

    fn channel_with(&self, store: Option<Arc<IdentityStore>>) -> Channel {
        let trust = TrustStore::from_pem(self.ca.current().bundle()).unwrap();
        let link = HubLink::new(&self.address, trust, store.unwrap_or_else(IdentityStore::empty));
        link.unwrap().channel()
    }

    pub(crate) async fn enroll(&self, request: v1::EnrollRequest) -> Result<v1::enroll_response::Outcome, Status> {
        let mut client = EnrollmentClient::new(self.channel(None));
        let answer = client.enroll(request).await?.into_inner();
        Ok(answer.outcome.expect("an answer has an outcome"))
    }

    /// Pins a cluster and opens its agent's stream.
    pub(crate) async fn join(&self, cluster: &str) -> TestAgent {
        let (issued, key) = self.enroll_agent(cluster).await;
        let identity = TlsIdentity::from_pem(&issued.certificate_pem, &key).unwrap();
        let store = IdentityStore::new(identity);
        self.identities.lock().insert(cluster.to_owned(), store);
        self.agent(cluster, hello_of(cluster)).await.unwrap()
    }

    pub(crate) async fn enroll_agent(&self, cluster: &str) -> (v1::Issued, Secret) {
        let (key, csr) = key_and_csr();
        let request = enroll_request(self.good_token("agent", cluster), &csr, Some(facts_of(cluster)));
        match self.enroll(request).await.unwrap() {
            v1::enroll_response::Outcome::Issued(issued) => (issued, key),
            v1::enroll_response::Outcome::Pending(pending) => panic!("pending: {}", pending.reason),
        }
    }

    /// By the identity that the cluster's agent got at its [`Self::join`], else by one of the hub CA.
    pub(crate) async fn agent(&self, cluster: &str, hello: v1::AgentHello) -> Result<TestAgent, Status> {
        let store = self.identities.lock().get(cluster).cloned();
        let channel = match store {
            Some(store) => self.channel_with(Some(store)),
            None => self.channel(Some(&Identity::Agent(cluster.to_owned()))),
        };
        self.agent_over(channel, hello).await
    }

    pub(crate) async fn agent_over(&self, channel: Channel, hello: v1::AgentHello) -> Result<TestAgent, Status> {
        let (outbox, messages) = mpsc::channel(16);
        let said = v1::agent_message::Kind::Hello(hello);
        outbox.send(v1::AgentMessage { kind: Some(said) }).await.unwrap();
        let updates = AgentControlClient::new(channel)
            .connect(ReceiverStream::new(messages))
            .await?
            .into_inner();
        Ok(TestAgent { outbox, updates })
    }

    pub(crate) async fn router(&self, name: &str, known: Vec<v1::KnownResource>) -> TestRouter {
        let hello = v1::RouterHello {
            protocol: portolan_wire::protocol::PROTOCOL,
            capabilities: [CURSOR_FORMAT_2, OPERATORS].map(str::to_owned).into(),
            known,
            ..v1::RouterHello::default()
        };
        self.router_as(&Identity::Router(name.to_owned()), hello).await.unwrap()
    }

    pub(crate) async fn router_as(&self, identity: &Identity, hello: v1::RouterHello) -> Result<TestRouter, Status> {
        self.router_over(self.channel(Some(identity)), hello).await
    }

    pub(crate) async fn router_over(&self, channel: Channel, hello: v1::RouterHello) -> Result<TestRouter, Status> {
        self.router_saying(channel, vec![v1::router_message::Kind::Hello(hello)])
            .await
    }

    /// A router that begins with these messages.
    pub(crate) async fn router_saying(
        &self,
        channel: Channel,
        said: Vec<v1::router_message::Kind>,
    ) -> Result<TestRouter, Status> {
        let (outbox, messages) = mpsc::channel(16);
        for kind in said {
            outbox.send(v1::RouterMessage { kind: Some(kind) }).await.unwrap();
        }
        let updates = RouterControlClient::new(channel)
            .connect(ReceiverStream::new(messages))
            .await?
            .into_inner();
        Ok(TestRouter { outbox, updates })
    }

    /// Looks until it is so.
    pub(crate) async fn until<T>(&self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        let found = async {
            loop {
                if let Some(found) = look(self) {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, found)
            .await
            .unwrap_or_else(|_| panic!("never: {what}"))
    }
}

/// A router that has not enrolled here.
pub(crate) fn new_router(name: &str) -> serde_json::Value {
    let uid = router_ref(name).uid;
    json!({
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": uid, "resourceVersion": "1"},
        "spec": {"keyHashes": [], "subscription": ["everything"]},
    })
}

/// The router of this name, whose object is made here.
pub(crate) fn router_ref(name: &str) -> v1::RouterRef {
    v1::RouterRef {
        name: name.to_owned(),
        uid: format!("router-{name}"),
    }
}

fn router_path(name: &str) -> String {
    format!("/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/{NAMESPACE}/routers/{name}")
}

/// As the watch would.
fn tell_routers(objects: &Objects, index: &Index) {
    let folder = router_path("");
    let kept: Vec<DynamicObject> = {
        let objects = objects.lock();
        let routers = objects.iter().filter(|(path, _)| path.starts_with(&folder));
        routers
            .map(|(_, object)| serde_json::from_value(object.clone()).unwrap())
            .collect()
    };
    index.write(|facts| facts.reset_routers(&kept));
}

async fn watch_routers(objects: Objects, index: Arc<Index>) {
    loop {
        tell_routers(&objects, &index);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Opens the ledger: the compiler, and what it is to begin with.
pub(crate) async fn distributor(
    client: Client,
    index: &Arc<Index>,
    acks: &Arc<Acks>,
    worlds: &watch::Sender<Option<Published>>,
) -> (Distributor, State) {
    let opened = Store::open(client, NAMESPACE, index, (Metrics::default(), 1)).await;
    let (ledger, stored) = opened.unwrap();
    let distributor = Distributor {
        separates: watch::channel(false).1,
        index: index.clone(),
        acks: acks.clone(),
        settings: Settings::default(),
        metrics: Metrics::default(),
        ledger,
        worlds: worlds.clone(),
        reborn: false,
        confirmed: Instant::now(),
        memo: Memo::default(),
        pasts: Pasts::default(),
        renewals_heard: 0,
    };
    (distributor, stored)
}

/// A key and a CSR in DER.
pub(crate) fn key_and_csr() -> (Secret, Vec<u8>) {
    let key = pki::new_private_key().unwrap();
    let csr = pki::signing_request(&key).unwrap();
    (key, csr)
}

pub(crate) fn enroll_request(token: String, csr: &[u8], member: Option<v1::MemberFacts>) -> v1::EnrollRequest {
    v1::EnrollRequest {
        proof: Some(v1::enroll_request::Proof::BootstrapToken(token)),
        csr: csr.to_vec(),
        member,
        pod: None,
    }
}

pub(crate) fn facts_of(cluster: &str) -> v1::MemberFacts {
    let modulus = base64::Engine::encode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, cluster);
    v1::MemberFacts {
        cluster_uid: format!("uid-{cluster}"),
        jwks: format!(r#"{{"keys":[{{"kty":"RSA","kid":"k","n":"{modulus}","e":"AQAB"}}]}}"#),
        kubernetes_version: "v1.36.3".to_owned(),
    }
}

pub(crate) fn hello_of(cluster: &str) -> v1::AgentHello {
    let facts = facts_of(cluster);
    v1::AgentHello {
        protocol: portolan_wire::protocol::PROTOCOL,
        version: "test".to_owned(),
        cluster_uid: facts.cluster_uid,
        kubernetes_version: facts.kubernetes_version,
        jwks: facts.jwks,
        ..v1::AgentHello::default()
    }
}
