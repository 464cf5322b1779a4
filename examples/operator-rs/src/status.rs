//! What is said about a Greeting: conditions and counts. Pure.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::greeting::{Greeting, GreetingStatus};

/// The status of a Greeting whose children were applied, with the Deployment as the API server has it.
pub(crate) fn of_children(greeting: &Greeting, deployment: &Deployment, now: &Time) -> GreetingStatus {
    let mut status = GreetingStatus {
        observed_generation: greeting.metadata.generation,
        ..carried_over(greeting)
    };
    let wanted = greeting.spec.replicas;
    let found = deployment.status.clone().unwrap_or_default();
    status.ready_replicas = found.ready_replicas.unwrap_or(0);
    let applied = Finding {
        kind: "Applied",
        holds: true,
        reason: "Applied",
        message: "ConfigMap and Deployment are as the spec wants them".to_owned(),
    };
    set(greeting, &mut status, applied, now);
    // A Deployment whose controller has not seen our change yet still counts the Pods of before.
    let current = found.observed_generation >= deployment.metadata.generation;
    let updated = found.updated_replicas.unwrap_or(0);
    let counts = [updated, status.ready_replicas, found.replicas.unwrap_or(0)];
    let holds = current && counts.iter().all(|count| *count == wanted);
    let saying = if holds {
        wanted
    } else {
        updated.min(status.ready_replicas)
    };
    let ready = Finding {
        kind: "Ready",
        holds,
        reason: if holds { "Greeting" } else { "WaitingForPods" },
        message: format!("{saying} of {wanted} Pods say it"),
    };
    set(greeting, &mut status, ready, now);
    status
}

/// The status of a Greeting whose children could not be applied: what was ready stays so, and `observedGeneration` is that
/// of the spec that the children still reflect.
pub(crate) fn of_failure(greeting: &Greeting, why: &str, now: &Time) -> GreetingStatus {
    let mut status = carried_over(greeting);
    let applied = Finding {
        kind: "Applied",
        holds: false,
        reason: "ApplyFailed",
        message: why.to_owned(),
    };
    set(greeting, &mut status, applied, now);
    status
}

/// Whether the children never were what the present spec wants.
pub(crate) fn is_news(greeting: &Greeting) -> bool {
    let observed = greeting.status.as_ref().and_then(|status| status.observed_generation);
    observed != greeting.metadata.generation
}

fn carried_over(greeting: &Greeting) -> GreetingStatus {
    greeting.status.clone().unwrap_or_default()
}

struct Finding {
    kind: &'static str,
    holds: bool,
    reason: &'static str,
    message: String,
}

/// `lastTransitionTime` becomes `now` only when the status changes (API conventions).
fn set(greeting: &Greeting, status: &mut GreetingStatus, finding: Finding, now: &Time) {
    let mut wanted = Condition {
        type_: finding.kind.to_owned(),
        status: if finding.holds { "True" } else { "False" }.to_owned(),
        reason: finding.reason.to_owned(),
        message: finding.message,
        observed_generation: greeting.metadata.generation,
        last_transition_time: now.clone(),
    };
    match status.conditions.iter_mut().find(|found| found.type_ == wanted.type_) {
        Some(found) => {
            if found.status == wanted.status {
                wanted.last_transition_time = found.last_transition_time.clone();
            }
            *found = wanted;
        }
        None => status.conditions.push(wanted),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;

    fn greeting(generation: i64, status: Option<GreetingStatus>) -> Greeting {
        let mut greeting: Greeting = serde_json::from_value(json!({
            "apiVersion": "example.com/v1", "kind": "Greeting",
            "metadata": {"name": "hello", "generation": generation},
            "spec": {"message": "hi", "replicas": 2},
        }))
        .unwrap();
        greeting.status = status;
        greeting
    }

    fn deployment(generation: i64, observed: i64, ready: i32) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {"generation": generation},
            "status": {"observedGeneration": observed, "replicas": 2, "updatedReplicas": 2, "readyReplicas": ready},
        }))
        .unwrap()
    }

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn ready(status: &GreetingStatus) -> (&str, &str) {
        let found = status.conditions.iter().find(|found| found.type_ == "Ready").unwrap();
        (&found.status, &found.message)
    }

    #[test]
    fn ready_when_all_pods_of_the_present_spec_are() {
        let greeting = greeting(1, None);
        for (found, wanted) in [
            (deployment(1, 1, 2), ("True", "2 of 2 Pods say it")),
            (deployment(1, 1, 1), ("False", "1 of 2 Pods say it")),
            (deployment(2, 1, 2), ("False", "2 of 2 Pods say it")),
            (Deployment::default(), ("False", "0 of 2 Pods say it")),
        ] {
            assert_eq!(ready(&of_children(&greeting, &found, &at(1))), wanted);
        }
    }

    #[test]
    fn an_unchanged_finding_is_no_change() {
        let first = of_children(&greeting(1, None), &deployment(1, 1, 2), &at(1));
        let again = of_children(&greeting(1, Some(first.clone())), &deployment(1, 1, 2), &at(2));
        assert_eq!(first, again);
        assert!(is_news(&greeting(1, None)) && is_news(&greeting(2, Some(again.clone()))));
        assert!(!is_news(&greeting(1, Some(again))));
    }

    #[test]
    fn a_failure_keeps_what_was_ready() {
        let first = of_children(&greeting(1, None), &deployment(1, 1, 2), &at(1));
        let failed = of_failure(&greeting(2, Some(first)), "refused", &at(2));
        assert_eq!(ready(&failed), ("True", "2 of 2 Pods say it"));
        assert_eq!(failed.conditions[0].reason, "ApplyFailed");
        assert_eq!(
            failed.observed_generation,
            Some(1),
            "the children reflect no later spec"
        );
    }
}
