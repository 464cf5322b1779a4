//! What was measured of each fault: as one table, and as JSON beside the test's own programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;

use crate::load::Told;
use crate::probe::Seen;

/// What callers felt who use other members.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Felt {
    pub(crate) answered: usize,
    pub(crate) errors: Vec<String>,
    pub(crate) p50_milliseconds: u64,
    pub(crate) p99_milliseconds: u64,
}

impl Felt {
    pub(crate) fn new(mut took: Vec<Duration>, errors: Vec<String>) -> Self {
        took.sort_unstable();
        let at = |percent: usize| {
            let at = (took.len() * percent / 100).min(took.len().saturating_sub(1));
            took.get(at).map_or(0, |took| milliseconds(*took))
        };
        Self {
            answered: took.len(),
            p50_milliseconds: at(50),
            p99_milliseconds: at(99),
            errors,
        }
    }

    pub(crate) fn of(seen: &Seen) -> Self {
        Self::new(seen.waited.clone(), seen.failures.clone())
    }

    fn cell(&self) -> String {
        let Self {
            errors,
            p50_milliseconds,
            p99_milliseconds,
            ..
        } = self;
        format!("{} / {p50_milliseconds} / {p99_milliseconds}", errors.len())
    }
}

/// What came to a member in so many seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Load {
    pub(crate) seconds: f64,
    pub(crate) connections: u64,
    pub(crate) requests: u64,
}

impl Load {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            seconds: self.seconds - before.seconds,
            connections: self.connections - before.connections,
            requests: self.requests - before.requests,
        }
    }

    pub(crate) fn all(self) -> u64 {
        self.connections + self.requests
    }
}

/// Of one fault.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) fault: String,
    pub(crate) hub_away: bool,
    pub(crate) others: Felt,
    /// The same behind a plain proxy.
    pub(crate) others_behind_proxy: Felt,
    /// In another member, for the shard that uses the sick one too: from a Greeting's making to its condition.
    pub(crate) reconcile: Felt,
    /// What the sick member's own callers were told meanwhile.
    pub(crate) callers: Told,
    pub(crate) callers_behind_proxy: Told,
    /// Until both breakers, for lists and for single objects, were open; of half the endpoints, until one was ejected.
    pub(crate) opened_milliseconds: Option<u64>,
    /// Until both kinds of requests were answered, after the fault was over.
    pub(crate) back_milliseconds: Option<u64>,
    /// At the member before the fault.
    pub(crate) healthy: Load,
    /// The same while it was sick, from the first moment.
    pub(crate) sick: Load,
    /// From when it was open.
    pub(crate) open: Load,
    /// By client.
    pub(crate) relists: BTreeMap<String, u64>,
    /// What opened and closed breakers, by class and reason.
    pub(crate) transitions: BTreeMap<String, u64>,
    /// What ought not to be.
    pub(crate) wrong: Vec<String>,
}

pub(crate) fn milliseconds(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}

const HEAD: [&str; 8] = [
    "fault",
    "others: errors / p50 / p99 ms",
    "behind a plain proxy",
    "an operator's reconcile: errors / p50 / p99 ms",
    "open after",
    "back after",
    "at the member: sick / healthy / a second when open",
    "relists, most of one client",
];

impl Row {
    pub(crate) fn new(fault: &str, hub_away: bool) -> Self {
        Self {
            fault: fault.to_owned(),
            hub_away,
            ..Self::default()
        }
    }

    pub(crate) fn name(&self) -> String {
        format!("{}{}", self.fault, if self.hub_away { ", hub away" } else { "" })
    }

    fn cells(&self) -> [String; 8] {
        let after = |milliseconds: Option<u64>| {
            milliseconds.map_or("–".to_owned(), |all| format!("{:.2?}", Duration::from_millis(all)))
        };
        let healthy = self.healthy.all() as f64 / self.healthy.seconds.max(0.001) * self.sick.seconds;
        let open = if self.open.seconds > 0.0 {
            format!("{:.1}", self.open.all() as f64 / self.open.seconds)
        } else {
            "–".to_owned()
        };
        [
            self.name(),
            self.others.cell(),
            self.others_behind_proxy.cell(),
            self.reconcile.cell(),
            after(self.opened_milliseconds),
            after(self.back_milliseconds),
            format!("{} / {healthy:.0} / {open}", self.sick.all()),
            self.relists.values().max().copied().unwrap_or(0).to_string(),
        ]
    }
}

/// All that is known of one, as it is known.
pub(crate) fn line(row: &Row) -> String {
    serde_json::to_string(row).unwrap_or_default()
}

/// As Markdown, columns aligned.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut lines = vec![HEAD.map(str::to_owned)];
    lines.extend(rows.iter().map(Row::cells));
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: [usize; 8] = std::array::from_fn(width);
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        for (cell, width) in line.iter().zip(widths) {
            let _ = write!(text, "| {cell:width$} ");
        }
        text.push_str("|\n");
        if number == 0 {
            for width in widths {
                let _ = write!(text, "|{}", "-".repeat(width + 2));
            }
            text.push_str("|\n");
        }
    }
    text
}

/// Keeps them; says where.
pub(crate) fn keep(rows: &[Row], name: &str) -> anyhow::Result<PathBuf> {
    // Of `target/debug/deps/chaos-…`.
    let program = std::env::current_exe()?;
    let folder = program.ancestors().nth(3).context("a target folder")?;
    let file = folder.join(name);
    std::fs::write(&file, serde_json::to_vec_pretty(rows)?)?;
    Ok(file)
}
