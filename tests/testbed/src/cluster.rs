//! One running control plane: starting it in the right order, its addresses, and what tests do to it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{self, ServiceAccount};
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use nix::sys::signal::Signal;
use parking_lot::Mutex;

use crate::another::ApiServer;
use crate::control_plane::{ControlPlane, Pods, PortNumbers, Ports};
use crate::eventually::{Outcome, patience, within};
use crate::kubeconfig::render;
use crate::node::{Home, Node};
use crate::pki::Pki;
use crate::pods;
use crate::port::Port;
use crate::private::write_private;
use crate::process::Process;
use crate::stage::{Fault, Stage};

/// How often a start looks whether one of its programs has died.
const DEATH_CHECK: Duration = Duration::from_millis(100);

/// What decides how a cluster is started.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) tools: PathBuf,
    /// Of the API server.
    pub(crate) address: Ipv4Addr,
    /// Of the fault stage: another one than the API server's if there is a Node.
    pub(crate) stage: Ipv4Addr,
    pub(crate) pods: Pods,
    /// What runs Pods for real, if anything does.
    pub(crate) node: Option<Node>,
    pub(crate) apiserver_args: Vec<String>,
    pub(crate) apiserver_program: Option<PathBuf>,
    pub(crate) otlp: Option<String>,
}

/// A real control plane with a fault stage in front of its API server. Dropping it ends all of it.
#[derive(Debug)]
pub struct Cluster {
    name: String,
    kubeconfig: PathBuf,
    direct_kubeconfig: PathBuf,
    plane: ControlPlane,
    stage: Stage,
    node: Option<Node>,
    /// Held for single steps only, never across an await; the programs' order here is the order they end in.
    programs: Mutex<Programs>,
}

#[derive(Debug, Default)]
struct Programs {
    node: Option<Process>,
    kwok: Option<Process>,
    scheduler: Option<Process>,
    controller_manager: Option<Process>,
    apiserver: Option<Process>,
    etcd: Option<Process>,
}

impl Programs {
    fn all(&mut self) -> impl Iterator<Item = &mut Process> {
        let Self {
            node,
            kwok,
            scheduler,
            controller_manager,
            apiserver,
            etcd,
        } = self;
        [etcd, apiserver, controller_manager, scheduler, kwok, node]
            .into_iter()
            .flatten()
    }
}

/// All that a cluster held at some time. Dropping it deletes it.
#[derive(Debug)]
pub struct Backup(tempfile::TempDir);

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

#[expect(
    clippy::unused_async,
    reason = "whatever is done to a cluster is awaited; some of it happens to be instant"
)]
impl Cluster {
    /// Starts the control plane kept in `folder`, which may be new, and returns once it is ready.
    pub(crate) async fn start(name: &str, folder: PathBuf, recipe: Recipe) -> Result<Self> {
        let (owner, label) = (folder.clone(), name.to_owned());
        // Making an RSA key takes a moment that other clusters can use.
        let mut addresses = vec![recipe.address, recipe.stage];
        addresses.extend(recipe.node.as_ref().map(|node| node.part.service(1)));
        let pki = tokio::task::spawn_blocking(move || Pki::ensure(&owner.join("pki"), &label, &addresses)).await??;
        let cluster = Self::prepare(name, folder, recipe, pki).with_context(|| format!("preparing cluster {name}"))?;
        cluster
            .launch()
            .await
            .with_context(|| format!("starting cluster {name}"))?;
        Ok(cluster)
    }

