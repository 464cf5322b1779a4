//! The two admission policies as manifests. Pure; the expressions were tried on a real API server (tests/agent.rs).
//!
//! `portolan-labels` (mutating) overwrites the reserved keys of an object with its namespace's labels; takes them off
//! where somebody else set them in a namespace that has none yet; on a Namespace it puts back what an update without
//! them would drop, and takes them off at creation, as only the agent knows the bucket. So a writer that sends objects
//! without our labels, or with another cluster's, is never refused.
//! `portolan-reserved-labels` (validating) refuses what is left: changing the keys of a Namespace, and, where the first
//! policy is not served or was skipped, forging them on objects. Leaving them out of an object is never refused.
//! Both ignore their own failures: no write of a member may depend on us. Caller: `admission`.

use std::collections::{BTreeMap, BTreeSet};

use portolan_crds::GroupResource;
use portolan_crds::labels::{LabelKeys, POLICY_LABELS, POLICY_RESERVED};
use serde_json::{Value, json};

/// What the policies are made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PolicyInput {
    pub(crate) keys: LabelKeys,
    pub(crate) kinds: BTreeSet<GroupResource>,
    /// Users whose writes the policies let through: the agent.
    pub(crate) agents: BTreeSet<String>,
}

const API_VERSION: &str = "admissionregistration.k8s.io/v1";

/// Keys that the writer changed or set, as opposed to those that were there before.
const TOUCHED: &str = "variables.keys.filter(k, k in variables.labels \
    && !(k in variables.old && variables.old[k] == variables.labels[k]))";

/// Keys that must be written. An object in a labelled namespace gets its namespace's values, whatever it has.
const PUT: &str = "variables.isNamespace \
    ? variables.keys.filter(k, k in variables.old && !(k in variables.labels)) \
    : variables.keys.filter(k, k in variables.home \
        && !(k in variables.labels && variables.labels[k] == variables.home[k]))";

/// Keys that must go: set by a writer who is not us, where there is no right value yet.
const STRIP: &str = "variables.touched.filter(k, variables.isNamespace ? oldObject == null : !(k in variables.home))";

const PATCHES: &str = "(has(object.metadata.labels) || variables.put.size() == 0 ? [] \
        : [JSONPatch{op: \"add\", path: \"/metadata/labels\", value: Object.metadata.labels{}}]) \
    + variables.put.map(k, JSONPatch{op: \"add\", path: \"/metadata/labels/\" + jsonpatch.escapeKey(k), \
        value: variables.isNamespace ? variables.old[k] : variables.home[k]}) \
    + variables.strip.map(k, JSONPatch{op: \"remove\", path: \"/metadata/labels/\" + jsonpatch.escapeKey(k)})";

/// Keys whose value is neither as it was nor the right one; of a Namespace, also those that were removed.
const TAMPERED: &str = "variables.isNamespace \
    ? variables.touched + variables.keys.filter(k, k in variables.old && !(k in variables.labels)) \
    : variables.touched.filter(k, !(k in variables.home && variables.home[k] == variables.labels[k]))";

const REFUSAL: &str = "\"label \" + variables.tampered.join(\", \") \
    + \" is reserved for portolan-agent, which sets it by the namespace: leave it as it is\"";

/// MutatingAdmissionPolicy and its binding.
pub(crate) fn labelling(input: &PolicyInput) -> [Value; 2] {
    let mut variables = variables(&input.keys);
    variables.extend([variable("put", PUT), variable("strip", STRIP)]);
    let policy = json!({
        "apiVersion": API_VERSION,
        "kind": "MutatingAdmissionPolicy",
        "metadata": { "name": POLICY_LABELS },
        "spec": {
            "failurePolicy": "Ignore",
            "reinvocationPolicy": "IfNeeded",
            "matchConstraints": constraints(&input.kinds),
            "matchConditions": conditions(&input.agents),
            "variables": variables,
            "mutations": [{ "patchType": "JSONPatch", "jsonPatch": { "expression": PATCHES } }],
        },
    });
    let binding = json!({
        "apiVersion": API_VERSION,
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": { "name": POLICY_LABELS },
        "spec": { "policyName": POLICY_LABELS },
    });
    [policy, binding]
}

