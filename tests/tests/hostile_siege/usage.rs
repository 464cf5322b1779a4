//! What a process has used, as Linux tells it in `/proc`.

use std::fmt;

use anyhow::Context as _;

/// Unit of the times in `/proc/<pid>/stat`: USER_HZ, 100 on every Linux that Rust runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// At one moment, or the difference of two.
#[derive(Debug)]
pub(crate) struct Usage {
    cpu_seconds: f64,
    /// The most that was resident so far.
    peak_mib: f64,
    pub(crate) resident_mib: f64,
}

impl Usage {
    pub(crate) fn of(pid: i32) -> anyhow::Result<Self> {
        let read = |file: &str| {
            let path = format!("/proc/{pid}/{file}");
            std::fs::read_to_string(path).with_context(|| format!("process {pid} is gone"))
        };
        let stat = read("stat")?;
        // The name, in parentheses, may hold anything.
        let (_, fields) = stat.rsplit_once(") ").context("an unknown form of /proc/<pid>/stat")?;
        let ticks = |at: usize| fields.split(' ').nth(at)?.parse::<u32>().ok();
        let (user, system) = ticks(11).zip(ticks(12)).context("no times in /proc/<pid>/stat")?;
        let status = read("status")?;
        let mib = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u32>().ok());
            Some(f64::from(kib?) / 1024.0)
        };
        Ok(Self {
            cpu_seconds: (f64::from(user) + f64::from(system)) / TICKS_PER_SECOND,
            peak_mib: mib("VmHWM:").context("no VmHWM in /proc/<pid>/status")?,
            resident_mib: mib("VmRSS:").context("no VmRSS in /proc/<pid>/status")?,
        })
    }

    /// The processor's time since then; the peak is of all time.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
            peak_mib: self.peak_mib,
            resident_mib: self.resident_mib - before.resident_mib,
        }
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cpu_seconds,
            peak_mib,
            resident_mib,
        } = self;
        write!(
            f,
            "{cpu_seconds:.1} s of CPU, {peak_mib:.0} MiB at most, {resident_mib:+.0} MiB"
        )
    }
}
