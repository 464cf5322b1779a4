//! Building a bundle: Go's own caches and checksum verification do the work; this adds the check for Go, the lock
//! between processes, progress, and the rename that makes a finished build appear at once.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use super::Bundle;

/// The oldest Go that builds Kubernetes 1.36, as (major, minor).
const OLDEST_GO: (u32, u32) = (1, 26);
const ADVICE: &str = "the testbed builds real Kubernetes programs from Go modules: install Go 1.26 or newer \
                      (https://go.dev/dl) and put it on PATH";
/// Ends the name of a folder that a build has not finished.
const REMAINS: &str = "-part";
/// How often progress is told on a terminal, and elsewhere.
const TERMINAL_TICK: Duration = Duration::from_secs(1);
const LOG_TICK: Duration = Duration::from_secs(15);
/// Lines of Go's output that an error message quotes.
const QUOTED_LINES: usize = 30;
/// Lines waiting between Go and us: enough that Go never waits.
const LINES_WAITING: usize = 1024;

/// Builds `bundle` so that `folder` appears complete or not at all. Of several processes one builds, the others wait.
pub(super) fn build(bundle: &Bundle, folder: &Path) -> Result<()> {
    let cache = folder.parent().context("a bundle's folder is in the cache")?;
    fs::create_dir_all(cache).with_context(|| format!("creating {}", cache.display()))?;
    let lock_path = folder.with_extension("lock");
    let lock = File::create(&lock_path).with_context(|| format!("creating {}", lock_path.display()))?;
    if lock.try_lock().is_err() {
        writeln!(
            io::stderr(),
            "testbed: another process is building the {}; waiting for it",
            bundle.name
        )?;
        lock.lock()
            .with_context(|| format!("locking {}", lock_path.display()))?;
    }
    if folder.is_dir() {
        return Ok(());
    }
    let prefix = format!("{}.", bundle.key());
    remove_remains(cache, &prefix);
    let work = tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(REMAINS)
        .tempdir_in(cache)?;
    fs::write(work.path().join("go.mod"), bundle.go_mod)?;
    fs::write(work.path().join("go.sum"), bundle.go_sum)?;
    if !bundle.main.is_empty() {
        fs::write(work.path().join("main.go"), bundle.main)?;
    }
    check_go(work.path())?;
    if !bundle.main.is_empty() || bundle.go_mod.contains("tool (") || bundle.go_mod.contains("\ntool ") {
        install(bundle, work.path())?;
    }
    copy_extras(bundle, work.path())?;
    publish(bundle, work, folder)
}

/// Builds that were killed leave their folders behind; we hold the lock, so nobody uses them.
fn remove_remains(cache: &Path, prefix: &str) {
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    let is_remains = |name: &str| name.starts_with(prefix) && name.ends_with(REMAINS);
    for entry in entries.filter(|entry| is_remains(&entry.file_name().to_string_lossy())) {
        let _ = fs::remove_dir_all(entry.path());
    }
}

fn check_go(module: &Path) -> Result<()> {
    let output = go(module).args(["env", "GOVERSION"]).output();
    let output = output.with_context(|| format!("running `go` failed; {ADVICE}"))?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let refused = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(
        output.status.success() && is_new_enough(&said),
        "found {said}{refused}; {ADVICE}"
    );
    Ok(())
}

fn is_new_enough(version: &str) -> bool {
    let mut numbers = version
        .trim_start_matches("go")
        .split(['.', '-', 'r', 'b', ' '])
        .map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= OLDEST_GO,
        _ => version.starts_with("devel"),
    }
}

/// `go` in the folder of our module, untouched by a workspace or module mode of the user's.
fn go(module: &Path) -> Command {
    let mut command = Command::new("go");
    command
        .current_dir(module)
        .env("GOWORK", "off")
        .env("GOFLAGS", "-mod=readonly")
        .stdin(Stdio::null());
    command
}

fn install(bundle: &Bundle, work: &Path) -> Result<()> {
    let mut child = go(work)
        .env("CGO_ENABLED", "0")
        .env("GOBIN", work.join("bin"))
        .args([
            "install",
            "-v",
            "-trimpath",
            &format!("-ldflags={}", bundle.ldflags),
            &format!("-tags={}", bundle.tags),
            if bundle.main.is_empty() { "tool" } else { "." },
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("running `go install`")?;
    let stderr = child.stderr.take().context("go has no stderr")?;
    let (send, lines) = sync_channel(LINES_WAITING);
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(stderr).lines().map_while(Result::ok);
        lines.for_each(|line| drop(send.send(line)));
    });
    let last = Progress::new(bundle.name).follow(&lines);
    drop(reader.join());
    let status = child.wait()?;
    if !status.success() {
        bail!("`go install` failed ({status}):\n{}", Vec::from(last).join("\n"));
    }
    Ok(())
}

