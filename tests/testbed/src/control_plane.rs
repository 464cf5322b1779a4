//! The programs of one cluster and their flags. What each flag is for is said where it is not the obvious one.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::lan::Part;
use crate::pki::Pki;
use crate::port::Port;
use crate::process::Process;

/// Controllers that run without pods: what API users notice when it is missing.
const CONTROLLERS_WITHOUT_PODS: [&str; 17] = [
    "certificatesigningrequest-signing-controller",
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "replicaset-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "statefulset-controller",
    "ttl-after-finished-controller",
];

/// Who runs the Pods of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pods {
    /// Nobody: only the controllers run that API users would miss.
    #[default]
    None,
    /// KWOK pretends, on one Node: its Pods are Running as far as an API client can tell, and nothing runs. With scheduler and
    /// all controllers, at the price of another 130 MB and a second.
    Pretended,
}

/// Another API server than the testbed's own, for one cluster.
#[derive(Clone, Debug, Default)]
pub struct OtherApiServer {
    /// The program; none: the testbed's own.
    pub program: Option<PathBuf>,
    /// More flags.
    pub args: Vec<String>,
}

/// Per million: every trace that starts there.
const ALL_SPANS: u32 = 1_000_000;

/// An API server takes nobody's word for what is sampled but that of privileged groups: a request of anybody else begins a
/// trace of its own, which is linked to the span that the request names, and is sampled at this rate.
fn tracing_configuration(otlp: &str) -> String {
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: {otlp}\nsamplingRatePerMillion: {ALL_SPANS}\n"
    )
}

/// Names and values.
type Flags = Vec<(&'static str, String)>;

/// Runs a program on a machine of another name.
const RENAMED: &str = "hostname \"$0\" && exec \"$@\"";

/// The ports of one cluster, reserved for its whole life so that a restart finds them free.
#[derive(Debug)]
pub(crate) struct Ports {
    pub(crate) etcd: Port,
    pub(crate) etcd_peer: Port,
    pub(crate) apiserver: Port,
    pub(crate) kubelet: Port,
}

/// Port numbers as kept in a cluster's folder, so that its kubeconfigs stay good when it is started there again.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PortNumbers {
    pub(crate) etcd: Option<u16>,
    pub(crate) etcd_peer: Option<u16>,
    pub(crate) apiserver: Option<u16>,
    pub(crate) kubelet: Option<u16>,
    pub(crate) stage: Option<u16>,
}

impl Ports {
    /// The API server's on an address of its own, all others on the loopback address.
    pub(crate) fn reserve(apiserver: Ipv4Addr, preferred: PortNumbers) -> std::io::Result<Self> {
        Ok(Self {
            etcd: Port::reserve(preferred.etcd)?,
            etcd_peer: Port::reserve(preferred.etcd_peer)?,
            apiserver: Port::reserve_at(apiserver, preferred.apiserver)?,
            kubelet: Port::reserve(preferred.kubelet)?,
        })
    }

    pub(crate) fn numbers(&self, stage: u16) -> PortNumbers {
        PortNumbers {
            etcd: Some(self.etcd.number()),
            etcd_peer: Some(self.etcd_peer.number()),
            apiserver: Some(self.apiserver.number()),
            kubelet: Some(self.kubelet.number()),
            stage: Some(stage),
        }
    }
}

/// Everything needed to start the programs of one cluster, again and again.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    /// A built [`crate::Bundle::CONTROL_PLANE`].
    pub(crate) tools: PathBuf,
    pub(crate) folder: PathBuf,
    pub(crate) pki: Pki,
    pub(crate) ports: Ports,
    pub(crate) pods: Pods,
    /// The addresses of the Node that runs Pods, if there is one.
    pub(crate) node: Option<Part>,
    /// Where the fault stage listens: at the API server's port if there is a Node.
    pub(crate) stage: Ipv4Addr,
    pub(crate) apiserver_args: Vec<String>,
    /// The API server's program; none: that of the tools.
    pub(crate) apiserver_program: Option<PathBuf>,
    /// Where API server and etcd send all their spans: OTLP over gRPC, `host:port`.
    pub(crate) otlp: Option<String>,
    /// Of the cluster, in its spans.
    pub(crate) name: String,
    /// How the other programs reach the API server: never through the fault stage.
    pub(crate) kubeconfig: PathBuf,
}

