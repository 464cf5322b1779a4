//! Objects of replicated kinds: what of them is the same in every member, what a copy says of itself, and how it is deleted
//! (`docs/semantics.md#replicated-kinds`). Pure; caller: `fanout::replicate`.

use serde_json::{Map, Value, json};

use crate::value::classify::Query;
use crate::value::fault::Fault;
use crate::value::object::{Encoding, parse, protobuf};

/// What a member fills in for itself.
const OWN: [&str; 2] = ["metadata", "status"];
/// What clients write of the metadata.
const CLIENTS: [&str; 3] = ["name", "labels", "annotations"];
/// Field numbers of `DeleteOptions` in protobuf.
const GRACE_PERIOD_SECONDS: u64 = 1;
const ORPHAN_DEPENDENTS: u64 = 3;
const PROPAGATION_POLICY: u64 = 4;
const DRY_RUN: u64 = 5;

/// What of an object is applied to the other members: all that a client writes, and nothing that is one cluster's own (owners,
/// finalizers, status, versions). `None` of one that is being deleted, or is no object.
pub(crate) fn shared(object: &Value) -> Option<Value> {
    let object = object.as_object()?;
    let metadata = object.get("metadata")?.as_object()?;
    if is_leaving(metadata) {
        return None;
    }
    let clients = metadata.iter().filter(|(key, _)| CLIENTS.contains(&key.as_str()));
    let clients: Map<String, Value> = clients.map(|(key, value)| (key.clone(), value.clone())).collect();
    // The rules of an aggregated ClusterRole are filled in by each cluster's own controller.
    let aggregated = object.contains_key("aggregationRule");
    let is_own = |key: &str| OWN.contains(&key) || aggregated && key == "rules";
    let fields = object.iter().filter(|(key, _)| !is_own(key));
    let mut shared: Map<String, Value> = fields.map(|(key, value)| (key.clone(), value.clone())).collect();
    shared.insert("metadata".to_owned(), clients.into());
    Some(shared.into())
}

fn is_leaving(metadata: &Map<String, Value>) -> bool {
    metadata.get("deletionTimestamp").is_some_and(|at| !at.is_null())
}

/// Whether a CustomResourceDefinition is served where it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Service {
    /// It is established.
    Served,
    /// Not yet.
    Waits,
    /// It will not be as it is, with why.
    Never(String),
}

/// What a CustomResourceDefinition says of itself.
pub(crate) fn service(definition: &Value) -> Service {
    let conditions = definition.pointer("/status/conditions").and_then(Value::as_array);
    let condition = |kind: &str| {
        let mut all = conditions.into_iter().flatten();
        all.find(|condition| condition["type"] == kind)
    };
    match (condition("Established"), condition("NamesAccepted")) {
        (Some(established), _) if established["status"] == "True" => Service::Served,
        (_, Some(names)) if names["status"] == "False" => {
            let message = names["message"].as_str().unwrap_or("its names are not accepted");
            Service::Never(message.to_owned())
        }
        _ => Service::Waits,
    }
}

/// How an object is deleted in the other members, as the client wants it deleted at the primary.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Deletion {
    /// Nothing is to be changed anywhere.
    pub(crate) dry_run: bool,
    options: Map<String, Value>,
}

impl Deletion {
    /// Reads the query, or the body alone where there is one, as API servers do. 400 or 415 for one that cannot be read.
    pub(crate) fn of(query: &Query, content_type: Option<&str>, body: &[u8]) -> Result<Self, Fault> {
        let read = if body.is_empty() {
            of_query(query)
        } else if Encoding::required(content_type)? == Encoding::Protobuf {
            let (_, options) = protobuf::open(body)
                .ok_or_else(|| Fault::BadRequest("the body is no DeleteOptions in Kubernetes' protobuf".into()))?;
            of_protobuf(options)
        } else {
            let body = parse(Encoding::required(content_type)?, body)?;
            body.as_object().cloned().unwrap_or_default()
        };
        let says_so = read.get("dryRun").and_then(Value::as_array);
        let dry_run = says_so.is_some_and(|dry_run| !dry_run.is_empty());
        let kept = ["gracePeriodSeconds", "orphanDependents", "propagationPolicy"];
        let options = read.into_iter().filter(|(key, _)| kept.contains(&key.as_str()));
        Ok(Self {
            dry_run,
            options: options.collect(),
        })
    }

    /// The body that deletes the object of this uid, and no other.
    pub(crate) fn of_uid(&self, uid: &str) -> Value {
        let mut options = self.options.clone();
        options.insert("apiVersion".to_owned(), json!("v1"));
        options.insert("kind".to_owned(), json!("DeleteOptions"));
        options.insert("preconditions".to_owned(), json!({"uid": uid}));
        options.into()
    }
}

fn of_query(query: &Query) -> Map<String, Value> {
    let mut options = Map::new();
    if let Some(policy) = query.first("propagationPolicy") {
        options.insert("propagationPolicy".to_owned(), json!(policy));
    }
    let seconds = query
        .first("gracePeriodSeconds")
        .and_then(|text| text.parse::<i64>().ok());
    options.extend(seconds.map(|seconds| ("gracePeriodSeconds".to_owned(), json!(seconds))));
    let orphan = query
        .first("orphanDependents")
        .and_then(|text| text.parse::<bool>().ok());
    options.extend(orphan.map(|orphan| ("orphanDependents".to_owned(), json!(orphan))));
    let dry_run = query.first("dryRun");
    options.extend(dry_run.map(|dry_run| ("dryRun".to_owned(), json!([dry_run]))));
    options
}

