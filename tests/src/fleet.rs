//! A fleet of real programs on real control planes, started by `portolanctl dev up`, ended when dropped or when this
//! process ends in whatever way.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context as _, bail};
use portolan_testbed::{Cluster, Testbed, patience};
use serde_json::Value;

use crate::daemon::{Daemon, Launch};
use crate::programs::{argument, program};

/// What to start.
#[derive(Debug, Default)]
pub struct FleetOptions<'a> {
    /// Name of the testbed's cluster that is the hub.
    pub hub: &'a str,
    /// Names of the testbed's clusters that are members.
    pub members: &'a [&'a str],
    /// Manifests applied to the hub: ShardingConfigs, as YAML.
    pub manifests: &'a str,
    /// OTLP endpoint of all programs.
    pub otlp: Option<&'a str>,
    /// Folder of the fleet; a temporary one by default.
    pub dir: Option<PathBuf>,
    /// Where the router listens, if Pods are to reach it.
    pub router_address: Option<IpAddr>,
    /// Name that Pods reach the router by, which the members name to them.
    pub gateway: Option<&'a str>,
    /// Straight to the API servers, past their fault stages: for measurements.
    pub past_stage: bool,
    /// Environment of all programs: every flag is a variable too.
    pub env: &'a [(&'a str, &'a str)],
}

/// The flag of `dev up` for the patience of tests: it waits for many things, one after the other.
pub fn up_timeout() -> [String; 2] {
    ["--timeout".to_owned(), format!("{}s", 2 * patience().as_secs())]
}

impl FleetOptions<'_> {
    fn kubeconfig(&self, cluster: &Cluster) -> String {
        argument(if self.past_stage {
            cluster.direct_kubeconfig_path()
        } else {
            cluster.kubeconfig_path()
        })
    }
}

/// A running fleet. Dropping it ends its programs.
#[derive(Debug)]
pub struct Fleet {
    dir: PathBuf,
    env: Vec<(String, String)>,
    _guard: Guard,
    _scratch: Option<tempfile::TempDir>,
}

impl Fleet {
    /// Starts the programs and returns when all is ready.
    pub async fn start(testbed: &Testbed, options: FleetOptions<'_>) -> anyhow::Result<Self> {
        let scratch = if options.dir.is_none() {
            Some(tempfile::tempdir().context("no temporary folder")?)
        } else {
            None
        };
        let base = options
            .dir
            .clone()
            .or_else(|| scratch.as_ref().map(|dir| dir.path().to_path_buf()))
            .context("a folder")?;
        let dir = base.join("fleet");
        std::fs::create_dir_all(&base)?;
        let manifests = base.join("manifests.yaml");
        std::fs::write(&manifests, options.manifests)?;
        let guard = Guard::sweeping(&dir, scratch.as_ref().map(tempfile::TempDir::path))?;
        let mut arguments = vec![
            "dev".to_owned(),
            "up".to_owned(),
            "--hub".to_owned(),
            options.kubeconfig(testbed.cluster(options.hub)),
        ];
        for member in options.members {
            arguments.extend([
                "--member".to_owned(),
                format!("{member}={}", options.kubeconfig(testbed.cluster(member))),
            ]);
        }
        if !options.manifests.is_empty() {
            arguments.extend(["-f".to_owned(), argument(&manifests)]);
        }
        if let Some(otlp) = options.otlp {
            arguments.extend(["--otlp".to_owned(), otlp.to_owned()]);
        }
        if let Some(address) = options.router_address {
            arguments.extend(["--router-bind".to_owned(), SocketAddr::new(address, 0).to_string()]);
        }
        if let Some(gateway) = options.gateway {
            arguments.extend(["--gateway".to_owned(), gateway.to_owned()]);
        }
        arguments.extend(["--dir".to_owned(), argument(&dir)]);
        arguments.extend(up_timeout());
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let fleet = Self {
            dir,
            env: options.env.iter().map(owned).collect(),
            _guard: guard,
            _scratch: scratch,
        };
        fleet.run(&arguments).await?;
        Ok(fleet)
    }

