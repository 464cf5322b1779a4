//! What `portolanctl check` found, and how it is told.

use std::fmt;

use serde::Serialize;

use crate::sentence;

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Area {
    Kinds,
    Programs,
    Versions,
    Rights,
    Certificates,
    Webhook,
    Members,
    Routers,
    Policies,
}

/// How what was looked at is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Well,
    Wrong,
    /// Nobody says.
    Unknown,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) verdict: Verdict,
    pub(super) area: Area,
    pub(super) what: String,
    /// The object, and the field of it, by which that is known; of what is not known, why.
    pub(super) witness: String,
    /// A command, or what to do in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
}

/// All findings, in the order in which they were made.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) findings: Vec<Finding>,
}

impl Report {
    pub(super) fn well(&mut self, area: Area, what: impl Into<String>, witness: impl Into<String>) {
        self.add(Verdict::Well, area, what, witness);
    }

    pub(super) fn wrong(
        &mut self,
        area: Area,
        what: impl Into<String>,
        witness: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.add(Verdict::Wrong, area, what, witness).fix = Some(fix.into());
    }

    pub(super) fn unknown(&mut self, area: Area, what: impl Into<String>, why: impl Into<String>) {
        self.add(Verdict::Unknown, area, what, why);
    }

    /// What was read; of what cannot be read, `what` is unknown.
    pub(super) fn read<T>(
        &mut self,
        area: Area,
        what: impl Into<String>,
        read: Result<T, impl Into<anyhow::Error>>,
    ) -> Option<T> {
        match read {
            Ok(found) => Some(found),
            Err(error) => {
                self.unknown(area, what, sentence::of(&error.into()));
                None
            }
        }
    }

    /// A member that a kubeconfig does not lead to.
    pub(super) fn unreachable(&mut self, what: &str, error: &anyhow::Error) {
        let fix = "whether routers reach it is what its MemberCluster says; give a kubeconfig that leads to it";
        self.wrong(Area::Members, format!("{what} answers"), sentence::of(error), fix);
    }

    /// Whether nothing is wrong, and, if that is asked for, nothing unknown.
    pub(super) fn is_well(&self, strict: bool) -> bool {
        let is_well = |finding: &Finding| match finding.verdict {
            Verdict::Well => true,
            Verdict::Wrong => false,
            Verdict::Unknown => !strict,
        };
        self.findings.iter().all(is_well)
    }

    fn add(
        &mut self,
        verdict: Verdict,
        area: Area,
        what: impl Into<String>,
        witness: impl Into<String>,
    ) -> &mut Finding {
        self.findings.push_mut(Finding {
            verdict,
            area,
            what: what.into(),
            witness: witness.into(),
            fix: None,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            let mark = match finding.verdict {
                Verdict::Well => "✓",
                Verdict::Wrong => "✗",
                Verdict::Unknown => "?",
            };
            writeln!(f, "{mark} {}: {}", finding.what, finding.witness)?;
            if let Some(fix) = &finding.fix {
                writeln!(f, "    {fix}")?;
            }
        }
        let count = |verdict| {
            self.findings
                .iter()
                .filter(|finding| finding.verdict == verdict)
                .count()
        };
        writeln!(
            f,
            "{} well, {} wrong, {} unknown",
            count(Verdict::Well),
            count(Verdict::Wrong),
            count(Verdict::Unknown)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_to_be_wrong_fails_unless_more_is_asked_for() {
        let mut report = Report::default();
        report.well(Area::Kinds, "a", "b");
        assert!(report.is_well(true));
        report.unknown(Area::Kinds, "c", "nobody says");
        assert!(report.is_well(false) && !report.is_well(true));
        report.wrong(Area::Webhook, "d", "e", "do f");
        assert!(!report.is_well(false));
        let told = "✓ a: b\n? c: nobody says\n✗ d: e\n    do f\n1 well, 1 wrong, 1 unknown\n";
        assert_eq!(report.to_string(), told);
    }
}
