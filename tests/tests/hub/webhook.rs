//! The admission webhook, asked by a real API server on connections that it keeps.

use std::time::{Duration, Instant};

use futures::future;
use kube::api::{Api, Patch, PatchParams};
use portolan_crds::ShardingConfig;
use portolan_runtime::tls::STRANGER_LIFE;
use portolan_tests::hub_cluster::NAMESPACE;
use serde_json::json;

use crate::scene::{Scene, shard_spec};

/// Writes at a time: the API server has connections enough for some to be in use whenever one is cut.
const WRITERS: usize = 4;
/// Past the end of the first connections, and of those after them.
const MORE: Duration = Duration::from_secs(5);

/// A connection without a client certificate is cut after some time, and the API server's is one: it is told to leave before, so that
/// nobody's write fails.
#[tokio::test]
async fn no_write_is_refused_as_a_connection_of_the_webhook_ends() {
    let scene = Scene::start().await.unwrap();
    scene.shard("asked", shard_spec("east", &["ns-a"])).await;
    let shards = Api::<ShardingConfig>::namespaced(scene.client().await, NAMESPACE);
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::apply("test").force()
    };
    let object = json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "ShardingConfig",
        "metadata": {"name": "asked", "namespace": NAMESPACE}, "spec": shard_spec("east", &["ns-a", "ns-b"]),
    });
    let until = Instant::now() + STRANGER_LIFE + MORE;
    let writers = (0..WRITERS).map(|_| async {
        let mut written = 0;
        while Instant::now() < until {
            let write = shards.patch("asked", &params, &Patch::Apply(&object)).await;
            write.unwrap_or_else(|error| panic!("after {written} writes: {error}"));
            written += 1;
        }
        written
    });
    let written = future::join_all(writers).await;
    assert!(written.iter().all(|count| *count > 1), "{written:?}");
}
