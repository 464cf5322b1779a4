//! The fast place: our own backend as the one member, the forwarder, and the real router with a scripted hub.

mod resources;

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use http::HeaderMap;
use portolan_runtime::pki::{CertificateAuthority, Issued};
use portolan_runtime::tls::{self, ALPN_GRPC, Identity, IdentityStore, TrustStore};
use portolan_runtime::{Secret, files};
use portolan_tests::programs::{argument, program};
use rustls::ClientConfig;

pub(crate) use self::resources::{CLUSTER, Content, TOKEN_BYTES, caller, cluster, credential, resource};
use self::resources::{Members, caller_token, resources};
use crate::child::Child;
use crate::hub::{Hub, TTL};
use crate::load::{Client, Route};
use crate::place::{Subject, bearer};

const PERSON: &str = "portolan:bench";

/// Everything of the fast place, running.
pub(crate) struct Scripted {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) hub_ca: Arc<CertificateAuthority>,
    pub(crate) token: String,
    backend_trust: Arc<TrustStore>,
    /// The backend's certificate, key and CA, as files.
    pub(crate) server_identity: String,
    pub(crate) server_ca: String,
    pub(crate) hub: Hub,
    pub(crate) backend: Child,
    /// Of the members after the first.
    more: Vec<Child>,
    pub(crate) forwarder: Child,
    pub(crate) router: Child,
    what: What,
}

/// What is to be started. A program that runs another comes with what it is told before: taskset, valgrind; none: by itself.
#[derive(Debug, Clone)]
pub(crate) struct What {
    /// Appended to the router's command line.
    pub(crate) router_flags: Vec<String>,
    /// What runs the router.
    pub(crate) router_by: Vec<String>,
    /// What runs the forwarder.
    pub(crate) forwarder_by: Vec<String>,
    /// Backends; members share them in turn.
    pub(crate) backends: usize,
    /// In each backend's list.
    pub(crate) pods: usize,
    /// Length of the caller's token, if that is more than it needs.
    pub(crate) token_bytes: usize,
    /// What the hub knows.
    pub(crate) content: Content,
}

impl Default for What {
    fn default() -> Self {
        Self {
            router_flags: Vec::new(),
            router_by: Vec::new(),
            forwarder_by: Vec::new(),
            backends: 1,
            pods: 0,
            token_bytes: 0,
            content: Content::default(),
        }
    }
}

impl Scripted {
    /// `router_flags`: appended to the router's command line.
    pub(crate) async fn start(router_flags: &[String]) -> anyhow::Result<Self> {
        Self::federated(router_flags, 1, 0).await
    }

    /// The same with several members, each with so many pods.
    pub(crate) async fn federated(router_flags: &[String], members: usize, pods: usize) -> anyhow::Result<Self> {
        let content = Content {
            members,
            ..Content::default()
        };
        let what = What {
            router_flags: router_flags.to_vec(),
            backends: members,
            pods,
            content,
            ..What::default()
        };
        Self::of(what).await
    }

