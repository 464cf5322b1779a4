//! `portolanctl get policies`: CircuitBreakers and FaultInjections in one table.

use anyhow::Context as _;
use jiff::Timestamp;
use kube::{Client, Resource as _, ResourceExt as _};
use portolan_crds::{CircuitBreaker, FaultInjection};
use serde::Serialize;

use super::{condition, explain_false};
use crate::cli::{Output, OutputArgs};
use crate::connect::list;
use crate::table::{Table, age};

/// All policies of a hub, by kind.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Policies {
    circuit_breakers: Vec<CircuitBreaker>,
    fault_injections: Vec<FaultInjection>,
}

pub(super) async fn run(hub: &Client, output: OutputArgs) -> anyhow::Result<()> {
    let all = Policies {
        circuit_breakers: list(hub).await.context("policies are of two kinds")?,
        fault_injections: list(hub).await.context("policies are of two kinds")?,
    };
    let wide = output.output == Output::Wide;
    output.print(&all, |all| report(all, wide, Timestamp::now()))
}

fn report(all: &Policies, wide: bool, now: Timestamp) -> String {
    let mut head = vec![
        "KIND",
        "NAMESPACE/NAME",
        "ACCEPTED",
        "DISTRIBUTED",
        "CALLERS",
        "OPENED/INJECTED",
        "AGE",
    ];
    if wide {
        head.extend([
            "ACTIVE",
            "CALLERS FOUND",
            "DIVIDED",
            "CALLER CLUSTERS",
            "RULES",
            "UNTIL",
        ]);
    }
    let (mut table, mut notes) = (Table::new(&head), String::new());
    let rows = all.circuit_breakers.iter().map(of_breaker);
    let rows = rows
        .chain(all.fault_injections.iter().map(of_faults))
        .collect::<Vec<_>>();
    if rows.is_empty() {
        return "there is no CircuitBreaker and no FaultInjection\n".to_owned();
    }
    for row in rows {
        table.row(row.cells(wide, now));
        explain_false(&mut notes, &format!("{}/{}", row.kind, row.name), row.conditions);
    }
    format!("{table}{notes}")
}

/// What both kinds have.
struct Row<'a> {
    kind: &'static str,
    name: String,
    conditions: &'a [k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition],
    callers: Option<i64>,
    did: String,
    created: Option<Timestamp>,
    caller_clusters: &'a [String],
    rules: usize,
    until: String,
}

impl Row<'_> {
    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let condition = |type_: &str| condition(self.conditions, type_);
        let mut cells = vec![
            self.kind.to_owned(),
            self.name.clone(),
            condition("Accepted"),
            condition("Distributed"),
            self.callers.map(|callers| callers.to_string()).unwrap_or_default(),
            self.did.clone(),
            self.created.map(|created| age(now, created)).unwrap_or_default(),
        ];
        if wide {
            let clusters = if self.caller_clusters.is_empty() {
                "all".to_owned()
            } else {
                self.caller_clusters.join(",")
            };
            cells.extend([
                condition("Active"),
                condition("CallersFound"),
                condition("Divided"),
                clusters,
                self.rules.to_string(),
                self.until.clone(),
            ]);
        }
        cells
    }
}

fn of_breaker(object: &CircuitBreaker) -> Row<'_> {
    let status = object.status.as_ref();
    let opened = status.and_then(|status| status.opened);
    Row {
        kind: "CircuitBreaker",
        name: name_of(object),
        conditions: status.map_or(&[], |status| &status.conditions),
        callers: status.and_then(|status| status.callers),
        did: opened.map(|opened| format!("{opened} opened")).unwrap_or_default(),
        created: object.meta().creation_timestamp.as_ref().map(|time| time.0),
        caller_clusters: &object.spec.caller_clusters,
        rules: object.spec.rate_limitings.len() + object.spec.breakers.len(),
        until: String::new(),
    }
}

