//! Folds CircuitBreakers, FaultInjections and the switch that stops faults into the facts. Objects are read untyped, so that
//! a malformed one is an entry with a problem.
//!
//! What takes a policy out of force (its label, `disabled`, `until`) is read by itself: whoever wants faults to end must not
//! mend the rest first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::DynamicObject;
use portolan_crds::fault_injection::parse_until;
use portolan_crds::labels::{
    ANNOTATION_CLOSE, CONFIG_MAP_FAULTS, FAULTS_BY, FAULTS_REASON, FAULTS_SINCE, FAULTS_STOPPED,
    LABEL_CIRCUIT_BREAKER_DISABLE, LABEL_FAULT_INJECTION_DISABLE,
};
use portolan_crds::{
    CircuitBreakerSpec, FaultInjectionSpec, Problem, Selector, validate_circuit_breaker, validate_fault_injection,
};
use portolan_wire::v1;
use serde::Deserialize;
use serde_json::Value;

use super::Change;
use super::bounds::cut;
use super::objects::{section, unreadable};
use crate::facts::{
    Facts, FaultsStopped, PolicyInForce, PolicyKind, PolicyName, PolicyObject, PolicySpec, PolicyStatus, Selection,
};

/// Rules that one annotation closes: more than an object has.
const MAX_CLOSED: usize = 1_000;
/// Entries of such an annotation that cannot be read and are told of.
const MAX_BAD: usize = 5;

impl Facts {
    pub(crate) fn apply_policy(&mut self, kind: PolicyKind, object: &DynamicObject) -> Change {
        let Some(name) = name_of(kind, object) else {
            return Change::Nothing;
        };
        if object.metadata.deletion_timestamp.is_some() {
            // Whoever has a finalizer on it: it is nobody's policy any more.
            return self.forget_policy(&name);
        }
        let before = self.policies.get(&name);
        let policy = policy_from(kind, object, before, !self.listed.contains(&kind));
        let change = match before {
            Some(before) if *before == policy => Change::Nothing,
            Some(before) if same_when_compiled(before, &policy) => Change::Status,
            _ => Change::Compile,
        };
        self.policies.insert(name, policy);
        change
    }

    pub(crate) fn delete_policy(&mut self, kind: PolicyKind, object: &DynamicObject) -> Change {
        name_of(kind, object).map_or(Change::Nothing, |name| self.forget_policy(&name))
    }

    /// Replaces all policies of one kind by a complete list.
    pub(crate) fn reset_policies(&mut self, kind: PolicyKind, objects: &[DynamicObject]) -> Change {
        let listed: BTreeSet<_> = objects.iter().filter_map(|object| name_of(kind, object)).collect();
        let known = self.policies.len();
        self.policies
            .retain(|name, _| name.kind != kind || listed.contains(name));
        let deleted = (self.policies.len() < known).then_some(Change::Compile);
        let applied = objects.iter().map(|object| self.apply_policy(kind, object)).max();
        self.listed.insert(kind);
        deleted.max(applied).unwrap_or(Change::Nothing)
    }

    /// Reads the ConfigMap that stops all faults; of another name it says nothing.
    pub(crate) fn apply_fault_switch(&mut self, object: &DynamicObject) -> Change {
        if object.metadata.name.as_deref() != Some(CONFIG_MAP_FAULTS) {
            return Change::Nothing;
        }
        self.set_faults_stopped(stopped_by(object))
    }

    pub(crate) fn delete_fault_switch(&mut self, object: &DynamicObject) -> Change {
        if object.metadata.name.as_deref() != Some(CONFIG_MAP_FAULTS) {
            return Change::Nothing;
        }
        self.set_faults_stopped(None)
    }

    pub(crate) fn reset_fault_switch(&mut self, objects: &[DynamicObject]) -> Change {
        let mut switches = objects
            .iter()
            .filter(|object| object.metadata.name.as_deref() == Some(CONFIG_MAP_FAULTS));
        self.set_faults_stopped(switches.next().and_then(stopped_by))
    }

    fn set_faults_stopped(&mut self, stopped: Option<FaultsStopped>) -> Change {
        if self.faults_stopped == stopped {
            return Change::Nothing;
        }
        self.faults_stopped = stopped;
        Change::Compile
    }

