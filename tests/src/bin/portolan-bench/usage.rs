//! What a process has used, as Linux tells it in `/proc`.

use anyhow::Context as _;

/// Unit of the times in `/proc/<pid>/stat`: USER_HZ, 100 on every Linux that Rust runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU time of all threads so far, user and system, in seconds.
pub(crate) fn cpu_seconds(pid: i32) -> anyhow::Result<f64> {
    let stat = read(pid, "stat")?;
    // The name, in parentheses, may hold anything.
    let (_, fields) = stat.rsplit_once(") ").context("an unknown form of /proc/<pid>/stat")?;
    let ticks = |index: usize| fields.split(' ').nth(index).and_then(|field| field.parse::<u32>().ok());
    // utime and stime are fields 14 and 15 of the whole line, the state after the name is field 3.
    let (user, system) = ticks(11).zip(ticks(12)).context("no times in /proc/<pid>/stat")?;
    Ok((f64::from(user) + f64::from(system)) / TICKS_PER_SECOND)
}

/// Resident memory in KiB.
pub(crate) fn resident_kib(pid: i32) -> anyhow::Result<f64> {
    let status = read(pid, "status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u32>().ok());
    kib.map(f64::from).context("no VmRSS in /proc/<pid>/status")
}

fn read(pid: i32, file: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(format!("/proc/{pid}/{file}")).with_context(|| format!("process {pid} is gone"))
}

/// As a number to divide by; what does not fit is the most that does.
pub(crate) fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_something() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(resident_kib(pid).unwrap() > 100.0);
        let before = cpu_seconds(pid).unwrap();
        let begun = std::time::Instant::now();
        // The kernel counts in ticks, and others may have the processor meanwhile.
        while cpu_seconds(pid).unwrap() <= before {
            assert!(begun.elapsed().as_secs() < 60, "still {before}");
        }
    }
}
