//! A real Node of a cluster: containerd, kubelet, kube-proxy and CoreDNS, in network, mount, process and cgroup namespaces of
//! their own on the bridge of a [`Lan`](crate::Lan). Pods and Services have addresses that are routed to it without NAT.
//!
//! All of it is one process of ours, a shell around unshare(1): whatever ends it ends every Pod, and no mount, link or file is
//! left. `scripts/outside.sh` says how it is tied to the bridge, `scripts/inside.sh` what runs there.

mod check;
mod files;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

pub use check::missing;

use crate::image::Image;
use crate::lan::{Lan, Part};
use crate::process::Process;
use crate::system::System;
use crate::tools::Bundle;

const OUTSIDE: &str = include_str!("node/scripts/outside.sh");
const INSIDE: &str = include_str!("node/scripts/inside.sh");
/// What holds the namespaces of a Pod: it does nothing.
const PAUSE: &str = "portolan.dev/pause:1";
/// Address of the Service of names, within those of a cluster's Services.
const DNS: u8 = 10;
const MANAGER: &str = "portolan-testbed";

/// A Node as it is started, again and again.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) part: Part,
    /// What it starts Pods of.
    pub(crate) images: Vec<Image>,
}

/// What a Node is told of its cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home<'a> {
    /// Name of the Node.
    pub(crate) name: &'a str,
    /// Where everything of the Node goes.
    pub(crate) folder: &'a Path,
    /// Of an administrator, past the fault stage: a Node is a part of the control plane here, its Pods are not.
    pub(crate) kubeconfig: &'a Path,
    /// Who may ask the kubelet for logs and exec.
    pub(crate) ca: &'a str,
}

impl Node {
    /// Builds the programs if need be, writes their configuration and the images, and starts them. They are at work once the
    /// cluster has a Node that is Ready.
    pub(crate) async fn start(&self, home: Home<'_>) -> Result<Process> {
        let [kubelet, containerd, coredns] = Bundle::NODE;
        let kubelet = kubelet.ready().await?.join("bin");
        let containerd = containerd.ready().await?.join("bin");
        let coredns = coredns.ready().await?.join("bin");
        let system = System::find()?;
        files::write(self.part, home).context("writing the configuration of a Node")?;
        let (images, folder) = (self.images.clone(), home.folder.join("images"));
        tokio::task::spawn_blocking(move || write_images(&images, &folder)).await??;
        let path = |path: PathBuf| path.display().to_string();
        let lan = Lan::here().context("a Node is in a network of its own")?;
        let variables = [
            ("INSIDE", INSIDE.to_owned()),
            ("UNSHARE", system.unshare),
            ("IP", system.ip),
            ("BRIDGE", crate::lan::BRIDGE.to_owned()),
            ("CGROUP", format!("{}-{}", Lan::cgroup(), self.part.link())),
            ("LINK", self.part.link()),
            ("NAME", home.name.to_owned()),
            ("ADDRESS", self.part.node().to_string()),
            ("PREFIX", crate::lan::PREFIX.to_string()),
            ("GATEWAY", lan.address().to_string()),
            ("PODS", self.part.pods()),
            ("SERVICES", self.part.services()),
            ("FOLDER", path(home.folder.to_owned())),
            ("KUBECONFIG", path(home.kubeconfig.to_owned())),
            ("SNAPSHOTTER", files::SNAPSHOTTER.to_owned()),
            ("KUBELET", path(kubelet)),
            ("CONTAINERD", path(containerd.clone())),
            ("COREDNS", path(coredns)),
            // containerd looks there for its shim, and the shim for runc.
            ("PATH", format!("{}:{}", path(containerd), crate::system::path())),
        ];
        let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let args = ["-c".to_owned(), OUTSIDE.to_owned(), "node".to_owned()];
        Process::spawn_in(Path::new(&system.sh), &args, &variables, &home.folder.join("node.log"))
    }

    /// Names of the cluster's Services are asked of CoreDNS on the Node, by the Service where Pods expect it.
    pub(crate) async fn apply_dns(&self, client: Client) -> Result<(), kube::Error> {
        let ports =
            json!([{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]);
        let metadata = json!({"name": "kube-dns", "labels": {"kubernetes.io/service-name": "kube-dns"}});
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"clusterIP": self.part.service(DNS), "ports": ports},
        });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4",
            "ports": ports, "endpoints": [{"addresses": [self.part.node()]}],
        });
        let params = PatchParams::apply(MANAGER).force();
        let services = Api::<Service>::namespaced(client.clone(), "kube-system");
        services.patch("kube-dns", &params, &Patch::Apply(service)).await?;
        let slices = Api::<EndpointSlice>::namespaced(client, "kube-system");
        slices.patch("kube-dns", &params, &Patch::Apply(slice)).await.map(drop)
    }
}

fn write_images(images: &[Image], folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let pause = Image::new(PAUSE, "/bin/sleep").args(&["infinity"]);
    for (place, image) in std::iter::once(&pause).chain(images).enumerate() {
        image.write(&folder.join(format!("{place}.tar")))?;
    }
    Ok(())
}