    /// The same with what is asked for.
    pub(crate) async fn of(what: What) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir().context("no temporary folder")?;
        let hub_ca = Arc::new(CertificateAuthority::generate("bench hub CA")?);
        let member_ca = CertificateAuthority::generate("bench member CA")?;
        let server_identity = argument(&dir.path().join("server.pem"));
        let server_ca = argument(&dir.path().join("server-ca.pem"));
        write_identity(&server_identity, &member_ca.issue_server("bench", &["127.0.0.1"], TTL)?)?;
        files::write_public(&server_ca, member_ca.pem())?;
        let (mut backends, addresses) = start_backends(dir.path(), &server_identity, &what).await?;
        let by = &what.forwarder_by;
        let forwarder = start_forwarder_by(by, dir.path(), &server_identity, &server_ca, &addresses[0])?;
        let (token, jwk) = caller_token(what.token_bytes)?;
        let members = Members {
            backends: &addresses,
            ca_pem: member_ca.pem(),
            jwk: &jwk,
        };
        let hub = Hub::start(hub_ca.clone(), resources(&what.content, &members)).await?;
        prepare_router(dir.path(), &hub_ca)?;
        let router = start_router_by(
            &what.router_by,
            dir.path(),
            &hub.address.to_string(),
            &what.router_flags,
        )?;
        Ok(Self {
            backend_trust: TrustStore::from_pem(member_ca.pem())?,
            dir,
            hub_ca,
            token,
            server_identity,
            server_ca,
            hub,
            backend: backends.remove(0),
            more: backends,
            forwarder,
            router,
            what,
        })
    }

    /// A new router process. `known`: it keeps its identity and the last good state.
    pub(crate) async fn restart_router(&mut self, known: bool) -> anyhow::Result<()> {
        self.router.end();
        if !known {
            std::fs::remove_dir_all(self.dir.path().join("state"))?;
        }
        let (by, flags) = (&self.what.router_by, &self.what.router_flags);
        self.router = start_router_by(by, self.dir.path(), &self.hub.address.to_string(), flags)?;
        self.router.ready().await
    }

    pub(crate) async fn restart_forwarder(&mut self) -> anyhow::Result<()> {
        let backend = self.backend.address("bind").await?;
        self.forwarder.end();
        let (by, identity) = (&self.what.forwarder_by, &self.server_identity);
        self.forwarder = start_forwarder_by(by, self.dir.path(), identity, &self.server_ca, &backend)?;
        self.forwarder.address("bind").await.map(drop)
    }

    /// Direct, forwarder, router by explicit and by merged view.
    pub(crate) async fn subjects(&mut self) -> anyhow::Result<Vec<Subject>> {
        let (direct, forwarder) = (
            self.backend.address("bind").await?,
            self.forwarder.address("bind").await?,
        );
        let (direct, forwarder) = (self.to_server(&direct)?, self.to_server(&forwarder)?);
        let router = self.router.address("bind").await?;
        let explicit = route(
            &router,
            &self.person()?,
            &format!("/clusters/{CLUSTER}"),
            &HeaderMap::new(),
        )?;
        let merged = self.to_router(&router, "")?;
        Ok(vec![
            Subject::new("direct", direct, None),
            Subject::new("forwarder", forwarder, Some(self.forwarder.pid())),
            Subject::new("router, explicit", explicit, Some(self.router.pid())),
            Subject::new("router, merged", merged, Some(self.router.pid())),
        ])
    }

    /// To a server with the backend's certificate, as the caller.
    pub(crate) fn to_server(&self, address: &str) -> anyhow::Result<Route> {
        let tls = tls::client_config(self.backend_trust.clone(), None, ALPN_GRPC)?;
        route(address, &tls, "", &bearer(&self.token)?)
    }

    /// To a router of this place, as the caller: the merged view without a prefix.
    pub(crate) fn to_router(&self, address: &str, prefix: &str) -> anyhow::Result<Route> {
        let trust = TrustStore::from_pem(self.hub_ca.pem())?;
        let tls = tls::client_config(trust, None, ALPN_GRPC)?;
        route(address, &tls, prefix, &bearer(&self.token)?)
    }

    /// Each member direct.
    pub(crate) async fn direct_routes(&mut self) -> anyhow::Result<Vec<Route>> {
        let mut addresses = Vec::new();
        for backend in std::iter::once(&mut self.backend).chain(&mut self.more) {
            addresses.push(backend.address("bind").await?);
        }
        addresses.iter().map(|address| self.to_server(address)).collect()
    }

    /// Each member direct, and by the explicit view.
    pub(crate) async fn member_routes(&mut self) -> anyhow::Result<(Vec<Route>, Vec<Route>)> {
        let direct = self.direct_routes().await?;
        let (router, person) = (self.router.address("bind").await?, self.person()?);
        let explicit = (0..direct.len()).map(|number| {
            let prefix = format!("/clusters/{}", cluster(number));
            route(&router, &person, &prefix, &HeaderMap::new())
        });
        let explicit = explicit.collect::<anyhow::Result<_>>()?;
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
        let direct = self.direct_routes().await?.swap_remove(0);
        Client::connected(direct, 1).await?.get("/bench/emit").await.map(drop)
    }

    /// One more router, with a folder of its own, by what runs the first.
    pub(crate) fn another_router(&self, folder: &str, hub: &str, flags: &[String]) -> anyhow::Result<Child> {
        let dir = self.dir.path().join(folder);
        if !dir.exists() {
            std::fs::create_dir(&dir)?;
            prepare_router(&dir, &self.hub_ca)?;
        }
        start_router_by(&self.what.router_by, &dir, hub, flags)
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
fn start_self(by: &[String], name: &'static str, arguments: &[&str], dir: &Path) -> anyhow::Result<Child> {
    let this = std::env::current_exe().context("cannot tell where this program is")?;
    let arguments: Vec<String> = [&[name], arguments].concat().iter().map(ToString::to_string).collect();
    Child::start_by(by, name, &this, &arguments, dir)
}

/// All of them, and where they are.
async fn start_backends(dir: &Path, identity: &str, what: &What) -> anyhow::Result<(Vec<Child>, Vec<String>)> {
    let (mut backends, mut addresses) = (Vec::new(), Vec::new());
    for number in 0..what.backends {
        let folder = dir.join(cluster(number));
        std::fs::create_dir(&folder)?;
        let (member, pods) = (cluster(number), what.pods.to_string());
        let arguments = ["--identity", identity, "--member", &member, "--pods", &pods];
        let mut backend = start_self(&[], "backend", &arguments, &folder)?;
        addresses.push(backend.address("bind").await?);
        backends.push(backend);
    }
    Ok((backends, addresses))
}

/// Identity and CA are files.
pub(crate) fn start_forwarder(dir: &Path, identity: &str, ca: &str, backend: &str) -> anyhow::Result<Child> {
    start_forwarder_by(&[], dir, identity, ca, backend)
}

fn start_forwarder_by(by: &[String], dir: &Path, identity: &str, ca: &str, backend: &str) -> anyhow::Result<Child> {
    let arguments = ["--identity", identity, "--backend", backend, "--backend-ca", ca];
    start_self(by, "forwarder", &arguments, dir)
}

/// Its folder with what it needs to become known to the hub.
fn prepare_router(dir: &Path, hub_ca: &CertificateAuthority) -> anyhow::Result<()> {
    files::write_public(dir.join("hub-ca.pem"), hub_ca.pem())?;
    files::write_private(dir.join("bootstrap"), "abcdef.0123456789abcdef")?;
    Ok(())
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
    Child::start_by(wrapper, "router", &program("portolan-router")?, &arguments, dir)
}
