//! A network for a test and its Pods: user, network, mount and process namespaces of the whole test program, with a bridge
//! that Pods join. What listens on the bridge's address is reached by Pods; the loopback address is not.
//!
//! Nothing can move a running program of many threads into other namespaces. So the program is run again inside, once for
//! all of its tests, with the flags it was given, and each test that began outside reports what became of it inside.
//! Whatever happens to the program outside, nothing inside is left: it ends with the pipe that it reads.

use std::collections::BTreeSet;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::panic::Location;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{LazyLock, OnceLock};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;

use crate::namespaces::User;
use crate::system::System;

/// Its presence says that this is inside.
const INSIDE: &str = "PORTOLAN_LAN";
/// Where tests inside report that they are through.
const REPORTS: &str = "PORTOLAN_LAN_REPORTS";
/// Name of the bridge.
pub(crate) const BRIDGE: &str = "portolan0";
/// Address of the bridge: API servers and whatever a test starts listen here.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 1);
/// Another address of the bridge: a cluster's fault stage listens here, at the port of its API server, and is what its Pods
/// take for the API server.
const STAGE: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 2);
/// Length of the prefix of the bridge's network.
pub(crate) const PREFIX: u8 = 24;
/// Makes the bridge and keeps the namespaces.
const SETUP: &str = include_str!("lan/scripts/lan.sh");
/// Runs all that, tells by its standard output that it is over, removes cgroups that Nodes have left, and the folder once nobody
/// wants it any more.
const KEEPER: &str = r#"
folder=$1
shift
"$@" >&2
trap '' PIPE
echo over
exec >&- 2>&-
find /sys/fs/cgroup -depth -type d -path "*/$PORTOLAN_LAN_CGROUP*" -exec rmdir {} + 2>/dev/null
cat >/dev/null
[ -n "${PORTOLAN_TESTBED_KEEP-}" ] || rm -rf "$folder"
"#;
/// The same around a program that was entered: Ctrl-C is for that one.
const ENTERED: &str = r#"
trap : INT TERM
code=0
"$@" || code=$?
find /sys/fs/cgroup -depth -type d -path "*/$PORTOLAN_LAN_CGROUP*" -exec rmdir {} + 2>/dev/null
exit $code
"#;
/// How the names of the Nodes' cgroups begin.
const CGROUP: &str = "PORTOLAN_LAN_CGROUP";
/// Of the kinds that Pods need.
const NAMESPACES: [&str; 4] = ["--net", "--mount", "--uts", "--pid"];

/// The network that the programs of a test and Pods share.
#[derive(Debug)]
pub struct Lan {
    /// How many Nodes have joined.
    nodes: AtomicU8,
}

/// The addresses of one Node of the network, and of the cluster that it is the Node of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// From 1 to [`Part::MAX`]: no two Nodes of a network have the same.
    number: u8,
}

impl Lan {
    /// The network that this program is in; None if it shares its machine's.
    pub fn here() -> Option<&'static Self> {
        static HERE: Lan = Lan {
            nodes: AtomicU8::new(0),
        };
        std::env::var_os(INSIDE).map(|_| &HERE)
    }

    /// The address that programs have to listen on for Pods to reach them.
    pub fn address(&self) -> Ipv4Addr {
        ADDRESS
    }

    /// The address for fault stages, which Pods take for their API server.
    pub(crate) fn stage() -> Ipv4Addr {
        STAGE
    }

    /// How the cgroups of Nodes begin, each below the root of a controller: those are swept in the end.
    pub(crate) fn cgroup() -> String {
        std::env::var_os(CGROUP)
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }

    /// The addresses of one more Node.
    ///
    /// # Errors
    ///
    /// There are as many as have addresses.
    pub(crate) fn join(&self) -> Result<Part> {
        let number = self.nodes.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        ensure!(
            number <= Part::MAX,
            "no more than {} Nodes have addresses in one network",
            Part::MAX
        );
        Ok(Part { number })
    }

    /// Why no such network can be made on this machine; None if it can, or this program is in one. Says so on standard error,
    /// once.
    pub fn refused() -> Option<&'static str> {
        if Self::here().is_some() {
            return None;
        }
        refused()
    }
}

impl Part {
    const MAX: u8 = 60;

    /// Of the Node itself, on the bridge.
    pub(crate) fn node(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 244, 0, 10 + self.number)
    }

    /// Of its Pods, as a subnet: the network leads there through the Node.
    pub(crate) fn pods(self) -> String {
        format!("10.{}.0.0/24", 64 + self.number)
    }

    /// Of the cluster's Services, as a subnet that the network reaches through the Node too.
    pub(crate) fn services(self) -> String {
        format!("10.{}.0.0/24", 128 + self.number)
    }

    /// Of one Service.
    pub(crate) fn service(self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 128 + self.number, 0, host)
    }

    /// Name of its interface on the bridge.
    pub(crate) fn link(self) -> String {
        format!("node-{}", self.number)
    }
}

