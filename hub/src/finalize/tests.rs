//! Which objects get or lose the finalizer, and that others' finalizers stay.

use std::convert::Infallible;

use http_body_util::BodyExt;
use kube::client::Body;
use parking_lot::Mutex;
use portolan_crds::ledger::{Chunk, Pair, Slot};
use portolan_crds::{Contention, OperatorName};
use serde_json::Value;

use super::*;
use crate::compile::{Accepted, Ledger, State};
use crate::index::Change;

fn name() -> ShardName {
    ShardName::new("ops", "a").unwrap()
}

/// A shard of one namespace, as it stands on the hub.
fn object(deleting: bool, has_finalizer: bool) -> DynamicObject {
    let spec = json!({"selector": {"matchLabels": {"app": "op"}}, "callerClusters": ["east"], "clusters": [{"name": "east", "namespaces": ["ns-a"]}]});
    let resource = ApiResource::erase::<ShardingConfig>(&());
    let mut object = DynamicObject::new("a", &resource)
        .within("ops")
        .data(json!({"spec": spec}));
    object.metadata.uid = Some("uid".to_owned());
    object.metadata.generation = Some(1);
    object.metadata.finalizers = has_finalizer.then(|| vec![FINALIZER_SHARD.to_owned()]);
    object.metadata.deletion_timestamp =
        deleting.then(|| serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    object
}

fn due_of(deleting: bool, has_finalizer: bool, owner: bool) -> Option<Step> {
    let mut facts = Facts::default();
    assert_eq!(facts.apply_shard(&object(deleting, has_finalizer)), Change::Compile);
    let mut state = State::default();
    if owner {
        let mut chunk = Chunk::new("east", Slot::WHOLE);
        let pair = Pair {
            fence: portolan_crds::ledger::PairFence::default(),
            owner: Some(name()),
            owner_count: 1,
            view_revision: 1,
            releasing: deleting,
        };
        chunk.add("ns-a", OperatorName::default(), pair);
        state.ledger = Arc::new(Ledger::restore(Contention::Fleet, [chunk], 1, false));
        let accepted = Accepted {
            uid: "uid".to_owned(),
            generation: 1,
            spec: Arc::default(),
            ..Accepted::default()
        };
        state.accepted.insert(name(), accepted);
    }
    let world = World {
        state,
        ..World::default()
    };
    due(&facts, &world).pop().map(|(_, step)| step)
}

#[test]
fn an_accepted_shard_is_held_until_nothing_is_its_any_more() {
    for (deleting, has_finalizer, owner, step) in [
        (false, false, true, Some(Step::Add)),
        (false, true, true, None),
        (false, false, false, None),
        (true, true, true, None),
        (true, true, false, Some(Step::Remove)),
        (true, false, true, None),
    ] {
        assert_eq!(
            due_of(deleting, has_finalizer, owner),
            step,
            "{deleting} {has_finalizer} {owner}"
        );
    }
}

#[test]
fn a_deletion_is_a_change_for_the_compiler() {
    let mut facts = Facts::default();
    facts.apply_shard(&object(false, true));
    assert_eq!(facts.apply_shard(&object(true, true)), Change::Compile);
}

#[tokio::test]
async fn finalizers_of_others_stay() {
    let patches = Arc::new(Mutex::new(Vec::<Value>::new()));
    let seen = patches.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let seen = seen.clone();
        async move {
            let (head, body) = request.into_parts();
            if head.method == http::Method::PATCH {
                let body = body.collect().await.unwrap().to_bytes();
                seen.lock().push(serde_json::from_slice(&body).unwrap());
            }
            let finalizers = json!(["other/one", FINALIZER_SHARD]);
            let answer = json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                "metadata": {"name": "a", "namespace": "ops", "resourceVersion": "7", "finalizers": finalizers},
            });
            let answer = Body::from(answer.to_string().into_bytes());
            Ok::<_, Infallible>(http::Response::new(answer))
        }
    });
    let client = Client::new(service, "default");
    write(&client, name(), Step::Remove).await.unwrap();
    write(&client, name(), Step::Add).await.unwrap();
    let wanted = |finalizers: Value| json!({"metadata": {"resourceVersion": "7", "finalizers": finalizers}});
    assert_eq!(
        *patches.lock(),
        [
            wanted(json!(["other/one"])),
            wanted(json!(["other/one", FINALIZER_SHARD]))
        ]
    );
}
