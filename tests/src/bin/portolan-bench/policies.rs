//! What limits cost a request: instructions of the real router for one GET of a caller, without limits and with a thousand.
//!
//! Counted by `counter`, so that neither the machine nor what runs beside it matters. Of the router alone: hub, member and
//! client are other processes. A row is a router of its own, whose hub tells it other policies.

use anyhow::Context as _;
use portolan_wire::v1;
use serde_json::{Value, json};

use crate::counter::Tool;
use crate::load::Client;
use crate::report::PoliciesSection;
use crate::scripted::{Content, Scripted, What};
use crate::usage;

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

/// The hundredth part of them counts a GET.
fn few_count(index: usize) -> Value {
    let namespace = if index.is_multiple_of(100) {
        "*".to_owned()
    } else {
        format!("namespace-{index}")
    };
    rule(index, ROOMY, &json!(["*"]), &json!([namespace]))
}

/// So many rules that hold the caller, of which the hundredth part counts a GET.
pub(crate) fn of_rules(rules: usize) -> Vec<v1::Policy> {
    let case = Case {
        name: "",
        rules,
        rule: few_count,
    };
    case.policies()
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
        rule: few_count,
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
    let tool = Tool::choose()?;
    let mut section = PoliciesSection {
        requests,
        ..PoliciesSection::default()
    };
    for case in &CASES {
        step(&format!("policies: {}", case.name));
        let counted = count(case, tool, requests)
            .await
            .with_context(|| case.name.to_owned())?;
        section.add(case.name, counted);
    }
    Ok(section)
}

async fn count(case: &Case, tool: Tool, requests: usize) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let what = What {
        router_by: tool.wrapper(folder.path()),
        content: Content {
            policies: case.policies(),
            ..Content::default()
        },
        ..What::default()
    };
    let mut scripted = Scripted::of(what).await?;
    scripted.router.ready().await?;
    let merged = scripted
        .subjects()
        .await?
        .into_iter()
        .find(|subject| subject.name == "router, merged");
    let client = Client::connected(merged.context("a subject")?.route, 1).await?;
    client.warm(GET, requests.min(WARM), 1).await?;
    let counting = tool.count(scripted.router.pid(), folder.path())?;
    client.burst(GET, requests, 1).await?;
    Ok(counting.end()?.instructions / usage::count(requests))
}

#[cfg(test)]
mod tests {
    use portolan_crds::CircuitBreakerSpec;

    use super::*;

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
