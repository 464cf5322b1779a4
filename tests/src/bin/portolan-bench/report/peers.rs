//! The table of the router and its peers.

use std::fmt::Write as _;

use serde::Serialize;

/// HAProxy, plain hyper, Envoy, the router, the router without access lines.
pub(crate) const COLUMNS: usize = 5;
const NAME: usize = 50;
const COLUMN: usize = 17;

/// Everything through every proxy, in one run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct PeersSection {
    pub(crate) columns: Vec<PeerColumn>,
    pub(crate) rows: Vec<PeerRow>,
    /// What a reader must know of single figures.
    pub(crate) notes: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct PeerColumn {
    pub(crate) name: &'static str,
    pub(crate) version: Option<String>,
    /// Why there are no figures.
    pub(crate) missing: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct PeerRow {
    pub(crate) name: String,
    #[serde(skip)]
    pub(crate) decimals: usize,
    /// By column; `None` where there is nothing to measure.
    pub(crate) values: [Option<f64>; COLUMNS],
}

impl PeersSection {
    pub(super) fn write(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\nOne core for each of these, the others for client and backend; TLS and HTTP/2, a Pod of 4 KiB, a token of 1 KB"
        );
        let _ = write!(text, "{:NAME$}", "");
        for PeerColumn { name, version, .. } in &self.columns {
            let head = version
                .as_ref()
                .map_or_else(|| (*name).to_owned(), |version| format!("{name} {version}"));
            let _ = write!(text, "{head:>COLUMN$}");
        }
        text.push('\n');
        for PeerRow { name, decimals, values } in &self.rows {
            let _ = write!(text, "{name:NAME$}");
            for value in values {
                let value = value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"));
                let _ = write!(text, "{value:>COLUMN$}");
            }
            text.push('\n');
        }
        let missing = self
            .columns
            .iter()
            .filter_map(|column| Some((column.name, column.missing.as_ref()?)));
        for (name, why) in missing {
            let _ = writeln!(text, "- {name}: {why}");
        }
        for note in &self.notes {
            let _ = writeln!(text, "- {note}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_a_dash_and_says_why() {
        let column = |name, missing: Option<&str>| PeerColumn {
            name,
            version: None,
            missing: missing.map(str::to_owned),
        };
        let section = PeersSection {
            columns: vec![column("HAProxy", Some("not in PATH")), column("plain hyper", None)],
            rows: vec![PeerRow {
                name: "GET".to_owned(),
                decimals: 2,
                values: [None, Some(2.345), None, None, None],
            }],
            notes: vec!["so it is".to_owned()],
        };
        let mut text = String::new();
        section.write(&mut text);
        assert!(text.contains("2.35") || text.contains("2.34"), "{text}");
        assert!(text.contains("HAProxy: not in PATH"), "{text}");
        assert!(
            text.lines()
                .any(|line| line.starts_with("GET ") && line.contains(" - ")),
            "{text}"
        );
        assert!(text.contains("- so it is"), "{text}");
    }
}