fn of_protobuf(message: &[u8]) -> Map<String, Value> {
    let mut options = Map::new();
    let text = |number| protobuf::content(message, number).and_then(|text| std::str::from_utf8(text).ok());
    if let Some(policy) = text(PROPAGATION_POLICY) {
        options.insert("propagationPolicy".to_owned(), json!(policy));
    }
    if let Some(seconds) = protobuf::number(message, GRACE_PERIOD_SECONDS) {
        options.insert("gracePeriodSeconds".to_owned(), json!(seconds));
    }
    if let Some(orphan) = protobuf::number(message, ORPHAN_DEPENDENTS) {
        options.insert("orphanDependents".to_owned(), json!(orphan != 0));
    }
    if let Some(dry_run) = text(DRY_RUN) {
        options.insert("dryRun".to_owned(), json!([dry_run]));
    }
    options
}

#[cfg(test)]
mod tests {
    use portolan_crds::labels::DECIDES;

    use super::*;

    #[test]
    fn what_clients_write_is_shared_and_nothing_of_one_cluster() {
        let object = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {
                "name": "cs.a.b", "uid": "u", "resourceVersion": "4", "generation": 2, "creationTimestamp": "t",
                "labels": {"l": "1"}, "annotations": {"a": "2"}, "finalizers": ["f"], "managedFields": [{}],
                "ownerReferences": [{"uid": "o"}], "deletionTimestamp": null,
            },
            "spec": {"conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"caBundle": "YQ=="}}}},
            "status": {"storedVersions": ["v1"]},
        });
        let shared_part = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "cs.a.b", "labels": {"l": "1"}, "annotations": {"a": "2"}},
            "spec": {"conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"caBundle": "YQ=="}}}},
        });
        assert_eq!(shared(&object), Some(shared_part));
        let mut leaving = object;
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
        assert_eq!(shared(&leaving), None);
        assert_eq!(shared(&json!({"kind": "Table"})), None);
        let role = |more: &str| json!({"kind": "ClusterRole", "metadata": {"name": "r"}, "rules": [1], more: {}});
        assert_eq!(shared(&role("x")).unwrap()["rules"], json!([1]));
        assert_eq!(shared(&role("aggregationRule")).unwrap().get("rules"), None);
    }

    #[test]
    fn an_object_says_who_decides_about_it() {
        let said = |cluster: &str| {
            let object = json!({"metadata": {"annotations": {DECIDES: cluster}}}).to_string();
            let meta = crate::value::object::metadata(object.as_bytes()).unwrap();
            meta.decides().map(str::to_owned)
        };
        assert_eq!(said("east").as_deref(), Some("east"));
        assert_eq!(said("no member"), None);
    }

    #[test]
    fn a_definition_says_whether_it_is_served() {
        let with = |conditions: Value| service(&json!({"status": {"conditions": conditions}}));
        assert_eq!(service(&json!({})), Service::Waits);
        let accepted = json!({"type": "NamesAccepted", "status": "True"});
        assert_eq!(with(json!([accepted])), Service::Waits);
        let established = json!({"type": "Established", "status": "True"});
        assert_eq!(with(json!([accepted, established])), Service::Served);
        let taken = json!({"type": "NamesAccepted", "status": "False", "message": "\"cs\" is taken"});
        assert_eq!(with(json!([taken])), Service::Never("\"cs\" is taken".to_owned()));
    }

    #[test]
    fn each_copy_is_deleted_by_its_own_uid_as_the_client_says() {
        let deletion = |query: &str, content_type: Option<&str>, body: &[u8]| {
            let query = (!query.is_empty()).then_some(query);
            Deletion::of(&Query::new(query), content_type, body).unwrap()
        };
        let plain = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "there"}});
        assert_eq!(deletion("", None, b"").of_uid("there"), plain);
        let body = json!({
            "kind": "DeleteOptions", "apiVersion": "apiextensions.k8s.io/v1", "propagationPolicy": "Orphan",
            "preconditions": {"uid": "primary", "resourceVersion": "3"}, "gracePeriodSeconds": 4,
        });
        let mut orphans = plain;
        orphans["propagationPolicy"] = json!("Orphan");
        let by_query = deletion("propagationPolicy=Orphan", None, b"");
        assert_eq!(by_query.of_uid("there"), orphans);
        orphans["gracePeriodSeconds"] = json!(4);
        let by_body = deletion("", Some("application/json"), body.to_string().as_bytes());
        assert_eq!((by_body.of_uid("there"), by_body.dry_run), (orphans.clone(), false));
        // The envelope: type meta, then the message in field 2.
        let message = b"\x08\x04\x22\x06Orphan\x2a\x03All";
        let mut protobuf = b"k8s\0\x12".to_vec();
        protobuf.push(u8::try_from(message.len()).unwrap());
        protobuf.extend(message);
        let by_protobuf = deletion("", Some("application/vnd.kubernetes.protobuf"), &protobuf);
        assert_eq!((by_protobuf.of_uid("there"), by_protobuf.dry_run), (orphans, true));
        assert!(deletion("dryRun=All", None, b"").dry_run);
        assert!(deletion("", None, br#"{"dryRun": ["All"]}"#).dry_run);
        // The primary reads nothing but the body then, and deletes.
        assert!(!deletion("dryRun=All", None, b"{}").dry_run);
        let refused = Deletion::of(&Query::new(None), Some("application/cbor"), b"x");
        assert!(matches!(refused, Err(Fault::UnsupportedMediaType(_))), "{refused:?}");
    }
}
