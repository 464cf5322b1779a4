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

use crate::isolation::{Apart, unshared};
use crate::subnet::Subnet;
use crate::tools::Tools;

/// Its presence says that this is inside.
const INSIDE: &str = "PORTOLAN_LAN";
/// Where tests inside report that they are through.
const REPORTS: &str = "PORTOLAN_LAN_REPORTS";
/// Name of the bridge.
const BRIDGE: &str = "portolan0";
/// Address of the bridge, in a network of [`Subnet::PREFIX`].
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 1);
/// Makes the bridge and keeps the namespaces.
const SETUP: &str = include_str!("scripts/lan.sh");
/// Runs all that, tells by its standard output that it is over, and removes the folder once nobody wants it any more.
const KEEPER: &str = r#"
folder=$1
shift
"$@" >&2
trap '' PIPE
echo over
exec >&- 2>&-
cat >/dev/null
[ -n "${PORTOLAN_TESTBED_KEEP-}" ] || rm -rf "$folder"
"#;
/// Of the kinds that Pods need.
const NAMESPACES: [&str; 4] = ["--net", "--mount", "--uts", "--pid"];

/// The network that the programs of a test and Pods share.
#[derive(Debug)]
pub struct Lan {
    /// Why it is nothing but this machine's.
    shared: Option<String>,
    /// The number of the next node's part.
    next: AtomicU8,
}

impl Lan {
    /// The network that this program is in.
    pub fn here() -> &'static Self {
        static HERE: LazyLock<Lan> = LazyLock::new(|| Lan {
            shared: std::env::var_os(INSIDE).is_none().then(|| {
                let refused = refused().unwrap_or("this program was not started in one");
                refused.to_owned()
            }),
            next: AtomicU8::new(1),
        });
        &HERE
    }

    /// The address that programs have to listen on for Pods to reach them.
    pub fn address(&self) -> Ipv4Addr {
        if self.shared.is_some() {
            Ipv4Addr::LOCALHOST
        } else {
            ADDRESS
        }
    }

    /// How far apart the Pods of one more node can be here: they have addresses that no other node gives.
    pub fn apart(&self) -> Apart {
        self.part(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// [`Self::apart`] for nodes of several programs, each with a number of its own.
    pub fn part(&self, number: u8) -> Apart {
        match self.shared {
            None => Apart::Networks(Subnet::new(BRIDGE, ADDRESS, number)),
            Some(_) => Apart::Mounts,
        }
    }

    /// Why no such network can be made on this machine; None if it can, or this program is in one. Says so on standard error,
    /// once.
    pub fn refused() -> Option<&'static str> {
        if std::env::var_os(INSIDE).is_some() {
            return None;
        }
        refused()
    }

    /// Why this is nothing but this machine's network, in which Pods can reach everything and each other's loopback address.
    pub fn shared(&self) -> Option<&str> {
        self.shared.as_deref()
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
            command.args(program).env(INSIDE, ADDRESS.to_string());
            anyhow::Error::from(command.exec()).context("running unshare")
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
    let tools = Tools::find()?;
    let user = unshared(&tools, &NAMESPACES, &["true"])?;
    let address = format!("{ADDRESS}/{}", Subnet::PREFIX);
    let more = ["--fork", "--kill-child", "--mount-proc", "--"];
    let setup = [&tools.sh, "-c", SETUP, "sh", &tools.ip, BRIDGE, &address, kind];
    let mut command = Command::new(&tools.unshare);
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