    fn forget_policy(&mut self, name: &PolicyName) -> Change {
        match self.policies.remove(name) {
            Some(_) => Change::Compile,
            None => Change::Nothing,
        }
    }
}

fn name_of(kind: PolicyKind, object: &DynamicObject) -> Option<PolicyName> {
    let metadata = &object.metadata;
    PolicyName::new(kind, metadata.namespace.as_deref()?, metadata.name.as_deref()?)
}

/// Reads a policy. `before`: the entry it replaces, whose good spec stays in force if this one is bad. `is_first`: in the first
/// list of this process.
fn policy_from(
    kind: PolicyKind,
    object: &DynamicObject,
    before: Option<&PolicyObject>,
    is_first: bool,
) -> PolicyObject {
    let metadata = &object.metadata;
    let uid = metadata.uid.clone().unwrap_or_default();
    let generation = metadata.generation.unwrap_or_default();
    let is_remade = before.is_some_and(|before| before.uid != uid);
    let before = before.filter(|before| before.uid == uid);
    let raw = &object.data["spec"];
    let Judged {
        problems,
        in_force,
        selection,
    } = match before {
        // Most of what comes is news of a status or a label, and judging a large spec takes long.
        Some(before) if before.generation == generation && metadata.generation.is_some() => Judged {
            problems: before.problems.clone(),
            in_force: before.in_force.clone(),
            selection: before.selection.clone(),
        },
        _ => judge(kind, object, generation, before),
    };
    let labels = metadata.labels.as_ref();
    let status = status(kind, object);
    // An earlier hub may have told routers a spec of it that was good: it has written a status, or there was another spec
    // before this one. Else what routers have of its name is of an object that is gone.
    let was_known = status.observed_generation().is_some() || generation > 1;
    let was_there = before.map_or(is_first && !is_remade && was_known, |before| before.was_there);
    let good_until = match in_force.as_deref().map(|good| &good.spec) {
        Some(PolicySpec::Fault(spec)) => spec.until.as_deref(),
        _ => None,
    };
    let until = [raw["until"].as_str(), good_until].into_iter().flatten();
    let (closed, bad_close) = match kind {
        PolicyKind::CircuitBreaker => closed_by_hand(metadata.annotations.as_ref()),
        PolicyKind::FaultInjection => (Vec::new(), Vec::new()),
    };
    PolicyObject {
        created: metadata
            .creation_timestamp
            .as_ref()
            .map_or(Timestamp::MIN, |time| time.0),
        labelled_off: labels.is_some_and(|labels| labels.contains_key(disabling_label(kind))),
        disabled: kind == PolicyKind::FaultInjection && raw["disabled"].as_bool().unwrap_or_default(),
        until: until.filter_map(time).min(),
        selection,
        was_there,
        status,
        uid,
        generation,
        problems,
        in_force,
        closed,
        bad_close,
    }
}

/// What a spec comes to.
struct Judged {
    problems: Vec<Problem>,
    in_force: Option<Arc<PolicyInForce>>,
    selection: Option<Selection>,
}

fn judge(kind: PolicyKind, object: &DynamicObject, generation: i64, before: Option<&PolicyObject>) -> Judged {
    let (good, problems) = match read(kind, object) {
        Ok((spec, problems)) => (Some(spec).filter(|_| !problems.iter().any(Problem::refuses)), problems),
        Err(message) => (None, vec![unreadable(message)]),
    };
    // Plain data, so that this cannot fail; and what cannot be sent is not in force.
    let good = good.and_then(|spec| PolicyInForce::new(generation, spec)).map(Arc::new);
    let in_force = good.or_else(|| before.and_then(|before| before.in_force.clone()));
    let selection = match &in_force {
        Some(good) => select(good.spec.holds()),
        None => selection(&status(kind, object), &object.data["spec"]),
    };
    Judged {
        problems,
        in_force,
        selection,
    }
}

/// Whether the compiler makes the same of both; the generation shows which object it is about.
fn same_when_compiled(before: &PolicyObject, after: &PolicyObject) -> bool {
    let same_but_status = PolicyObject {
        problems: before.problems.clone(),
        bad_close: before.bad_close.clone(),
        status: before.status.clone(),
        ..after.clone()
    };
    *before == same_but_status
}

