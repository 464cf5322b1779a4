//! What all Pods of a node have in common: the machine they run on, as far as the node uses it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use parking_lot::Mutex;

use crate::image::Images;
use crate::isolation::{Isolation, User};
use crate::process::Line;
use crate::tools::Tools;

/// How long the node waits for what; the kubelet's own times are said beside those that differ.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Before a container that has failed twice is run again; doubled each time. The kubelet: 10 s.
    pub first_pause: Duration,
    /// No longer than this. The kubelet: 5 min.
    pub longest_pause: Duration,
    /// Between two looks at ConfigMaps, Secrets and the age of tokens of a running Pod. The kubelet: about a minute.
    pub refresh: Duration,
    /// Tokens are replaced at four fifths of their life, or once they are so old. The kubelet: 24 h.
    pub token_age: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(30),
            refresh: Duration::from_secs(5),
            token_age: Duration::from_hours(24),
        }
    }
}

/// The machine, and what the node was told.
pub(crate) struct Machine {
    /// Name of the Node.
    pub(crate) node: String,
    pub(crate) client: Client,
    pub(crate) tools: Tools,
    pub(crate) isolation: Isolation,
    /// Address of the node itself.
    pub(crate) address: Ipv4Addr,
    pub(crate) images: Images,
    /// Host and port of the API server, as Pods reach it.
    pub(crate) api_server: (String, u16),
    /// Where everything of Pods is.
    pub(crate) folder: PathBuf,
    pub(crate) pace: Pace,
    pub(crate) running: Running,
}

/// What it takes to join the programs that run, by uid and container. A mutex: held for one entry.
pub(crate) type Running = Mutex<BTreeMap<(String, String), Inside>>;

/// What it takes to run another program where a container's is.
#[derive(Clone, Debug)]
pub(crate) struct Inside {
    /// Of the container's program, as the node counts.
    pub(crate) pid: i32,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cwd: String,
}

impl Machine {
    /// The folder of a Pod.
    pub(crate) fn pod_folder(&self, pod: &Pod) -> PathBuf {
        self.folder
            .join("pods")
            .join(pod.metadata.uid.as_deref().unwrap_or_default())
    }

    /// The command line that runs a program beside a container's.
    pub(crate) fn beside(&self, inside: &Inside, command: &[String]) -> Line {
        let (sh, target) = (&self.tools.sh, format!("--target={}", inside.pid));
        let user: &[&str] = match self.isolation {
            Isolation::Mounts(User::Mapped) => &["--user", "--preserve-credentials"],
            _ => &[],
        };
        let around = if self.isolation == Isolation::None {
            vec![sh, "-c", "cd \"$1\"; shift; exec \"$@\"", "sh", &inside.cwd]
        } else {
            let spaces = ["--mount", "--uts", "--net", "--pid", "--root", "--wd", "--"];
            [&[self.tools.nsenter.as_str(), &target], user, &spaces].concat()
        };
        let around = around.into_iter().map(str::to_owned);
        Line {
            argv: around.chain(command.iter().cloned()).collect(),
            env: inside.env.clone(),
        }
    }

    /// The log of a container's run, counted from 0.
    pub(crate) fn log(&self, pod: &Pod, container: &str, run: u32) -> PathBuf {
        self.pod_folder(pod)
            .join("logs")
            .join(container)
            .join(format!("{run}.log"))
    }
}
