//! The fast place: our own backend as the one member, the forwarder, and the real router with a scripted hub.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use portolan_crds::labels::GATEWAY_ACCOUNT;
use portolan_runtime::pki::{CertificateAuthority, Issued};
use portolan_runtime::tls::{self, ALPN_GRPC, Identity, IdentityStore, TrustStore};
use portolan_runtime::{Secret, files};
use portolan_tests::programs::{argument, program};
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;
use rustls::ClientConfig;
use serde_json::json;

use crate::child::Child;
use crate::hub::{Hub, TTL};
use crate::load::{Client, Route};
use crate::place::{Subject, bearer};

const CLUSTER: &str = "bench";
const PERSON: &str = "portolan:bench";
const CALLER_NAMESPACE: &str = "operators";
const CALLER: &str = "bench-operator";
const POD: &str = "bench-operator-0";
const POD_UID: &str = "3c0a4b7e-6a56-4b6b-9f3e-1f2d3c4b5a69";
const KEY_ID: &str = "bench-key";
const LABEL_PREFIX: &str = "ctrlmesh.kusionstack.io/";

/// Everything of the fast place, running.
pub(crate) struct Scripted {
    dir: tempfile::TempDir,
    hub_ca: Arc<CertificateAuthority>,
    token: String,
    backend_trust: Arc<TrustStore>,
    /// The backend's certificate, key and CA, as files.
    server_identity: String,
    server_ca: String,
    hub: Hub,
    pub(crate) backend: Child,
    /// Of the members after the first.
    more: Vec<Child>,
    pub(crate) forwarder: Child,
    pub(crate) router: Child,
    router_flags: Vec<String>,
}

/// What is to be started.
struct What<'a> {
    router_flags: &'a [String],
    wrapper: &'a [String],
    members: usize,
    pods: usize,
    policies: Vec<v1::Policy>,
}

impl Default for What<'_> {
    fn default() -> Self {
        Self {
            router_flags: &[],
            wrapper: &[],
            members: 1,
            pods: 0,
            policies: Vec::new(),
        }
    }
}

impl Scripted {
    /// `router_flags`: appended to the router's command line.
    pub(crate) async fn start(router_flags: &[String]) -> anyhow::Result<Self> {
        Self::federated(router_flags, 1, 0).await
    }

    /// The caller is held by these policies, and the router runs by `wrapper`: a program and what it is told before.
    pub(crate) async fn held_by(wrapper: &[String], policies: Vec<v1::Policy>) -> anyhow::Result<Self> {
        let what = What {
            wrapper,
            policies,
            ..What::default()
        };
        Self::of(what).await
    }

    /// The same with several members, each with so many pods.
    pub(crate) async fn federated(router_flags: &[String], members: usize, pods: usize) -> anyhow::Result<Self> {
        let what = What {
            router_flags,
            members,
            pods,
            ..What::default()
        };
        Self::of(what).await
    }

    async fn of(what: What<'_>) -> anyhow::Result<Self> {
        let What {
            router_flags,
            wrapper,
            members,
            pods,
            policies,
        } = what;
        let dir = tempfile::tempdir().context("no temporary folder")?;
        let hub_ca = Arc::new(CertificateAuthority::generate("bench hub CA")?);
        let member_ca = CertificateAuthority::generate("bench member CA")?;
        let server_identity = argument(&dir.path().join("server.pem"));
        let server_ca = argument(&dir.path().join("server-ca.pem"));
        write_identity(&server_identity, &member_ca.issue_server("bench", &["127.0.0.1"], TTL)?)?;
        files::write_public(&server_ca, member_ca.pem())?;
        files::write_public(dir.path().join("hub-ca.pem"), hub_ca.pem())?;
        files::write_private(dir.path().join("bootstrap"), "abcdef.0123456789abcdef")?;

        let mut backends = Vec::with_capacity(members);
        let mut addresses = Vec::with_capacity(members);
        for number in 0..members {
            let folder = dir.path().join(cluster(number));
            std::fs::create_dir(&folder)?;
            let (member, pods) = (cluster(number), pods.to_string());
            let arguments = ["--identity", &server_identity, "--member", &member, "--pods", &pods];
            let mut backend = start_self("backend", &arguments, &folder)?;
            addresses.push(backend.address("bind").await?);
            backends.push(backend);
        }
        let backend = backends.remove(0);
        let address = addresses[0].clone();
        let forwarder = start_forwarder(dir.path(), &server_identity, &server_ca, &address)?;
        let (token, jwk) = caller_token()?;
        let resources = resources(&addresses, member_ca.pem(), &jwk, policies);
        let hub = Hub::start(hub_ca.clone(), resources).await?;
        let router = start_router_by(wrapper, dir.path(), &hub.address.to_string(), router_flags)?;
        Ok(Self {
            backend_trust: TrustStore::from_pem(member_ca.pem())?,
            dir,
            hub_ca,
            token,
            server_identity,
            server_ca,
            hub,
            backend,
            more: backends,
            forwarder,
            router,
            router_flags: router_flags.to_vec(),
        })
    }

