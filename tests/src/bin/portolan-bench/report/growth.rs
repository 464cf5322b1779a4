//! Tables of how a router grows, and the law of what is not flat.

use std::fmt::Write as _;

use serde::Serialize;

use crate::usage::count;

/// What differs by less is flat.
const FLAT: f64 = 0.05;

/// Everything that may grow.
#[derive(Debug, Default, Serialize)]
pub(crate) struct GrowthSection {
    /// What counted instructions.
    pub(crate) tool: &'static str,
    /// GETs that were counted.
    pub(crate) requests: usize,
    pub(crate) tables: Vec<GrowthTable>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct GrowthTable {
    /// What there is more and more of.
    pub(crate) of: &'static str,
    pub(crate) rows: Vec<GrowthRow>,
}

/// One size.
#[derive(Debug, Default, Serialize)]
pub(crate) struct GrowthRow {
    pub(crate) size: usize,
    /// Of one GET, without what the router does in that time anyway; not a number, as `idle`, where it could not be counted.
    pub(crate) instructions: f64,
    /// A second, without requests.
    pub(crate) idle: f64,
    pub(crate) resident_kib: f64,
    /// Milliseconds from when one of them changes at the hub until the router has acknowledged that.
    pub(crate) swap: f64,
}

impl GrowthSection {
    pub(super) fn write(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\nHow a router grows; instructions by {}, {} GETs each",
            self.tool, self.requests
        );
        for table in &self.tables {
            table.write(text);
        }
    }
}

impl GrowthTable {
    fn write(&self, text: &mut String) {
        let _ = write!(text, "\n{:30}", self.of);
        for row in &self.rows {
            let _ = write!(text, "{:>12}", row.size);
        }
        text.push('\n');
        self.line(text, "instructions of a GET", 0, |row| row.instructions);
        self.line(text, "thousand instr./s, idle", 0, |row| row.idle / 1_000.0);
        self.line(text, "resident KiB", 0, |row| row.resident_kib);
        self.line(text, "one changes, ms", 2, |row| row.swap);
    }

    fn line(&self, text: &mut String, name: &str, decimals: usize, value: impl Fn(&GrowthRow) -> f64) {
        let _ = write!(text, "{name:30}");
        let points: Vec<_> = self.rows.iter().map(|row| (count(row.size), value(row))).collect();
        for (_, value) in &points {
            let _ = if value.is_nan() {
                write!(text, "{:>12}", "-")
            } else {
                write!(text, "{value:>12.decimals$}")
            };
        }
        let known: Vec<_> = points.into_iter().filter(|(_, value)| !value.is_nan()).collect();
        let _ = writeln!(text, "  {}", law(&known));
    }
}

/// How the second grows with the first: flat, or by how much for each one more, and by which power.
fn law(points: &[(f64, f64)]) -> String {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return String::new();
    };
    let values = || points.iter().map(|(_, value)| *value);
    let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    if most <= least * (1.0 + FLAT) {
        return format!("flat within {:.1} %", (most / least - 1.0) * 100.0);
    }
    let each = (last.1 - first.1) / (last.0 - first.0);
    let times = last.1 / first.1;
    // Of the growth alone, as what is there for one is there for all.
    let power = points.get(points.len().wrapping_sub(2)).and_then(|before| {
        let (more, most) = (before.1 - first.1, last.1 - first.1);
        (more > 0.0 && most > 0.0).then(|| (most / more).ln() / ((last.0 - first.0) / (before.0 - first.0)).ln())
    });
    let power = power.filter(|power| power.is_finite());
    let power = power.map_or_else(String::new, |power| format!(", growth as n^{power:.1}"));
    format!("{times:.2} times, {each:.3} for each{power}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_within_a_twentieth_is_flat() {
        assert_eq!(law(&[(1.0, 100.0), (10.0, 104.0), (100.0, 101.0)]), "flat within 4.0 %");
        assert!(!law(&[(1.0, 100.0), (10.0, 106.0)]).contains("flat"));
        assert_eq!(law(&[]), "");
    }

    #[test]
    fn what_was_not_counted_is_left_out() {
        let row = |size, instructions| GrowthRow {
            size,
            instructions,
            ..GrowthRow::default()
        };
        let table = GrowthTable {
            of: "members",
            rows: vec![row(1, 100.0), row(10, 101.0), row(100, f64::NAN)],
        };
        let mut text = String::new();
        table.write(&mut text);
        let line = text.lines().find(|line| line.starts_with("instructions")).unwrap();
        assert!(line.ends_with("-  flat within 1.0 %"), "{line}");
    }

    #[test]
    fn laws_are_named() {
        let of = |f: fn(f64) -> f64| law(&[1.0, 10.0, 100.0, 1_000.0].map(|n| (n, f(n))));
        let linear = of(|n| 50.0 + 3.0 * n);
        assert!(linear.contains("3.000 for each, growth as n^1.0"), "{linear}");
        let square = of(|n| 50.0 + n * n);
        assert!(square.contains("n^2.0"), "{square}");
        // A single step that never comes back has no law of its own.
        let step = law(&[(1.0, 100.0), (10.0, 100.0), (100.0, 200.0)]);
        assert!(!step.contains("n^"), "{step}");
    }
}
