//! Several clusters started side by side, and the folder they live in.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tokio::task::JoinSet;

use crate::cluster::{Cluster, Recipe};
use crate::control_plane::{OtherApiServer, Pods};
use crate::image::Image;
use crate::lan::Lan;
use crate::node::Node;
use crate::process::Scratch;
use crate::tools::Bundle;

/// How to start a [`Testbed`].
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Names of clusters, each a DNS label.
    pub clusters: Vec<String>,
    /// Who runs Pods.
    pub pods: Pods,
    /// Clusters with a Node that runs Pods for real, by name, and the images that it has; scheduler and all controllers come with
    /// it. Only in a network of its own: see [`inside`](crate::inside).
    pub nodes: BTreeMap<String, Vec<Image>>,
    /// An address of this machine that the API servers and their fault stages listen on. None: that of the
    /// [network](crate::Lan) that this program is in, else the loopback address. A folder used before keeps the certificates for
    /// the address that it began with.
    pub address: Option<Ipv4Addr>,
    /// Where data, keys, kubeconfigs and logs go. None: a temporary folder that disappears with the testbed.
    /// A folder used before is started again with its data, and on the same ports if they are free.
    pub dir: Option<PathBuf>,
    /// More flags for every API server, `--goaway-chance=0.02` for example.
    pub apiserver_args: Vec<String>,
    /// Clusters that have another API server, by name.
    pub apiservers: BTreeMap<String, OtherApiServer>,
    /// Where API servers and etcd send spans of every request: the URL of a collector of OTLP over gRPC, such as that of
    /// [`Jaeger`](crate::Jaeger).
    pub otlp: Option<String>,
}

/// Running clusters. Dropping it kills everything it started, and so does the end of this process, however it comes.
#[derive(Debug)]
pub struct Testbed {
    // Dropped in this order: the folder outlives the programs that write to it.
    clusters: Vec<Cluster>,
    dir: PathBuf,
    _scratch: Option<Scratch>,
}

impl Testbed {
    /// Starts clusters without pods in a temporary folder.
    pub async fn start(clusters: &[&str]) -> Result<Self> {
        let clusters = clusters.iter().map(|&name| name.to_owned()).collect();
        Self::start_with(Options {
            clusters,
            ..Options::default()
        })
        .await
    }

    /// Builds the tools if need be and starts all clusters at once; returns when all are ready.
    pub async fn start_with(options: Options) -> Result<Self> {
        check_names(&options.clusters)?;
        let tools = Bundle::CONTROL_PLANE.ready().await?;
        let scratch = if options.dir.is_none() {
            Some(Scratch::new()?)
        } else {
            None
        };
        let dir = options
            .dir
            .or_else(|| Some(scratch.as_ref()?.path().to_owned()))
            .context("no folder")?;
        let dir = std::path::absolute(dir)?;
        let address = Lan::here().map_or(Ipv4Addr::LOCALHOST, Lan::address);
        let address = options.address.unwrap_or(address);
        let recipe = Recipe {
            tools,
            address,
            stage: address,
            pods: options.pods,
            node: None,
            apiserver_args: options.apiserver_args,
            apiserver_program: None,
            otlp: options.otlp.map(|url| url.trim_start_matches("http://").to_owned()),
        };
        let recipes = options.clusters.iter().map(|name| {
            let mut recipe = recipe.clone();
            if let Some(other) = options.apiservers.get(name) {
                recipe.apiserver_program.clone_from(&other.program);
                recipe.apiserver_args.extend(other.args.iter().cloned());
            }
            if let Some(images) = options.nodes.get(name) {
                recipe.join(images)?;
            }
            anyhow::Ok((name.clone(), recipe))
        });
        let clusters = start_all(recipes.collect::<Result<_>>()?, &dir).await?;
        Ok(Self {
            clusters,
            dir,
            _scratch: scratch,
        })
    }

    /// The cluster called `name`; panics if there is none.
    #[track_caller]
    pub fn cluster(&self, name: &str) -> &Cluster {
        match self.find(name) {
            Some(cluster) => cluster,
            #[expect(clippy::panic, reason = "a wrong name is a mistake in the test; programs use find")]
            None => panic!("the testbed has no cluster {name:?}"),
        }
    }

    /// The cluster called `name`, if there is one.
    pub fn find(&self, name: &str) -> Option<&Cluster> {
        self.clusters.iter().find(|cluster| cluster.name() == name)
    }

    /// All clusters, in the order they were asked for.
    pub fn clusters(&self) -> &[Cluster] {
        &self.clusters
    }

    /// The folder with one folder per cluster.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

async fn start_all(recipes: Vec<(String, Recipe)>, dir: &Path) -> Result<Vec<Cluster>> {
    // The set aborts the other starts when one fails or when we are dropped, and so kills what they started.
    let mut starts = JoinSet::new();
    let count = recipes.len();
    for (place, (name, recipe)) in recipes.into_iter().enumerate() {
        let folder = dir.join(&name);
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        starts.spawn(async move { anyhow::Ok((place, Cluster::start(&name, folder, recipe).await?)) });
    }
    let mut started = Vec::with_capacity(count);
    while let Some(start) = starts.join_next().await {
        started.push(start.context("a start was aborted")??);
    }
    started.sort_by_key(|(place, _)| *place);
    Ok(started.into_iter().map(|(_, cluster)| cluster).collect())
}

impl Recipe {
    /// Gives the cluster a Node with these images, whose Pods take the fault stage for their API server.
    fn join(&mut self, images: &[Image]) -> Result<()> {
        let lan =
            Lan::here().context("a Node needs a network of its own: run this `inside` one (portolan-testbed enter)")?;
        let part = lan.join()?;
        self.stage = Lan::stage();
        self.node = Some(Node {
            part,
            images: images.to_vec(),
        });
        Ok(())
    }
}

fn check_names(names: &[String]) -> Result<()> {
    for (place, name) in names.iter().enumerate() {
        let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if name.is_empty() || name.len() > 63 || !name.bytes().all(valid) || name.starts_with('-') {
            bail!("{name:?} is no name for a cluster: use lower-case letters, digits and dashes");
        }
        if names[..place].contains(name) {
            bail!("two clusters are called {name}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        let check = |names: &[&str]| check_names(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
        assert!(check(&["hub", "east-1"]).is_ok());
        for bad in [&["Hub"][..], &[""], &["../up"], &["-a"], &["a", "a"]] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
    }
}
