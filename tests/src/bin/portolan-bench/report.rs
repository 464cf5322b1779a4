//! What was measured, as a table for people and as JSON for comparison over time.

mod control;
mod fleet;
mod growth;
mod instructions;
mod operators;
mod peers;
mod policies;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

pub(crate) use self::control::{ChangeRow, ControlSection, MemoryRow, SyncRow};
pub(crate) use self::fleet::{FleetRow, FleetSection, LoadRow, ReshardRow};
pub(crate) use self::growth::{GrowthRow, GrowthSection, GrowthTable};
pub(crate) use self::instructions::{AT_ONCE, InstructionsRow, InstructionsSection};
pub(crate) use self::operators::{OperatorsRow, OperatorsSection};
pub(crate) use self::peers::{COLUMNS, PeerColumn, PeerRow, PeersSection};
pub(crate) use self::policies::PoliciesSection;

/// One run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Cores, processor, load of the machine before and after: figures of other machines compare by ratio only.
    pub(crate) machine: Machine,
    /// Our own backend.
    pub(crate) backend: Option<Section>,
    /// A real kube-apiserver.
    pub(crate) apiserver: Option<Section>,
    /// Merged against direct, over several of our own backends.
    pub(crate) federated: Option<FederatedSection>,
    /// The same over several real kube-apiservers.
    pub(crate) apiservers: Option<FederatedSection>,
    /// The real hub and a large shard.
    pub(crate) control: Option<ControlSection>,
    /// The real hub and a large fleet.
    pub(crate) fleet: Option<FleetSection>,
    /// The real hub and many operators in the same namespaces.
    pub(crate) operators: Option<OperatorsSection>,
    /// What limits cost a request.
    pub(crate) policies: Option<PoliciesSection>,
    /// The router beside others.
    pub(crate) peers: Option<PeersSection>,
    /// Instructions of a GET beside a plain forwarder's.
    pub(crate) instructions: Option<InstructionsSection>,
    /// What grows with what the router is told.
    pub(crate) growth: Option<GrowthSection>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) processor: String,
    pub(crate) load_before: String,
    pub(crate) load_after: String,
    /// Optimised programs; figures without are worth nothing.
    pub(crate) release: bool,
    /// Where they are, if not beside this one.
    pub(crate) programs: Option<PathBuf>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Section {
    pub(crate) gets: Vec<GetRow>,
    pub(crate) latencies: Vec<LatencyRow>,
    pub(crate) watches: Vec<WatchRow>,
    pub(crate) starts: Vec<StartRow>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct FederatedSection {
    /// What there is, and where.
    pub(crate) of: String,
    pub(crate) lists: Vec<ListTable>,
    pub(crate) events: Vec<EventRow>,
    pub(crate) legs: LegRow,
}

/// Lists in one form.
#[derive(Debug, Serialize)]
pub(crate) struct ListTable {
    pub(crate) form: &'static str,
    pub(crate) rows: Vec<ListRow>,
}

/// Means over the rounds, times their median.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ListRow {
    pub(crate) name: &'static str,
    pub(crate) seconds: f64,
    /// Milliseconds until the first byte of the first answer.
    pub(crate) first_byte: f64,
    pub(crate) megabytes: f64,
    /// Of the router, per GB.
    pub(crate) cpu_per_gb: f64,
    /// Highest memory of the router over idle in any round, MiB.
    pub(crate) peak: f64,
    #[serde(skip)]
    rounds: Vec<f64>,
    #[serde(skip)]
    first_bytes: Vec<f64>,
}

/// One burst of events.
#[derive(Debug, Default, Serialize)]
pub(crate) struct EventRow {
    pub(crate) name: &'static str,
    /// Events a second; 0 is as fast as they were taken.
    pub(crate) rate: u64,
    pub(crate) events: u64,
    pub(crate) per_second: f64,
    /// Microseconds per event.
    pub(crate) router_cpu: f64,
    pub(crate) server_cpu: f64,
    /// Milliseconds from when it was made until it was read.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct LegRow {
    pub(crate) watches: usize,
    pub(crate) legs: usize,
    pub(crate) kib_per_leg: f64,
    pub(crate) opening: f64,
    /// Seconds until all had told of an event of every member.
    pub(crate) told: f64,
}

/// What one round took; CPU seconds and memory, in MiB, of the router.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListRound {
    pub(crate) elapsed: Duration,
    pub(crate) first_byte: Duration,
    pub(crate) bytes: usize,
    pub(crate) cpu: f64,
    pub(crate) peak: f64,
}