    fn prepare(name: &str, folder: PathBuf, recipe: Recipe, pki: Pki) -> Result<Self> {
        let numbers_file = folder.join("ports.json");
        let preferred: PortNumbers = fs::read(&numbers_file)
            .ok()
            .and_then(|json| serde_json::from_slice(&json).ok())
            .unwrap_or_default();
        let Recipe {
            tools,
            address,
            stage: stage_address,
            pods,
            node,
            apiserver_args,
            apiserver_program,
            otlp,
        } = recipe;
        let ports = Ports::reserve(address, preferred)?;
        // Pods reach it by the port that the API server says it has.
        let stage_port = node.as_ref().map(|_| ports.apiserver.number()).or(preferred.stage);
        let stage = Stage::start(Port::reserve_at(stage_address, stage_port)?, ports.apiserver.address())?;
        if node.is_some() && stage.port() != ports.apiserver.number() {
            bail!("port {} of {stage_address} is taken", ports.apiserver.number());
        }
        fs::write(&numbers_file, serde_json::to_vec(&ports.numbers(stage.port()))?)?;
        let kubeconfig = folder.join("kubeconfig");
        let direct_kubeconfig = folder.join("direct.kubeconfig");
        let admin = pki.identity("admin")?;
        let direct_url = url(ports.apiserver.address());
        write_private(&kubeconfig, &render(name, &url(stage.address()), pki.ca_pem(), &admin))?;
        write_private(&direct_kubeconfig, &render(name, &direct_url, pki.ca_pem(), &admin))?;
        let kubeconfig_of_programs = direct_kubeconfig.clone();
        let plane = ControlPlane {
            tools,
            folder,
            pki,
            ports,
            pods,
            node: node.as_ref().map(|node| node.part),
            stage: stage_address,
            apiserver_args,
            apiserver_program,
            otlp,
            name: name.to_owned(),
            kubeconfig: kubeconfig_of_programs,
        };
        let programs = Mutex::default();
        Ok(Self {
            name: name.to_owned(),
            kubeconfig,
            direct_kubeconfig,
            plane,
            stage,
            node,
            programs,
        })
    }

    async fn launch(&self) -> Result<()> {
        let plane = &self.plane;
        self.programs.lock().etcd = Some(plane.etcd()?);
        self.programs.lock().apiserver = Some(plane.apiserver()?);
        self.until_serving().await?;
        // Not before: it gives up when it finds no API server for ten seconds.
        self.programs.lock().controller_manager = Some(plane.controller_manager()?);
        if plane.has_pods() {
            self.programs.lock().scheduler = Some(plane.scheduler()?);
        }
        if plane.pods == Pods::Pretended {
            self.programs.lock().kwok = Some(plane.kwok(&pods::write_config(plane)?)?);
        }
        self.until_controlled().await?;
        if plane.pods == Pods::Pretended {
            let client = self.client().await?;
            self.until("its node is there", || pods::apply_node(client.clone()))
                .await?;
        }
        if let Some(node) = &self.node {
            self.start_node(node).await?;
        }
        if plane.has_pods() {
            self.until_schedulable().await?;
        }
        Ok(())
    }

    async fn start_node(&self, node: &Node) -> Result<()> {
        let client = self.client().await?;
        self.until("its Service of names is there", || node.apply_dns(client.clone()))
            .await?;
        let folder = self.plane.folder.join("node");
        fs::create_dir_all(&folder)?;
        let home = Home {
            name: pods::NODE,
            folder: &folder,
            kubeconfig: &self.direct_kubeconfig,
            ca: &self.plane.pki.file("ca.crt"),
        };
        let started = node.start(home).await?;
        self.programs.lock().node = Some(started);
        Ok(())
    }

    async fn until_serving(&self) -> Result<()> {
        let client = self.client().await?;
        let probe = || async {
            let request = http::Request::get("/readyz").body(Vec::new())?;
            client.request_text(request).await.map_err(anyhow::Error::from)
        };
        self.until("its API server is ready", probe).await.map(drop)
    }

    /// The controller manager works once it has made the ServiceAccount that every namespace gets.
    async fn until_controlled(&self) -> Result<()> {
        let accounts = Api::<ServiceAccount>::namespaced(self.client().await?, "default");
        self.until("its controllers work", || accounts.get("default"))
            .await
            .map(drop)
    }

    async fn until_schedulable(&self) -> Result<()> {
        let client = self.client().await?;
        let nodes = Api::<v1::Node>::all(client);
        let probe = || async {
            nodes
                .get(pods::NODE)
                .await
                .is_ok_and(|node| pods::is_schedulable(&node))
        };
        self.until("its node is ready", probe).await
    }