    /// A new router process. `known`: it keeps its identity and the last good state.
    pub(crate) async fn restart_router(&mut self, known: bool) -> anyhow::Result<()> {
        self.router.end();
        if !known {
            std::fs::remove_dir_all(self.dir.path().join("state"))?;
        }
        self.router = start_router(self.dir.path(), &self.hub.address.to_string(), &self.router_flags)?;
        self.router.ready().await
    }

    pub(crate) async fn restart_forwarder(&mut self) -> anyhow::Result<()> {
        let backend = self.backend.address("bind").await?;
        self.forwarder.end();
        self.forwarder = start_forwarder(self.dir.path(), &self.server_identity, &self.server_ca, &backend)?;
        self.forwarder.address("bind").await.map(drop)
    }

    /// Direct, forwarder, router by explicit and by merged view.
    pub(crate) async fn subjects(&mut self) -> anyhow::Result<Vec<Subject>> {
        let to_server = tls::client_config(self.backend_trust.clone(), None, ALPN_GRPC)?;
        let bearer = bearer(&self.token)?;
        let direct = route(&self.backend.address("bind").await?, &to_server, "", &bearer)?;
        let forwarder = route(&self.forwarder.address("bind").await?, &to_server, "", &bearer)?;
        let router = self.router.address("bind").await?;
        let explicit = route(
            &router,
            &self.person()?,
            &format!("/clusters/{CLUSTER}"),
            &HeaderMap::new(),
        )?;
        let trust = TrustStore::from_pem(self.hub_ca.pem())?;
        let merged = route(&router, &tls::client_config(trust, None, ALPN_GRPC)?, "", &bearer)?;
        Ok(vec![
            Subject::new("direct", direct, None),
            Subject::new("forwarder", forwarder, Some(self.forwarder.pid())),
            Subject::new("router, explicit", explicit, Some(self.router.pid())),
            Subject::new("router, merged", merged, Some(self.router.pid())),
        ])
    }

    /// Each member direct, and by the explicit view.
    pub(crate) async fn member_routes(&mut self) -> anyhow::Result<(Vec<Route>, Vec<Route>)> {
        let to_server = tls::client_config(self.backend_trust.clone(), None, ALPN_GRPC)?;
        let bearer = bearer(&self.token)?;
        let (router, person) = (self.router.address("bind").await?, self.person()?);
        let (mut direct, mut explicit) = (Vec::new(), Vec::new());
        for (number, backend) in std::iter::once(&mut self.backend).chain(&mut self.more).enumerate() {
            direct.push(route(&backend.address("bind").await?, &to_server, "", &bearer)?);
            let prefix = format!("/clusters/{}", cluster(number));
            explicit.push(route(&router, &person, &prefix, &HeaderMap::new())?);
        }
        Ok((direct, explicit))
    }

    /// Processes of the members.
    pub(crate) fn member_pids(&self) -> Vec<i32> {
        std::iter::once(&self.backend)
            .chain(&self.more)
            .map(Child::pid)
            .collect()
    }

    /// Makes every watch tell of one event.
    pub(crate) async fn emit(&mut self) -> anyhow::Result<()> {
        let direct = self.subjects().await?.swap_remove(0).route;
        Client::connected(direct, 1).await?.get("/bench/emit").await.map(drop)
    }

