//! What statuses said before there were ledgers.

use kube::api::{ApiResource, DynamicObject};
use portolan_crds::{OperatorName, ShardingConfig};

use super::*;
use crate::facts::Facts;
use crate::ledger::import::import;

/// A shard as it stands on the hub with what a hub without a ledger told.
fn object(name: &str, clusters: Value, more: Value) -> DynamicObject {
    let spec =
        json!({"selector": {"matchLabels": {"app": "op"}}, "callerClusters": ["east"], "clusters": [{"name": "east"}]});
    let mut status = json!({"accepted": {"generation": 1, "spec": spec}, "clusters": clusters});
    for (key, value) in more.as_object().unwrap() {
        status[key] = value.clone();
    }
    let mut object = DynamicObject::new(name, &ApiResource::erase::<ShardingConfig>(&()))
        .within("ops")
        .data(json!({"spec": spec, "status": status}));
    object.metadata.uid = Some(format!("uid-{name}"));
    object.metadata.generation = Some(1);
    object
}

fn facts(objects: &[DynamicObject]) -> Facts {
    let mut facts = Facts::default();
    for object in objects {
        facts.apply_shard(object);
    }
    facts
}

#[test]
fn of_two_statuses_the_last_owner_has_it() {
    let a = json!([{"name": "east", "namespaceCount": 2, "namespaces": ["ns-a", "ns-b"]}]);
    let b = json!([{"name": "east", "namespaceCount": 1, "namespaces": ["ns-b"], "generations": {"ns-b": 2}}]);
    let facts = facts(&[object("a", a, json!({})), object("b", b, json!({}))]);
    let state = import(&facts, "one").unwrap();
    let owner = |namespace| {
        state
            .ledger
            .get(&OperatorName::default(), "east", namespace)
            .unwrap()
            .owner
            .clone()
    };
    assert_eq!((owner("ns-a"), owner("ns-b")), (Some(shard("a")), Some(shard("b"))));
    assert_eq!(state.accepted.len(), 2);
    assert_eq!(state.accepted[&shard("a")].uid, "uid-a");
    let revisions: BTreeSet<_> = state
        .ledger
        .in_cluster("east")
        .map(|(_, entry)| entry.view_revision)
        .collect();
    assert_eq!(revisions.len(), 2);
    assert!(
        revisions
            .last()
            .is_some_and(|last| *last <= state.ledger.view_revision())
    );
}

#[test]
fn a_shard_that_is_being_deleted_has_what_it_had() {
    let clusters = json!([{"name": "east", "namespaceCount": 1, "namespaces": ["ns-a"]}]);
    let mut object = object("a", clusters, json!({}));
    object.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    let state = import(&facts(&[object]), "one").unwrap();
    assert!(state.ledger.is_owner(&shard("a")) && state.accepted.is_empty());
}

#[test]
fn a_status_that_does_not_tell_all_is_refused() {
    let some = json!([{"name": "east", "namespaceCount": 700, "namespaces": ["ns-a"]}]);
    let all = json!([{"name": "east", "namespaceCount": 1, "namespaces": ["ns-a"]}]);
    for (clusters, more, reason) in [
        (&some, json!({}), "1 of the 700 namespaces that it has in east"),
        (&all, json!({"viewRevision": 0}), "a hub that kept one"),
        (
            &all,
            json!({"accepted": {"generation": 1, "spec": {"clusters": 3}}}),
            "cannot be read",
        ),
    ] {
        let facts = facts(&[object("a", clusters.clone(), more)]);
        let error = LedgerError::from(import(&facts, "one").unwrap_err()).to_string();
        for part in ["ShardingConfig ops/a", reason, "portolanctl ledger adopt"] {
            assert!(error.contains(part), "{error}");
        }
    }
}

#[tokio::test]
async fn the_first_ledger_says_what_statuses_said() {
    let clusters = json!([{"name": "east", "namespaceCount": 1, "namespaces": ["ns-a"]}]);
    let index = Arc::<Index>::default();
    index.write(|facts| facts.apply_shard(&object("a", clusters, json!({}))));
    let client = scripted_api(Objects::default());
    let (_, begun) = Store::open(client.clone(), NAMESPACE, &index, (Metrics::default(), 1))
        .await
        .unwrap();
    assert!(begun.ledger.is_owner(&shard("a")));
    let (_, again) = open(&client).await.unwrap();
    assert_eq!(again, begun, "and statuses are not asked any more");
}