impl ListRow {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            ..Self::default()
        }
    }

    /// One more round.
    pub(crate) fn add(&mut self, round: ListRound) {
        let ListRound {
            elapsed,
            first_byte,
            bytes,
            cpu,
            peak,
        } = round;
        let megabytes = f64::from(u32::try_from(bytes / 1000).unwrap_or(u32::MAX)) / 1000.0;
        let before = f64::from(u32::try_from(self.rounds.len()).unwrap_or(u32::MAX));
        let mean = |old: f64, new: f64| (old * before + new) / (before + 1.0);
        self.megabytes = mean(self.megabytes, megabytes);
        self.cpu_per_gb = mean(self.cpu_per_gb, cpu * 1000.0 / megabytes.max(0.001));
        self.peak = self.peak.max(peak);
        self.seconds = median(&mut self.rounds, elapsed.as_secs_f64());
        self.first_byte = median(&mut self.first_bytes, first_byte.as_secs_f64() * 1000.0);
    }
}

/// Of these with one more; of two in the middle the less.
pub(crate) fn median(rounds: &mut Vec<f64>, round: f64) -> f64 {
    rounds.push(round);
    rounds.sort_unstable_by(f64::total_cmp);
    rounds[(rounds.len() - 1) / 2]
}

/// CPU is in seconds per 100,000 requests.
#[derive(Debug, Serialize)]
pub(crate) struct GetRow {
    pub(crate) name: &'static str,
    pub(crate) requests_per_second: f64,
    pub(crate) proxy_cpu: Option<f64>,
    pub(crate) server_cpu: f64,
    pub(crate) client_cpu: f64,
    /// `proxy_cpu` over the server's own CPU when asked directly.
    pub(crate) ratio: Option<f64>,
}

/// Milliseconds.
#[derive(Debug, Serialize)]
pub(crate) struct LatencyRow {
    pub(crate) name: &'static str,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) added_p50: f64,
    pub(crate) added_p99: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct WatchRow {
    pub(crate) name: &'static str,
    pub(crate) watches: usize,
    /// Resident memory of the proxy per watch.
    pub(crate) kib: f64,
    /// Seconds until all were answered.
    pub(crate) opening: f64,
    /// Milliseconds of a GET beside them.
    pub(crate) beside_p99: f64,
    /// Seconds until all had told of one event.
    pub(crate) events: f64,
}

/// Milliseconds, median of several.
#[derive(Debug, Serialize)]
pub(crate) struct StartRow {
    pub(crate) name: &'static str,
    pub(crate) ready: f64,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let information = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = information.lines().find_map(|line| line.strip_prefix("model name"));
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            processor: model
                .unwrap_or_default()
                .trim_start_matches([':', '\t', ' '])
                .to_owned(),
            load_before: load(),
            load_after: String::new(),
            release: !cfg!(debug_assertions),
            programs: portolan_tests::programs::chosen(),
        }
    }
}

/// The load averages of the last 1, 5 and 15 minutes.
pub(crate) fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

impl Report {
    pub(crate) fn table(&self) -> String {
        let Machine {
            cores,
            processor,
            load_before,
            load_after,
            release,
            programs,
        } = &self.machine;
        let build = if *release {
            "release"
        } else {
            "DEBUG BUILD, figures are worth nothing"
        };
        let mut text = format!("{cores} cores, {processor}, {build}; load before {load_before}, after {load_after}\n");
        if let Some(programs) = programs {
            let _ = writeln!(text, "programs of {}", programs.display());
        }
        let sections = [
            ("fast TLS h2 backend", &self.backend),
            ("real API server", &self.apiserver),
        ];
        for (title, section) in sections {
            if let Some(section) = section {
                section.write(&mut text, title);
            }
        }
        if let Some(federated) = &self.federated {
            federated.write(&mut text);
        }
        if let Some(apiservers) = &self.apiservers {
            apiservers.write(&mut text);
        }
        if let Some(control) = &self.control {
            control.write(&mut text);
        }
        if let Some(fleet) = &self.fleet {
            fleet.write(&mut text);
        }
        if let Some(operators) = &self.operators {
            operators.write(&mut text);
        }
        if let Some(policies) = &self.policies {
            policies.write(&mut text);
        }
        if let Some(peers) = &self.peers {
            peers.write(&mut text);
        }
        if let Some(instructions) = &self.instructions {
            instructions.write(&mut text);
        }
        if let Some(growth) = &self.growth {
            growth.write(&mut text);
        }
        text
    }
}

