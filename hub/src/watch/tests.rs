//! Watches of an API server that lists what there is and never tells of a change.

use std::convert::Infallible;

use kube::client::Body;
use parking_lot::Mutex;
use portolan_crds::ShardName;
use portolan_runtime::Readiness;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::*;

fn shard(name: &str) -> Value {
    json!({
        "apiVersion": "portolan.dev/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": {
            "name": name,
            "namespace": "ops",
            "uid": name,
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {},
    })
}

/// A client of it. Watches of it are as if the network had swallowed them.
fn api(shards: Arc<Mutex<Vec<Value>>>) -> Client {
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let shards = shards.clone();
        async move {
            let query = request.uri().query().unwrap_or_default();
            if query.contains("watch=") {
                std::future::pending::<()>().await;
            }
            assert!(!query.contains("resourceVersion="), "a list of the store: {query}");
            let is_of_shards = request.uri().path().ends_with("/shardingconfigs");
            let items = if is_of_shards {
                shards.lock().clone()
            } else {
                Vec::new()
            };
            let list = json!({
                "apiVersion": "portolan.dev/v1alpha1",
                "kind": "List",
                "metadata": {"resourceVersion": "1"},
                "items": items,
            });
            let answer = http::Response::builder().body(Body::from(list.to_string().into_bytes()));
            Ok::<_, Infallible>(answer.unwrap())
        }
    });
    Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn who_begins_to_lead_knows_what_a_watch_that_hangs_has_not_told() {
    let shards = Arc::new(Mutex::new(vec![shard("before")]));
    let (client, index, anew) = (api(shards.clone()), Arc::<Index>::default(), Anew::default());
    let (readiness, mut watches) = (Readiness::new(), JoinSet::new());
    for watch in [
        Watch::shards(client.clone()),
        Watch::members(client.clone()),
        Watch::routers(client, "portolan-system"),
    ] {
        let ready = [(); 2].map(|()| readiness.task(watch.resource.kind.clone()));
        watches.spawn(watch.run(index.clone(), ready, Metrics::default(), anew.clone()));
    }
    readiness.wait_ready().await;
    let known = || {
        index.read(|facts| {
            facts
                .shards
                .keys()
                .map(ShardName::name)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(known(), ["before"]);
    *shards.lock() = vec![shard("since")];
    anew.list().await;
    assert_eq!(known(), ["since"]);
}
