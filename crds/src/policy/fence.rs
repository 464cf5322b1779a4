//! `portolan-fence`: compares the epoch that a write says with its namespace's annotation.
//!
//! The annotation names the uid of its Namespace too, so that one which somebody makes with it, as a restore of a backup
//! does, opens nothing: it counts as none until the agent has set it.

use serde_json::{Value, json};

use super::{IS_NAMESPACE, agent_user, literal, variable};
use crate::labels::{FENCE_EPOCH, FENCE_SHARD};

/// In the message by which a write that says an epoch is refused, where the namespace has no annotation that counts: it was
/// made anew.
pub const REFUSED_NO_GRANT: &str = "the namespace has no grant annotation";
/// In the message by which a write of another epoch than the namespace's is refused.
pub const REFUSED_GRANT_OVER: &str = "this grant is over";

/// The value of the annotation [`FENCE_EPOCH`] of the Namespace with this uid.
pub fn epoch_annotation(epoch: u64, uid: &str) -> String {
    format!("{epoch}.{uid}")
}

/// The epoch that an annotation says of the Namespace with this uid; `None`: it says nothing of it.
pub fn annotated_epoch(annotation: &str, uid: &str) -> Option<u64> {
    let (epoch, of) = annotation.split_once('.')?;
    (of == uid).then(|| epoch.parse().ok())?
}

/// Every kind and subresource, but of writes that say their epoch alone, and of those to a Namespace that change its epoch. A
/// Namespace is judged by its own, as it was; whoever makes one is not.
pub(super) fn fencing() -> Value {
    let carries = format!("has(request.userInfo.extra) && {} in request.userInfo.extra", key());
    let touches = touches();
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
            variable("touches", &touches),
            variable("isMade", &format!("{IS_NAMESPACE} && request.operation == \"CREATE\"")),
            variable("isJudged", &format!("({carries}) && !variables.isMade")),
            variable("set", &format!("{IS_NAMESPACE} ? {} : {}", set("oldObject"), set("namespaceObject"))),
        ],
        "validations": [
            {
                "expression": "!variables.isJudged || variables.set != \"\"",
                "message": REFUSED_NO_GRANT,
                "reason": "Forbidden",
            },
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

/// Whether an annotation is of this very Namespace. By `dyn`: API servers declare another name than `uid` for it, of a
/// `namespaceObject`, and give it this one.
pub(super) fn is_own(annotation: &str, namespace: &str) -> String {
    format!("{annotation}.endsWith(\".\" + string(dyn({namespace}).metadata.uid))")
}

/// The epoch of a Namespace; empty: none.
fn set(namespace: &str) -> String {
    let note = note(namespace);
    let is_own = is_own(&note, namespace);
    format!("({namespace} != null && {is_own} ? {note}.split(\".\")[0] : \"\")")
}

/// Whether somebody but the agent changes the annotation of a Namespace. What a new one has counts for nothing.
fn touches() -> String {
    format!(
        "{IS_NAMESPACE} && request.operation == \"UPDATE\" && request.userInfo.username != {} && {} != {}",
        literal(&agent_user()),
        note("object"),
        note("oldObject")
    )
}

fn compared() -> String {
    let key = key();
    format!("!variables.isJudged || request.userInfo.extra[{key}].all(e, e == variables.set)")
}

fn over() -> String {
    let (key, shard) = (key(), literal(FENCE_SHARD));
    format!(
        "{} + \": epoch \" + request.userInfo.extra[{key}].join(\", \") \
            + ({shard} in request.userInfo.extra \
                ? \" of shard \" + request.userInfo.extra[{shard}].join(\", \") : \"\") \
            + \", and the namespace is in epoch \" + variables.set",
        literal(REFUSED_GRANT_OVER)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_annotation_is_of_one_namespace_alone() {
        let set = epoch_annotation(4, "a-1");
        assert_eq!(annotated_epoch(&set, "a-1"), Some(4));
        for (annotation, uid) in [
            (set.as_str(), "a-2"),
            ("4", "a-1"),
            ("4", ""),
            ("x.a-1", "a-1"),
            ("", "a-1"),
        ] {
            assert_eq!(annotated_epoch(annotation, uid), None, "{annotation}");
        }
    }

    #[test]
    fn the_refusals_cannot_be_taken_for_each_other() {
        assert!(!REFUSED_GRANT_OVER.contains(REFUSED_NO_GRANT) && !REFUSED_NO_GRANT.contains(REFUSED_GRANT_OVER));
    }
}
