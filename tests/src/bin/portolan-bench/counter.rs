//! Counts the instructions that processes execute, so that neither the machine nor what runs beside them matters: by the
//! processor's counters where `perf` may read them, else by valgrind's callgrind.
//!
//! What is counted is of the programs alone, never of the kernel. Callers: `policies`, `instructions`, `growth`.

mod causes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use portolan_tests::programs::argument;

pub(crate) use self::causes::Cause;

/// As `perf` calls it: of user space.
const EVENT: &str = "instructions:u";
/// Before the process id in the names of callgrind's files.
const COUNTS: &str = "counts";
/// For `perf` to attach to the threads of a process; it does not say when it has.
const ATTACH: Duration = Duration::from_millis(500);

/// For a router that is counted: by valgrind its timers are late, and it would shed.
pub(crate) const NEVER_SHED: &str = "--shed-delay=0s";

/// What counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    Perf,
    Callgrind,
}

impl Tool {
    /// The processor's counters if they can be read, else valgrind.
    pub(crate) fn choose() -> anyhow::Result<Self> {
        let perf = Command::new("perf").args(["stat", "-x,", "-e", EVENT, "true"]).output();
        if perf.is_ok_and(|output| parse_perf(&String::from_utf8_lossy(&output.stderr)).is_some()) {
            return Ok(Self::Perf);
        }
        Self::callgrind()
    }

    /// Valgrind, if it is there.
    pub(crate) fn callgrind() -> anyhow::Result<Self> {
        let known = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
        ensure!(
            known.is_ok_and(|status| status.success()),
            "valgrind is missing, and perf cannot read counters of this machine: one of them counts instructions"
        );
        Ok(Self::Callgrind)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Perf => "perf stat -e instructions:u",
            Self::Callgrind => "valgrind --tool=callgrind",
        }
    }

    /// What must run a program that is to be counted, with its results in `folder`.
    pub(crate) fn wrapper(self, folder: &Path) -> Vec<String> {
        match self {
            Self::Perf => Vec::new(),
            Self::Callgrind => vec![
                "valgrind".to_owned(),
                "--tool=callgrind".to_owned(),
                "--quiet".to_owned(),
                // Valgrind puts the process id there: several may count into one folder.
                format!("--callgrind-out-file={}.%p", argument(&folder.join(COUNTS))),
            ],
        }
    }

    /// Begins to count what a process does; it was started by this tool's wrapper for the same folder.
    pub(crate) fn count(self, pid: i32, folder: &Path) -> anyhow::Result<Counting> {
        let how = match self {
            Self::Perf => {
                let log = folder.join(format!("perf.{pid}"));
                let mut perf = Command::new("perf");
                perf.args([
                    "stat",
                    "-x,",
                    "-e",
                    EVENT,
                    "-o",
                    &argument(&log),
                    "-p",
                    &pid.to_string(),
                ]);
                let perf = perf.stdout(Stdio::null()).spawn().context("cannot start perf")?;
                std::thread::sleep(ATTACH);
                How::Perf { perf, log }
            }
            Self::Callgrind => {
                dump(pid)?;
                How::Callgrind {
                    before: dumps(folder, pid)?,
                }
            }
        };
        Ok(Counting {
            pid,
            folder: folder.to_owned(),
            begun: Instant::now(),
            how,
        })
    }
}

/// A count that has begun.
pub(crate) struct Counting {
    pid: i32,
    folder: PathBuf,
    begun: Instant,
    how: How,
}

enum How {
    Perf { perf: Child, log: PathBuf },
    Callgrind { before: Vec<PathBuf> },
}

/// What was counted, and in how long.
#[derive(Debug, Clone)]
pub(crate) struct Counted {
    pub(crate) instructions: f64,
    pub(crate) elapsed: Duration,
    /// Of `instructions`; empty where the tool knows no functions.
    pub(crate) causes: BTreeMap<Cause, f64>,
}

impl Counting {
    pub(crate) fn end(self) -> anyhow::Result<Counted> {
        let elapsed = self.begun.elapsed();
        let (mut instructions, mut causes) = (0.0, BTreeMap::new());
        match self.how {
            How::Perf { perf, log } => instructions = ended(perf, &log)?,
            How::Callgrind { before } => {
                dump(self.pid)?;
                let files = dumps(&self.folder, self.pid)?;
                for file in files.iter().filter(|file| !before.contains(file)) {
                    let text = read(file)?;
                    instructions += parse_total(&text).with_context(|| format!("no total in {}", file.display()))?;
                    for (cause, sum) in causes::causes(&text) {
                        *causes.entry(cause).or_default() += sum;
                    }
                }
            }
        }
        ensure!(instructions > 0.0, "nothing was counted");
        Ok(Counted {
            instructions,
            elapsed,
            causes,
        })
    }
}

/// `perf` writes what it has counted when it is interrupted.
fn ended(mut perf: Child, log: &Path) -> anyhow::Result<f64> {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    kill(Pid::from_raw(i32::try_from(perf.id())?), Signal::SIGINT)?;
    perf.wait()?;
    let text = read(log)?;
    parse_perf(&text).with_context(|| format!("perf has counted nothing: {text}"))
}

/// The count is the first field, or words where there is no such counter.
fn parse_perf(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains(EVENT))?;
    line.split(',').next()?.trim().parse().ok()
}

/// Has the process write what it has counted since the last time.
fn dump(pid: i32) -> anyhow::Result<()> {
    let mut control = Command::new("callgrind_control");
    let told = control
        .args(["--dump", &pid.to_string()])
        .stdout(Stdio::null())
        .status();
    let told = told.context("cannot start callgrind_control, which comes with valgrind")?;
    if !told.success() {
        bail!("callgrind_control: {told}");
    }
    Ok(())
}

/// The files that a process has written so far.
fn dumps(folder: &Path, pid: i32) -> anyhow::Result<Vec<PathBuf>> {
    let files = std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    let of = format!("{COUNTS}.{pid}.");
    let mut files: Vec<_> = files.collect::<Result<_, _>>()?;
    files.retain(|file| {
        file.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(&of))
    });
    Ok(files)
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// What a file counts in all.
fn parse_total(text: &str) -> Option<f64> {
    let of = |word: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(word)?.trim().parse().ok())
    };
    of("totals:").or_else(|| of("summary:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read() {
        assert_eq!(parse_total("events: Ir\nfn=(1)\n1 2\n\ntotals: 4711\n"), Some(4_711.0));
        assert_eq!(parse_total("summary: 17\n"), Some(17.0));
        assert_eq!(parse_total("events: Ir\n"), None);
    }

    #[test]
    fn counters_are_read_where_there_are_any() {
        let counted = "# started on some day\n\n4711,,instructions:u,1000,100.00,,\n";
        assert_eq!(parse_perf(counted), Some(4_711.0));
        assert_eq!(parse_perf("<not supported>,,instructions:u,0,100.00,,\n"), None);
        assert_eq!(parse_perf(""), None);
    }
}