    fn person(&self) -> anyhow::Result<Arc<ClientConfig>> {
        let issued = self.hub_ca.issue_client(PERSON, None, TTL)?;
        let identity = IdentityStore::new(Identity::from_pem(&issued.cert_pem, &issued.key_pem)?);
        let trust = TrustStore::from_pem(self.hub_ca.pem())?;
        Ok(tls::client_config(trust, Some(identity), ALPN_GRPC)?)
    }
}

fn route(address: &str, tls: &Arc<ClientConfig>, prefix: &str, headers: &HeaderMap) -> anyhow::Result<Route> {
    Ok(Route {
        address: address.parse()?,
        tls: tls.clone(),
        prefix: prefix.to_owned(),
        headers: headers.clone(),
    })
}

/// Certificate and key into one file.
pub(crate) fn write_identity(file: &str, issued: &Issued) -> anyhow::Result<()> {
    let both = Secret::new(format!("{}\n{}", issued.cert_pem, issued.key_pem.expose()));
    Ok(files::write_private(file, both.expose())?)
}

/// This program as one of its hidden servers.
fn start_self(name: &'static str, arguments: &[&str], dir: &Path) -> anyhow::Result<Child> {
    let this = std::env::current_exe().context("cannot tell where this program is")?;
    let arguments: Vec<String> = [&[name], arguments].concat().iter().map(ToString::to_string).collect();
    Child::start(name, &this, &arguments, dir)
}

/// Identity and CA are files.
pub(crate) fn start_forwarder(dir: &Path, identity: &str, ca: &str, backend: &str) -> anyhow::Result<Child> {
    let arguments = ["--identity", identity, "--backend", backend, "--backend-ca", ca];
    start_self("forwarder", &arguments, dir)
}

/// `hub` is `host:port`; `dir` has its CA and a bootstrap token.
pub(crate) fn start_router(dir: &Path, hub: &str, flags: &[String]) -> anyhow::Result<Child> {
    start_router_by(&[], dir, hub, flags)
}

fn start_router_by(wrapper: &[String], dir: &Path, hub: &str, flags: &[String]) -> anyhow::Result<Child> {
    let file = |name: &str| argument(&dir.join(name));
    let mut arguments: Vec<String> = ["--bind", "127.0.0.1:0", "--admin-bind", "127.0.0.1:0"]
        .map(str::to_owned)
        .into();
    arguments.extend(["--hub".to_owned(), hub.to_owned()]);
    arguments.extend(["--hub-ca".to_owned(), file("hub-ca.pem")]);
    arguments.extend(["--bootstrap-token-file".to_owned(), file("bootstrap")]);
    arguments.extend(["--state-dir".to_owned(), file("state")]);
    arguments.extend_from_slice(flags);
    let program = program("portolan-router")?;
    let Some((wrapper, before)) = wrapper.split_first() else {
        return Child::start("router", &program, &arguments, dir);
    };
    let arguments = [before, &[argument(&program)], &arguments].concat();
    Ok(Child::start("router", Path::new(wrapper), &arguments, dir)?.slow())
}

/// The caller's token, and the key that its member publishes.
fn caller_token() -> anyhow::Result<(String, String)> {
    let key = rcgen::KeyPair::generate()?;
    // An uncompressed point of P-256: 4, x, y.
    let point = key.public_key_raw();
    let coordinate = |range| URL_SAFE_NO_PAD.encode::<&[u8]>(&point[range]);
    let jwk = json!({
        "kty": "EC", "use": "sig", "alg": "ES256", "kid": KEY_ID, "crv": "P-256",
        "x": coordinate(1..33), "y": coordinate(33..65),
    });
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let claims = json!({
        "iss": "https://kubernetes.default.svc", "sub": format!("system:serviceaccount:{CALLER_NAMESPACE}:{CALLER}"),
        "aud": ["portolan"], "exp": (now + TTL).as_secs(), "nbf": now.as_secs(),
        "kubernetes.io": {
            "namespace": CALLER_NAMESPACE, "pod": {"name": POD, "uid": POD_UID},
            "serviceaccount": {"name": CALLER, "uid": "8f1f6d0f-8f7b-4c39-8a43-0e8b8f3f4a11"},
        },
    });
    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some(KEY_ID.to_owned());
    let token = jsonwebtoken::encode(&header, &claims, &EncodingKey::from_ec_der(&key.serialize_der()))?;
    Ok((token, jwk.to_string()))
}

