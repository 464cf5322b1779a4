//! What only etcd itself can be asked for.

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use portolan_testbed::Cluster;
use serde_json::{Value, json};
use tokio::net::TcpStream;

/// Makes etcd forget everything but the present.
pub async fn compact(cluster: &Cluster) -> anyhow::Result<()> {
    let ports = std::fs::read(cluster.dir().join("ports.json")).context("no ports")?;
    let ports: Value = serde_json::from_slice(&ports)?;
    let address = format!("127.0.0.1:{}", ports["etcd"]);
    let now = call(&address, "/v3/kv/range", &json!({"key": "AA=="})).await?;
    let revision = &now["header"]["revision"];
    ensure!(revision.is_string(), "{now}");
    call(
        &address,
        "/v3/kv/compaction",
        &json!({"revision": revision, "physical": true}),
    )
    .await
    .map(drop)
}

async fn call(address: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
    let stream = TcpStream::connect(address).await.context("no etcd")?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = http::Request::post(path)
        .header("host", address)
        .body(Full::new(Bytes::from(body.to_string())))
        .context("a request")?;
    let answer = async {
        let answer = sender.send_request(request).await?;
        ensure!(answer.status() == 200, "{path}: {}", answer.status());
        let body = answer.into_body().collect().await?.to_bytes();
        drop(sender);
        anyhow::Ok(serde_json::from_slice(&body)?)
    };
    let (answer, ended) = tokio::join!(answer, connection);
    ended?;
    answer
}
