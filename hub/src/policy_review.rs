//! Can this CircuitBreaker or FaultInjection be served? Asked as the API server asks about a write, before it is stored
//! (`webhook`); judged by the functions that index and routers use. Who may write one is said by the hub cluster's RBAC alone:
//! a policy speaks of callers in its own namespace.

use portolan_crds::fault_injection::parse_until;
use portolan_crds::labels::GROUP;
use portolan_crds::validate::summary;
use portolan_crds::{
    CircuitBreakerSpec, FaultInjectionSpec, Problem, Reason, validate_circuit_breaker, validate_fault_injection,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::authors::{Refusal, Resource, Write};

/// What to say to whoever writes it, if it may be written.
pub(crate) fn review(write: &Write) -> Result<Vec<String>, Refusal> {
    let is_fault = write.resource.resource == "faultinjections";
    let judge = match (write.resource.group.as_str(), write.resource.resource.as_str()) {
        (GROUP, "circuitbreakers") => circuit_breaker,
        (GROUP, "faultinjections") => fault_injection,
        _ => {
            let Resource { group, resource } = &write.resource;
            let message = format!(
                "only writes of circuitbreakers and faultinjections are reviewed here, not of {resource:?} in group {group:?}"
            );
            return Err(Refusal::Invalid(message));
        }
    };
    // What is there already can always be labelled, annotated and finalized.
    let Some(spec) = write.new_spec() else {
        return Ok(Vec::new());
    };
    let later = match judged(judge(spec)) {
        Ok(later) => later,
        // Whoever wants faults to end must not mend the rest first.
        Err(_) if is_fault && write.old_spec().is_some_and(|old| only_ends(old, spec)) => return Ok(Vec::new()),
        Err(message) => return Err(Refusal::Bad(message)),
    };
    let mut warnings: Vec<_> = later
        .iter()
        .map(|problem| {
            let what = if problem.refuses() {
                "nothing of this object comes into force"
            } else {
                "this part of the object does not come into force"
            };
            format!("{what}: {problem}")
        })
        .collect();
    if spec["selector"].is_null() {
        warnings
            .push("spec.selector: absent, so that nobody is held: {} selects all callers of the namespace".to_owned());
    }
    Ok(warnings)
}

/// What is not served yet; or else why it cannot be.
fn judged(problems: Result<Vec<Problem>, serde_json::Error>) -> Result<Vec<Problem>, String> {
    let problems = problems.map_err(|error| format!("spec: cannot be read: {error}"))?;
    let (later, bad): (Vec<_>, Vec<_>) = problems
        .into_iter()
        .partition(|problem| problem.reason == Reason::NotImplemented || !problem.refuses());
    if bad.is_empty() { Ok(later) } else { Err(summary(&bad)) }
}

/// Whether the write does no more than to disable what is there, or to let it end earlier.
fn only_ends(old: &Value, new: &Value) -> bool {
    let rest = |spec: &Value| {
        let mut rest = spec.as_object().cloned().unwrap_or_default();
        rest.retain(|field, _| field != "disabled" && field != "until");
        rest
    };
    let end = |spec: &Value| spec["until"].as_str().and_then(|until| parse_until(until).ok());
    let disables = new["disabled"] == old["disabled"] || new["disabled"] == true;
    // One that cannot be read is none.
    let is_earlier = end(new).is_some_and(|new| end(old).is_none_or(|old| new < old));
    disables && (new["until"] == old["until"] || is_earlier) && rest(old) == rest(new)
}

fn circuit_breaker(spec: &Value) -> Result<Vec<Problem>, serde_json::Error> {
    read::<CircuitBreakerSpec>(spec).map(|spec| validate_circuit_breaker(&spec))
}

fn fault_injection(spec: &Value) -> Result<Vec<Problem>, serde_json::Error> {
    read::<FaultInjectionSpec>(spec).map(|spec| validate_fault_injection(&spec))
}

fn read<S: DeserializeOwned + Default>(spec: &Value) -> Result<S, serde_json::Error> {
    if spec.is_null() {
        return Ok(S::default());
    }
    S::deserialize(spec)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn write(resource: &str, operation: &str, spec: &Value, old: &Value) -> Write {
        serde_json::from_value(json!({
            "uid": "1", "operation": operation, "resource": {"group": GROUP, "resource": resource},
            "object": {"spec": spec}, "oldObject": {"spec": old},
        }))
        .unwrap()
    }

    fn limit(burst: i64) -> Value {
        json!({"selector": {}, "rateLimitings": [{
            "name": "slow", "triggerPolicy": "Normal", "bucket": {"burst": burst, "interval": "1s", "limit": 5},
            "resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "namespaces": ["*"]}],
        }]})
    }

    #[test]
    fn what_cannot_be_served_is_refused_naming_the_field() {
        let created = |resource: &str, spec: &Value| review(&write(resource, "CREATE", spec, &Value::Null));
        assert_eq!(created("circuitbreakers", &limit(5)), Ok(vec![]));
        let refused = |resource: &str, spec: &Value, text: &str| match created(resource, spec) {
            Err(Refusal::Bad(message)) => assert!(message.contains(text), "{message}"),
            other => panic!("{other:?}"),
        };
        refused("circuitbreakers", &limit(-1), "spec.rateLimitings[0].bucket.burst");
        refused("circuitbreakers", &json!({"rateLimitings": 7}), "spec: cannot be read");
        refused(
            "faultinjections",
            &json!({"selector": {}, "until": "tomorrow"}),
            "spec.until",
        );
        assert!(matches!(created("pods", &limit(5)), Err(Refusal::Invalid(_))));
    }

    #[test]
    fn what_is_not_served_yet_is_a_warning() {
        let mut spec = limit(5);
        spec["rateLimitings"][0]["restRules"] = json!([{"url": "https://x.example/*", "method": "GET"}]);
        let warnings = review(&write("circuitbreakers", "CREATE", &spec, &Value::Null)).unwrap();
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("spec.rateLimitings[0].restRules"), "{warnings:?}");
        let warnings = review(&write("faultinjections", "CREATE", &json!({}), &Value::Null)).unwrap();
        assert!(
            warnings.iter().any(|warning| warning.contains("nobody is held")),
            "{warnings:?}"
        );
    }

    #[test]
    fn a_bad_one_that_is_there_can_be_ended() {
        let bad = |more: Value| {
            let mut spec = json!({"selector": {}, "httpFault": 7});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec
        };
        let early = json!({"until": "2030-01-01T00:00:00Z"});
        let late = json!({"until": "2031-01-01T00:00:00Z"});
        let allowed = |old: &Value, new: &Value| {
            let write = write("faultinjections", "UPDATE", &bad(new.clone()), &bad(old.clone()));
            review(&write).is_ok()
        };
        let none = json!({});
        assert!(allowed(&none, &json!({"disabled": true})));
        assert!(allowed(&none, &early) && allowed(&late, &early));
        assert!(allowed(&json!({"until": "tomorrow"}), &early));
        assert!(!allowed(&early, &late) && !allowed(&early, &none), "later");
        assert!(!allowed(&json!({"disabled": true}), &none), "starts anew");
        assert!(!allowed(&none, &json!({"disabled": true, "rejects": 7})), "and more");
        assert!(!allowed(&early, &json!({"disabled": true, "until": "tomorrow"})));
        let created = write(
            "faultinjections",
            "CREATE",
            &bad(json!({"disabled": true})),
            &Value::Null,
        );
        assert!(review(&created).is_err());
    }

    #[test]
    fn a_bad_one_that_is_there_can_be_labelled_and_not_made_worse() {
        let (bad, worse) = (limit(-1), limit(-2));
        assert_eq!(review(&write("circuitbreakers", "UPDATE", &bad, &bad)), Ok(vec![]));
        assert!(review(&write("circuitbreakers", "UPDATE", &worse, &bad)).is_err());
        assert_eq!(
            review(&write("circuitbreakers", "DELETE", &Value::Null, &bad)),
            Ok(vec![])
        );
        let mut status = write("circuitbreakers", "UPDATE", &worse, &bad);
        status.sub_resource = Some("status".to_owned());
        assert_eq!(review(&status), Ok(vec![]));
    }
}
