//! The real hub on a real API server and etcd, installed as users install it, and what agents and routers need to join it.
//! Beside `control` and `fleet`.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::Client;
use portolan_runtime::pki::CertificateAuthority;
use portolan_runtime::tls::{IdentityStore, TrustStore};
use portolan_testbed::{Cluster, Testbed, eventually};
use portolan_tests::programs::{admin_get, argument, program};
use portolan_tests::{ctl, hub_cluster};
use portolan_wire::client::HubLink;
use serde_json::{Value, json};
use tonic::transport::Channel;

use crate::child::Child;
use crate::usage;

const NEVER: &str = "2099-01-01T00:00:00Z";

/// A running hub; ends when dropped.
pub(crate) struct HubPlane {
    pub(crate) testbed: Testbed,
    pub(crate) ca: CertificateAuthority,
    pub(crate) hub: Child,
    /// The hub's.
    pub(crate) address: String,
    pub(crate) admin: String,
    dir: tempfile::TempDir,
}

impl HubPlane {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir().context("no temporary folder")?;
        let testbed = Testbed::start(&["hub"]).await?;
        let cluster = testbed.cluster("hub");
        let kubeconfig = argument(cluster.direct_kubeconfig_path());
        ctl::ok(&["install", "--hub-kubeconfig", &kubeconfig]).await?;
        let mut hub = replica("hub", &kubeconfig, dir.path())?;
        let (address, admin) = (hub.address("bind").await?, hub.address("admin").await?);
        hub.ready().await?;
        let webhook = format!("https://{}/shardingconfigs", hub.address("webhook").await?);
        let install = ["install", "--hub-kubeconfig", &kubeconfig, "--webhook-url", &webhook];
        ctl::ok(&install).await?;
        let client = cluster.client().await?;
        let ca = eventually("the hub has a CA", || hub_cluster::ca(&client)).await;
        Ok(Self {
            testbed,
            ca,
            hub,
            address,
            admin,
            dir,
        })
    }

    /// Starts a replica that follows the hub, and returns once it does, with its address.
    pub(crate) async fn follower(&self, name: &'static str) -> anyhow::Result<(Child, String)> {
        let kubeconfig = argument(self.cluster().direct_kubeconfig_path());
        let mut follower = replica(name, &kubeconfig, self.dir())?;
        let address = follower.address("bind").await?;
        follower.ready().await?;
        Ok((follower, address))
    }

    /// Kills the hub without a word: what was its follower is the hub.
    pub(crate) async fn give_way(&mut self, mut follower: Child) -> anyhow::Result<()> {
        self.admin = follower.address("admin").await?;
        drop(std::mem::replace(&mut self.hub, follower));
        Ok(())
    }

    /// Of the hub and of what starts beside it.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The hub's API server.
    pub(crate) fn cluster(&self) -> &Cluster {
        self.testbed.cluster("hub")
    }

    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        self.cluster().client().await
    }

    /// A connection to the hub, made when it is used first.
    pub(crate) fn channel(&self, identity: Arc<IdentityStore>) -> anyhow::Result<Channel> {
        Ok(HubLink::new(&self.address, self.trust()?, identity)?.channel())
    }

    pub(crate) fn trust(&self) -> anyhow::Result<Arc<TrustStore>> {
        Ok(TrustStore::from_pem(self.ca.pem())?)
    }

    /// Makes the MemberCluster, and enrols its agent. The hub's own API server stands for the member's.
    pub(crate) async fn join(&self, client: &Client, member: &str) -> anyhow::Result<Arc<IdentityStore>> {
        hub_cluster::put_member(client, member, self.member()).await?;
        let token = hub_cluster::bootstrap_token(client, "agent", member, NEVER).await?;
        hub_cluster::join(self.channel(IdentityStore::empty())?, &token, member).await
    }

    /// Enrols a router that is told everything.
    pub(crate) async fn enroll(&self, client: &Client, router: &str) -> anyhow::Result<Arc<IdentityStore>> {
        hub_cluster::enroll_router(self.channel(IdentityStore::empty())?, client, router).await
    }

    /// A counter among the hub's metrics; none: it was never counted.
    pub(crate) async fn counter(&self, name: &str) -> anyhow::Result<Option<usize>> {
        let metrics = admin_get(&self.admin, "/metrics").await?;
        let line = metrics.lines().find(|line| line.contains(name));
        let value = line.and_then(|line| line.rsplit(' ').next());
        Ok(value.map(str::parse).transpose()?)
    }

    /// CPU time of the hub so far, in seconds.
    pub(crate) fn cpu(&self) -> anyhow::Result<f64> {
        usage::cpu_seconds(self.hub.pid())
    }

    /// Resident memory of the hub in MiB.
    pub(crate) fn memory(&self) -> anyhow::Result<f64> {
        Ok(usage::resident_kib(self.hub.pid())? / 1024.0)
    }

    fn member(&self) -> Value {
        let cluster = self.cluster();
        json!({
            "accept": true,
            "endpoints": [{"url": cluster.direct_url()}],
            "caBundle": STANDARD.encode(cluster.ca_pem()),
        })
    }
}

fn replica(name: &'static str, kubeconfig: &str, dir: &Path) -> anyhow::Result<Child> {
    let arguments = [
        "--kubeconfig",
        kubeconfig,
        "--bind",
        "127.0.0.1:0",
        "--admin-bind",
        "127.0.0.1:0",
    ];
    Child::start(name, &program("portolan-hub")?, &arguments.map(str::to_owned), dir)
}
