//! Rows of what a GET costs router and plain forwarder in instructions, their table, and the bound that they may be held to.

use std::fmt::Write as _;

use anyhow::{Context as _, ensure};
use serde::Serialize;

/// Requests at a time in the second column.
pub(crate) const AT_ONCE: usize = 16;

/// One GET of a Pod, by who forwards it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct InstructionsSection {
    /// What counted.
    pub(crate) tool: &'static str,
    /// GETs of each row and column.
    pub(crate) requests: usize,
    /// The first is what the others are compared with.
    pub(crate) rows: Vec<InstructionsRow>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct InstructionsRow {
    pub(crate) name: &'static str,
    /// One request at a time.
    pub(crate) alone: f64,
    pub(crate) at_once: f64,
    /// Over the first row's.
    pub(crate) alone_ratio: f64,
    pub(crate) at_once_ratio: f64,
    /// The router as users run it: held to the bound.
    pub(crate) bound: bool,
}

impl InstructionsRow {
    pub(crate) fn new(name: &'static str, alone: f64, at_once: f64) -> Self {
        Self {
            name,
            alone,
            at_once,
            ..Self::default()
        }
    }
}

impl InstructionsSection {
    /// One more row, compared with the first.
    pub(crate) fn add(&mut self, mut row: InstructionsRow, bound: bool) {
        let (alone, at_once) = self
            .rows
            .first()
            .map_or((row.alone, row.at_once), |first| (first.alone, first.at_once));
        row.alone_ratio = row.alone / alone;
        row.at_once_ratio = row.at_once / at_once;
        row.bound = bound;
        self.rows.push(row);
    }

    /// Fails if the router with its defaults costs more than `most` times what the first row does, in either column.
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
            "\nInstructions of one GET of 4 KiB with a token of 1 KB, {} GETs each, by {}",
            self.requests, self.tool
        );
        let at_once = format!("{AT_ONCE} at a time");
        let _ = writeln!(
            text,
            "{:28}{:>14}{:>12}{at_once:>16}{:>12}",
            "", "one at a time", "/ hyper", "/ hyper"
        );
        for row in &self.rows {
            let InstructionsRow {
                name,
                alone,
                at_once,
                alone_ratio,
                at_once_ratio,
                ..
            } = row;
            let _ = writeln!(
                text,
                "{name:28}{alone:>14.0}{alone_ratio:>12.2}{at_once:>16.0}{at_once_ratio:>12.2}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_router_is_held_to_its_bound_in_both_columns() {
        let mut section = InstructionsSection::default();
        section.add(InstructionsRow::new("plain hyper", 100.0, 50.0), false);
        section.add(InstructionsRow::new("router", 120.0, 75.0), true);
        section.add(InstructionsRow::new("something else", 900.0, 900.0), false);
        assert!((section.rows[1].alone_ratio - 1.2).abs() < 1e-9);
        section.check(1.5).unwrap();
        let error = section.check(1.4).unwrap_err().to_string();
        assert!(error.contains("1.50 times"), "{error}");
        assert!(InstructionsSection::default().check(2.0).is_err());
    }
}
