//! The command line of `portolanctl inject`, and the address of a gateway.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

/// Where a gateway's Service listens if nothing else is said.
const HTTPS: u16 = 443;

const INJECT_HELP: &str = "\
Prints the documents with each Pod in them (of Pods, Deployments, StatefulSets, DaemonSets,
ReplicaSets, Jobs, CronJobs and Lists of these) pointed at a gateway, and all others as they are.
Where a member's API server serves MutatingAdmissionPolicy v1 (Kubernetes 1.36), label
ctrlmesh.kusionstack.io/enable-proxy: \"true\" on the Pod or its namespace does the same at
admission. A Pod that says \"false\" there stays as it is.

The CA certificates of the gateway stand in the Pods then. To replace the hub's CA, inject and
apply the manifests again.

Examples:
  $ portolanctl inject -f operator.yaml --member-kubeconfig east.kubeconfig | kubectl apply -f -
  $ kustomize build | portolanctl inject -f - --gateway gate.ops.svc --ca-file hub-ca.crt";

#[derive(Debug, Clone, Args)]
#[command(after_help = INJECT_HELP)]
pub(crate) struct InjectArgs {
    /// File with documents of YAML or JSON, `-` for what comes in; repeatable
    #[arg(long = "filename", short = 'f', value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Kubeconfig of the member cluster that they are for: it names the gateway and the CA certificates that it is known by
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["gateway", "ca_file"],
        required_unless_present_all = ["gateway", "ca_file"]
    )]
    pub(crate) member_kubeconfig: Option<PathBuf>,
    /// Gateway, as Pods reach it: a name that its certificate has
    #[arg(long, value_name = "HOST[:PORT]", requires = "ca_file")]
    pub(crate) gateway: Option<GatewayAddress>,
    /// CA certificates that the gateway is known by (ca.crt of ConfigMap portolan-system/portolan-ca on the hub)
    #[arg(long, value_name = "FILE", requires = "gateway")]
    pub(crate) ca_file: Option<PathBuf>,
}

/// A gateway, as Pods of a member reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GatewayAddress {
    host: String,
    port: u16,
}

impl GatewayAddress {
    pub(crate) fn new(host: &str, port: u16) -> Self {
        let host = host.to_owned();
        Self { host, port }
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn port(&self) -> String {
        self.port.to_string()
    }
}

impl FromStr for GatewayAddress {
    type Err = String;

    /// `HOST` or `HOST:PORT`. Clients put the host into a URL: an IPv6 address stands without brackets in their environment.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not HOST or HOST:PORT");
        let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(bracketed) => {
                let (host, port) = bracketed.ok_or_else(wrong)?;
                (
                    host,
                    port.strip_prefix(':')
                        .or(port.is_empty().then_some(""))
                        .ok_or_else(wrong)?,
                )
            }
            None => text.split_once(':').unwrap_or((text, "")),
        };
        let port = match port {
            "" if !text.ends_with(':') => HTTPS,
            port => port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?,
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_plain) {
            return Err(wrong());
        }
        let host = host.to_owned();
        Ok(Self { host, port })
    }
}

impl fmt::Display for GatewayAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_perhaps_a_port() {
        let read = |text: &str| {
            text.parse::<GatewayAddress>()
                .map(|address| (address.host.clone(), address.port))
        };
        assert_eq!(read("gate.ops.svc"), Ok(("gate.ops.svc".to_owned(), 443)));
        assert_eq!(read("10.0.0.1:8443"), Ok(("10.0.0.1".to_owned(), 8443)));
        assert_eq!(read("[fd00::1]:8443"), Ok(("fd00::1".to_owned(), 8443)));
        assert_eq!(read("[fd00::1]"), Ok(("fd00::1".to_owned(), 443)));
        for wrong in [
            "",
            ":443",
            "gate:",
            "gate:0",
            "gate:x",
            "https://gate",
            "[fd00::1",
            "[fd00::1]8443",
        ] {
            read(wrong).unwrap_err();
        }
        let shown = |text: &str| text.parse::<GatewayAddress>().unwrap().to_string();
        assert_eq!(
            (shown("gate").as_str(), shown("[::1]:1").as_str()),
            ("gate:443", "[::1]:1")
        );
    }
}
