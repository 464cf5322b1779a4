//! Rows of the control plane, and their tables.

use std::fmt::Write as _;

use serde::Serialize;

/// One shard, told to all routers.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ControlSection {
    /// What there is.
    pub(crate) of: String,
    pub(crate) syncs: Vec<SyncRow>,
    pub(crate) memory: Vec<MemoryRow>,
    pub(crate) changes: Vec<ChangeRow>,
}

/// A router that holds nothing is told everything.
#[derive(Debug, Serialize)]
pub(crate) struct SyncRow {
    pub(crate) name: &'static str,
    pub(crate) megabytes: f64,
    /// Until it has acknowledged; none if it was not run.
    pub(crate) seconds: Option<f64>,
}

/// Resident memory of a process in MiB.
#[derive(Debug, Serialize)]
pub(crate) struct MemoryRow {
    pub(crate) name: &'static str,
    /// Before anything was reported.
    pub(crate) before: f64,
    /// With everything told to all routers.
    pub(crate) synced: f64,
    /// After the changes.
    pub(crate) after: f64,
}

/// One more thing, several times one after the other.
#[derive(Debug, Serialize)]
pub(crate) struct ChangeRow {
    pub(crate) name: &'static str,
    pub(crate) times: usize,
    /// Milliseconds from the report to the last router's acknowledgement.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// On the wire to each router.
    pub(crate) kilobytes: f64,
    /// Milliseconds of the hub.
    pub(crate) hub_cpu: f64,
}

impl ControlSection {
    pub(super) fn write(&self, text: &mut String) {
        let _ = writeln!(text, "\nControl plane, {}", self.of);
        let _ = writeln!(text, "{:36}{:>14}{:>12}", "first sync of one router", "MB", "seconds");
        for row in &self.syncs {
            let seconds = row.seconds.map_or("-".to_owned(), |seconds| format!("{seconds:.2}"));
            let _ = writeln!(text, "{:36}{:>14.2}{seconds:>12}", row.name, row.megabytes);
        }
        let _ = writeln!(
            text,
            "{:36}{:>14}{:>12}{:>12}",
            "resident MiB", "before", "synced", "after"
        );
        for row in &self.memory {
            let (before, synced, after) = (row.before, row.synced, row.after);
            let _ = writeln!(text, "{:36}{before:>14.1}{synced:>12.1}{after:>12.1}", row.name);
        }
        let _ = writeln!(
            text,
            "{:36}{:>14}{:>12}{:>12}{:>14}{:>12}",
            "report to last ACK, ms", "times", "p50", "p99", "KB a router", "hub CPU"
        );
        for row in &self.changes {
            let ChangeRow {
                name,
                times,
                p50,
                p99,
                kilobytes,
                hub_cpu,
            } = row;
            let _ = writeln!(
                text,
                "{name:36}{times:>14}{p50:>12.1}{p99:>12.1}{kilobytes:>14.2}{hub_cpu:>12.1}"
            );
        }
    }
}
