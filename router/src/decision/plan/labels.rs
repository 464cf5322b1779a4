//! What labels and bodies say about whether a single object belongs to the shard. Pure: `preflight` fetches and calls.
//!
//! Under `Enforce` a single object of a limited resource is judged twice: as it is, by a GET of its metadata, and as it
//! becomes, by the body. What remains open, on purpose: between the GET and the write somebody else may change the labels;
//! an apply that drops a label by no longer naming it is not foreseen; labels that agents write are not the client's to
//! claim, so a body is not judged by them (admission in the member sets them).

#[cfg(test)]
mod tests;

use http::StatusCode;
use serde_json::Value;

use super::{BodyRule, Change, LabelCheck};
use crate::value::fault::Fault;
use crate::value::object::{self, Encoding, Labels, protobuf};

/// The labels in the member's answer to a GET of the object's metadata. `Ok(None)`: there is no such object (yet), let the
/// request tell. `Err`: foreign (403), or the member could not say.
pub(crate) fn check_labels(
    check: &LabelCheck,
    cluster: &str,
    status: StatusCode,
    body: &[u8],
) -> Result<Option<Labels>, Fault> {
    let object = &check.object;
    match status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND if check.connects => {
            return Err(Fault::NotFound(format!(
                "member cluster {cluster} has no {object} to connect to"
            )));
        }
        StatusCode::NOT_FOUND => return Ok(None),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            return Err(Fault::Forbidden(format!(
                "shard {} is limited by labels, and member cluster {cluster} does not let this caller get {object} to look at them",
                check.shard
            )));
        }
        StatusCode::TOO_MANY_REQUESTS => {
            return Err(Fault::TooManyRequests {
                message: format!("member cluster {cluster} is too busy to look at {object}"),
                retry_after_seconds: 1,
                cluster: Some(cluster.to_owned()),
            });
        }
        other => return Err(undecided(check, cluster, &format!("it answered {}", other.as_u16()))),
    }
    let read = object::metadata(body).map_err(|error| undecided(check, cluster, &error.to_string()));
    let labels = read?.labels.unwrap_or_default();
    if check.selector.matches(&labels) {
        return Ok(Some(labels));
    }
    Err(Fault::Forbidden(format!(
        "{object} of member cluster {cluster} is outside shard {}: its labels do not match {}",
        check.shard, check.selector
    )))
}

/// The request itself was not sent, whatever the member did with the question.
pub(crate) fn undecided(check: &LabelCheck, cluster: &str, why: &str) -> Fault {
    Fault::Unavailable {
        message: format!(
            "member cluster {cluster} could not be asked for the labels of {}: {why}",
            check.object
        ),
        cluster: Some(cluster.to_owned()),
        sent: false,
    }
}

/// Reads the body of a create, update or patch, given the labels before it.
pub(crate) fn check_body(
    rule: &BodyRule,
    content_type: Option<&str>,
    before: Option<&Labels>,
    body: &[u8],
) -> Result<(), Fault> {
    let encoding = Encoding::required(content_type)?;
    let after = match rule.change {
        Change::Whole => whole(encoding, body)?,
        Change::Status => match (whole(encoding, body)?, before) {
            // Without labels in the body, those of the object stay.
            (labels, Some(before)) if labels.is_empty() => before.clone(),
            (labels, _) => labels,
        },
        Change::Over => {
            let mut labels = before.cloned().unwrap_or_default();
            labels.extend(whole(encoding, body)?);
            labels
        }
        Change::Patch => patched(rule, encoding, before.cloned().unwrap_or_default(), body)?,
    };
    if rule.selector.matches(&after) {
        return Ok(());
    }
    Err(Fault::Forbidden(format!(
        "{} would be outside shard {}: its labels would not match {}",
        rule.object, rule.shard, rule.selector
    )))
}

/// Labels of an object in a body.
fn whole(encoding: Encoding, body: &[u8]) -> Result<Labels, Fault> {
    let read = match encoding {
        Encoding::Protobuf => protobuf::open(body).and_then(|(_, object)| protobuf::labels(object)),
        Encoding::Json | Encoding::Yaml => labels(&object::parse(encoding, body)?),
    };
    read.ok_or_else(|| Fault::BadRequest("the labels in the body cannot be read".into()))
}