fn of_faults(object: &FaultInjection) -> Row<'_> {
    let status = object.status.as_ref();
    let injected = status.map(|status| {
        status
            .target_status
            .iter()
            .map(|target| target.injected_total)
            .sum::<i64>()
    });
    Row {
        kind: "FaultInjection",
        name: name_of(object),
        conditions: status.map_or(&[], |status| &status.conditions),
        callers: status.and_then(|status| status.callers),
        did: injected
            .map(|injected| format!("{injected} injected"))
            .unwrap_or_default(),
        created: object.meta().creation_timestamp.as_ref().map(|time| time.0),
        caller_clusters: &object.spec.caller_clusters,
        rules: object.spec.http_fault.len() + object.spec.watch_fault.len(),
        until: object.spec.until.clone().unwrap_or_default(),
    }
}

fn name_of(object: &impl kube::Resource) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_kinds_are_in_one_table_and_what_is_wrong_stands_below() {
        let metadata =
            |name: &str| json!({"name": name, "namespace": "ops", "creationTimestamp": "1970-01-01T00:00:10Z"});
        let condition = |type_: &str, status: &str, reason: &str| {
            json!({
                "type": type_, "status": status, "reason": reason, "message": "why", "lastTransitionTime": "1970-01-01T00:00:20Z",
            })
        };
        let all = Policies {
            circuit_breakers: vec![
                serde_json::from_value(json!({
                    "metadata": metadata("calm"),
                    "spec": {"rateLimitings": [{"name": "deletes"}]},
                    "status": {"callers": 2, "opened": 1, "conditions": [condition("Accepted", "True", "Valid"), condition("Divided", "True", "Ok")]},
                }))
                .unwrap(),
            ],
            fault_injections: vec![
                serde_json::from_value(json!({
                    "metadata": metadata("rehearsal"),
                    "spec": {"until": "2030-01-01T00:00:00Z", "callerClusters": ["east"]},
                    "status": {
                        "callers": 1,
                        "conditions": [condition("Active", "False", "Stopped")],
                        "targetStatus": [{"name": "a", "injectedTotal": 3}, {"name": "b", "injectedTotal": 4}],
                    },
                }))
                .unwrap(),
            ],
        };
        let now = Timestamp::from_second(100).unwrap();
        let lines = [
            "KIND             NAMESPACE/NAME   ACCEPTED   DISTRIBUTED   CALLERS   OPENED/INJECTED   AGE",
            "CircuitBreaker   ops/calm         True       -             2         1 opened          1m30s",
            "FaultInjection   ops/rehearsal    -          -             1         7 injected        1m30s",
            "FaultInjection/ops/rehearsal: Active=False Stopped: why",
        ];
        assert_eq!(report(&all, false, now), lines.join("\n") + "\n");
        let wide = report(&all, true, now);
        assert!(
            wide.contains("False    -               -         east              0       2030-01-01T00:00:00Z"),
            "{wide}"
        );
        let divided = |line: usize| wide.lines().nth(line).unwrap().find("True      all");
        assert!(
            divided(1).is_some() && wide.lines().next().unwrap().find("DIVIDED") == divided(1),
            "{wide}"
        );
        assert!(divided(2).is_none(), "{wide}");
    }

    #[test]
    fn who_withholds_a_share_is_told_below() {
        let divided = json!({
            "type": "Divided", "status": "False", "reason": "SharesWithheld", "message": "router far keeps 26 %",
            "lastTransitionTime": "1970-01-01T00:00:20Z",
        });
        let breaker = json!({
            "metadata": {"name": "calm", "namespace": "ops"}, "spec": {}, "status": {"conditions": [divided]},
        });
        let all = Policies {
            circuit_breakers: vec![serde_json::from_value(breaker).unwrap()],
            fault_injections: Vec::new(),
        };
        let told = report(&all, false, Timestamp::from_second(100).unwrap());
        assert!(
            told.ends_with("CircuitBreaker/ops/calm: Divided=False SharesWithheld: router far keeps 26 %\n"),
            "{told}"
        );
    }
}
