//! Rows of a large fleet, and their tables.

use std::fmt::Write as _;

use serde::Serialize;

/// Many members, shards and routers.
#[derive(Debug, Default, Serialize)]
pub(crate) struct FleetSection {
    /// What there is.
    pub(crate) of: String,
    /// Seconds from the first router's stream until all of them had everything.
    pub(crate) first_sync: f64,
    pub(crate) loads: Vec<LoadRow>,
    pub(crate) rows: Vec<FleetRow>,
    pub(crate) reshard: ReshardRow,
    /// Seconds from each death of the hub to the last router's acknowledgement of its replica.
    pub(crate) takeovers: Vec<f64>,
}

/// The hub while nothing happens.
#[derive(Debug, Serialize)]
pub(crate) struct LoadRow {
    pub(crate) name: &'static str,
    /// Resident, in MiB.
    pub(crate) memory: f64,
    /// Of one core.
    pub(crate) cpu_percent: f64,
}

/// A change, several times one after the other.
#[derive(Debug, Serialize)]
pub(crate) struct FleetRow {
    pub(crate) name: &'static str,
    pub(crate) times: usize,
    /// Milliseconds until the last router's acknowledgement.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// On the wire to each router.
    pub(crate) kilobytes: f64,
    /// Milliseconds of the hub, all that it does meanwhile.
    pub(crate) hub_cpu: f64,
    /// The same of one core.
    pub(crate) cpu_percent: f64,
}

/// A root that gets one shard more.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ReshardRow {
    /// Pairs of cluster and bucket that have another owner afterwards.
    pub(crate) pairs: usize,
    /// The fewest that do.
    pub(crate) ideal: usize,
    pub(crate) of_pairs: usize,
    /// Namespaces in them.
    pub(crate) namespaces: usize,
    pub(crate) seconds: f64,
    /// Namespaces that nobody could write to for a moment.
    pub(crate) without_owner: usize,
    /// Those of them that did not move.
    pub(crate) others_without_owner: usize,
    pub(crate) kilobytes: f64,
    pub(crate) hub_cpu: f64,
}

impl FleetSection {
    pub(super) fn write(&self, text: &mut String) {
        let _ = writeln!(text, "\nFleet: {}", self.of);
        let _ = writeln!(text, "all routers know everything after {:.1} s", self.first_sync);
        let _ = writeln!(text, "{:36}{:>14}{:>16}", "the hub", "resident MiB", "CPU, % of one");
        for row in &self.loads {
            let _ = writeln!(text, "{:36}{:>14.1}{:>16.1}", row.name, row.memory, row.cpu_percent);
        }
        let _ = writeln!(
            text,
            "{:36}{:>8}{:>12}{:>12}{:>14}{:>12}{:>8}",
            "until the last ACK, ms", "times", "p50", "p99", "KB a router", "hub CPU ms", "% of 1"
        );
        for row in &self.rows {
            let FleetRow {
                name,
                times,
                p50,
                p99,
                kilobytes,
                hub_cpu,
                cpu_percent,
            } = row;
            let _ = writeln!(
                text,
                "{name:36}{times:>8}{p50:>12.1}{p99:>12.1}{kilobytes:>14.2}{hub_cpu:>12.1}{cpu_percent:>8.0}"
            );
        }
        let ReshardRow {
            pairs,
            ideal,
            of_pairs,
            namespaces,
            seconds,
            without_owner,
            others_without_owner,
            kilobytes,
            hub_cpu,
        } = &self.reshard;
        let _ = writeln!(
            text,
            "one shard more of the root: {pairs} of {of_pairs} pairs move (at least {ideal}), {namespaces} namespaces, in \
             {seconds:.1} s; {without_owner} namespaces had no owner for a moment, {others_without_owner} of them did not \
             move; {kilobytes:.1} KB a router, {hub_cpu:.0} ms of the hub"
        );
        let takeovers: Vec<_> = self.takeovers.iter().map(|seconds| format!("{seconds:.1}")).collect();
        let _ = writeln!(
            text,
            "the hub is killed, until the last router has acknowledged its replica, s: {}",
            takeovers.join(", ")
        );
    }
}