    /// Runs `portolanctl` and returns what it printed; an error carries both of its outputs.
    pub async fn run(&self, arguments: &[String]) -> anyhow::Result<String> {
        let output = tokio::process::Command::new(program("portolanctl")?)
            .args(arguments)
            .envs(self.env.iter().cloned())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .context("cannot run portolanctl")?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!(
                "portolanctl {}: {}{printed}{}",
                arguments.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(printed)
    }

    /// The folder given to `dev up`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Kubeconfig of the explicit view, one context per member.
    pub fn explicit_kubeconfig(&self) -> PathBuf {
        self.dir.join("explicit.kubeconfig")
    }

    /// Kubeconfig of a shard's caller on the merged view.
    pub fn merged_kubeconfig(&self, shard: &str) -> PathBuf {
        self.dir.join(format!("merged-{shard}.kubeconfig"))
    }

    /// The present token of a shard's caller.
    pub fn merged_token(&self, shard: &str) -> anyhow::Result<String> {
        std::fs::read_to_string(self.dir.join(format!("merged-{shard}.token"))).context("no token of this shard")
    }

    /// The record that `dev up` keeps: addresses, processes.
    pub fn record(&self) -> anyhow::Result<Value> {
        let bytes = std::fs::read(self.dir.join("fleet.json")).context("no fleet record")?;
        serde_json::from_slice(&bytes).context("unreadable fleet record")
    }

    /// `https://host:port` of the router.
    pub fn router_url(&self) -> anyhow::Result<String> {
        Ok(self.record()?["routerUrl"].as_str().context("no router")?.to_owned())
    }

    /// The hub's CA, which the router's certificate chains to.
    pub fn ca_pem(&self) -> anyhow::Result<String> {
        std::fs::read_to_string(self.dir.join("hub-ca.crt")).context("no CA of the hub")
    }

    /// A program of the record: `hub`, `router`, `agent-east` …
    pub fn process(&self, name: &str) -> anyhow::Result<Process> {
        let record = self.record()?;
        let all = record["processes"].as_array().cloned().unwrap_or_default();
        let found = all
            .iter()
            .find(|process| process["name"] == name)
            .with_context(|| format!("no program {name}"))?;
        let pid = found["pid"]
            .as_i64()
            .and_then(|pid| i32::try_from(pid).ok())
            .context("no pid")?;
        let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        Ok(Process {
            pid,
            admin: text("admin"),
            log: text("log").into(),
        })
    }

    /// Ends a program of the fleet and starts it again as this process's own, with the same flags and addresses.
    pub async fn take_over(&self, name: &str) -> anyhow::Result<Daemon> {
        let (launch, addresses) = self.launched(name)?;
        self.take_out(name).await?;
        Daemon::adopt(launch, &addresses).await
    }

    /// How a program of the fleet was started, and where it listens.
    pub(crate) fn launched(&self, name: &str) -> anyhow::Result<(Launch, Value)> {
        let pid = self.process(name)?.pid;
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).with_context(|| format!("{name} does not run"))?;
        let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        let mut words = words.map(|word| String::from_utf8_lossy(word).into_owned());
        let program = words.next().context("a command line has a program")?;
        let addresses = std::fs::read(self.dir.join(format!("{name}.addresses.json"))).context("no addresses")?;
        let launch = Launch {
            name: name.to_owned(),
            program: Path::new(&program)
                .file_name()
                .context("a file")?
                .to_string_lossy()
                .into_owned(),
            arguments: words.collect(),
            env: self.env.clone(),
            dir: self.dir.clone(),
        };
        Ok((launch, serde_json::from_slice(&addresses)?))
    }

    /// Ends a program of the fleet for good.
    pub(crate) async fn take_out(&self, name: &str) -> anyhow::Result<()> {
        // Else the supervisor would start it again.
        let stop = ["dev", "stop", name, "--dir", &argument(&self.dir)].map(ToOwned::to_owned);
        self.run(&stop).await.map(drop)
    }

    /// What a program has logged so far.
    pub fn log(&self, name: &str) -> anyhow::Result<String> {
        std::fs::read_to_string(self.process(name)?.log).context("no log")
    }
}

/// One program of a fleet.
#[derive(Debug)]
pub struct Process {
    /// For signals.
    pub pid: i32,
    /// Admin address, `host:port`; empty if it has none.
    pub admin: String,
    /// Its log file.
    pub log: PathBuf,
}

/// A shell that waits for the end of this process, in a group of its own so that Ctrl-C does not end it too, and then
/// ends the fleet's programs.
#[derive(Debug)]
pub struct Guard {
    shell: Child,
    /// Closed by the kernel when this process ends; then the shell acts.
    alive: Option<ChildStdin>,
}

impl Guard {
    /// Guards the fleet in `dir`, which may be started later.
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        Self::sweeping(dir, None)
    }

    /// Removes `scratch` in the end, which a fleet in a static does not.
    fn sweeping(dir: &Path, scratch: Option<&Path>) -> anyhow::Result<Self> {
        use std::os::unix::process::CommandExt as _;
        let script = r#"read -r _ || "$0" dev down --local-only --dir "$1" >/dev/null 2>&1
            [ -z "$2" ] || [ -n "$PORTOLAN_TESTBED_KEEP" ] || rm -rf "$2""#;
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .arg(program("portolanctl")?)
            .arg(dir)
            .arg(scratch.unwrap_or(Path::new("")))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start a shell")?;
        let alive = shell.stdin.take();
        Ok(Self { shell, alive })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.alive.take();
        let _ = self.shell.wait();
    }
}