/// Runs a test inside; in the program as it is where namespaces are refused. To be called by `#[test]` functions, each from a
/// line of its own, and as the only thing they do. Panics if the test fails.
#[track_caller]
pub fn inside<F: Future<Output = ()>>(test: F) {
    static RUN: OnceLock<Result<Run, String>> = OnceLock::new();
    let caller = Location::caller();
    let key = format!("{}-{}", caller.line(), caller.column());
    if std::env::var_os(INSIDE).is_none() && Lan::refused().is_none() {
        // Dropped unpolled: it runs inside.
        drop(test);
        return match RUN.get_or_init(|| Run::new().map_err(|error| format!("{error:#}"))) {
            Ok(run) => run.expect(&key),
            Err(error) => fail(error),
        };
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime.expect("a test has threads").block_on(test);
    if let Some(reports) = std::env::var_os(REPORTS) {
        std::fs::write(Path::new(&reports).join(key), "").expect("the report of a test can be written");
    }
}

/// Becomes a program inside, by whose end all inside ends; `PORTOLAN_LAN` tells it the bridge's address. Returns only if that
/// is not possible.
pub fn enter(program: &[String]) -> anyhow::Error {
    match command("free") {
        Ok(mut command) => {
            command.args(program);
            let mut keeper = Command::new("sh");
            keeper
                .args(["-c", ENTERED, "sh"])
                .arg(command.get_program())
                .args(command.get_args())
                .env(INSIDE, ADDRESS.to_string())
                .env(CGROUP, format!("portolan-lan-{}", std::process::id()));
            anyhow::Error::from(keeper.exec()).context("running sh")
        }
        Err(error) => error,
    }
}

/// What became of the tests inside.
struct Run {
    /// Keys of those that are through.
    passed: BTreeSet<String>,
    said: String,
    /// A mutex: what the tests said is told by the first that failed.
    told: Mutex<bool>,
}

impl Run {
    /// Runs this program again, inside.
    fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("portolan-lan-").tempdir()?.keep();
        let reports = folder.join("reports");
        std::fs::create_dir(&reports)?;
        let (heard, output) = (folder.join("output"), std::fs::File::create(folder.join("output"))?);
        let shown = std::env::args().any(|flag| flag == "--nocapture" || flag == "--no-capture");
        let inside = command("leash")?;
        let mut child = Command::new("sh")
            .args(["-c", KEEPER, "sh"])
            .arg(&folder)
            .arg(inside.get_program())
            .args(inside.get_args())
            .arg(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .env(INSIDE, ADDRESS.to_string())
            .env(REPORTS, &reports)
            .env(CGROUP, folder.file_name().unwrap_or_default())
            .env("TMPDIR", &folder)
            // Ctrl-C is for us: those inside end by the leash.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(if shown { Stdio::inherit() } else { output.into() })
            .spawn()
            .context("running sh")?;
        // Its end is the end of all inside, and of the folder.
        let leash = child.stdin.take();
        let stdout = child.stdout.take().context("sh has no stdout")?;
        BufReader::new(stdout).read_line(&mut String::new())?;
        let said = std::fs::read(&heard)?;
        let passed = std::fs::read_dir(&reports)?;
        let passed = passed.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let passed = passed.collect::<Result<_>>()?;
        drop(leash);
        child.wait()?;
        Ok(Self {
            passed,
            said: String::from_utf8_lossy(&said).into_owned(),
            told: Mutex::new(false),
        })
    }

    fn expect(&self, key: &str) {
        if self.passed.contains(key) {
            return;
        }
        let already = std::mem::replace(&mut *self.told.lock(), true);
        let said = if already {
            "another test has told of it"
        } else {
            &self.said
        };
        fail(&format!("this test failed inside:\n{said}"));
    }
}

#[expect(clippy::panic, reason = "this is how tests fail")]
fn fail(why: &str) {
    panic!("{why}");
}

/// What makes the namespaces and the bridge; what shall run there comes after it. See `scripts/lan.sh` for its `kind`.
fn command(kind: &str) -> Result<Command> {
    let system = System::find()?;
    let user = User::of(&system, &NAMESPACES, &["true"])?;
    let [address, stage] = [ADDRESS, STAGE].map(|address| format!("{address}/{PREFIX}"));
    let more = ["--fork", "--kill-child", "--mount-proc", "--"];
    let setup = [
        &system.sh, "-c", SETUP, "sh", &system.ip, BRIDGE, &address, &stage, kind,
    ];
    let mut command = Command::new(&system.unshare);
    command.args(user.flags()).args(NAMESPACES).args(more).args(setup);
    Ok(command)
}

/// Why there can be no network of our own.
fn refused() -> Option<&'static str> {
    static REFUSED: LazyLock<Option<String>> = LazyLock::new(|| {
        let why = attempt().err().map(|error| format!("{error:#}"))?;
        let _ = writeln!(
            std::io::stderr(),
            "no network for Pods can be made here, they share this machine's: {why}"
        );
        Some(why)
    });
    REFUSED.as_deref()
}

fn attempt() -> Result<()> {
    let output = command("free")?.arg("true").output()?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
