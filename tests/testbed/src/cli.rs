//! The commands. The clusters of `up` live in a daemon (`daemon`), which the other commands talk to (`control`);
//! it is the same [`portolan_testbed::Testbed`] that tests use, so there is one way to run and to end control planes.

mod control;
mod daemon;
mod images;

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args as Flags, Parser, Subcommand};
use portolan_testbed::{Bundle, Fault, cache_dir, enter, node_lacks};

use control::{ClusterReport, Request};
use images::ImagesFlags;

/// Real Kubernetes control planes on this machine: no containers, ready in seconds.
#[derive(Debug, Parser)]
#[command(name = "portolan-testbed", version, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,

    /// Folder of the running testbed [default: testbed/up in the cache folder]
    #[arg(long, global = true, env = "PORTOLAN_TESTBED_DIR")]
    dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build the control-plane programs, Jaeger and Helm into the cache (takes minutes, once)
    Build {
        /// And API servers of older and newer versions of Kubernetes (each takes minutes, once)
        #[arg(long)]
        versions: bool,
        /// And operators of others: Argo Rollouts and prometheus-operator (each takes minutes, once)
        #[arg(long)]
        operators: bool,
        /// And what runs Pods on a Node: containerd, kubelet, kube-proxy and CoreDNS (takes minutes, once)
        #[arg(long)]
        nodes: bool,
    },
    /// Say what this machine lacks for a Node; fails if it lacks anything
    NodeCheck,
    /// Run a program, a shell for example, in a network of its own, which Nodes need; its bridge has the address $PORTOLAN_LAN
    Enter {
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<String>,
    },
    /// Start clusters and leave them running; on a folder used before, with the data left there
    Up(UpFlags),
    /// Stop everything; data stays unless wiped
    Down {
        /// Remove the clusters' data, keys and logs
        #[arg(long)]
        wipe: bool,
    },
    /// Kill an API server (SIGKILL)
    Kill { name: String },
    /// Start an API server again, on the same port and data
    Restart { name: String },
    /// Stop an API server in its tracks (SIGSTOP): connections stay open and silent
    Freeze { name: String },
    /// Let a frozen API server go on (SIGCONT)
    Thaw { name: String },
    /// Make the network in front of an API server misbehave, for open and new connections
    Fault {
        name: String,
        #[command(flatten)]
        fault: FaultFlags,
    },
    /// Print the path of a cluster's kubeconfig
    Kubeconfig {
        name: String,
        /// The one that goes straight to the API server, past the faults
        #[arg(long)]
        direct: bool,
    },
    /// Show what is running
    Status,
    /// Print the path of a built program, kubectl for example
    Tool { name: String },
    /// Write an image of each program, as people install it
    Images(ImagesFlags),
    #[command(hide = true)]
    Serve(UpFlags),
}

#[derive(Clone, Debug, Flags)]
struct UpFlags {
    /// Names of the clusters: hub east west
    #[arg(required = true)]
    names: Vec<String>,
    /// Let pods run (KWOK plays the kubelet)
    #[arg(long)]
    pods: bool,
    /// Give each cluster a Node that runs Pods for real: containerd, kubelet, kube-proxy, CoreDNS (in `enter` alone)
    #[arg(long, conflicts_with = "pods")]
    nodes: bool,
    /// A program that Pods find under this name of an image; repeatable
    #[arg(long = "image", value_name = "NAME=PROGRAM", value_parser = parse_image, requires = "nodes")]
    images: Vec<(String, PathBuf)>,
    /// The address that API servers listen on [default: the loopback address, in `enter` $PORTOLAN_LAN]
    #[arg(long)]
    address: Option<Ipv4Addr>,
    /// A further flag for every API server; repeatable
    #[arg(long = "apiserver-arg", value_name = "FLAG", allow_hyphen_values = true)]
    apiserver_args: Vec<String>,
}

impl UpFlags {
    /// These flags as the daemon's command line has them.
    fn to_args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = self.names.iter().map(OsString::from).collect();
        args.extend(self.pods.then(|| "--pods".into()));
        args.extend(self.nodes.then(|| "--nodes".into()));
        let images = self
            .images
            .iter()
            .map(|(name, program)| format!("--image={name}={}", program.display()).into());
        args.extend(images);
        args.extend(self.address.map(|address| format!("--address={address}").into()));
        args.extend(
            self.apiserver_args
                .iter()
                .map(|arg| format!("--apiserver-arg={arg}").into()),
        );
        args
    }
}

#[derive(Debug, Flags)]
#[group(required = true, multiple = false)]
struct FaultFlags {
    /// Deliver every byte this much later, in both directions: 250ms, 2s
    #[arg(long, value_parser = parse_delay)]
    delay: Option<Duration>,
    /// Cut every connection with RST
    #[arg(long)]
    reset: bool,
    /// Let every byte vanish, and never end a connection
    #[arg(long)]
    blackhole: bool,
    /// Behave again
    #[arg(long)]
    clear: bool,
}

impl FaultFlags {
    fn fault(&self) -> Fault {
        match self.delay {
            Some(delay) => Fault::Delay(delay),
            None if self.reset => Fault::Reset,
            None if self.blackhole => Fault::Blackhole,
            None => Fault::None,
        }
    }
}

