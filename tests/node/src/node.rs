//! The node as a whole: what it is told, how it starts and ends.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use portolan_runtime::Tasks;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use crate::image::Images;
use crate::isolation::{self, Apart, Isolation};
use crate::machine::{Machine, Pace, Running};
use crate::pods::Pods;
use crate::registration::{self, Presence};
use crate::server;
use crate::tools::Tools;

/// What all Pods of a node get to be killed, when the node ends.
const END: Duration = Duration::from_secs(5);

/// How to start a [`Node`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the Node object, a DNS label.
    pub name: String,
    /// Of the cluster: an administrator, for nothing narrows what the node may do. Its server is the one that Pods are told.
    pub kubeconfig: PathBuf,
    /// The images that Pods may name.
    pub images: Images,
    /// How far Pods are apart, where this machine lets them; see [`Lan::apart`](crate::Lan::apart).
    pub apart: Apart,
    /// Where volumes and logs are, while there are Pods. Absolute or not.
    pub folder: PathBuf,
    /// How long it waits for what.
    pub pace: Pace,
}

/// A running node. Dropping it kills all of its Pods' programs; the objects stay.
#[derive(Debug)]
pub struct Node {
    tasks: Tasks,
    machine: MachineFacts,
    // Its own: a node that many tests share must outlive the runtime of the first.
    runtime: Option<Runtime>,
}

/// What is known of a running node.
#[derive(Debug)]
struct MachineFacts {
    name: String,
    shares: Option<String>,
}

impl Node {
    /// Starts it, and returns once it is registered and ready to take Pods.
    pub async fn start(options: Options) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("node")
            .enable_all()
            .build()
            .context("starting the node's threads")?;
        let tasks = Tasks::new();
        let starting = runtime.spawn(start(options, tasks.clone()));
        // Kept whole while it starts: it must not be dropped in an async function.
        let mut node = Self {
            tasks,
            machine: MachineFacts {
                name: String::new(),
                shares: None,
            },
            runtime: Some(runtime),
        };
        node.machine = starting.await.context("starting the node was interrupted")??;
        Ok(node)
    }

    /// Name of the Node object.
    pub fn name(&self) -> &str {
        &self.machine.name
    }

    /// Why Pods have no networks, or no mounts, of their own; None if they have.
    pub fn shares(&self) -> Option<&str> {
        self.machine.shares.as_deref()
    }

    /// Kills all programs and returns when they are gone.
    pub async fn stop(mut self) {
        let (tasks, runtime) = (self.tasks.clone(), self.runtime.take());
        if let Some(runtime) = runtime {
            let _ = runtime.spawn(async move { tasks.shutdown(END).await }).await;
            runtime.shutdown_background();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.tasks.cancel();
        if let Some(runtime) = self.runtime.take() {
            // What is dropped with it kills what it started.
            runtime.shutdown_background();
        }
    }
}

async fn start(options: Options, tasks: Tasks) -> Result<MachineFacts> {
    let (config, client) = client(&options.kubeconfig).await?;
    let api_server = api_server(&config)?;
    let tools = Tools::find()?;
    let (isolation, less) = isolation::find(&tools, options.apart);
    let address = match &isolation {
        Isolation::Full(subnet) => subnet.gateway,
        _ => Ipv4Addr::LOCALHOST,
    };
    if let Some(why) = &less {
        tracing::warn!(why, "Pods share this machine's network");
    }
    let folder = std::path::absolute(&options.folder)?;
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let machine = Arc::new(Machine {
        node: options.name,
        client,
        tools,
        isolation,
        address,
        images: options.images,
        api_server,
        folder,
        pace: options.pace,
        running: Running::default(),
    });
    let listener = TcpListener::bind(SocketAddr::from((address, 0)))
        .await
        .context("listening as a kubelet")?;
    let presence = Presence {
        kubelet_port: listener.local_addr()?.port(),
        less: less.clone(),
    };
    let facts = MachineFacts {
        name: machine.node.clone(),
        shares: less,
    };
    let pods = Pods::new(machine.clone(), tasks.clone());
    let ca = config.root_cert.context("the kubeconfig has no CA")?;
    server::serve(machine.clone(), pods.clone(), listener, &ca, &tasks)?;
    registration::register(&machine, &presence).await;
    let stop = tasks.token();
    tasks.spawn("pods", async move {
        let _ = stop.run_until_cancelled(pods.run()).await;
    });
    let stop = tasks.token();
    tasks.spawn("heartbeat", async move {
        let _ = stop.run_until_cancelled(registration::keep(&machine, &presence)).await;
    });
    Ok(facts)
}

async fn client(kubeconfig: &Path) -> Result<(Config, Client)> {
    let read = Kubeconfig::read_from(kubeconfig).with_context(|| format!("reading {}", kubeconfig.display()))?;
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config.clone())?;
    Ok((config, client))
}

fn api_server(config: &Config) -> Result<(String, u16)> {
    let url = &config.cluster_url;
    let host = url.host().with_context(|| format!("{url} has no host"))?;
    let port = url
        .port_u16()
        .unwrap_or(if url.scheme_str() == Some("http") { 80 } else { 443 });
    Ok((host.to_owned(), port))
}
