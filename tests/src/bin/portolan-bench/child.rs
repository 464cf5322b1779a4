//! A program started by the benchmark: knows its addresses, is gone when dropped or when this process ends in whatever
//! way.

use std::path::{Path, PathBuf};
use std::process::{Child as StdChild, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use portolan_tests::programs::argument;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(30);
/// Of a program that something else runs, many times slower.
const LONG_PATIENCE: Duration = Duration::from_mins(5);
/// Between looks for the addresses; start times are told in milliseconds.
const LOOK: Duration = Duration::from_millis(1);

/// For a program that is to end by itself.
const GENTLE_PATIENCE: Duration = Duration::from_mins(1);

/// Set once, by `main`: it holds for all programs of this process.
static ENDS_GENTLY: AtomicBool = AtomicBool::new(false);

/// Programs are ended by SIGTERM from here on, and waited for.
pub(crate) fn end_gently() {
    ENDS_GENTLY.store(true, Ordering::Relaxed);
}

/// A running program.
pub(crate) struct Child {
    program: StdChild,
    guard: Guard,
    name: &'static str,
    log: PathBuf,
    addresses: PathBuf,
    patience: Duration,
    /// When it was started.
    pub(crate) started: Instant,
}

impl Child {
    /// Starts `program`, which is told to write its addresses to a file in `dir`; its output goes to a log there.
    pub(crate) fn start(name: &'static str, program: &Path, arguments: &[String], dir: &Path) -> anyhow::Result<Self> {
        let addresses = addresses_file(name, dir);
        // Of an earlier run of the same program.
        let _ = std::fs::remove_file(&addresses);
        let told = ["--addresses-file".to_owned(), argument(&addresses)];
        Self::foreign(name, program, &[arguments, &told].concat(), dir)
    }

    /// The same of a program that knows no file of addresses.
    pub(crate) fn foreign(
        name: &'static str,
        program: &Path,
        arguments: &[String],
        dir: &Path,
    ) -> anyhow::Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let output = std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let started = Instant::now();
        let program = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let guard = Guard::new(program.id())?;
        Ok(Self {
            program,
            guard,
            name,
            log,
            addresses: addresses_file(name, dir),
            patience: PATIENCE,
            started,
        })
    }

    /// The same by another program, with what that is told before; it may take its time then. It must become the program, as
    /// `taskset` does, or be it, as valgrind is: its process is the one that counts.
    pub(crate) fn start_by(
        by: &[String],
        name: &'static str,
        program: &Path,
        arguments: &[String],
        dir: &Path,
    ) -> anyhow::Result<Self> {
        let Some((by, before)) = by.split_first() else {
            return Self::start(name, program, arguments, dir);
        };
        let arguments = [before, &[argument(program)], arguments].concat();
        let mut child = Self::start(name, Path::new(by), &arguments, dir)?;
        child.patience = LONG_PATIENCE;
        Ok(child)
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.program.id()).unwrap_or(i32::MAX)
    }

    /// An address of the file it writes, as soon as it has: `bind`, `admin`.
    pub(crate) async fn address(&mut self, which: &str) -> anyhow::Result<String> {
        loop {
            self.check()?;
            if let Some(address) = read_address(&self.addresses, which) {
                return Ok(address);
            }
            if self.started.elapsed() > self.patience {
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        bail!("{} did not tell its addresses\n{}", self.name, self.tail())
    }

    /// Waits until its admin server says that it is ready.
    pub(crate) async fn ready(&mut self) -> anyhow::Result<()> {
        let admin = self.address("admin").await?;
        let mut last = None;
        while self.started.elapsed() < self.patience {
            self.check()?;
            match portolan_tests::programs::admin_get(&admin, "/readyz").await {
                Ok(_) => return Ok(()),
                Err(error) => last = Some(error),
            }
            tokio::time::sleep(LOOK).await;
        }
        bail!("{} is not ready: {last:?}\n{}", self.name, self.tail())
    }

    /// An error with its log if it has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.program.try_wait()? {
            bail!("{} has ended: {status}\n{}", self.name, self.tail());
        }
        Ok(())
    }

    /// Ends it, if it has not ended.
    pub(crate) fn end(&mut self) {
        // Once it was waited for, its number may be another's.
        if ENDS_GENTLY.load(Ordering::Relaxed)
            && self.is_running()
            && kill(Pid::from_raw(self.pid()), Signal::SIGTERM).is_ok()
        {
            let until = Instant::now() + GENTLE_PATIENCE;
            while self.is_running() && Instant::now() < until {
                std::thread::sleep(LOOK);
            }
            if self.is_running() {
                eprintln!("- {} does not end by SIGTERM and is killed", self.name);
            }
        }
        let _ = self.program.kill();
        let _ = self.program.wait();
    }

    fn is_running(&mut self) -> bool {
        matches!(self.program.try_wait(), Ok(None))
    }

    /// The end of its log.
    fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
        self.guard.release();
    }
}

fn addresses_file(name: &str, dir: &Path) -> PathBuf {
    dir.join(format!("{name}.addresses.json"))
}

fn read_address(file: &Path, which: &str) -> Option<String> {
    let addresses: Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    Some(addresses.get(which)?.as_str()?.to_owned())
}

/// A shell that ends the program when this process has ended without doing so.
struct Guard {
    shell: StdChild,
    /// Closed by the kernel when this process ends; then the shell acts.
    alive: Option<ChildStdin>,
}

impl Guard {
    fn new(pid: u32) -> anyhow::Result<Self> {
        use std::os::unix::process::CommandExt as _;
        let mut shell = Command::new("sh")
            .args(["-c", r#"read -r _ || kill -KILL "$0" 2>/dev/null"#, &pid.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start a shell")?;
        let alive = shell.stdin.take();
        Ok(Self { shell, alive })
    }

    /// The program has been ended, its number may be another's soon.
    fn release(&mut self) {
        use std::io::Write as _;
        if let Some(mut alive) = self.alive.take() {
            let _ = alive.write_all(b"done\n");
        }
        let _ = self.shell.wait();
    }
}
