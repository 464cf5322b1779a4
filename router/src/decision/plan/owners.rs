//! Which owners a body names that could be in another member than the object itself.
//!
//! A member's garbage collector deletes an object whose owner's uid it cannot find. Owners in the object's namespace are in
//! its member by construction; owners without a namespace may be in any, so they are looked for before a child of theirs is
//! written. Pure: read here, looked for by `fanout::owners`. What cannot be read is let through: the API server will say.

use serde_json::Value;

use crate::value::classify::{ApiRequest, Verb, View};
use crate::value::object::{self, Encoding, protobuf};
use crate::value::snapshot::{Binding, Caller};

/// What every reference to an owner contains, in JSON and YAML.
const FIELD: &str = "ownerReferences";
/// Owners that are looked for. Nobody has more; what has is let through.
const MAX_OWNERS: usize = 16;

/// One entry of `metadata.ownerReferences`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    /// API group; empty is the core group.
    pub(crate) group: String,
    /// API version, without the group.
    pub(crate) version: String,
    /// As in objects: `ConfigMap`.
    pub(crate) kind: String,
    /// Its name.
    pub(crate) name: String,
    /// Its uid.
    pub(crate) uid: String,
}

/// Whether the body of this request may make an object the child of another member's: a write of an object by the merged
/// view of a shard that has more than one place.
pub(crate) fn may_cross(asked: &ApiRequest, caller: &Caller) -> bool {
    let writes = matches!(asked.verb, Verb::Create | Verb::Update | Verb::Patch);
    let object = asked
        .resource
        .as_ref()
        .is_some_and(|resource| resource.subresource.is_none());
    let Caller::Pod(view) = caller else { return false };
    let Binding::One(shard) = &view.binding else {
        return false;
    };
    let home = &view.key.home_cluster;
    let mut places = shard.members.iter().map(|member| &member.cluster).chain([home]);
    asked.view == View::Merged && writes && object && places.any(|place| *place != shard.primary_cluster)
}

/// The owners that a body names; of a patch, those that it sets. Costs a search for one word where there is none.
pub(crate) fn read(content_type: Option<&str>, body: &[u8]) -> Vec<Owner> {
    let owners = match Encoding::of(content_type) {
        Some(Encoding::Protobuf) => protobuf::open(body).and_then(|(_, object)| of_protobuf(object)),
        Some(encoding) if memchr::memmem::find(body, FIELD.as_bytes()).is_some() => {
            object::parse(encoding, body).ok().map(|object| of_value(&object))
        }
        _ => None,
    };
    let mut owners = owners.unwrap_or_default();
    owners.truncate(MAX_OWNERS);
    owners
}

fn of_protobuf(object: &[u8]) -> Option<Vec<Owner>> {
    let owner = |[kind, name, uid, api_version]: [String; 4]| Owner::new(&api_version, kind, name, uid);
    Some(protobuf::owners(object)?.into_iter().map(owner).collect())
}

fn of_value(body: &Value) -> Vec<Owner> {
    let list = |value: &Value| match value {
        Value::Array(all) => all.iter().filter_map(of_entry).collect(),
        one => of_entry(one).into_iter().collect::<Vec<_>>(),
    };
    match body {
        // A JSON patch: values of operations at the field, in it or around it.
        Value::Array(operations) => operations
            .iter()
            .filter_map(|operation| {
                let value = operation.get("value")?;
                match operation.get("path")?.as_str()? {
                    "" => value.pointer("/metadata/ownerReferences").map(list),
                    "/metadata" => value.get(FIELD).map(list),
                    path if path.starts_with("/metadata/ownerReferences") => Some(list(value)),
                    _ => None,
                }
            })
            .flatten()
            .collect(),
        other => other.pointer("/metadata/ownerReferences").map(list).unwrap_or_default(),
    }
}

fn of_entry(entry: &Value) -> Option<Owner> {
    let text = |field: &str| entry.get(field)?.as_str().map(str::to_owned);
    let api_version = text("apiVersion")?;
    Some(Owner::new(&api_version, text("kind")?, text("name")?, text("uid")?))
}

impl Owner {
    fn new(api_version: &str, kind: String, name: String, uid: String) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            kind,
            name,
            uid,
        }
    }

    /// Its path in any member, under this plural name.
    pub(crate) fn path(&self, resource: &str) -> String {
        let Self {
            group, version, name, ..
        } = self;
        if group.is_empty() {
            format!("/api/{version}/{resource}/{name}")
        } else {
            format!("/apis/{group}/{version}/{resource}/{name}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::object::protobuf::{MAGIC, put};

    const CHILD: &str =
        r#"{"metadata":{"name":"c","ownerReferences":[{"apiVersion":"x.io/v1","kind":"Port","name":"p","uid":"u"}]}}"#;

    fn owner() -> Owner {
        Owner::new("x.io/v1", "Port".into(), "p".into(), "u".into())
    }

    #[test]
    fn owners_are_read_from_objects_and_patches() {
        let entry = r#"{"apiVersion":"x.io/v1","kind":"Port","name":"p","uid":"u"}"#;
        let json = "application/json";
        let patch = "application/json-patch+json";
        for (kind, body, found) in [
            (json, CHILD.to_owned(), 1),
            (json, r#"{"metadata":{"name":"c"}}"#.to_owned(), 0),
            (json, r#"{"data":{"a":"ownerReferences"}}"#.to_owned(), 0),
            (json, r#"{"metadata":{"ownerReferences":["#.to_owned(), 0),
            ("application/merge-patch+json", CHILD.to_owned(), 1),
            ("application/apply-patch+yaml", CHILD.to_owned(), 1),
            (
                patch,
                format!(r#"[{{"op":"add","path":"/metadata/ownerReferences/-","value":{entry}}}]"#),
                1,
            ),
            (
                patch,
                format!(r#"[{{"op":"add","path":"/metadata/ownerReferences","value":[{entry}]}}]"#),
                1,
            ),
            (
                patch,
                format!(r#"[{{"op":"add","path":"/metadata","value":{{"ownerReferences":[{entry}]}}}}]"#),
                1,
            ),
            (
                patch,
                r#"[{"op":"remove","path":"/metadata/ownerReferences"}]"#.to_owned(),
                0,
            ),
        ] {
            let owners = read(Some(kind), body.as_bytes());
            assert_eq!(owners.len(), found, "{kind} {body}");
            assert!(owners.iter().all(|found| *found == owner()), "{owners:?}");
        }
        assert_eq!(owner().path("ports"), "/apis/x.io/v1/ports/p");
        assert_eq!(
            Owner::new("v1", "Node".into(), "n".into(), "u".into()).path("nodes"),
            "/api/v1/nodes/n"
        );
    }

    #[test]
    fn owners_are_read_from_protobuf() {
        let message = |fields: &[(u64, &[u8])]| {
            let mut out = Vec::new();
            for (number, content) in fields {
                put(&mut out, *number, content);
            }
            out
        };
        let entry = message(&[(1, b"Port"), (3, b"p"), (4, b"u"), (5, b"x.io/v1")]);
        let object = message(&[(1, &message(&[(1, b"c"), (13, &entry)]))]);
        let body = [MAGIC, &message(&[(2, &object)])].concat();
        assert_eq!(read(Some("application/vnd.kubernetes.protobuf"), &body), [owner()]);
    }
}