fn resources(backends: &[String], ca_pem: &str, jwk: &str, policies: Vec<v1::Policy>) -> Vec<v1::Resource> {
    let caller = v1::CallerView {
        home_cluster: CLUSTER.to_owned(),
        pod_uid: POD_UID.to_owned(),
        namespace: CALLER_NAMESPACE.to_owned(),
        pod: POD.to_owned(),
        service_account: CALLER.to_owned(),
        shards: vec![shard_name()],
        created_unix_seconds: None,
        policies: policies.iter().map(|policy| policy.name.clone()).collect(),
    };
    let mut bodies = vec![Body::CallerView(caller), Body::Shard(shard(backends.len()))];
    for (number, backend) in backends.iter().enumerate() {
        bodies.extend(member(number, backend, ca_pem, jwk));
    }
    bodies.extend(policies.into_iter().map(Body::Policy));
    let resource = |(number, body)| v1::Resource {
        version: format!("bench-{number}"),
        body: Some(body),
    };
    bodies.into_iter().enumerate().map(resource).collect()
}

/// Name of a member: the first is the caller's home and the primary.
fn cluster(number: usize) -> String {
    if number == 0 {
        CLUSTER.to_owned()
    } else {
        format!("{CLUSTER}-{number}")
    }
}

fn shard_name() -> String {
    format!("{CALLER_NAMESPACE}/bench")
}

/// All of one member. Its pods are labelled, as an agent would have done, and one namespace is the shard's: `bench` in the
/// first member, and one of its own in each other one.
fn member(number: usize, backend: &str, ca_pem: &str, jwk: &str) -> Vec<Body> {
    let cluster = cluster(number);
    let identity = v1::MemberIdentity {
        cluster: cluster.clone(),
        // A key identifies one member only.
        signing_keys: if number == 0 { vec![jwk.to_owned()] } else { Vec::new() },
        allowed_service_accounts: vec![format!("{CALLER_NAMESPACE}/{CALLER}")],
        allowed_users: vec![PERSON.to_owned()],
    };
    let pods = v1::KindCoverage {
        group: String::new(),
        resource: "pods".to_owned(),
        complete: true,
        labelled: 1,
        total: 1,
        rule: Some(v1::LabelRule {
            prefix: LABEL_PREFIX.to_owned(),
            bucketing: None,
        }),
        at_admission: Some(true),
    };
    let coverage = v1::Coverage {
        cluster: cluster.clone(),
        kinds: vec![pods],
        unconfirmed: Vec::new(),
    };
    let namespace = v1::NamespaceGrant {
        namespace: cluster.clone(),
        owner_count: 1,
        fenced: false,
        state: v1::GrantState::Granted.into(),
        view_revision: 1,
    };
    let owned = v1::Ownership {
        cluster: cluster.clone(),
        shard: shard_name(),
        namespaces: vec![namespace],
        ..v1::Ownership::default()
    };
    let credential = v1::Credential {
        cluster,
        identity: GATEWAY_ACCOUNT.to_owned(),
        token: "bench".to_owned(),
        expires_unix_seconds: i64::MAX,
    };
    vec![
        Body::Target(target(number, backend, ca_pem)),
        Body::MemberIdentity(identity),
        Body::Coverage(coverage),
        Body::Ownership(owned),
        Body::Credential(credential),
    ]
}

fn target(number: usize, backend: &str, ca_pem: &str) -> v1::Target {
    v1::Target {
        cluster: cluster(number),
        cluster_uid: format!("0b1c2d3e-0000-4000-8000-{number:012}"),
        endpoints: vec![v1::Endpoint {
            url: format!("https://{backend}"),
            tls_server_name: String::new(),
        }],
        ca_pem: ca_pem.to_owned(),
        ..v1::Target::default()
    }
}

fn shard(members: usize) -> v1::Shard {
    let member = |number| v1::ShardMember {
        cluster: cluster(number),
        ..v1::ShardMember::default()
    };
    v1::Shard {
        name: shard_name(),
        config_generation: 1,
        primary_cluster: CLUSTER.to_owned(),
        explicit_view: true,
        enforcement: v1::Enforcement::Enforce.into(),
        members: (0..members).map(member).collect(),
        label_prefix: LABEL_PREFIX.to_owned(),
        ..v1::Shard::default()
    }
}