/// ValidatingAdmissionPolicy and its binding.
pub(crate) fn reserving(input: &PolicyInput) -> [Value; 2] {
    let mut variables = variables(&input.keys);
    variables.push(variable("tampered", TAMPERED));
    let validation =
        json!({ "expression": "variables.tampered.size() == 0", "messageExpression": REFUSAL, "reason": "Forbidden" });
    let policy = json!({
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": POLICY_RESERVED },
        "spec": {
            "failurePolicy": "Ignore",
            "matchConstraints": constraints(&input.kinds),
            "matchConditions": conditions(&input.agents),
            "variables": variables,
            "validations": [validation],
        },
    });
    let binding = json!({
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": POLICY_RESERVED },
        "spec": { "policyName": POLICY_RESERVED, "validationActions": ["Deny"] },
    });
    [policy, binding]
}

/// What both policies speak in terms of. `home`: the labels of the object's namespace, once it has all of ours.
fn variables(keys: &LabelKeys) -> Vec<Value> {
    let keys: Vec<String> = keys.reserved().into_iter().map(literal).collect();
    vec![
        variable("keys", &format!("[{}]", keys.join(", "))),
        variable(
            "isNamespace",
            "request.resource.group == \"\" && request.resource.resource == \"namespaces\"",
        ),
        variable("labels", "has(object.metadata.labels) ? object.metadata.labels : {}"),
        variable(
            "old",
            "oldObject != null && has(oldObject.metadata.labels) ? oldObject.metadata.labels : {}",
        ),
        variable(
            "home",
            "!variables.isNamespace && namespaceObject != null && has(namespaceObject.metadata.labels) \
                && variables.keys.all(k, k in namespaceObject.metadata.labels) ? namespaceObject.metadata.labels : {}",
        ),
        variable("touched", TOUCHED),
    ]
}

fn variable(name: &str, expression: &str) -> Value {
    json!({ "name": name, "expression": expression })
}

/// Namespaces and the labelled kinds, and nothing else: no other write of the member meets our policies.
fn constraints(kinds: &BTreeSet<GroupResource>) -> Value {
    let mut groups = BTreeMap::<&str, BTreeSet<&str>>::from([("", BTreeSet::from(["namespaces"]))]);
    for kind in kinds {
        groups.entry(&kind.group).or_default().insert(&kind.resource);
    }
    let rules: Vec<Value> = groups
        .into_iter()
        .map(|(group, resources)| {
            json!({
                "apiGroups": [group],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE"],
                "resources": resources,
                "scope": "*",
            })
        })
        .collect();
    json!({ "matchPolicy": "Equivalent", "resourceRules": rules })
}

/// The agent's own writes pass, but not its dry runs: by those it sees whether the policy works.
fn conditions(agents: &BTreeSet<String>) -> Value {
    let users: Vec<String> = agents.iter().map(|user| literal(user)).collect();
    let expression = format!(
        "!(request.userInfo.username in [{}]) || (has(request.dryRun) && request.dryRun)",
        users.join(", ")
    );
    json!([{ "name": "not-the-agent", "expression": expression }])
}

/// A CEL string literal: JSON's escapes are a subset of CEL's.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input() -> PolicyInput {
        let kind = GroupResource::new;
        PolicyInput {
            keys: LabelKeys::default(),
            kinds: [kind("", "pods"), kind("apps", "deployments"), kind("", "services")].into(),
            agents: [
                "system:serviceaccount:portolan-system:portolan-agent".to_owned(),
                "o\"dd".to_owned(),
            ]
            .into(),
        }
    }

    #[test]
    fn only_the_labelled_kinds_and_namespaces_are_matched() {
        for [policy, _] in [labelling(&input()), reserving(&input())] {
            let rules = policy["spec"]["matchConstraints"]["resourceRules"].as_array().unwrap();
            assert_eq!(rules.len(), 2);
            assert_eq!(rules[0]["resources"], json!(["namespaces", "pods", "services"]));
            assert_eq!(
                (&rules[1]["apiGroups"], &rules[1]["resources"]),
                (&json!(["apps"]), &json!(["deployments"]))
            );
        }
    }

    #[test]
    fn names_are_quoted_as_cel_reads_them() {
        let [policy, _] = labelling(&input());
        let condition = policy["spec"]["matchConditions"][0]["expression"].as_str().unwrap();
        assert!(
            condition.contains(r#""o\"dd""#) && condition.contains(":portolan-agent\""),
            "{condition}"
        );
        let keys = policy["spec"]["variables"][0]["expression"].as_str().unwrap();
        assert!(
            keys.starts_with("[\"ctrlmesh.kusionstack.io/sharding-hash\", "),
            "{keys}"
        );
    }

    #[test]
    fn no_write_of_a_member_depends_on_us() {
        for [policy, _] in [labelling(&input()), reserving(&input())] {
            assert_eq!(policy["spec"]["failurePolicy"], "Ignore");
        }
    }
}
