//! The admission policies of a member as manifests: `portolanctl join` writes them, the agent only reads them.
//!
//! `portolan-labels` (mutating) overwrites the reserved keys of an object with its namespace's labels; takes them off
//! where somebody else set them in a namespace that has none yet; on a Namespace it puts back what an update without
//! them would drop, and takes them off at creation, as only the agent knows the bucket. So a writer that sends objects
//! without our labels, or with another cluster's, is never refused.
//! `portolan-reserved-labels` (validating) refuses what is left: changing the keys of a Namespace, and, where the first
//! policy is not served or was skipped, forging them on objects. Leaving them out of an object is never refused.
//! Both ignore their own failures: no write of a member may depend on us.
//! `portolan-agent-writes` (validating) holds the agent to these keys: RBAC knows `patch` of a whole object alone. It speaks
//! of the agent's writes only, and refuses them if it fails.
//! `portolan-fence` (validating) refuses writes that say of which epoch of their namespace they are and that are of another
//! than its annotation says; and whoever but the agent changes that. It speaks of these alone, and refuses them if it fails.
//! All follow from the label prefix and the kinds that the member lets the agent label; whoever may write a mutating policy
//! may rewrite every object, so that is left to who runs `join`. The expressions were tried on a real API server.

mod fence;

use self::fence::Epochs;
pub use self::fence::{OPEN_EPOCHS_MAX, REFUSED_GRANT_OVER, REFUSED_NO_GRANT, annotated_epochs, epochs_annotation};

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::GroupResource;
use crate::labels::{
    FENCE_EPOCH, LEASE_AGENT, LabelKeys, POLICY_AGENT_WRITES, POLICY_FENCE, POLICY_LABELS, POLICY_RESERVED,
    SECRET_AGENT_IDENTITY, SERVICE_ACCOUNT_AGENT, SYSTEM_NAMESPACE, SYSTEM_NAMESPACES,
};
use crate::names::service_account_user;

/// What the policies are made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyInput {
    /// The reserved keys.
    pub keys: LabelKeys,
    /// Kinds that are labelled, besides Namespaces.
    pub kinds: BTreeSet<GroupResource>,
}

/// One of the objects that a member has, with its binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// `portolan-reserved-labels`.
    Reserved,
    /// `portolan-agent-writes`.
    AgentWrites,
    /// `portolan-fence`.
    Fence,
    /// `portolan-labels`: served from Kubernetes 1.36 on, and before where its beta is switched on.
    Labels,
}

impl Policy {
    /// In the order in which they are written: labels come once nobody else can forge them.
    pub const ALL: [Self; 4] = [Self::Reserved, Self::AgentWrites, Self::Fence, Self::Labels];
    /// Those that labels rest on. Whether the fence is as it shall be shows when it is closed.
    pub const OF_LABELS: [Self; 3] = [Self::Reserved, Self::AgentWrites, Self::Labels];

    /// Of the policy and its binding.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reserved => POLICY_RESERVED,
            Self::AgentWrites => POLICY_AGENT_WRITES,
            Self::Fence => POLICY_FENCE,
            Self::Labels => POLICY_LABELS,
        }
    }

    /// The kinds of the policy and of its binding.
    pub fn kinds(self) -> [&'static str; 2] {
        match self {
            Self::Reserved | Self::AgentWrites | Self::Fence => {
                ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]
            }
            Self::Labels => ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"],
        }
    }

    /// Versions of the API by which it can be served, the best first: its manifests are the same in all of them.
    pub fn versions(self) -> &'static [&'static str] {
        match self {
            Self::Reserved | Self::AgentWrites | Self::Fence => &["v1"],
            Self::Labels => &["v1", "v1beta1"],
        }
    }

    /// The policy and its binding as they shall be, in the first of [`Self::versions`].
    pub fn manifests(self, input: &PolicyInput) -> [Value; 2] {
        self.manifests_for(input, Epochs::Several)
    }

    /// As a release wrote them in which one epoch was open in a namespace. What a member has of it goes on fencing one.
    pub fn manifests_of_one_epoch(self, input: &PolicyInput) -> [Value; 2] {
        self.manifests_for(input, Epochs::One)
    }

    fn manifests_for(self, input: &PolicyInput, epochs: Epochs) -> [Value; 2] {
        let (spec, mut binding) = match self {
            Self::Reserved => (reserving(input), json!({ "validationActions": ["Deny"] })),
            Self::AgentWrites => (holding(&input.keys, epochs), json!({ "validationActions": ["Deny"] })),
            Self::Fence => (fence::fencing(epochs), json!({ "validationActions": ["Deny"] })),
            Self::Labels => (labelling(input), json!({})),
        };
        binding["policyName"] = self.name().into();
        let [policy_kind, binding_kind] = self.kinds();
        let object = |kind: &str, spec: Value| {
            json!({
                "apiVersion": API_VERSION,
                "kind": kind,
                "metadata": { "name": self.name(), "labels": { "app.kubernetes.io/managed-by": "portolan" } },
                "spec": spec,
            })
        };
        [object(policy_kind, spec), object(binding_kind, binding)]
    }
}