/// `metadata.labels`; none if absent, `None` if they are not strings.
fn labels(object: &Value) -> Option<Labels> {
    match object.pointer("/metadata/labels") {
        None | Some(Value::Null) => Some(Labels::new()),
        Some(labels) => strings(labels),
    }
}

fn strings(labels: &Value) -> Option<Labels> {
    labels
        .as_object()?
        .iter()
        .map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// Labels after a patch of any type.
fn patched(rule: &BodyRule, encoding: Encoding, before: Labels, body: &[u8]) -> Result<Labels, Fault> {
    if encoding == Encoding::Protobuf {
        return Err(Fault::UnsupportedMediaType("a patch must be JSON or YAML".into()));
    }
    let patch = object::parse(encoding, body)?;
    let after = match &patch {
        Value::Array(operations) => operations.iter().try_fold(before, operate),
        other => merge(before, other),
    };
    after.ok_or_else(|| {
        Fault::Forbidden(format!(
            "what this patch makes of the labels of {} cannot be foreseen, and shard {} is limited by them: set them plainly",
            rule.object, rule.shard
        ))
    })
}

/// A merge, strategic-merge or apply patch. `None` for directives about whole maps.
fn merge(mut labels: Labels, patch: &Value) -> Option<Labels> {
    let plain = |map: &Value| map.get("$patch").is_none() && map.get("$retainKeys").is_none();
    let Some(metadata) = patch.get("metadata") else {
        return plain(patch).then_some(labels);
    };
    if !(plain(patch) && plain(metadata)) {
        return None;
    }
    match metadata.get("labels") {
        None if metadata.is_null() => Some(Labels::new()),
        None => Some(labels),
        Some(Value::Null) => Some(Labels::new()),
        Some(changes) => {
            for (key, value) in changes.as_object()? {
                if key.starts_with('$') {
                    return None;
                }
                if value.is_null() {
                    labels.remove(key);
                } else {
                    labels.insert(key.clone(), value.as_str()?.to_owned());
                }
            }
            Some(labels)
        }
    }
}

/// What a JSON patch can touch of the labels.
enum Touched {
    /// Nothing.
    Elsewhere,
    /// The value at the path is the object, or its metadata.
    Around(&'static str),
    /// All labels.
    All,
    /// One label.
    One(String),
}

fn touched(path: &str) -> Touched {
    match path {
        "" => Touched::Around("/metadata/labels"),
        "/metadata" => Touched::Around("/labels"),
        "/metadata/labels" => Touched::All,
        other => other
            .strip_prefix("/metadata/labels/")
            .map_or(Touched::Elsewhere, |key| {
                Touched::One(key.replace("~1", "/").replace("~0", "~"))
            }),
    }
}

/// One operation of a JSON patch. `None` where the outcome depends on more than the labels.
fn operate(mut labels: Labels, operation: &Value) -> Option<Labels> {
    let text = |field: &str| operation.get(field).and_then(Value::as_str).unwrap_or_default();
    // API servers drop what stands before the first slash, whatever it is.
    if ["path", "from"]
        .into_iter()
        .any(|field| !text(field).is_empty() && !text(field).starts_with('/'))
    {
        return None;
    }
    let (verb, at) = (text("op"), touched(text("path")));
    let moved = verb == "move" && !matches!(touched(text("from")), Touched::Elsewhere);
    match (verb, at) {
        _ if moved => None,
        ("test", _) | (_, Touched::Elsewhere) => Some(labels),
        ("add" | "replace", Touched::One(key)) => {
            labels.insert(key, operation.get("value")?.as_str()?.to_owned());
            Some(labels)
        }
        ("add" | "replace", Touched::All) => strings(operation.get("value")?),
        ("add" | "replace", Touched::Around(inner)) => match operation.get("value")?.pointer(inner) {
            None | Some(Value::Null) => Some(Labels::new()),
            Some(labels) => strings(labels),
        },
        ("remove", Touched::One(key)) => {
            labels.remove(&key);
            Some(labels)
        }
        ("remove", Touched::All | Touched::Around(_)) => Some(Labels::new()),
        _ => None,
    }
}