fn copy_extras(bundle: &Bundle, work: &Path) -> Result<()> {
    let target = work.join("extras");
    for (module, paths) in bundle.extras {
        fs::create_dir_all(&target)?;
        let source = source(module, work)?;
        for path in *paths {
            let from = source.join(path);
            let name = from.file_name().with_context(|| format!("{path} is not a file"))?;
            // Not fs::copy: the module cache is read-only, and its copies would be.
            let text = fs::read(&from).with_context(|| format!("reading {}", from.display()))?;
            fs::write(target.join(name), text)?;
        }
    }
    Ok(())
}

/// Where the source of a module is, in the version that go.mod names; downloaded if nothing that was built has needed it.
fn source(module: &str, work: &Path) -> Result<PathBuf> {
    let output = go(work).args(["mod", "download", "-json", module]).output()?;
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let dir = said["Dir"].as_str().filter(|_| output.status.success());
    let error = || {
        format!(
            "go mod download {module}: {} {}",
            said["Error"],
            String::from_utf8_lossy(&output.stderr)
        )
    };
    Ok(PathBuf::from(dir.with_context(error)?))
}

fn publish(bundle: &Bundle, work: TempDir, folder: &Path) -> Result<()> {
    let (from, to) = bundle.rename;
    let bin = work.path().join("bin");
    if from != to {
        fs::rename(bin.join(from), bin.join(to)).with_context(|| format!("naming {to}"))?;
    }
    fs::rename(work.keep(), folder).with_context(|| format!("moving the build to {}", folder.display()))
}

/// Tells how far Go is. `go install -v` names each package once it begins to compile it; packages that Go still has
/// from earlier are not named, so there is no total to count towards.
struct Progress {
    name: &'static str,
    start: Instant,
    compiled: usize,
    downloaded: usize,
    terminal: bool,
}

impl Progress {
    fn new(name: &'static str) -> Self {
        let terminal = io::stderr().is_terminal();
        Self {
            name,
            start: Instant::now(),
            compiled: 0,
            downloaded: 0,
            terminal,
        }
    }

    /// Reads Go's output to its end; returns the last lines of it.
    fn follow(mut self, lines: &Receiver<String>) -> VecDeque<String> {
        let tick = if self.terminal { TERMINAL_TICK } else { LOG_TICK };
        let mut last = VecDeque::with_capacity(QUOTED_LINES);
        self.say("building (some minutes, once)");
        let mut next = Instant::now() + tick;
        loop {
            match lines.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.count(&line);
                    if last.len() == QUOTED_LINES {
                        last.pop_front();
                    }
                    last.push_back(line);
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.say("building");
                    next = Instant::now() + tick;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.say("done");
        if self.terminal {
            let _ = writeln!(io::stderr());
        }
        last
    }

    fn count(&mut self, line: &str) {
        if line.starts_with("go: downloading") {
            self.downloaded += 1;
        } else if !line.starts_with("go: ") {
            self.compiled += 1;
        }
    }

    fn say(&self, stage: &str) {
        let Self {
            name,
            compiled,
            downloaded,
            ..
        } = self;
        let seconds = self.start.elapsed().as_secs();
        let text = format!(
            "testbed: {name}: {stage}, {seconds} s, {downloaded} modules fetched, {compiled} packages compiled"
        );
        // On a terminal one line is written over and over; \x1b[K clears what a longer one left.
        let (before, after) = if self.terminal { ("\r", "\x1b[K") } else { ("", "\n") };
        let _ = write!(io::stderr(), "{before}{text}{after}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_go_is_refused() {
        for (version, enough) in [
            ("go1.26.0", true),
            ("go1.26rc1", true),
            ("go1.27", true),
            ("go2.0", true),
            ("go1.25.9", false),
            ("go1.9", false),
            ("", false),
            ("devel go1.28-abcdef", true),
        ] {
            assert_eq!(is_new_enough(version), enough, "{version}");
        }
    }
}
