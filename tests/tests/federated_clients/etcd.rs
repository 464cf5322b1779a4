//! What only etcd itself can be asked for.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use portolan_testbed::Cluster;
use serde_json::{Value, json};
use tokio::net::TcpStream;

/// Makes etcd forget everything but the present.
pub(crate) async fn compact(cluster: &Cluster) {
    let ports = std::fs::read(cluster.dir().join("ports.json")).unwrap();
    let ports: Value = serde_json::from_slice(&ports).unwrap();
    let address = format!("127.0.0.1:{}", ports["etcd"]);
    let now = call(&address, "/v3/kv/range", &json!({"key": "AA=="})).await;
    let revision = &now["header"]["revision"];
    assert!(revision.is_string(), "{now}");
    call(
        &address,
        "/v3/kv/compaction",
        &json!({"revision": revision, "physical": true}),
    )
    .await;
}

async fn call(address: &str, path: &str, body: &Value) -> Value {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    let request = http::Request::post(path)
        .header("host", address)
        .body(Full::new(Bytes::from(body.to_string())))
        .unwrap();
    let answer = async {
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        drop(sender);
        serde_json::from_slice(&body).unwrap()
    };
    let (answer, ended) = tokio::join!(answer, connection);
    ended.unwrap();
    answer
}
