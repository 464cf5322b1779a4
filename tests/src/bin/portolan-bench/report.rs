//! What was measured, as a table for people and as JSON for comparison over time.

use std::fmt::Write as _;

use serde::Serialize;

/// One run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Cores, processor, load of the machine before and after: figures of other machines compare by ratio only.
    pub(crate) machine: Machine,
    /// Our own backend.
    pub(crate) backend: Option<Section>,
    /// A real kube-apiserver.
    pub(crate) apiserver: Option<Section>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) processor: String,
    pub(crate) load_before: String,
    pub(crate) load_after: String,
    /// Optimised programs; figures without are worth nothing.
    pub(crate) release: bool,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Section {
    pub(crate) gets: Vec<GetRow>,
    pub(crate) latencies: Vec<LatencyRow>,
    pub(crate) watches: Vec<WatchRow>,
    pub(crate) starts: Vec<StartRow>,
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
        } = &self.machine;
        let build = if *release {
            "release"
        } else {
            "DEBUG BUILD, figures are worth nothing"
        };
        let mut text = format!("{cores} cores, {processor}, {build}; load before {load_before}, after {load_after}\n");
        let sections = [
            ("fast TLS h2 backend", &self.backend),
            ("real API server", &self.apiserver),
        ];
        for (title, section) in sections {
            if let Some(section) = section {
                section.write(&mut text, title);
            }
        }
        text
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
