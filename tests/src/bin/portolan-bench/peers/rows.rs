//! Puts what was measured into the rows of the table, in the table's order.

use std::collections::BTreeMap;

use super::events;
use super::lanes::{Lane, View};
use super::storm::Stormed;
use crate::report::{COLUMNS, GetRow, PeerColumn, PeerRow, PeersSection, WatchRow};

/// Below this part of a core in use, something else was the bound.
const SATURATED: f64 = 0.9;

/// The rows, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Get,
    GetExplicit,
    GetGo,
    Saturated,
    SaturatedExplicit,
    SaturatedGo,
    Paced,
    PacedExplicit,
    Events,
    EventsExplicit,
    EventsMerged,
    Reconnects,
    ReconnectSeconds,
    List,
    ListExplicit,
    Watch,
    WatchExplicit,
    Opening,
    OpeningExplicit,
    Start,
}

impl What {
    fn decimals(self) -> usize {
        match self {
            Self::Get
            | Self::GetExplicit
            | Self::GetGo
            | Self::List
            | Self::ListExplicit
            | Self::Events
            | Self::EventsExplicit
            | Self::EventsMerged
            | Self::Opening
            | Self::OpeningExplicit => 2,
            Self::Paced | Self::PacedExplicit | Self::Watch | Self::WatchExplicit | Self::ReconnectSeconds => 1,
            Self::Saturated | Self::SaturatedExplicit | Self::SaturatedGo | Self::Reconnects | Self::Start => 0,
        }
    }

    fn is_explicit(self) -> bool {
        matches!(
            self,
            Self::GetExplicit
                | Self::SaturatedExplicit
                | Self::PacedExplicit
                | Self::EventsExplicit
                | Self::ListExplicit
                | Self::WatchExplicit
                | Self::OpeningExplicit
        )
    }
}

/// Rows as far as they are known.
#[derive(Default)]
pub(crate) struct Rows {
    columns: Vec<PeerColumn>,
    rows: BTreeMap<What, PeerRow>,
    notes: Vec<String>,
    backend: f64,
    /// Requests a second of the open loop, and milliseconds.
    direct: (u32, f64),
    list_bytes: usize,
}

impl Rows {
    /// Heads of the table.
    pub(crate) fn columns(&mut self, columns: Vec<PeerColumn>) {
        self.columns = columns;
    }

    pub(crate) fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// CPU seconds that the backend itself needs for 100,000 GETs.
    pub(crate) fn backend_of_its_own(&mut self, cpu: f64) {
        self.backend = cpu;
    }

    /// The same without a proxy, at so many a second.
    pub(crate) fn direct(&mut self, rate: u32, p99: f64) {
        self.direct = (rate, p99);
    }

    pub(crate) fn list_bytes(&mut self, bytes: usize) {
        self.list_bytes = self.list_bytes.max(bytes);
    }

    pub(crate) fn got(&mut self, lane: Lane, view: View, row: &GetRow) {
        let cpu = row.proxy_cpu.unwrap_or(f64::NAN);
        let text = format!("GET, CPU-s per 100k (backend's own: {:.2})", self.backend);
        self.set(by(view, What::Get, What::GetExplicit), lane, text, cpu);
        let what = by(view, What::Saturated, What::SaturatedExplicit);
        self.set(
            what,
            lane,
            "GET saturated, requests/s on one core".to_owned(),
            row.requests_per_second,
        );
        let busy = cpu * row.requests_per_second / 100_000.0;
        if busy < SATURATED {
            let (name, percent) = (row.name, busy * 100.0);
            let view = by(view, "", ", explicit view");
            self.note(format!(
                "{name}{view}: only {percent:.0} % of its core in use, the client, the backend or another program was the bound of its requests/s"
            ));
        }
    }

    pub(crate) fn got_by_go(&mut self, lane: Lane, cpu: f64, rate: f64) {
        self.set(What::GetGo, lane, "GET by a Go client, CPU-s per 100k".to_owned(), cpu);
        self.set(
            What::SaturatedGo,
            lane,
            "GET by a Go client, requests/s".to_owned(),
            rate,
        );
    }

    pub(crate) fn paced(&mut self, lane: Lane, view: View, times: f64) {
        let (rate, p99) = self.direct;
        let text = format!("GET p99 at {rate}/s, x direct ({p99:.2} ms)");
        self.set(by(view, What::Paced, What::PacedExplicit), lane, text, times);
    }

    pub(crate) fn heard(&mut self, lane: Lane, view: View, amount: events::Amount, cpu: f64) {
        let events::Amount { watches, rate, .. } = amount;
        let text = format!("{watches} watches, {rate} events/s, CPU-s per 100k");
        self.set(by(view, What::Events, What::EventsExplicit), lane, text, cpu);
    }

    pub(crate) fn heard_merged(&mut self, lane: Lane, legs: usize, cpu: f64) {
        self.set(
            What::EventsMerged,
            lane,
            format!("  the same, merged of {legs} members"),
            cpu,
        );
    }

    pub(crate) fn stormed(&mut self, lane: Lane, clients: usize, stormed: &Stormed) {
        let text = format!("{clients} reconnects with one GET each, answered");
        let answered = crate::usage::count(stormed.answered);
        self.set(What::Reconnects, lane, text, answered);
        let seconds = stormed.elapsed.as_secs_f64();
        self.set(
            What::ReconnectSeconds,
            lane,
            "  until the last of them, s".to_owned(),
            seconds,
        );
        for (why, times) in &stormed.refused {
            self.note(format!("{lane:?}: {times} reconnects: {why}"));
        }
    }

    pub(crate) fn listed(&mut self, lane: Lane, view: View, cpu: f64) {
        self.set(by(view, What::List, What::ListExplicit), lane, String::new(), cpu);
    }

    pub(crate) fn watched(&mut self, lane: Lane, view: View, row: &WatchRow) {
        let watches = row.watches;
        let text = format!("KiB per idle watch at {watches}");
        self.set(by(view, What::Watch, What::WatchExplicit), lane, text, row.kib);
        let text = format!("{watches} quiet watches of one tenant, until all are open, s");
        self.set(by(view, What::Opening, What::OpeningExplicit), lane, text, row.opening);
    }

    pub(crate) fn started(&mut self, lane: Lane, milliseconds: f64) {
        let text = "start to first 200 from last-good, ms".to_owned();
        self.set(What::Start, lane, text, milliseconds);
    }

    fn set(&mut self, what: What, lane: Lane, text: String, value: f64) {
        let row = self.rows.entry(what).or_insert_with(|| PeerRow {
            name: if what.is_explicit() {
                "  the same, explicit view".to_owned()
            } else {
                text
            },
            decimals: what.decimals(),
            values: [None; COLUMNS],
        });
        let column = Lane::ALL.iter().position(|known| *known == lane);
        if let Some(value_of) = column.and_then(|column| row.values.get_mut(column)) {
            *value_of = Some(value);
        }
    }

    pub(crate) fn section(mut self) -> PeersSection {
        let megabytes = self.list_bytes / 1_000_000;
        if let Some(row) = self.rows.get_mut(&What::List) {
            row.name = format!("LIST of {megabytes} MB, CPU-s per GB");
        }
        PeersSection {
            columns: self.columns,
            rows: self.rows.into_values().collect(),
            notes: self.notes,
        }
    }
}

fn by<T>(view: View, merged: T, explicit: T) -> T {
    match view {
        View::Merged => merged,
        View::Explicit => explicit,
    }
}