/// The agent's user name in every member.
pub fn agent_user() -> String {
    service_account_user(SYSTEM_NAMESPACE, SERVICE_ACCOUNT_AGENT)
}

/// Kinds and names of what points Pods at a gateway (`deploy/member/injection.yaml`), in the order in which they are taken away: as long as
/// there are any, no Pod that asks comes into being without.
pub const INJECTION: [(&str, &str); 6] = [
    ("MutatingAdmissionPolicyBinding", "portolan-inject"),
    ("MutatingAdmissionPolicyBinding", "portolan-inject-namespaces"),
    ("MutatingAdmissionPolicy", "portolan-inject"),
    ("ValidatingAdmissionPolicyBinding", "portolan-injected"),
    ("ValidatingAdmissionPolicyBinding", "portolan-injected-namespaces"),
    ("ValidatingAdmissionPolicy", "portolan-injected"),
];
/// Versions of their API by which they can be served, the best first.
pub const INJECTION_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// API group of all of them.
pub const GROUP: &str = "admissionregistration.k8s.io";
/// API version of all of them, as their manifests say.
pub const API_VERSION: &str = "admissionregistration.k8s.io/v1";

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

fn labelling(input: &PolicyInput) -> Value {
    let mut variables = variables(&input.keys);
    variables.extend([variable("put", PUT), variable("strip", STRIP)]);
    json!({
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": constraints(&input.kinds),
        "matchConditions": conditions(),
        "variables": variables,
        "mutations": [{ "patchType": "JSONPatch", "jsonPatch": { "expression": PATCHES } }],
    })
}

fn reserving(input: &PolicyInput) -> Value {
    let mut variables = variables(&input.keys);
    variables.push(variable("tampered", TAMPERED));
    let validation =
        json!({ "expression": "variables.tampered.size() == 0", "messageExpression": REFUSAL, "reason": "Forbidden" });
    json!({
        "failurePolicy": "Ignore",
        "matchConstraints": constraints(&input.kinds),
        "matchConditions": conditions(),
        "variables": variables,
        "validations": [validation],
    })
}

/// Objects differ in the reserved labels, and in what the API server itself counts, and in nothing else. Every kind and
/// subresource is matched: what RBAC gives the agent one day is held here before.
fn holding(keys: &LabelKeys, epochs: Epochs) -> Value {
    let keys: Vec<String> = keys.reserved().into_iter().map(literal).collect();
    let not_own = |group: &str, resource: &str, name: &str| {
        format!(
            "!(request.resource.group == {} && request.resource.resource == {} && has(request.namespace) \
                && request.namespace == {} && request.name == {})",
            literal(group),
            literal(resource),
            literal(SYSTEM_NAMESPACE),
            literal(name)
        )
    };
    let of_agent = format!("request.userInfo.username == {}", literal(&agent_user()));
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "resourceRules": [{
                "apiGroups": ["*"],
                "apiVersions": ["*"],
                "operations": ["UPDATE"],
                "resources": ["*/*"],
                "scope": "*",
            }, {
                "apiGroups": [""],
                "apiVersions": ["*"],
                "operations": ["CREATE"],
                "resources": ["secrets"],
                "scope": "*",
            }, {
                "apiGroups": ["coordination.k8s.io"],
                "apiVersions": ["*"],
                "operations": ["CREATE"],
                "resources": ["leases"],
                "scope": "*",
            }],
        },
        "matchConditions": [
            { "name": "of-the-agent", "expression": of_agent },
            { "name": "not-its-own-identity", "expression": not_own("", "secrets", SECRET_AGENT_IDENTITY) },
            { "name": "not-its-own-lease", "expression": not_own("coordination.k8s.io", "leases", LEASE_AGENT) },
        ],
        "variables": [
            variable("keys", &format!("[{}]", keys.join(", "))),
            variable("counted", "[\"labels\", \"annotations\", \"managedFields\", \"resourceVersion\", \"generation\"]"),
            variable("labels", "has(object.metadata.labels) ? object.metadata.labels : {}"),
            variable("old", "has(oldObject.metadata.labels) ? oldObject.metadata.labels : {}"),
            variable("notes", "has(object.metadata.annotations) ? object.metadata.annotations : {}"),
            variable("oldNotes", "has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}"),
        ],
        "validations": held(epochs),
    })
}

