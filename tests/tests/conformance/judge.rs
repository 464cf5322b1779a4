//! What specs through a view are held to: what passes directly passes there, but for what is known not to, each with a reason.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context as _, ensure};

use crate::specs::{Ended, Outcome};

/// Specs that are known to fail through a view, with the reason.
#[derive(Debug, Default)]
pub(crate) struct Known(BTreeMap<(String, String), String>);

impl Known {
    /// Lines of `view | spec | reason`; `#` begins a remark.
    pub(crate) fn parse(text: &str, views: &[&str]) -> anyhow::Result<Self> {
        let mut known = BTreeMap::new();
        let lines = text.lines().map(str::trim);
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (view, rest) = line.split_once(" | ").context("a line is view | spec | reason")?;
            let (spec, reason) = rest.rsplit_once(" | ").with_context(|| format!("no reason: {line}"))?;
            ensure!(views.contains(&view), "no view {view}: {line}");
            ensure!(reason.ends_with('.'), "the reason is no sentence: {line}");
            let key = (view.to_owned(), spec.to_owned());
            let before = known.insert(key, reason.to_owned());
            ensure!(before.is_none(), "twice: {line}");
        }
        Ok(Self(known))
    }

    fn has(&self, view: &str, spec: &str) -> bool {
        self.0.contains_key(&(view.to_owned(), spec.to_owned()))
    }

    /// What is named here of specs that there are no more.
    fn strangers<'a>(&'a self, specs: &'a [String]) -> impl Iterator<Item = String> + 'a {
        let gone = self.0.keys().filter(|(_, spec)| !specs.contains(spec));
        gone.map(|(view, spec)| format!("known.txt names a spec that is not in specs.txt: {view}: {spec}"))
    }
}

/// All specs, and how they ended: directly, and through each view that was tried.
#[derive(Debug)]
pub(crate) struct Table {
    specs: Vec<String>,
    direct: Ended,
    views: Vec<(&'static str, Ended)>,
}

impl Table {
    pub(crate) fn new(specs: Vec<String>, direct: Ended) -> Self {
        Self {
            specs,
            direct,
            views: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, view: &'static str, ended: Ended) {
        self.views.push((view, ended));
    }

    /// What passes directly, and not there; what is known of.
    pub(crate) fn faults(&self, known: &Known) -> Vec<String> {
        let mut faults = Vec::new();
        for (view, ended) in &self.views {
            for spec in self.direct.passed().filter(|spec| !known.has(view, spec)) {
                let outcome = ended.of(spec);
                if outcome.is_some_and(Outcome::passed) {
                    continue;
                }
                let message = outcome.map_or("did not end", |outcome| &outcome.message);
                faults.push(format!("{view}: {spec}\n    {}", message.replace('\n', "\n    ")));
            }
        }
        faults
    }

    /// What is known to fail, and does not: lines to take out, unless chance has it.
    pub(crate) fn mended(&self, known: &Known) -> Vec<String> {
        let mut mended = Vec::new();
        for (view, ended) in &self.views {
            let passed = ended.passed().filter(|spec| known.has(view, spec));
            mended.extend(passed.map(|spec| format!("{view}: {spec}")));
        }
        mended
    }

    /// Whether a list of what is known goes with these specs.
    pub(crate) fn stale(&self, known: &Known) -> Vec<String> {
        known.strangers(&self.specs).collect()
    }
}

/// One word of a cell.
fn cell(outcome: Option<&Outcome>) -> &'static str {
    match outcome {
        Some(outcome) if outcome.passed_alone => "alone",
        Some(outcome) if outcome.passed() => "ok",
        Some(outcome) if outcome.skipped() => "-",
        Some(_) => "FAILED",
        None => "",
    }
}

impl fmt::Display for Table {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns =
            std::iter::once(("direct", &self.direct)).chain(self.views.iter().map(|(view, ended)| (*view, ended)));
        let columns: Vec<_> = columns.collect();
        let row = |to: &mut fmt::Formatter<'_>, cells: &[String], spec: &str| {
            cells.iter().try_for_each(|cell| write!(to, "{cell:<12}"))?;
            writeln!(to, "{spec}")
        };
        let names: Vec<_> = columns.iter().map(|(view, _)| (*view).to_owned()).collect();
        row(to, &names, "(alone: failed beside others, then passed)")?;
        for spec in &self.specs {
            let cells: Vec<_> = columns
                .iter()
                .map(|(_, ended)| cell(ended.of(spec)).to_owned())
                .collect();
            row(to, &cells, spec)?;
        }
        let counts: Vec<_> = columns
            .iter()
            .map(|(_, ended)| ended.passed().count().to_string())
            .collect();
        row(to, &counts, "passed")
    }
}

#[test]
fn what_passes_directly_passes_through_a_view_or_is_known() {
    let line = |spec: &str, state: &str| format!("{{\"spec\":\"{spec}\",\"state\":\"{state}\",\"message\":\"why\"}}\n");
    let direct = line("a", "passed") + &line("b", "passed") + &line("c", "passed") + &line("d", "failed");
    let there = line("a", "passed") + &line("b", "failed") + &line("d", "failed");
    let specs = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
    let mut table = Table::new(specs, Ended::parse(&direct));
    table.add("merged", Ended::parse(&there));
    let views = ["merged", "explicit"];
    let known = Known::parse("# why\nmerged | b | Because.\n", &views).unwrap();
    assert_eq!(table.faults(&known), ["merged: c\n    did not end"]);
    assert_eq!(table.faults(&Known::default()).len(), 2);
    assert!(table.mended(&known).is_empty());
    let mended = Known::parse("merged | a | Because.\n", &views).unwrap();
    assert_eq!(table.mended(&mended), ["merged: a"]);
    assert!(table.stale(&known).is_empty());
    let gone = Known::parse("explicit | e | Because.\n", &views).unwrap();
    assert_eq!(table.stale(&gone).len(), 1);
    assert!(
        table.to_string().ends_with("3           1           passed\n"),
        "{table}"
    );
}

#[test]
fn each_line_of_what_is_known_names_a_view_and_a_reason() {
    let parse = |text: &str| Known::parse(text, &["merged"]);
    assert!(parse("merged | [sig-a] a | b [Conformance] | It is ours.\n").is_ok());
    for bad in [
        "merged | [sig-a] one",
        "other | [sig-a] one | It is ours.",
        "merged | [sig-a] one | ours",
        "merged | [sig-a] one | It is ours.\nmerged | [sig-a] one | It is ours.",
    ] {
        assert!(parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn what_is_checked_in_goes_together() {
    let known = Known::parse(&crate::checked_in("known.txt"), &crate::VIEWS).unwrap();
    let specs = crate::specs::named(&crate::checked_in("specs.txt"), "");
    let table = Table::new(specs, Ended::default());
    assert_eq!(table.stale(&known), Vec::<String>::new());
}
