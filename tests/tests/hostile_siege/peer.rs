//! A plain proxy before east's API server: what any proxy takes of the same attack.

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

impl<'a> Peer<'a> {
    pub(crate) async fn start(world: &'a World) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
        let (identity, ca) = (dir.path().join("identity.pem"), dir.path().join("ca.pem"));
        std::fs::write(&identity, key.cert.pem() + &key.signing_key.serialize_pem())?;
        let east = world.cluster("east");
        std::fs::write(&ca, east.ca_pem())?;
        let addresses = dir.path().join("addresses.json");
        let backend = east.direct_url().replace("https://", "");
        let proxy = Command::new(program("portolan-bench")?)
            .args(["forwarder", "--identity", &argument(&identity), "--backend", &backend])
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

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.proxy.id()).unwrap_or(i32::MAX)
    }

    /// Through the proxy, as an account that may do what a tenant does in its namespace.
    pub(crate) async fn door(&self, namespace: &str) -> anyhow::Result<Door> {
        let cluster = self.world.cluster("east");
        let pod = PodSpec {
            namespace,
            name: "peer",
            service_account: "peer",
            labels: json!({}),
        };
        self.world.pod("east", pod).await?;
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
        self.world.direct("east").ok(&bind).await?;
        let token = cluster.issue_token(namespace, "peer", &[], None).await?;
        let mut door = self.world.direct_door("east").await?;
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
