//! Rows of many operators in the same namespaces, and their table.

use std::fmt::Write as _;

use serde::Serialize;

/// As many pairs of one operator and of many.
#[derive(Debug, Default, Serialize)]
pub(crate) struct OperatorsSection {
    /// What there is.
    pub(crate) of: String,
    /// One operator, then many.
    pub(crate) rows: Vec<OperatorsRow>,
}

/// So many operators, each in all of so many namespaces.
#[derive(Debug, Serialize)]
pub(crate) struct OperatorsRow {
    pub(crate) operators: usize,
    pub(crate) namespaces: usize,
    /// Seconds from the last shard until a router had been told of all pairs.
    pub(crate) settled: f64,
    /// Resident, of the hub, in MiB.
    pub(crate) memory: f64,
    /// Seconds from the stream of another router until it had been told of all pairs.
    pub(crate) first_sync: f64,
    /// On the wire until then.
    pub(crate) synced_kilobytes: f64,
    /// Milliseconds of a run of the compiler, beside those at rest.
    pub(crate) compile: f64,
    /// Of one namespace more: milliseconds of the hub, all that it does meanwhile.
    pub(crate) cpu: f64,
    /// Milliseconds until the router had acknowledged it to all operators; the longest.
    pub(crate) granted: f64,
    /// Of ledger objects that were written; the most.
    pub(crate) ledger_kilobytes: f64,
    /// On the wire to the router; the most.
    pub(crate) told_kilobytes: f64,
    /// How often its agent annotated it; the most.
    pub(crate) patches: usize,
}

/// Reads one figure of a row.
type Figure = fn(&OperatorsRow) -> f64;

impl OperatorsSection {
    pub(super) fn write(&self, text: &mut String) {
        let _ = writeln!(text, "\nOperators: {}", self.of);
        let lines: [(&str, Figure); 9] = [
            ("all is granted after, s", |row| row.settled),
            ("the hub, resident MiB", |row| row.memory),
            ("first sync of a router, s", |row| row.first_sync),
            ("first sync of a router, KB", |row| row.synced_kilobytes),
            ("a run of the compiler, ms", |row| row.compile),
            ("one namespace more: hub CPU, ms", |row| row.cpu),
            ("until all is acknowledged, ms", |row| row.granted),
            ("ledger written, KB", |row| row.ledger_kilobytes),
            ("told to the router, KB", |row| row.told_kilobytes),
        ];
        let _ = write!(text, "{:36}", "operators in namespaces");
        for row in &self.rows {
            let _ = write!(text, "{:>20}", format!("{} in {}", row.operators, row.namespaces));
        }
        for (name, of) in lines {
            let _ = write!(text, "\n{name:36}");
            for row in &self.rows {
                let _ = write!(text, "{:>20.1}", of(row));
            }
        }
        let _ = write!(text, "\n{:36}", "annotations of it");
        for row in &self.rows {
            let _ = write!(text, "{:>20}", row.patches);
        }
        text.push('\n');
    }
}
