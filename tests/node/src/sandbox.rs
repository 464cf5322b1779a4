//! The network of one Pod: a namespace that a small shell holds open, joined to the bridge by a pair of veth devices. Where
//! Pods share this machine's network there is nothing to make.

use std::net::Ipv4Addr;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use crate::isolation::Isolation;
use crate::subnet::{Lease, Subnet};
use crate::tools::Tools;

/// Says that it is there, and lives until our end of its standard input closes.
const HOLDER: &str = "\"$1\" link set lo up && echo ready && read -r line";

/// Where the containers of a Pod run.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// What its status calls the Pod IP.
    pub(crate) address: Ipv4Addr,
    network: Option<Network>,
}

/// A network namespace. It ends with its holder, and the veth pair with it.
#[derive(Debug)]
struct Network {
    holder: u32,
    lease: Lease,
    _child: Child,
    _leash: ChildStdin,
}

impl Sandbox {
    /// A network of its own, if the Pod gets one; else it is this machine's, whose address is `host`.
    pub(crate) async fn create(
        tools: &Tools,
        isolation: &Isolation,
        host: Ipv4Addr,
        host_network: bool,
    ) -> Result<Self> {
        let (Isolation::Full(subnet), false) = (isolation, host_network) else {
            let network = None;
            return Ok(Self { address: host, network });
        };
        let network = Network::create(tools, subnet)
            .await
            .context("making the Pod's network")?;
        let address = network.lease.address;
        let network = Some(network);
        Ok(Self { address, network })
    }

    /// Whether it has a network that is not this machine's.
    pub(crate) fn is_own(&self) -> bool {
        self.network.is_some()
    }

    /// What a command line begins with whose program shall be in the Pod's network.
    pub(crate) fn enter(&self, tools: &Tools) -> Vec<String> {
        let Some(network) = &self.network else {
            return Vec::new();
        };
        let target = format!("--target={}", network.holder);
        vec![tools.nsenter.clone(), target, "--net".to_owned(), "--".to_owned()]
    }
}

impl Network {
    async fn create(tools: &Tools, subnet: &Subnet) -> Result<Self> {
        let lease = subnet.lease().context("all addresses of this node are taken")?;
        let mut child = Command::new(&tools.unshare)
            .args(["--net", "--"])
            .arg(&tools.sh)
            .args(["-c", HOLDER, "sh"])
            .arg(&tools.ip)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("starting the holder of the namespace")?;
        let holder = child.id().context("the holder has ended")?;
        let leash = child.stdin.take().context("the holder has no stdin")?;
        let stdout = child.stdout.take().context("the holder has no stdout")?;
        let mut lines = BufReader::new(stdout).lines();
        if lines.next_line().await?.as_deref() != Some("ready") {
            bail!("the holder of the namespace did not start");
        }
        let network = Self {
            holder,
            lease,
            _child: child,
            _leash: leash,
        };
        network.join(tools, subnet).await?;
        Ok(network)
    }

    /// Lays the cable between namespace and bridge.
    async fn join(&self, tools: &Tools, subnet: &Subnet) -> Result<()> {
        let (outside, pid) = (self.lease.interface(), self.holder.to_string());
        let pair = [
            "link", "add", &outside, "type", "veth", "peer", "name", "eth0", "netns", &pid,
        ];
        run(&tools.ip, &pair).await?;
        run(&tools.ip, &["link", "set", &outside, "master", &subnet.bridge, "up"]).await?;
        let address = format!("{}/{}", self.lease.address, Subnet::PREFIX);
        let gateway = subnet.gateway.to_string();
        let target = format!("--target={pid}");
        for inside in [
            &["addr", "add", &address, "dev", "eth0"][..],
            &["link", "set", "eth0", "up"],
            &["route", "add", "default", "via", &gateway],
        ] {
            run(&tools.nsenter, &[&[&target, "--net", "--", &tools.ip], inside].concat()).await?;
        }
        Ok(())
    }
}

async fn run(program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = output.await.with_context(|| format!("running {program}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    bail!("{program} {}: {}", args.join(" "), said.trim())
}
