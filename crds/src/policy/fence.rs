//! `portolan-fence`: compares the epoch that a write says with those that its namespace's annotation says are open: one of each
//! operator that has the namespace.
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

/// Most epochs that may be open in one namespace: two kilobytes of text.
pub const OPEN_EPOCHS_MAX: usize = 256;

/// The value of the annotation [`FENCE_EPOCH`] of the Namespace with this uid: `<epoch>[,<epoch>…].<uid>`.
pub fn epochs_annotation(open: &[u64], uid: &str) -> String {
    let open: Vec<_> = open.iter().map(u64::to_string).collect();
    format!("{}.{uid}", open.join(","))
}

/// The epochs that an annotation says are open in the Namespace with this uid, in order; none: it says nothing of it.
pub fn annotated_epochs(annotation: &str, uid: &str) -> Vec<u64> {
    let open = annotation.split_once('.').filter(|(_, of)| *of == uid);
    let open = open.and_then(|(open, _)| {
        open.split(',')
            .map(|epoch| epoch.parse().ok())
            .collect::<Option<Vec<_>>>()
    });
    let mut open = open.filter(|open| open.len() <= OPEN_EPOCHS_MAX).unwrap_or_default();
    open.sort_unstable();
    open
}

/// Every kind and subresource, but of writes that say their epoch alone, and of those to a Namespace that change its epoch. A
/// Namespace is judged by its own, as it was; whoever makes one is not.
pub(super) fn fencing(epochs: Epochs) -> Value {
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
            { "expression": compared(epochs), "messageExpression": over(epochs), "reason": "Forbidden" },
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

/// How many epochs are open in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Epochs {
    /// As policies of before there were operators have it.
    One,
    Several,
}

fn compared(epochs: Epochs) -> String {
    let is_open = match epochs {
        Epochs::One => "e == variables.set",
        Epochs::Several => "e in variables.set.split(\",\")",
    };
    format!(
        "!variables.isJudged || request.userInfo.extra[{}].all(e, {is_open})",
        key()
    )
}

fn over(epochs: Epochs) -> String {
    let (key, shard) = (key(), literal(FENCE_SHARD));
    format!(
        "{} + \": epoch \" + request.userInfo.extra[{key}].join(\", \") \
            + ({shard} in request.userInfo.extra \
                ? \" of shard \" + request.userInfo.extra[{shard}].join(\", \") : \"\") \
            + {} + variables.set",
        literal(REFUSED_GRANT_OVER),
        literal(match epochs {
            Epochs::One => ", and the namespace is in epoch ",
            Epochs::Several => ", and open in the namespace is ",
        })
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_annotation_is_of_one_namespace_alone() {
        assert_eq!(epochs_annotation(&[4], "a-1"), "4.a-1");
        for open in [vec![4], vec![4, 9, 11]] {
            assert_eq!(annotated_epochs(&epochs_annotation(&open, "a-1"), "a-1"), open);
        }
        let set = epochs_annotation(&[4], "a-1");
        for (annotation, uid) in [
            (set.as_str(), "a-2"),
            ("4", "a-1"),
            ("4", ""),
            ("x.a-1", "a-1"),
            ("4,.a-1", "a-1"),
            ("4,x.a-1", "a-1"),
            ("", "a-1"),
        ] {
            assert!(annotated_epochs(annotation, uid).is_empty(), "{annotation}");
        }
    }

    #[test]
    fn the_refusals_cannot_be_taken_for_each_other() {
        assert!(!REFUSED_GRANT_OVER.contains(REFUSED_NO_GRANT) && !REFUSED_NO_GRANT.contains(REFUSED_GRANT_OVER));
    }
}