impl FederatedSection {
    fn write(&self, text: &mut String) {
        let Self { lists, legs, .. } = self;
        for table in lists {
            self.write_lists(text, table);
        }
        self.write_events(text);
        let LegRow {
            watches,
            legs,
            kib_per_leg,
            opening,
            told,
        } = legs;
        let _ = writeln!(
            text,
            "\n{watches} idle merged watches of {legs} legs: {kib_per_leg:.1} KiB each leg, opened in {opening:.2} s, all told of an event of every member in {told:.2} s"
        );
    }

    fn write_lists(&self, text: &mut String, table: &ListTable) {
        let _ = writeln!(text, "\nLIST of {}, {}", self.of, table.form);
        let _ = writeln!(
            text,
            "{:24}{:>10}{:>16}{:>10}{:>22}{:>26}",
            "", "seconds", "first byte, ms", "MB", "router CPU-s per GB", "router MiB over idle"
        );
        for ListRow {
            name,
            seconds,
            first_byte,
            megabytes,
            cpu_per_gb,
            peak,
            ..
        } in &table.rows
        {
            let _ = writeln!(
                text,
                "{name:24}{seconds:>10.3}{first_byte:>16.1}{megabytes:>10.1}{cpu_per_gb:>22.2}{peak:>26.1}"
            );
        }
    }

    fn write_events(&self, text: &mut String) {
        let Self { of, events, .. } = self;
        let _ = writeln!(
            text,
            "\nEvents of {of}; CPU in microseconds per event, delays in milliseconds"
        );
        let _ = writeln!(
            text,
            "{:22}{:>12}{:>12}{:>12}{:>12}{:>10}{:>10}",
            "", "asked/s", "events/s", "router CPU", "server CPU", "p50", "p99"
        );
        for EventRow {
            name,
            rate,
            per_second,
            router_cpu,
            server_cpu,
            p50,
            p99,
            ..
        } in events
        {
            let rate = if *rate == 0 { "all".to_owned() } else { rate.to_string() };
            let _ = writeln!(
                text,
                "{name:22}{rate:>12}{per_second:>12.0}{router_cpu:>12.1}{server_cpu:>12.1}{p50:>10.2}{p99:>10.2}"
            );
        }
    }
}

impl Section {
    fn write(&self, text: &mut String, title: &str) {
        self.write_gets(text, title);
        self.write_latencies(text, title);
        if !self.watches.is_empty() {
            let _ = writeln!(text, "\nIdle watches, {title}");
            let _ = writeln!(
                text,
                "{:18}{:>10}{:>12}{:>12}{:>18}{:>18}",
                "", "watches", "KiB each", "opened in s", "GET beside p99 ms", "all told in s"
            );
            for row in &self.watches {
                let WatchRow {
                    name,
                    watches,
                    kib,
                    opening,
                    beside_p99,
                    events,
                } = row;
                let _ = writeln!(
                    text,
                    "{name:18}{watches:>10}{kib:>12.1}{opening:>12.2}{beside_p99:>18.2}{events:>18.2}"
                );
            }
        }
        if !self.starts.is_empty() {
            let _ = writeln!(text, "\nRouter, from start to ready");
            for StartRow { name, ready } in &self.starts {
                let _ = writeln!(text, "{name:40}{ready:>8.0} ms");
            }
        }
    }

    fn write_gets(&self, text: &mut String, title: &str) {
        if self.gets.is_empty() {
            return;
        }
        let _ = writeln!(text, "\nGET of 1 KB, {title}; CPU in seconds per 100,000");
        let _ = writeln!(
            text,
            "{:18}{:>10}{:>12}{:>12}{:>12}{:>24}",
            "", "req/s", "proxy CPU", "server CPU", "client CPU", "proxy / direct server"
        );
        for row in &self.gets {
            let or_dash = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
            let _ = writeln!(
                text,
                "{:18}{:>10.0}{:>12}{:>12.2}{:>12.2}{:>24}",
                row.name,
                row.requests_per_second,
                or_dash(row.proxy_cpu),
                row.server_cpu,
                row.client_cpu,
                or_dash(row.ratio)
            );
        }
    }

    fn write_latencies(&self, text: &mut String, title: &str) {
        if self.latencies.is_empty() {
            return;
        }
        let _ = writeln!(
            text,
            "\nLatency of that GET at a fixed rate, open loop, milliseconds, {title}"
        );
        let _ = writeln!(
            text,
            "{:18}{:>10}{:>10}{:>12}{:>12}",
            "", "p50", "p99", "added p50", "added p99"
        );
        for LatencyRow {
            name,
            p50,
            p99,
            added_p50,
            added_p99,
        } in &self.latencies
        {
            let _ = writeln!(
                text,
                "{name:18}{p50:>10.2}{p99:>10.2}{added_p50:>12.2}{added_p99:>12.2}"
            );
        }
    }
}