impl ControlPlane {
    /// Whether anybody runs Pods, or pretends to.
    pub(crate) fn has_pods(&self) -> bool {
        self.pods == Pods::Pretended || self.node.is_some()
    }

    pub(crate) fn etcd(&self) -> Result<Process> {
        let client = format!("http://127.0.0.1:{}", self.ports.etcd.number());
        let peer = format!("http://127.0.0.1:{}", self.ports.etcd_peer.number());
        let flags = [
            ("data-dir", self.path("etcd")),
            ("listen-client-urls", client.clone()),
            ("advertise-client-urls", client),
            ("listen-peer-urls", peer.clone()),
            ("initial-advertise-peer-urls", peer.clone()),
            ("initial-cluster", format!("default={peer}")),
            // Nothing here must survive a power cut, and fsync is what makes etcd slow on a busy disk.
            ("unsafe-no-fsync", "true".to_owned()),
            ("log-level", "warn".to_owned()),
        ];
        let tracing = |otlp: &String| {
            vec![
                "--enable-distributed-tracing=true".to_owned(),
                format!("--distributed-tracing-address={otlp}"),
                format!("--distributed-tracing-instance-id={}", self.name),
                format!("--distributed-tracing-sampling-rate={ALL_SPANS}"),
            ]
        };
        self.spawn("etcd", &flags, &self.otlp.as_ref().map(tracing).unwrap_or_default())
    }

    pub(crate) fn apiserver(&self) -> Result<Process> {
        let (flags, more) = self.apiserver_flags(&self.ports.apiserver)?;
        self.spawn_program(&self.apiserver_path(), &flags, &more)
    }

    /// Another one on the same data, on a machine of this name as far as it can tell: API servers say by their host's name
    /// that they are there.
    pub(crate) fn another_apiserver(&self, port: &Port, host: &str) -> Result<Process> {
        let (flags, more) = self.apiserver_flags(port)?;
        let renamed = ["--map-root-user", "--uts", "sh", "-c", RENAMED, host];
        let program = self.apiserver_path().display().to_string();
        let flags = flags.iter().map(|(name, value)| format!("--{name}={value}"));
        let args = renamed
            .map(str::to_owned)
            .into_iter()
            .chain([program])
            .chain(flags)
            .chain(more);
        let log = self.folder.join(format!("kube-apiserver-{host}.log"));
        Process::spawn(Path::new("unshare"), &args.collect::<Vec<_>>(), &log)
    }

    fn apiserver_path(&self) -> PathBuf {
        let own = || self.tools.join("bin/kube-apiserver");
        self.apiserver_program.clone().unwrap_or_else(own)
    }

    fn apiserver_flags(&self, port: &Port) -> Result<(Flags, Vec<String>)> {
        let file = |name: &str| self.pki.file(name);
        let address = port.address().ip().to_string();
        let flags = vec![
            ("etcd-servers", format!("http://127.0.0.1:{}", self.ports.etcd.number())),
            ("secure-port", port.number().to_string()),
            ("bind-address", address.clone()),
            ("advertise-address", self.stage.to_string()),
            // Endpoints may not be loopback addresses, and without a Node nobody uses the Service `kubernetes`. Pods reach the
            // API server by way of the fault stage.
            (
                "endpoint-reconciler-type",
                if self.node.is_some() { "lease" } else { "none" }.to_owned(),
            ),
            ("cert-dir", self.path("pki")),
            ("tls-cert-file", file("server.crt")),
            ("tls-private-key-file", file("server.key")),
            ("client-ca-file", file("ca.crt")),
            ("service-account-key-file", file("service-account.pub")),
            ("service-account-signing-key-file", file("service-account.key")),
            ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
            ("authorization-mode", "RBAC".to_owned()),
            (
                "service-cluster-ip-range",
                self.node.map_or_else(|| "10.0.0.0/24".to_owned(), Part::services),
            ),
            ("allow-privileged", "true".to_owned()),
            ("kubelet-preferred-address-types", "InternalIP".to_owned()),
            ("kubelet-client-certificate", file("kubelet-client.crt")),
            ("kubelet-client-key", file("kubelet-client.key")),
        ];
        // Files of one cluster among flags that are given for all.
        let folder = self.folder.display().to_string();
        let mut more: Vec<String> = self
            .apiserver_args
            .iter()
            .map(|flag| flag.replace("{folder}", &folder))
            .collect();
        if let Some(otlp) = &self.otlp {
            let file = self.path("tracing.yaml");
            std::fs::write(&file, tracing_configuration(otlp))?;
            more.push(format!("--tracing-config-file={file}"));
        }
        Ok((flags, more))
    }

