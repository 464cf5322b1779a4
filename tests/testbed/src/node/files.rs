//! Configuration of a Node's programs. Each setting that is not the obvious one says why it is there.

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::{DNS, Home, PAUSE};
use crate::lan::Part;
use crate::private::write_private;

/// How containerd lays the files of containers over those of their images.
pub(super) const SNAPSHOTTER: &str = "overlayfs";
/// Where distributions put CNI's plugins.
pub(super) const PLUGINS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// Writes the files; those of a start before are replaced.
pub(super) fn write(part: Part, home: Home<'_>) -> Result<()> {
    let folder = home.folder;
    for name in ["kubelet", "cni"] {
        fs::create_dir_all(folder.join(name))?;
    }
    let files = [
        ("containerd.toml", containerd(folder)),
        ("cni/pods.conflist", cni(part)),
        ("kubelet.yaml", kubelet(part, home.ca)),
        ("kube-proxy.yaml", kube_proxy(part, home.kubeconfig)),
        ("Corefile", corefile(home.kubeconfig)),
    ];
    for (name, content) in files {
        write_private(&folder.join(name), &content)?;
    }
    Ok(())
}

fn containerd(folder: &Path) -> String {
    let folder = folder.display();
    let plugins = json!(PLUGINS);
    format!(
        r#"version = 3
root = "{folder}/containerd"
state = "/run/containerd"

[grpc]
address = "/run/containerd/containerd.sock"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "{SNAPSHOTTER}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"

[plugins."io.containerd.cri.v1.runtime"]
# Lowering it takes CAP_SYS_RESOURCE, which a machine within a machine often lacks.
restrict_oom_score_adj = true
disable_hugetlb_controller = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = {plugins}
conf_dir = "{folder}/cni"
"#
    )
}

/// A link between each Pod and the Node, and no translation of addresses: a bridge would hide Pods of one Node from its rules.
fn cni(part: Part) -> String {
    let ipam = json!({
        "type": "host-local", "ranges": [[{"subnet": part.pods()}]], "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/var/lib/cni",
    });
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": ipam}]}).to_string()
}

fn kubelet(part: Part, ca: &str) -> String {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "address": part.node(),
        "authentication": {"x509": {"clientCAFile": ca}, "anonymous": {"enabled": false}, "webhook": {"enabled": true}},
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [part.service(DNS)], "clusterDomain": "cluster.local",
        // Nothing is asked of names outside.
        "resolvConf": "",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        // Cgroups as they are where no init system manages them.
        "failCgroupV1": false, "cgroupDriver": "cgroupfs", "cgroupsPerQOS": false, "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": false, "failSwapOn": false,
        // A test does not wait five minutes for a container that has ended five times.
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
        "featureGates": {"KubeletCrashLoopBackOffMax": true},
        // A full disk of this machine is not the Pods' fault, and their images are nowhere else.
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
    })
    .to_string()
}

fn kube_proxy(part: Part, kubeconfig: &Path) -> String {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables",
        "clientConnection": {"kubeconfig": kubeconfig},
        "clusterCIDR": part.pods(), "detectLocalMode": "ClusterCIDR",
        // Limits of connections are the whole machine's.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    })
    .to_string()
}

fn corefile(kubeconfig: &Path) -> String {
    let kubeconfig = kubeconfig.display();
    format!(".:53 {{\n  errors\n  kubernetes cluster.local in-addr.arpa {{\n    kubeconfig {kubeconfig}\n  }}\n}}\n")
}