fn parse_image(text: &str) -> Result<(String, PathBuf), String> {
    // A name may hold a digest, but no equals sign.
    let (name, program) = text.split_once('=').ok_or("write it as NAME=PROGRAM")?;
    let program = std::path::absolute(program).map_err(|error| error.to_string())?;
    Ok((name.to_owned(), program))
}

fn parse_delay(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, Duration::from_millis(1)),
        None => (text.strip_suffix('s').unwrap_or_default(), Duration::from_secs(1)),
    };
    let number: u32 = number.parse().map_err(|_| "write it as 250ms or 2s".to_owned())?;
    unit.checked_mul(number).ok_or_else(|| "too long".to_owned())
}

pub(crate) async fn run(args: Args) -> Result<()> {
    let dir = match args.dir {
        Some(dir) => std::path::absolute(dir)?,
        None => cache_dir()?.join("testbed/up"),
    };
    let ask = async |request| control::ask(&dir, request).await;
    match args.command {
        Command::Build {
            versions,
            operators,
            nodes,
        } => {
            let versions = Bundle::API_SERVERS
                .iter()
                .map(|(_, bundle)| bundle)
                .filter(|_| versions);
            let operators = Bundle::OPERATORS.iter().filter(|_| operators);
            let nodes = Bundle::NODE.iter().filter(|_| nodes);
            let always = [&Bundle::CONTROL_PLANE, &Bundle::JAEGER, &Bundle::HELM, &Bundle::KINDS];
            let mut all = always.into_iter().chain(versions).chain(operators).chain(nodes);
            all.try_for_each(|bundle| bundle.ensure().map(drop))
        }
        Command::NodeCheck => check_node(),
        Command::Enter { program } => Err(enter(&program)),
        Command::Up(flags) => show(&control::up(&dir, &flags.names, flags.to_args()).await?),
        Command::Down { wipe } => {
            control::down(&dir).await?;
            if wipe { control::wipe(&dir) } else { Ok(()) }
        }
        Command::Kill { name } => ask(Request::Kill(name)).await.map(drop),
        Command::Restart { name } => ask(Request::Restart(name)).await.map(drop),
        Command::Freeze { name } => ask(Request::Freeze(name)).await.map(drop),
        Command::Thaw { name } => ask(Request::Thaw(name)).await.map(drop),
        Command::Fault { name, fault } => ask(Request::Fault(name, fault.fault())).await.map(drop),
        Command::Kubeconfig { name, direct } => kubeconfig(&ask(Request::Status).await?, &name, direct),
        Command::Status => show(&ask(Request::Status).await?),
        Command::Tool { name } => tool(&name),
        Command::Images(flags) => images::write(&flags),
        Command::Serve(flags) => daemon::serve(&dir, flags).await,
    }
}

fn check_node() -> Result<()> {
    let lacks = node_lacks();
    for what in &lacks {
        say(what)?;
    }
    match lacks.len() {
        0 => say("this machine can have Nodes"),
        count => bail!("this machine cannot have Nodes: it lacks {count} of what they need"),
    }
}

fn tool(name: &str) -> Result<()> {
    let path = Bundle::of(name).ensure()?.join("bin").join(name);
    if !path.exists() {
        bail!("there is no tool called {name}");
    }
    say(&path.display().to_string())
}

fn kubeconfig(clusters: &[ClusterReport], name: &str, direct: bool) -> Result<()> {
    let cluster = clusters.iter().find(|cluster| cluster.name == name);
    let cluster = cluster.with_context(|| format!("there is no cluster called {name}"))?;
    let path = if direct {
        &cluster.direct_kubeconfig
    } else {
        &cluster.kubeconfig
    };
    say(&path.display().to_string())
}

fn show(clusters: &[ClusterReport]) -> Result<()> {
    for cluster in clusters {
        let ClusterReport {
            name,
            url,
            direct_url,
            running,
            fault,
            ..
        } = cluster;
        let state = if *running { "running" } else { "killed" };
        say(&format!(
            "{name:<12} {state:<8} {url} (direct {direct_url}), fault: {fault:?}"
        ))?;
    }
    let paths: Vec<_> = clusters
        .iter()
        .map(|cluster| cluster.kubeconfig.display().to_string())
        .collect();
    say(&format!("export KUBECONFIG={}", paths.join(":")))
}

fn say(line: &str) -> Result<()> {
    writeln!(io::stdout(), "{line}").context("writing to stdout")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        <Args as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn delays_have_a_unit() {
        assert_eq!(parse_delay("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_delay("2s"), Ok(Duration::from_secs(2)));
        for bad in ["", "5", "s", "-1s", "1m", "2.5s"] {
            assert!(parse_delay(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_daemon_gets_the_same_flags() {
        let parse = |args: &[OsString]| {
            let args = Args::try_parse_from(["x".into(), "up".into()].iter().chain(args)).unwrap();
            let Command::Up(flags) = args.command else {
                panic!("not up")
            };
            flags
        };
        let flags = parse(
            &[
                "hub",
                "--nodes",
                "--image=example.com/operator:1=/bin/sh",
                "--address=10.0.0.7",
                "--apiserver-arg=--goaway-chance=0.1",
            ]
            .map(OsString::from),
        );
        assert_eq!(format!("{:?}", parse(&flags.to_args())), format!("{flags:?}"));
    }
}
