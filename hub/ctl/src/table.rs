//! Plain tables in the manner of kubectl: upper-case heads, columns as wide as needed, three spaces between.

use std::time::Duration;

use jiff::Timestamp;
use portolan_crds::duration::format_duration;

/// Whole seconds since then, as people write them; a clock that is behind says 0s.
pub(crate) fn age(now: Timestamp, since: Timestamp) -> String {
    let seconds = u64::try_from(now.as_second() - since.as_second()).unwrap_or_default();
    format_duration(Duration::from_secs(seconds))
}

/// Rows under a head; every row has as many cells as the head.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self {
            rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()],
        }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        let filled = cells
            .into_iter()
            .map(|cell| if cell.is_empty() { "-".to_owned() } else { cell });
        self.rows.push(filled.collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("   ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["NAME", "READY"]);
        table.row(vec!["east".into(), "True".into()]);
        table.row(vec!["a-long-name".into(), String::new()]);
        assert_eq!(
            table.to_string(),
            "NAME          READY\neast          True\na-long-name   -\n"
        );
    }
}
