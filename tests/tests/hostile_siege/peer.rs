//! A plain proxy before east's API server, and maybe before another: what any proxy takes of the same attack or fault.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use portolan_testbed::eventually;
use portolan_tests::door::Door;
use portolan_tests::programs::{argument, program};
use portolan_tests::world::{PodSpec, World};
use serde_json::{Value, json};

pub(crate) struct Peer<'a> {
    world: &'a World,
    address: String,
    /// What its certificate chains to.
    pub(crate) ca_pem: String,
    proxy: Child,
    _dir: tempfile::TempDir,
}

/// What else the proxy is to stand before.
#[derive(Clone, Copy)]
pub(crate) struct Second<'a> {
    /// `host:port`.
    pub(crate) address: &'a str,
    pub(crate) ca_pem: &'a str,
}

impl<'a> Peer<'a> {
    pub(crate) async fn start(world: &'a World, second: Option<Second<'_>>) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
        let (identity, ca) = (dir.path().join("identity.pem"), dir.path().join("ca.pem"));
        std::fs::write(&identity, key.cert.pem() + &key.signing_key.serialize_pem())?;
        let east = world.cluster("east");
        std::fs::write(&ca, east.ca_pem())?;
        let addresses = dir.path().join("addresses.json");
        let backend = east.direct_url().replace("https://", "");
        let mut proxy = Command::new(program("portolan-bench")?);
        proxy.arg("forwarder");
        if let Some(Second { address, ca_pem }) = second {
            let ca = dir.path().join("second.pem");
            std::fs::write(&ca, ca_pem)?;
            proxy.args(["--second", address, "--second-ca", &argument(&ca)]);
        }
        let proxy = proxy
            .args(["--identity", &argument(&identity), "--backend", &backend])
            .args([
                "--backend-ca",
                &argument(&ca),
                "--addresses-file",
                &argument(&addresses),
            ])
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start the proxy")?;
        let address = eventually("the proxy tells its address", || async { address(&addresses) }).await;
        Ok(Self {
            world,
            address,
            ca_pem: key.cert.pem(),
            proxy,
            _dir: dir,
        })
    }

    #[allow(dead_code, reason = "not by every suite")]
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.proxy.id()).unwrap_or(i32::MAX)
    }

    /// Through the proxy, as an account of east that may do what a tenant does in its namespace.
    pub(crate) async fn door(&self, namespace: &str) -> anyhow::Result<Door> {
        self.door_to("east", namespace).await
    }

    /// The same for an account of this cluster, before which the proxy is to stand.
    pub(crate) async fn door_to(&self, cluster: &str, namespace: &str) -> anyhow::Result<Door> {
        let (name, cluster) = (cluster, self.world.cluster(cluster));
        let pod = PodSpec {
            namespace,
            name: "peer",
            service_account: "peer",
            labels: json!({}),
        };
        self.world.pod(name, pod).await?;
        let account = format!("--serviceaccount={namespace}:peer");
        let bind = [
            "create",
            "rolebinding",
            "peer",
            "-n",
            namespace,
            "--clusterrole=cluster-admin",
            &account,
        ];
        self.world.direct(name).ok(&bind).await?;
        let token = cluster.issue_token(namespace, "peer", &[], None).await?;
        let mut door = self.world.direct_door(name).await?;
        door.address.clone_from(&self.address);
        door.with_token(&self.ca_pem, Some(&token))
    }
}

impl Drop for Peer<'_> {
    fn drop(&mut self) {
        // It may be gone by the attack.
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
    }
}

fn address(file: &Path) -> Option<String> {
    let told: Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    Some(told["bind"].as_str()?.to_owned())
}
