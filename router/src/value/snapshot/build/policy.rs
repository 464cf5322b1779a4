//! Policies of the wire → [`Policy`], and callers with those that hold them: what several callers have in common is made
//! once.
//!
//! A spec is checked by the functions that webhook and hub use. A bad one is refused by name and keeps its last good.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use portolan_crds::names::{is_dns_label, is_dns_subdomain};
use portolan_crds::validate::{Problem, summary};
use portolan_crds::{validate_circuit_breaker, validate_fault_injection};
use portolan_wire::v1;
use serde::de::DeserializeOwned;

use super::{BuildError, bad};
use crate::value::hashed::HashMap;
use crate::value::injection::Faults;
use crate::value::policy::{CallerPolicies, ClosedByHand, Policy, PolicySpec};
use crate::value::snapshot::{CallerView, Snapshot};

/// The kinds, as names of resources begin.
const CIRCUIT_BREAKER: &str = "CircuitBreaker";
const FAULT_INJECTION: &str = "FaultInjection";

/// A spec with all its rules is some kilobytes; objects of Kubernetes end at a megabyte and a half.
const MAX_SPEC_BYTES: usize = 2 << 20;

/// A policy as it came, checked.
pub(super) fn policy(wire: &v1::Policy) -> Result<Policy, BuildError> {
    let mut parts = wire.name.split('/');
    let (Some(kind), Some(namespace), Some(name), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(bad("name", format!("{:?} is not <kind>/<namespace>/<name>", wire.name)));
    };
    if !is_dns_label(namespace) || !is_dns_subdomain(name) {
        return Err(bad("name", format!("{:?} names no object", wire.name)));
    }
    if wire.uid.is_empty() {
        return Err(bad("uid", "it is empty"));
    }
    if wire.spec_json.len() > MAX_SPEC_BYTES {
        return Err(bad("spec_json", format!("it is larger than {MAX_SPEC_BYTES} bytes")));
    }
    let spec = match kind {
        CIRCUIT_BREAKER => PolicySpec::CircuitBreaker(spec(&wire.spec_json, validate_circuit_breaker)?),
        FAULT_INJECTION => {
            let spec = spec(&wire.spec_json, validate_fault_injection)?;
            let faults = Faults::compile(&wire.name.as_str().into(), &wire.uid.as_str().into(), &spec);
            PolicySpec::FaultInjection(spec, faults.map_err(|problem| bad("spec_json", problem))?)
        }
        other => {
            let problem = format!("kind {other:?} is unknown: this router is older than its hub");
            return Err(bad("name", problem));
        }
    };
    let closed = wire.closed.iter().map(|closed| ClosedByHand {
        rule: closed.rule.clone(),
        at_unix_milliseconds: closed.at_unix_milliseconds,
    });
    let mut policy = Policy::new(&wire.name, &wire.uid, wire.generation, spec);
    policy.closed = closed.collect();
    Ok(policy)
}

/// The names of a caller's policies, sorted, each once.
pub(super) fn names(wire: &[String]) -> Arc<[Arc<str>]> {
    let mut names: Vec<Arc<str>> = wire.iter().map(|name| name.as_str().into()).collect();
    names.sort_unstable();
    names.dedup();
    names.into()
}

fn spec<S: DeserializeOwned>(json: &str, problems: impl Fn(&S) -> Vec<Problem>) -> Result<S, BuildError> {
    // An object first: serde takes a list for a struct, too.
    let object: serde_json::Map<_, _> = serde_json::from_str(json).map_err(|error| bad("spec_json", error))?;
    let spec = serde_json::from_value(object.into()).map_err(|error| bad("spec_json", error))?;
    let problems = problems(&spec);
    if problems.is_empty() {
        Ok(spec)
    } else {
        Err(bad("spec_json", summary(&problems)))
    }
}

impl Snapshot {
    /// Gives each caller the policies that hold it, if any of this has changed since `previous`.
    pub(super) fn hold_callers(&mut self, previous: &Self) {
        let untouched =
            Arc::ptr_eq(&self.callers, &previous.callers) && Arc::ptr_eq(&self.policies, &previous.policies);
        if untouched {
            return;
        }
        let mut held = HashMap::default();
        let callers = self.callers.values();
        let changed: Vec<_> = callers.filter_map(|view| self.hold(view, &mut held)).collect();
        if !changed.is_empty() {
            let callers = Arc::make_mut(&mut self.callers);
            callers.extend(changed.into_iter().map(|view| (view.key.clone(), Arc::new(view))));
        }
        self.held = Arc::new(held);
    }

    /// The caller with the policies that hold it now; `None` if it has them already.
    fn hold(&self, view: &CallerView, held: &mut HashMap<Arc<[Arc<str>]>, Arc<CallerPolicies>>) -> Option<CallerView> {
        let policies = match held.entry(view.policy_names.clone()) {
            Entry::Occupied(made) => Some(made.get().clone()),
            Entry::Vacant(free) => self
                .policies_of(&view.policy_names)
                .map(|made| free.insert(made).clone()),
        };
        if policies.as_ref().map(Arc::as_ptr) == view.policies.as_ref().map(Arc::as_ptr) {
            return None;
        }
        Some(CallerView {
            policies,
            ..view.clone()
        })
    }

    /// Those of the names that are known: the same value as before, if it is made of the same.
    fn policies_of(&self, names: &Arc<[Arc<str>]>) -> Option<Arc<CallerPolicies>> {
        let known = names.iter().filter_map(|name| self.policies.get(name).cloned());
        let known: Vec<_> = known.collect();
        if known.is_empty() {
            return None;
        }
        let same = |before: &&Arc<CallerPolicies>| {
            let before = before.policies().iter().map(Arc::as_ptr);
            before.eq(known.iter().map(Arc::as_ptr))
        };
        let kept = self.held.get(names).filter(same).cloned();
        Some(kept.unwrap_or_else(|| Arc::new(CallerPolicies::new(known))))
    }
}