/// What of the agent's writes is refused.
fn held(epochs: Epochs) -> Value {
    let refused = |expression: &str, message: &str| json!({ "expression": expression, "message": message, "reason": "Forbidden" });
    let system: Vec<String> = SYSTEM_NAMESPACES.into_iter().map(literal).collect();
    json!([
        refused(
            EMPTY_SECRET,
            "portolan-agent makes Secrets that hold nothing, for tokens to be bound to"
        ),
        refused(
            "request.operation != \"CREATE\" || request.resource.resource != \"leases\"",
            "portolan-agent makes no Lease but its own"
        ),
        refused(
            &changed(SAME_OBJECT),
            "portolan-agent may change the reserved labels of an object and nothing else of it"
        ),
        refused(
            &changed(SAME_METADATA),
            "portolan-agent may change the reserved labels of an object and nothing else of its metadata"
        ),
        refused(
            &changed(SAME_LABELS),
            "portolan-agent may change the reserved labels of an object and no others"
        ),
        refused(
            &changed(&same_notes(epochs)),
            &format!("portolan-agent may raise the annotation {FENCE_EPOCH} of a Namespace and change no others"),
        ),
        refused(
            &changed(&format!(
                "!has(request.namespace) || !(request.namespace in [{}])",
                system.join(", ")
            )),
            "portolan-agent labels nothing in system namespaces",
        ),
    ])
}

/// One annotation of a Namespace may be set, for this Namespace and no other of its name, and grow: an epoch that was not open is
/// beyond all that were.
fn same_notes(epochs: Epochs) -> String {
    let key = literal(FENCE_EPOCH);
    let is_own = |notes: &str| fence::is_own(&format!("variables.{notes}[k]"), "object");
    let said = |notes: &str| format!("variables.{notes}[k].split(\".\")[0]");
    let (new, old) = (said("notes"), said("oldNotes"));
    let grows = match epochs {
        Epochs::One => format!("int({new}) > int({old})"),
        Epochs::Several => {
            format!("{new}.split(\",\").all(e, e in {old}.split(\",\") || {old}.split(\",\").all(o, int(e) > int(o)))")
        }
    };
    format!(
        "variables.notes.all(k, k in variables.oldNotes && variables.notes[k] == variables.oldNotes[k] \
            || (k == {key} && {IS_NAMESPACE} && {} \
                && (!(k in variables.oldNotes) || !{} || {grows}))) \
        && variables.oldNotes.all(k, k in variables.notes)",
        is_own("notes"),
        is_own("oldNotes"),
    )
}

const IS_NAMESPACE: &str = "request.resource.group == \"\" && request.resource.resource == \"namespaces\"";

/// Of a write that changes an object, not of one that makes it.
fn changed(expression: &str) -> String {
    format!("oldObject == null || ({expression})")
}

/// Not one that an API server would put a token into that never ends.
const EMPTY_SECRET: &str = "oldObject != null \
    || (object.type == \"Opaque\" && (!has(object.data) || object.data.size() == 0))";

const SAME_OBJECT: &str = "object.all(k, k == \"metadata\" || (k in oldObject && object[k] == oldObject[k])) \
    && oldObject.all(k, k in object)";

const SAME_METADATA: &str = "object.metadata.all(k, k in variables.counted \
        || (k in oldObject.metadata && object.metadata[k] == oldObject.metadata[k])) \
    && oldObject.metadata.all(k, k in variables.counted || k in object.metadata)";

const SAME_LABELS: &str = "variables.labels.all(k, k in variables.keys \
        || (k in variables.old && variables.labels[k] == variables.old[k])) \
    && variables.old.all(k, k in variables.keys || k in variables.labels)";

/// The first field of `wanted` that `found` has otherwise, or that `found` has beside them, with what it is there; `None` if
/// an API server made `found` of `wanted`. What it fills in is empty.
pub fn difference(wanted: &Value, found: &Value) -> Option<String> {
    differs("spec", &wanted["spec"], &found["spec"])
}

fn differs(path: &str, wanted: &Value, found: &Value) -> Option<String> {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            let keys: BTreeSet<&String> = wanted.keys().chain(found.keys()).collect();
            let of = |map: &Map<String, Value>, key: &str| map.get(key).cloned().unwrap_or_default();
            keys.into_iter()
                .find_map(|key| differs(&format!("{path}.{key}"), &of(wanted, key), &of(found, key)))
        }
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            let pairs = wanted.iter().zip(found).enumerate();
            let mut found = pairs.filter_map(|(index, (a, b))| differs(&format!("{path}[{index}]"), a, b));
            found.next()
        }
        (Value::Null, Value::Object(filled)) if filled.is_empty() => None,
        (wanted, found) => (wanted != found).then(|| path.to_owned()),
    }
}