    /// Waits until `probe` succeeds; a program that dies meanwhile, or patience that ends, is explained by its log.
    async fn until<F, Fut>(&self, what: &str, probe: F) -> Result<<Fut::Output as Outcome>::Value>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output: Outcome>,
    {
        let death = async {
            loop {
                tokio::time::sleep(DEATH_CHECK).await;
                let mut programs = self.programs.lock();
                if let Some(dead) = programs
                    .all()
                    .find_map(|program| (!program.is_running()).then(|| program.describe()))
                {
                    return dead;
                }
            }
        };
        let waited = tokio::select! {
            waited = within(patience(), probe) => waited,
            story = death => bail!("waiting until {what}, but a program has ended: {story}"),
        };
        waited.map_err(|last| {
            let logs: Vec<String> = self.programs.lock().all().map(|program| program.describe()).collect();
            anyhow!(
                "waited {:?} in vain until {what}: {last}\n{}",
                patience(),
                logs.join("\n")
            )
        })
    }

    /// Name of the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its data, keys and logs are.
    pub fn dir(&self) -> &Path {
        &self.plane.folder
    }

    /// A kubeconfig of an administrator (group `system:masters`), through the fault stage.
    pub fn kubeconfig_path(&self) -> &Path {
        &self.kubeconfig
    }

    /// File of a kubeconfig that goes straight to the API server, past the fault stage.
    pub fn direct_kubeconfig_path(&self) -> &Path {
        &self.direct_kubeconfig
    }

    /// The fault stage's address.
    pub fn url(&self) -> String {
        url(self.stage.address())
    }

    /// The API server's own address.
    pub fn direct_url(&self) -> String {
        url(self.plane.ports.apiserver.address())
    }

    /// The CA of its server and client certificates, shared with no other cluster.
    pub fn ca_pem(&self) -> &str {
        self.plane.pki.ca_pem()
    }

    /// Starts one more API server on the same data, that takes itself to be on a machine called `host`; returns once it is
    /// ready. It needs user and UTS namespaces (`unshare`).
    pub async fn another_apiserver(&self, host: &str) -> Result<ApiServer> {
        let port = Port::reserve_at(*self.plane.ports.apiserver.address().ip(), None)?;
        let process = self.plane.another_apiserver(&port, host)?;
        let server = ApiServer {
            process: Mutex::new(process),
            port,
        };
        let client = self.client_of(server.address()).await?;
        let ready = || async {
            let request = http::Request::get("/readyz").body(Vec::new())?;
            client.request_text(request).await.map_err(anyhow::Error::from)
        };
        let waited = within(patience(), ready).await;
        waited.map_err(|last| anyhow!("{last}: {}", server.process.lock().describe()))?;
        Ok(server)
    }

    async fn client_of(&self, apiserver: SocketAddrV4) -> Result<Client> {
        let kubeconfig = Kubeconfig::read_from(&self.direct_kubeconfig)?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.cluster_url = url(apiserver).parse()?;
        Ok(Client::try_from(config)?)
    }

    /// A new client as administrator, past the fault stage: for arranging and for looking, not for being tested.
    pub async fn client(&self) -> Result<Client> {
        let kubeconfig = Kubeconfig::read_from(&self.direct_kubeconfig)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }

    /// The API server's process, for measuring it; None while it is killed.
    pub fn apiserver_pid(&self) -> Option<i32> {
        self.programs.lock().apiserver.as_ref().map(Process::pid)
    }

    /// SIGKILL for the API server; its port refuses connections when this returns. Everything else keeps running.
    pub async fn kill(&self) -> Result<()> {
        let apiserver = self.programs.lock().apiserver.take();
        let Some(apiserver) = apiserver else {
            bail!("the API server of {} is not running", self.name)
        };
        tokio::task::spawn_blocking(move || drop(apiserver))
            .await
            .context("killing was interrupted")
    }

    /// SIGSTOP for the API server: connections stay open and silent, new ones are accepted by the kernel alone.
    /// The API server has stopped when this returns.
    pub async fn freeze(&self) -> Result<()> {
        self.stop(|programs| &mut programs.apiserver).await
    }

    /// SIGCONT: the end of [`Cluster::freeze`].
    pub async fn thaw(&self) -> Result<()> {
        self.signal(|programs| &mut programs.apiserver, Signal::SIGCONT)
    }

    /// SIGSTOP for etcd under a live API server, a grey failure: reads from the watch cache go on, writes hang.
    pub async fn freeze_etcd(&self) -> Result<()> {
        self.stop(|programs| &mut programs.etcd).await
    }

