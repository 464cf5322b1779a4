//! What limits cost a request: instructions of the real router for one GET of a caller, without limits and with a thousand.
//!
//! Counted by valgrind's callgrind, so that neither the machine nor what runs beside it matters. Of the router alone: hub,
//! member and client are other processes. A row is a router of its own, whose hub tells it other policies.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use portolan_tests::programs::argument;
use portolan_wire::v1;
use serde_json::{Value, json};

use crate::load::Client;
use crate::report::PoliciesSection;
use crate::scripted::Scripted;

const GET: &str = "/api/v1/namespaces/bench/configmaps/settings";
const RULES: usize = 1_000;
/// Of one object; it may have 256.
const RULES_EACH: usize = 250;
/// Connections, caches and the state of rules are as they are for long when it is counted.
const WARM: usize = 300;

/// One row.
struct Case {
    name: &'static str,
    rules: usize,
    rule: fn(usize) -> Value,
}

const CASES: [Case; 6] = [
    Case {
        name: "none",
        rules: 0,
        rule: |_| Value::Null,
    },
    Case {
        name: "1,000 of other namespaces",
        rules: RULES,
        rule: |index| rule(index, ROOMY, &json!(["*"]), &json!([format!("namespace-{index}")])),
    },
    Case {
        name: "1,000 of everything but the verb",
        rules: RULES,
        rule: |index| rule(index, ROOMY, &json!(["delete", "update"]), &json!(["*"])),
    },
    Case {
        name: "1,000, of which 10 count it",
        rules: RULES,
        rule: |index| {
            let namespace = if index % 100 == 0 {
                "*".to_owned()
            } else {
                format!("namespace-{index}")
            };
            rule(index, ROOMY, &json!(["*"]), &json!([namespace]))
        },
    },
    Case {
        name: "1,000 that count it",
        rules: RULES,
        rule: |index| rule(index, ROOMY, &json!(["*"]), &json!(["*"])),
    },
    Case {
        name: "1,000 that count it, each with few tokens left",
        rules: RULES,
        rule: |index| rule(index, TIGHT, &json!(["*"]), &json!(["*"])),
    },
];

/// As many requests at once and in a second as a busy operator may have.
const ROOMY: i64 = 100;
/// So many that nothing can be said of the next few.
const TIGHT: i64 = 5;

fn rule(index: usize, burst: i64, verbs: &Value, namespaces: &Value) -> Value {
    json!({
        "name": format!("rule-{index}"),
        "triggerPolicy": "LimiterOnly",
        "resourceRules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": verbs, "namespaces": namespaces}],
        // No GET of this program is refused: valgrind is slow.
        "bucket": {"burst": burst, "limit": 100_000, "interval": "1s"},
    })
}

impl Case {
    fn policies(&self) -> Vec<v1::Policy> {
        let of = |number: usize| {
            let rules = number * RULES_EACH..self.rules.min((number + 1) * RULES_EACH);
            let rules: Vec<_> = rules.map(self.rule).collect();
            v1::Policy {
                name: format!("CircuitBreaker/operators/bench-{number}"),
                uid: format!("bench-{number}"),
                generation: 1,
                spec_json: json!({"selector": {}, "rateLimitings": rules}).to_string(),
                closed: Vec::new(),
            }
        };
        (0..self.rules.div_ceil(RULES_EACH)).map(of).collect()
    }
}

/// All rows, with so many GETs each.
pub(crate) async fn run(requests: usize, step: impl Fn(&str)) -> anyhow::Result<PoliciesSection> {
    let known = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    ensure!(
        known.is_ok_and(|status| status.success()),
        "valgrind is missing: it counts instructions"
    );
    let mut section = PoliciesSection {
        requests,
        ..PoliciesSection::default()
    };
    for case in &CASES {
        step(&format!("policies: {}", case.name));
        let counted = count(case, requests).await.with_context(|| case.name.to_owned())?;
        section.add(case.name, counted);
    }
    Ok(section)
}

async fn count(case: &Case, requests: usize) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let counts = folder.path().join("counts");
    let wrapper = [
        "valgrind".to_owned(),
        "--tool=callgrind".to_owned(),
        "--quiet".to_owned(),
        format!("--callgrind-out-file={}", argument(&counts)),
    ];
    let mut scripted = Scripted::held_by(&wrapper, case.policies()).await?;
    scripted.router.ready().await?;
    let merged = scripted
        .subjects()
        .await?
        .into_iter()
        .find(|subject| subject.name == "router, merged");
    let client = Client::connected(merged.context("a subject")?.route, 1).await?;
    client.warm(GET, WARM, 1).await?;
    let pid = scripted.router.pid();
    dump(pid)?;
    let before = dumps(&counts)?;
    client.burst(GET, requests, 1).await?;
    dump(pid)?;
    let mut counted = 0.0;
    for file in dumps(&counts)?.iter().filter(|file| !before.contains(file)) {
        counted += total(file)?;
    }
    ensure!(counted > 0.0, "callgrind has counted nothing");
    #[expect(clippy::cast_precision_loss, reason = "some thousand")]
    let requests = requests as f64;
    Ok(counted / requests)
}

/// Has the process write what it has counted since the last time.
fn dump(pid: i32) -> anyhow::Result<()> {
    let mut control = Command::new("callgrind_control");
    let told = control
        .args(["--dump", &pid.to_string()])
        .stdout(Stdio::null())
        .status();
    let told = told.context("cannot start callgrind_control, which comes with valgrind")?;
    ensure!(told.success(), "callgrind_control: {told}");
    Ok(())
}

/// The files that were written so far.
fn dumps(counts: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let folder = counts.parent().context("a folder")?;
    let files = std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    Ok(files.collect::<Result<_, _>>()?)
}

/// What a file counts in all.
fn total(file: &Path) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    parse_total(&text).with_context(|| format!("no total in {}", file.display()))
}

fn parse_total(text: &str) -> Option<f64> {
    let of = |word: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(word)?.trim().parse().ok())
    };
    of("totals:").or_else(|| of("summary:"))
}

#[cfg(test)]
mod tests {
    use portolan_crds::CircuitBreakerSpec;

    use super::*;

    #[test]
    fn totals_are_read() {
        assert_eq!(parse_total("events: Ir\nfn=(1)\n1 2\n\ntotals: 4711\n"), Some(4_711.0));
        assert_eq!(parse_total("summary: 17\n"), Some(17.0));
        assert_eq!(parse_total("events: Ir\n"), None);
    }

    #[test]
    fn each_row_has_as_many_rules_as_it_says() {
        for case in &CASES {
            let specs = case.policies().into_iter().map(|policy| policy.spec_json);
            let specs = specs.map(|spec| serde_json::from_str::<CircuitBreakerSpec>(&spec).unwrap());
            let rules: usize = specs.map(|spec| spec.rate_limitings.len()).sum();
            assert_eq!(rules, case.rules, "{}", case.name);
        }
    }
}
