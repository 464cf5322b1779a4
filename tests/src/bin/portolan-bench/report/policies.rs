//! Rows of what policies cost a request, and their table.

use std::fmt::Write as _;

use serde::Serialize;

/// One GET through the merged view, by the limits that hold its caller.
#[derive(Debug, Default, Serialize)]
pub(crate) struct PoliciesSection {
    /// GETs of each row.
    pub(crate) requests: usize,
    /// The first is what the others are compared with.
    pub(crate) rows: Vec<PoliciesRow>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct PoliciesRow {
    pub(crate) name: &'static str,
    /// Of the router, for one GET.
    pub(crate) instructions: f64,
    /// More than the first row's.
    pub(crate) percent: f64,
}

impl PoliciesSection {
    pub(crate) fn add(&mut self, name: &'static str, instructions: f64) {
        let first = self.rows.first().map_or(instructions, |row| row.instructions);
        let percent = (instructions / first - 1.0) * 100.0;
        self.rows.push(PoliciesRow {
            name,
            instructions,
            percent,
        });
    }

    pub(super) fn write(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\nInstructions of the router for one GET, by the limits of its caller; {} GETs each",
            self.requests
        );
        let _ = writeln!(text, "{:48}{:>14}{:>10}", "", "instructions", "more");
        for row in &self.rows {
            let _ = writeln!(text, "{:48}{:>14.0}{:>8.2} %", row.name, row.instructions, row.percent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_compared_with_the_first() {
        let mut section = PoliciesSection::default();
        section.add("none", 200.0);
        section.add("many", 210.0);
        assert!((section.rows[1].percent - 5.0).abs() < 1e-9);
        let mut text = String::new();
        section.write(&mut text);
        assert!(text.contains("5.00 %"), "{text}");
    }
}