    /// SIGCONT: the end of [`Cluster::freeze_etcd`].
    pub async fn thaw_etcd(&self) -> Result<()> {
        self.signal(|programs| &mut programs.etcd, Signal::SIGCONT)
    }

    /// Starts the API server again on the same port and data, killing it first if it runs; returns once it is ready.
    pub async fn restart(&self) -> Result<()> {
        if self.apiserver_pid().is_some() {
            self.kill().await?;
        }
        self.programs.lock().apiserver = Some(self.plane.apiserver()?);
        self.until_serving()
            .await
            .with_context(|| format!("restarting {}", self.name))
    }

    /// Copies all that the cluster holds, for [`Cluster::restore`]; it stands still meanwhile.
    pub async fn back_up(&self) -> Result<Backup> {
        let backup = Backup(tempfile::tempdir()?);
        self.without_programs(|etcd| copy_folder(etcd, backup.0.path())).await?;
        Ok(backup)
    }

    /// Goes back to what the cluster held when the backup was made, resourceVersions included, as after an
    /// `etcdctl snapshot restore`.
    pub async fn restore(&self, backup: &Backup) -> Result<()> {
        let restore = |etcd: &Path| {
            fs::remove_dir_all(etcd)?;
            copy_folder(backup.0.path(), etcd)
        };
        self.without_programs(restore).await
    }

    /// Stops everything, changes etcd's data folder, and starts everything again.
    async fn without_programs(&self, change: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        drop(std::mem::take(&mut *self.programs.lock()));
        let changed = change(&self.plane.folder.join("etcd"));
        self.launch()
            .await
            .with_context(|| format!("starting {} again", self.name))?;
        changed
    }

    /// Makes the stage misbehave, or behave again with [`Fault::None`]; rules every byte not yet passed on.
    pub async fn fault(&self, fault: Fault) -> Result<()> {
        self.stage.set(fault);
        Ok(())
    }

    /// What the stage does now.
    pub fn current_fault(&self) -> Fault {
        self.stage.fault()
    }

    /// A ServiceAccount token by TokenRequest, valid for an hour, bound to a Pod (name, uid) if given. No audiences
    /// means the API server's own.
    pub async fn issue_token(
        &self,
        namespace: &str,
        service_account: &str,
        audiences: &[&str],
        bound_pod: Option<(&str, &str)>,
    ) -> Result<String> {
        let bound_object_ref = bound_pod.map(|(name, uid)| BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
        });
        let audiences = Some(audiences.iter().map(|&audience| audience.to_owned()).collect());
        let spec = TokenRequestSpec {
            audiences,
            bound_object_ref,
            expiration_seconds: Some(3600),
        };
        let request = TokenRequest {
            spec: Some(spec),
            ..TokenRequest::default()
        };
        let accounts = Api::<ServiceAccount>::namespaced(self.client().await?, namespace);
        let answer = accounts
            .create_token_request(service_account, &PostParams::default(), &request)
            .await;
        let answer = answer.with_context(|| format!("a token of {namespace}/{service_account} from {}", self.name))?;
        answer
            .status
            .and_then(|status| status.token)
            .context("the TokenRequest came back without a status")
    }

    /// SIGSTOP; returns when all its threads have stopped, for a busy machine is slow at that.
    async fn stop(&self, which: Which) -> Result<()> {
        self.signal(which, Signal::SIGSTOP)?;
        let stopped = || async {
            which(&mut self.programs.lock())
                .as_ref()
                .is_some_and(Process::is_stopped)
        };
        let waited = within(patience(), stopped).await;
        waited.map_err(|_| anyhow!("a program of {} does not stop", self.name))
    }

    fn signal(&self, which: Which, signal: Signal) -> Result<()> {
        let mut programs = self.programs.lock();
        let program = which(&mut programs).as_mut();
        program
            .with_context(|| format!("that program of {} is not running", self.name))?
            .signal(signal)
    }
}

/// Picks one of a cluster's programs.
type Which = fn(&mut Programs) -> &mut Option<Process>;

fn url(address: SocketAddrV4) -> String {
    format!("https://{address}")
}