    pub(crate) fn controller_manager(&self) -> Result<Process> {
        let kubeconfig = self.kubeconfig.display().to_string();
        let controllers = if self.has_pods() {
            "*".to_owned()
        } else {
            CONTROLLERS_WITHOUT_PODS.join(",")
        };
        let flags = [
            ("kubeconfig", kubeconfig.clone()),
            ("authentication-kubeconfig", kubeconfig.clone()),
            ("authorization-kubeconfig", kubeconfig),
            ("controllers", controllers),
            ("service-account-private-key-file", self.pki.file("service-account.key")),
            ("root-ca-file", self.pki.file("ca.crt")),
            ("cluster-signing-cert-file", self.pki.file("ca.crt")),
            ("cluster-signing-key-file", self.pki.file("ca.key")),
            ("leader-elect", "false".to_owned()),
            ("bind-address", "127.0.0.1".to_owned()),
            ("secure-port", "0".to_owned()),
        ];
        self.spawn("kube-controller-manager", &flags, &[])
    }

    pub(crate) fn scheduler(&self) -> Result<Process> {
        let kubeconfig = self.kubeconfig.display().to_string();
        let flags = [
            ("kubeconfig", kubeconfig.clone()),
            ("authentication-kubeconfig", kubeconfig.clone()),
            ("authorization-kubeconfig", kubeconfig),
            ("leader-elect", "false".to_owned()),
            ("bind-address", "127.0.0.1".to_owned()),
            ("secure-port", "0".to_owned()),
        ];
        self.spawn("kube-scheduler", &flags, &[])
    }

    /// KWOK, which plays the kubelet of every Node; `config` is a file of its stages and endpoints.
    pub(crate) fn kwok(&self, config: &Path) -> Result<Process> {
        let port = self.ports.kubelet.number();
        let flags = [
            ("kubeconfig", self.kubeconfig.display().to_string()),
            ("config", config.display().to_string()),
            ("manage-all-nodes", "true".to_owned()),
            // Without leases the node goes NotReady every minute.
            ("node-lease-duration-seconds", "40".to_owned()),
            ("node-ip", "127.0.0.1".to_owned()),
            ("node-port", port.to_string()),
            ("server-address", format!("127.0.0.1:{port}")),
            ("tls-cert-file", self.pki.file("server.crt")),
            ("tls-private-key-file", self.pki.file("server.key")),
        ];
        self.spawn("kwok", &flags, &[])
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn spawn(&self, program: &str, flags: &[(&str, String)], extra: &[String]) -> Result<Process> {
        self.spawn_program(&self.tools.join("bin").join(program), flags, extra)
    }

    fn spawn_program(&self, program: &Path, flags: &[(&str, String)], extra: &[String]) -> Result<Process> {
        let flags = flags.iter().map(|(name, value)| format!("--{name}={value}"));
        let args: Vec<String> = flags.chain(extra.iter().cloned()).collect();
        let name = program.file_name().unwrap_or_default().display();
        let log = self.folder.join(format!("{name}.log"));
        // Every API server calls itself `apiserver` in its spans.
        let cluster = format!("k8s.cluster.name={}", self.name);
        let env = [("OTEL_RESOURCE_ATTRIBUTES", cluster.as_str())];
        Process::spawn_in(program, &args, &env, &log)
    }
}