fn read(kind: PolicyKind, object: &DynamicObject) -> Result<(PolicySpec, Vec<Problem>), String> {
    // Absent fields have defaults, so that nothing at all and an empty list would read as a good spec that orders nothing.
    if !object.data["spec"].is_object() {
        return Err("cannot be read: it has no fields".to_owned());
    }
    Ok(match kind {
        PolicyKind::CircuitBreaker => {
            let spec: CircuitBreakerSpec = section(object, "spec")?;
            let problems = validate_circuit_breaker(&spec);
            (PolicySpec::Breaker(spec.served()), problems)
        }
        PolicyKind::FaultInjection => {
            let spec: FaultInjectionSpec = section(object, "spec")?;
            let problems = validate_fault_injection(&spec);
            (PolicySpec::Fault(spec), problems)
        }
    })
}

fn status(kind: PolicyKind, object: &DynamicObject) -> PolicyStatus {
    match kind {
        PolicyKind::CircuitBreaker => PolicyStatus::Breaker(section(object, "status").unwrap_or_default()),
        PolicyKind::FaultInjection => PolicyStatus::Fault(section(object, "status").unwrap_or_default()),
    }
}

fn disabling_label(kind: PolicyKind) -> &'static str {
    match kind {
        PolicyKind::CircuitBreaker => LABEL_CIRCUIT_BREAKER_DISABLE,
        PolicyKind::FaultInjection => LABEL_FAULT_INJECTION_DISABLE,
    }
}

/// Whom it holds where no good spec is known: routers may still hold one of before this process, and must go on knowing whose
/// it is. The status of before tells; of one that was never good the raw spec does.
fn selection(status: &PolicyStatus, raw: &Value) -> Option<Selection> {
    if let Some(before) = status.in_force() {
        return select((before.selector.clone(), before.caller_clusters.clone()));
    }
    let selector = Option::<LabelSelector>::deserialize(&raw["selector"]).ok()?;
    let caller_clusters = Option::<Vec<String>>::deserialize(&raw["callerClusters"]).ok()?;
    select((selector, caller_clusters.unwrap_or_default()))
}

fn select((selector, caller_clusters): (Option<LabelSelector>, Vec<String>)) -> Option<Selection> {
    let selector = selector.as_ref().map(Selector::from_label_selector).transpose().ok()?;
    Some(Selection {
        selector,
        caller_clusters,
    })
}

/// What the annotation closes, and what of it cannot be read.
fn closed_by_hand(annotations: Option<&BTreeMap<String, String>>) -> (Vec<v1::ClosedByHand>, Vec<String>) {
    let text = annotations.and_then(|annotations| annotations.get(ANNOTATION_CLOSE));
    let entries = text.iter().flat_map(|text| text.split(',')).map(str::trim);
    let mut closed = BTreeMap::<String, i64>::new();
    let mut bad = Vec::new();
    for entry in entries.filter(|entry| !entry.is_empty()) {
        // A rule's name may have an equals sign, a time has none.
        let read = entry
            .rsplit_once('=')
            .and_then(|(rule, at)| Some((rule.trim(), time(at.trim())?)));
        match read {
            Some((rule, at)) if !rule.is_empty() && closed.len() < MAX_CLOSED => {
                let latest = closed.entry(rule.to_owned()).or_insert(i64::MIN);
                *latest = (*latest).max(at.as_millisecond());
            }
            _ if bad.len() < MAX_BAD => {
                let mut entry = entry.to_owned();
                cut(&mut entry);
                bad.push(entry);
            }
            _ => {}
        }
    }
    let closed = closed.into_iter().map(|(rule, at_unix_milliseconds)| v1::ClosedByHand {
        rule,
        at_unix_milliseconds,
    });
    (closed.collect(), bad)
}

fn time(text: &str) -> Option<Timestamp> {
    parse_until(text).ok()
}

/// Anything but `false` stops: whoever writes `yes` in a hurry means it.
fn stopped_by(object: &DynamicObject) -> Option<FaultsStopped> {
    let text = |key: &str| {
        let mut text = object.data["data"][key].as_str().unwrap_or_default().trim().to_owned();
        cut(&mut text);
        text
    };
    let stopped = text(FAULTS_STOPPED);
    (!stopped.is_empty() && !stopped.eq_ignore_ascii_case("false")).then(|| FaultsStopped {
        by: text(FAULTS_BY),
        reason: text(FAULTS_REASON),
        since: text(FAULTS_SINCE),
    })
}
