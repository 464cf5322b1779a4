//! `portolan-fence`: compares the epoch that a write says with its namespace's annotation.

use serde_json::{Value, json};

use super::{IS_NAMESPACE, agent_user, literal, variable};
use crate::labels::{FENCE_EPOCH, FENCE_SHARD};

/// Every kind and subresource, but of writes that say their epoch alone, and of those to a Namespace that change its epoch. A
/// Namespace is judged by its own, as it was; whoever makes one is not.
pub(super) fn fencing() -> Value {
    let carries = format!("has(request.userInfo.extra) && {} in request.userInfo.extra", key());
    let touches = touches();
    let set = format!("{IS_NAMESPACE} ? {} : {}", note("oldObject"), note("namespaceObject"));
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "resourceRules": [{
                "apiGroups": ["*"],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE", "DELETE", "CONNECT"],
                "resources": ["*/*"],
                "scope": "*",
            }],
        },
        "matchConditions": [{ "name": "of-an-epoch", "expression": format!("({carries}) || ({touches})") }],
        "variables": [
            variable("carries", &carries),
            variable("touches", &touches),
            variable("set", &set),
            variable("isMade", &format!("{IS_NAMESPACE} && request.operation == \"CREATE\"")),
        ],
        "validations": [
            { "expression": compared(), "messageExpression": over(), "reason": "Forbidden" },
            {
                "expression": "!variables.touches",
                "message": format!("annotation {FENCE_EPOCH} is reserved for portolan-agent: leave it as it is"),
                "reason": "Forbidden",
            },
        ],
    })
}

fn key() -> String {
    literal(FENCE_EPOCH)
}

/// The annotation of an object; empty: it has none.
fn note(object: &str) -> String {
    let key = key();
    format!(
        "({object} != null && has({object}.metadata) && has({object}.metadata.annotations) \
            && {key} in {object}.metadata.annotations ? {object}.metadata.annotations[{key}] : \"\")"
    )
}

/// Whether somebody but the agent changes the annotation of a Namespace.
fn touches() -> String {
    format!(
        "{IS_NAMESPACE} && request.operation in [\"CREATE\", \"UPDATE\"] && request.userInfo.username != {} && {} != {}",
        literal(&agent_user()),
        note("object"),
        note("oldObject")
    )
}

fn compared() -> String {
    let key = key();
    format!(
        "!variables.carries || variables.isMade \
            || (variables.set != \"\" && request.userInfo.extra[{key}].all(e, e == variables.set))"
    )
}

fn over() -> String {
    let (key, shard) = (key(), literal(FENCE_SHARD));
    format!(
        "\"epoch \" + request.userInfo.extra[{key}].join(\", \") + \" of the namespace is over\" \
            + ({shard} in request.userInfo.extra \
                ? \" for shard \" + request.userInfo.extra[{shard}].join(\", \") : \"\") \
            + (variables.set == \"\" ? \": it has none\" : \": it is in epoch \" + variables.set)"
    )
}
