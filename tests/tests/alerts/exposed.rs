//! What programs tell, in OpenMetrics' text: by series, by names, and as `promtool check metrics` reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Labels that Prometheus adds itself.
pub(crate) const TARGET: [&str; 2] = ["instance", "job"];

/// Names of samples with the labels of any of their series.
pub(crate) type Names = BTreeMap<String, BTreeSet<String>>;

/// Series as they are written, `name{labels}`, without exemplars, with their values.
pub(crate) fn series(text: &str) -> impl Iterator<Item = (&str, f64)> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| {
        let sample = line.split(" # {").next().unwrap();
        let (series, value) = sample.rsplit_once(' ').unwrap();
        (series, value.parse().unwrap_or_else(|_| panic!("{line}")))
    })
}

/// Adds what this text names: families without samples too.
pub(crate) fn add_names(text: &str, names: &mut Names) {
    for line in text.lines() {
        let Some((family, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) else {
            continue;
        };
        let endings: &[&str] = match kind {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            "info" => &["_info"],
            _ => &[""],
        };
        for ending in endings {
            names.entry(format!("{family}{ending}")).or_default();
        }
    }
    for (series, _) in series(text) {
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let known = names.get_mut(name).unwrap_or_else(|| panic!("untyped: {series}"));
        for pair in labels
            .trim_end_matches('}')
            .split("\",")
            .filter(|pair| !pair.is_empty())
        {
            known.insert(pair.split('=').next().unwrap().to_owned());
        }
    }
}

/// The older text format, the only one that `promtool check metrics` reads.
pub(crate) fn classic(text: &str) -> String {
    let mut out = String::new();
    let mut kinds = BTreeMap::new();
    for line in text.lines() {
        if let Some((family, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            kinds.insert(family, kind);
        }
    }
    let renamed = |family: &str| match kinds.get(family) {
        Some(&"counter") => format!("{family}_total"),
        Some(&"info") => format!("{family}_info"),
        _ => family.to_owned(),
    };
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("TYPE"), Some(family), Some(kind)) => {
                let kind = if kind == "info" { "gauge" } else { kind };
                writeln!(out, "# TYPE {} {kind}", renamed(family)).unwrap();
            }
            (Some("#"), Some("HELP"), Some(family), Some(help)) => {
                writeln!(out, "# HELP {} {help}", renamed(family)).unwrap();
            }
            (Some("#"), ..) => {}
            _ => writeln!(out, "{}", line.split(" # {").next().unwrap()).unwrap(),
        }
    }
    out
}
