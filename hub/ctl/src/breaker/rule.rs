//! `portolanctl breaker close NAMESPACE/NAME/RULE`: closes a rule of a CircuitBreaker that opened, in every router, by an
//! annotation of the object that the hub hands on.

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Error as KubeError};
use portolan_crds::labels::{ANNOTATION_CLOSE, ANNOTATION_CLOSE_REASON};
use portolan_crds::{CircuitBreaker, CircuitBreakerSpec};
use serde_json::json;

use super::{MAX_BY, TRIES};
use crate::cli::RuleName;
use crate::whoami::whoami;

pub(crate) async fn close(hub: &Client, which: &RuleName, reason: Option<&str>) -> anyhow::Result<()> {
    let policy = &which.policy;
    let objects = Api::<CircuitBreaker>::namespaced(hub.clone(), &policy.namespace);
    let cannot = || format!("cannot write CircuitBreaker {policy}");
    let by = whoami(hub, MAX_BY).await;
    for _ in 0..TRIES {
        let Some(object) = objects.get_opt(&policy.name).await.with_context(cannot)? else {
            bail!("there is no CircuitBreaker {policy}: see portolanctl get policies");
        };
        let rules = rules(&object.spec);
        check(which, &object.spec, &rules)?;
        let annotations = object.metadata.annotations.unwrap_or_default();
        let before = annotations.get(ANNOTATION_CLOSE).map_or("", String::as_str);
        let patch = json!({"metadata": {
            "resourceVersion": object.metadata.resource_version,
            "annotations": {
                ANNOTATION_CLOSE: closing(before, &rules, &which.rule, Timestamp::now()),
                ANNOTATION_CLOSE_REASON: format!("{}, by {by}: {}", which.rule, reason.unwrap_or("no reason given")),
            },
        }});
        match objects
            .patch(&policy.name, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Err(KubeError::Api(status)) if status.code == 409 => {}
            written => {
                written.with_context(cannot)?;
                println!("rule {} of CircuitBreaker {policy} closed in every router", which.rule);
                return Ok(());
            }
        }
    }
    bail!("CircuitBreaker {policy} is written by others all the time: try again")
}

/// Names that may be closed: of limits, and of breakers, for all of their member clusters or for one that they name.
fn rules(spec: &CircuitBreakerSpec) -> Vec<String> {
    let limits = spec.rate_limitings.iter().map(|limit| limit.name.clone());
    let breakers = spec.breakers.iter().flat_map(|breaker| {
        let each = breaker.clusters.iter();
        let each = each.map(|cluster| format!("{}@{cluster}", breaker.name));
        std::iter::once(breaker.name.clone()).chain(each)
    });
    limits.chain(breakers).collect()
}

/// Refuses what the object does not have. A breaker that names no member clusters has one for each that there is.
fn check(which: &RuleName, spec: &CircuitBreakerSpec, rules: &[String]) -> anyhow::Result<()> {
    let of_any = which.rule.split_once('@').is_some_and(|(name, _)| {
        let mut breakers = spec.breakers.iter();
        breakers.any(|breaker| breaker.name == name && breaker.clusters.is_empty())
    });
    if of_any || rules.contains(&which.rule) {
        return Ok(());
    }
    let policy = &which.policy;
    if rules.is_empty() {
        bail!("CircuitBreaker {policy} has no rules");
    }
    bail!(
        "CircuitBreaker {policy} has no rule {:?}; it has: {}",
        which.rule,
        rules.join(", ")
    )
}

/// The annotation with one more rule closed, later than it was before by whatever clock. What is of no rule any more is left
/// out, so that it does not grow.
fn closing(before: &str, rules: &[String], rule: &str, now: Timestamp) -> String {
    let entries = before.split(',').filter_map(|entry| entry.trim().rsplit_once('='));
    let mut at = Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now);
    let mut kept = Vec::new();
    for (name, time) in entries {
        match time.trim().parse::<Timestamp>() {
            Ok(last) if name == rule && last >= at => {
                at = Timestamp::from_millisecond(last.as_millisecond() + 1).unwrap_or(last);
            }
            Ok(_) if name != rule && rules.iter().any(|known| known == name) => kept.push(format!("{name}={time}")),
            _ => {}
        }
    }
    kept.push(format!("{rule}={at}"));
    kept.join(",")
}

#[cfg(test)]
mod tests {
    use portolan_crds::circuit_breaker::{CallerBreaker, RateLimiting};

    use super::*;
    use crate::cli::PolicyName;

    fn spec() -> CircuitBreakerSpec {
        let limit = |name: &str| RateLimiting {
            name: name.to_owned(),
            ..RateLimiting::default()
        };
        let breaker = |name: &str, clusters: &[&str]| CallerBreaker {
            name: name.to_owned(),
            clusters: clusters.iter().map(|name| (*name).to_owned()).collect(),
            ..CallerBreaker::default()
        };
        CircuitBreakerSpec {
            rate_limitings: vec![limit("deletes"), limit("reads")],
            breakers: vec![breaker("west-fails", &["west"]), breaker("any-fails", &[])],
            ..CircuitBreakerSpec::default()
        }
    }

    fn named(rule: &str) -> RuleName {
        RuleName {
            policy: PolicyName::new("ops", "calm").unwrap(),
            rule: rule.to_owned(),
        }
    }

    #[test]
    fn a_rule_that_the_object_lacks_is_refused_and_those_it_has_are_named() {
        let spec = spec();
        let rules = rules(&spec);
        for there in ["deletes", "west-fails", "west-fails@west", "any-fails@north"] {
            check(&named(there), &spec, &rules).unwrap();
        }
        for absent in ["delete", "west-fails@north", "deletes@west"] {
            let told = check(&named(absent), &spec, &rules).unwrap_err().to_string();
            assert!(
                told.contains("deletes, reads, west-fails, west-fails@west, any-fails"),
                "{told}"
            );
        }
        let nothing = CircuitBreakerSpec::default();
        let told = check(&named("deletes"), &nothing, &[]).unwrap_err().to_string();
        assert_eq!(told, "CircuitBreaker ops/calm has no rules");
    }

    #[test]
    fn each_rule_is_closed_later_than_before_and_others_stay() {
        let rules = rules(&spec());
        let at = |second| Timestamp::from_second(second).unwrap();
        let once = closing("", &rules, "deletes", at(60));
        assert_eq!(once, "deletes=1970-01-01T00:01:00Z");
        let other = closing(&once, &rules, "reads", at(61));
        assert_eq!(other, "deletes=1970-01-01T00:01:00Z,reads=1970-01-01T00:01:01Z");
        // The clock of whoever closed it last was ahead.
        let again = closing(&other, &rules, "deletes", at(30));
        assert_eq!(again, "reads=1970-01-01T00:01:01Z,deletes=1970-01-01T00:01:00.001Z");
        let mended = closing("gone=1970-01-01T00:01:00Z, reads=soon", &rules, "deletes", at(90));
        assert_eq!(mended, "deletes=1970-01-01T00:01:30Z");
    }
}