/// Of a manifest of [`Policy::Labels`] or [`Policy::Reserved`]: the kinds that it names, without Namespaces, and the prefix of
/// its keys. `None` if somebody made it another way.
pub fn input_of(policy: &Value) -> Option<PolicyInput> {
    let spec = &policy["spec"];
    let keys = spec["variables"]
        .as_array()?
        .iter()
        .find(|variable| variable["name"] == "keys")?;
    let keys: Vec<String> = serde_json::from_str(keys["expression"].as_str()?).ok()?;
    let (prefix, _) = keys.first()?.rsplit_once('/')?;
    let mut kinds = BTreeSet::new();
    for rule in spec["matchConstraints"]["resourceRules"].as_array()? {
        let words = |field: &str| rule[field].as_array().into_iter().flatten().filter_map(Value::as_str);
        for group in words("apiGroups") {
            kinds.extend(words("resources").map(|resource| GroupResource::new(group, resource)));
        }
    }
    kinds.remove(&GroupResource::new("", "namespaces"));
    Some(PolicyInput {
        keys: LabelKeys::new(&format!("{prefix}/")).ok()?,
        kinds,
    })
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
fn conditions() -> Value {
    let expression = format!(
        "request.userInfo.username != {} || (has(request.dryRun) && request.dryRun)",
        literal(&agent_user())
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
        }
    }

    fn policy(of: Policy) -> Value {
        let [policy, _] = of.manifests(&input());
        policy
    }

    #[test]
    fn only_the_labelled_kinds_and_namespaces_are_matched() {
        for policy in [Policy::Labels, Policy::Reserved].map(policy) {
            let rules = policy["spec"]["matchConstraints"]["resourceRules"].as_array().unwrap();
            assert_eq!(rules.len(), 2);
            assert_eq!(rules[0]["resources"], json!(["namespaces", "pods", "services"]));
            assert_eq!(
                (&rules[1]["apiGroups"], &rules[1]["resources"]),
                (&json!(["apps"]), &json!(["deployments"]))
            );
            assert_eq!(input_of(&policy), Some(input()));
        }
        assert_eq!(input_of(&json!({"spec": {"variables": []}})), None);
    }

    #[test]
    fn no_write_but_the_agents_depends_on_us() {
        for policy in [Policy::Labels, Policy::Reserved].map(policy) {
            assert_eq!(policy["spec"]["failurePolicy"], "Ignore");
        }
        let writes = policy(Policy::AgentWrites);
        assert_eq!(writes["spec"]["failurePolicy"], "Fail");
        let condition = &writes["spec"]["matchConditions"][0]["expression"];
        assert_eq!(
            condition,
            "request.userInfo.username == \"system:serviceaccount:portolan-system:portolan-agent\""
        );
    }

    #[test]
    fn the_fence_fails_closed_and_for_nobody_else() {
        let fence = policy(Policy::Fence);
        assert_eq!(fence["spec"]["failurePolicy"], "Fail");
        let condition = fence["spec"]["matchConditions"][0]["expression"].as_str().unwrap();
        assert!(
            condition.starts_with("(has(request.userInfo.extra) && \"ctrlmesh.kusionstack.io/epoch\" in"),
            "{condition}"
        );
        let [rule] = fence["spec"]["matchConstraints"]["resourceRules"]
            .as_array()
            .unwrap()
            .as_slice()
        else {
            panic!("one rule")
        };
        assert_eq!(rule["operations"], json!(["CREATE", "UPDATE", "DELETE", "CONNECT"]));
    }

    type Change = fn(&mut Value);

    #[test]
    fn what_somebody_changed_is_named_and_what_is_filled_in_is_not() {
        let wanted = policy(Policy::Labels);
        let mut found = wanted.clone();
        found["metadata"]["generation"] = json!(3);
        found["spec"]["matchConstraints"]["namespaceSelector"] = json!({});
        assert_eq!(difference(&wanted, &found), None);
        let changes: [(Change, &str); 4] = [
            (|spec| spec["failurePolicy"] = json!("Fail"), "spec.failurePolicy"),
            (|spec| spec["matchConditions"] = json!([]), "spec.matchConditions"),
            (
                |spec| spec["matchConstraints"]["namespaceSelector"] = json!({"matchLabels": {"a": "b"}}),
                "spec.matchConstraints.namespaceSelector",
            ),
            (
                |spec| spec["variables"][1]["expression"] = json!("true"),
                "spec.variables[1].expression",
            ),
        ];
        for (change, path) in changes {
            let mut changed = found.clone();
            change(&mut changed["spec"]);
            assert_eq!(difference(&wanted, &changed).as_deref(), Some(path));
        }
    }
}
