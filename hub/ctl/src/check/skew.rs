//! Which programs run which version, and whether these go together. Pure.
//!
//! A version reads what the one before it has written, and speaks with it: so that programs are upgraded one after the other.

use std::collections::BTreeMap;

use super::report::{Area, Report};

/// Programs that are named.
const NAMED: usize = 10;

/// Major and minor.
fn parsed(version: &str) -> Option<(u64, u64)> {
    let mut parts = version.trim_start_matches('v').split(['.', '-', '+']);
    let mut number = || parts.next()?.parse().ok();
    Some((number()?, number()?))
}

/// Programs by version, empty if nobody says it; each version is told once. `own`: the version of portolanctl, which goes together with
/// those next to it, as all of them must with each other.
pub(super) fn tell(report: &mut Report, own: &str, programs: &BTreeMap<String, Vec<String>>, witness: &str) {
    let all = programs.keys().filter_map(|version| parsed(version));
    let (oldest, newest) = (all.clone().min(), all.max());
    let spread = |(major, minor): (u64, u64)| {
        let far =
            |other: Option<(u64, u64)>| other.is_some_and(|other| other.0 != major || minor.abs_diff(other.1) > 1);
        far(oldest) || far(newest)
    };
    for (version, who) in programs {
        let more = who.len().saturating_sub(NAMED);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        let named: Vec<_> = who.iter().take(NAMED).map(String::as_str).collect();
        let named = named.join(", ");
        if version.is_empty() {
            report.unknown(
                Area::Versions,
                format!("the version of {named}{more}"),
                format!("not told by {witness}"),
            );
            continue;
        }
        let what = format!("{version} is run by {named}{more}");
        match (parsed(version), parsed(own)) {
            (Some((major, minor)), Some((own_major, own_minor)))
                if major == own_major && minor.abs_diff(own_minor) <= 1 && !spread((major, minor)) =>
            {
                report.well(Area::Versions, what, witness);
            }
            (Some(_), Some(_)) => {
                let fix = format!(
                    "bring programs to within one version of each other and of portolanctl's {own}: helm upgrade"
                );
                report.wrong(Area::Versions, what, witness, fix);
            }
            _ => report.unknown(
                Area::Versions,
                what,
                format!("{version} is no version like {own}; {witness}"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Verdict;
    use super::*;

    #[test]
    fn versions_next_to_each_other_go_together() {
        let cases = [
            ("0.4.0", Verdict::Well),
            ("v0.4.7", Verdict::Well),
            ("0.3.1", Verdict::Well),
            ("0.5.0-rc.1", Verdict::Well),
            ("0.2.0", Verdict::Wrong),
            ("1.4.0", Verdict::Wrong),
            ("main", Verdict::Unknown),
            ("", Verdict::Unknown),
        ];
        for (version, verdict) in cases {
            let mut report = Report::default();
            let programs = BTreeMap::from([(version.to_owned(), vec!["the hub".to_owned()])]);
            tell(&mut report, "0.4.2", &programs, "Deployment");
            assert_eq!(report.findings[0].verdict, verdict, "{version}");
        }
        let mut report = Report::default();
        let apart = ["0.3.0", "0.5.0"].map(|version| (version.to_owned(), vec!["x".to_owned()]));
        tell(&mut report, "0.4.2", &BTreeMap::from(apart), "Deployment");
        assert!(report.findings.iter().all(|found| found.verdict == Verdict::Wrong));
    }
}
