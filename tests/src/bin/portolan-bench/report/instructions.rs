//! Rows of what a GET and an event cost router and plain forwarder in instructions, their table, and the bound that they may be held to.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, ensure};
use serde::Serialize;

use crate::counter::Cause;

/// Requests at a time in the second column.
pub(crate) const AT_ONCE: usize = 16;

/// One GET of a Pod and one event of a watch, by who forwards it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct InstructionsSection {
    /// What counted.
    pub(crate) tool: &'static str,
    /// GETs of each row and column.
    pub(crate) requests: usize,
    /// As many events in the last column.
    pub(crate) events: usize,
    /// The first is what the others are compared with.
    pub(crate) rows: Vec<InstructionsRow>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct InstructionsRow {
    pub(crate) name: &'static str,
    /// One request at a time.
    pub(crate) alone: f64,
    pub(crate) at_once: f64,
    /// Of an event that comes by itself.
    pub(crate) event: f64,
    /// Over the first row's.
    pub(crate) alone_ratio: f64,
    pub(crate) at_once_ratio: f64,
    pub(crate) event_ratio: f64,
    /// The router as users run it: held to the bound.
    pub(crate) bound: bool,
    /// Of `alone`, where the tool knows functions.
    pub(crate) causes: BTreeMap<Cause, f64>,
}

impl InstructionsSection {
    /// One more row, compared with the first.
    pub(crate) fn add(&mut self, mut row: InstructionsRow, bound: bool) {
        let first = self.rows.first().unwrap_or(&row);
        let (alone, at_once, event) = (first.alone, first.at_once, first.event);
        row.alone_ratio = row.alone / alone;
        row.at_once_ratio = row.at_once / at_once;
        row.event_ratio = row.event / event;
        row.bound = bound;
        self.rows.push(row);
    }

    /// Fails if the router with its defaults costs more than `most` times what the first row does, in either column of GETs.
    pub(crate) fn check(&self, most: f64) -> anyhow::Result<()> {
        let bound = self.rows.iter().filter(|row| row.bound);
        let ratios = bound.map(|row| (row.name, row.alone_ratio.max(row.at_once_ratio)));
        let worst = ratios.max_by(|one, other| one.1.total_cmp(&other.1));
        let (name, ratio) = worst.context("nothing was compared")?;
        ensure!(
            ratio <= most,
            "{name} needs {ratio:.2} times the instructions of a plain forwarder, more than {most:.2} times"
        );
        Ok(())
    }

    pub(super) fn write(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\nInstructions of one GET of 4 KiB with a token of 1 KB, {} GETs each, and of one event of 3 KB, {} each, by {}",
            self.requests, self.events, self.tool
        );
        let at_once = format!("{AT_ONCE} at a time");
        let _ = writeln!(
            text,
            "{:28}{:>14}{:>12}{at_once:>16}{:>12}{:>14}{:>12}",
            "", "one at a time", "/ hyper", "/ hyper", "an event", "/ hyper"
        );
        for row in &self.rows {
            let InstructionsRow {
                name,
                alone,
                at_once,
                event,
                alone_ratio,
                at_once_ratio,
                event_ratio,
                ..
            } = row;
            let _ = writeln!(
                text,
                "{name:28}{alone:>14.0}{alone_ratio:>12.2}{at_once:>16.0}{at_once_ratio:>12.2}{event:>14.0}{event_ratio:>12.2}"
            );
        }
        self.write_causes(text);
    }

    /// On what each spends itself, and what of that stands between the router and HAProxy, or whoever is last.
    fn write_causes(&self, text: &mut String) {
        let counted: Vec<_> = self.rows.iter().filter(|row| !row.causes.is_empty()).collect();
        let router = counted.iter().rfind(|row| row.bound);
        let (Some(router), Some(last)) = (router, counted.last()) else {
            return;
        };
        let _ = write!(text, "\n{:28}", "one at a time, by cause");
        for row in &counted {
            let _ = write!(text, "{:>27}", row.name);
        }
        let between = format!("{} - {}", router.name, last.name);
        let _ = writeln!(text, "{between:>27}");
        let of = |row: &InstructionsRow, cause| row.causes.get(&cause).copied().unwrap_or_default();
        for cause in Cause::ALL {
            let _ = write!(text, "{:28}", cause.name());
            for row in &counted {
                let (sum, part) = (of(row, cause), of(row, cause) / row.alone * 100.0);
                let _ = write!(text, "{sum:>20.0} {part:>4.1} %");
            }
            let part = (of(router, cause) - of(last, cause)) / (router.alone - last.alone) * 100.0;
            let _ = writeln!(text, "{part:>25.1} %");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, alone: f64, at_once: f64, event: f64) -> InstructionsRow {
        InstructionsRow {
            name,
            alone,
            at_once,
            event,
            ..InstructionsRow::default()
        }
    }

    #[test]
    fn what_stands_between_two_is_told_by_cause() {
        let mut section = InstructionsSection::default();
        for (name, tls, own) in [("router", 60.0, 140.0), ("HAProxy", 50.0, 50.0)] {
            let mut row = row(name, tls + own, 1.0, 1.0);
            row.causes = [(Cause::Tls, tls), (Cause::Own, own)].into();
            section.add(row, name == "router");
        }
        let mut text = String::new();
        section.write(&mut text);
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert!(text.contains("router - HAProxy"), "{text}");
        assert_eq!(words(&line("TLS")), "TLS 60 30.0 % 50 50.0 % 10.0 %");
        assert_eq!(words(&line("all else")), "all else 140 70.0 % 50 50.0 % 90.0 %");
    }

    #[test]
    fn the_router_is_held_to_its_bound_in_both_columns() {
        let mut section = InstructionsSection::default();
        section.add(row("plain hyper", 100.0, 50.0, 10.0), false);
        section.add(row("router", 120.0, 75.0, 99.0), true);
        section.add(row("something else", 900.0, 900.0, 9.0), false);
        assert!((section.rows[1].alone_ratio - 1.2).abs() < 1e-9);
        section.check(1.5).unwrap();
        let error = section.check(1.4).unwrap_err().to_string();
        assert!(error.contains("1.50 times"), "{error}");
        assert!(InstructionsSection::default().check(2.0).is_err());
    }
}
