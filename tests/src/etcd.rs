//! What only etcd itself can be asked for.

use std::collections::VecDeque;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use portolan_testbed::Cluster;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// What became of one key.
#[derive(Clone, Debug)]
pub struct Change {
    /// The key as text.
    pub key: String,
    /// The revision of the change, which is the resourceVersion of an object that was written.
    pub revision: u64,
    /// There was no such key before.
    pub is_new: bool,
    /// `None`: it was deleted.
    pub value: Option<Vec<u8>>,
}

/// Everything that happened to the keys with a prefix since etcd began, and what happens to them from now on, in order and without
/// a hole: API servers may come and go meanwhile.
#[derive(Debug)]
pub struct Changes {
    answer: Incoming,
    rest: BytesMut,
    waiting: VecDeque<Change>,
    /// Carries the connection.
    _driver: JoinSet<()>,
}

impl Changes {
    /// Begins with the first change that there was; etcd must not have forgotten any (`--etcd-compaction-interval=0`).
    pub async fn of(cluster: &Cluster, prefix: &str) -> anyhow::Result<Self> {
        let address = address(cluster)?;
        let stream = TcpStream::connect(&address).await.context("no etcd")?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // Its end is seen in the answer.
            let _ = connection.await;
        });
        let (key, end) = range(prefix);
        let asked = json!({"create_request": {"key": key, "range_end": end, "start_revision": 1}});
        let answer = sender.send_request(post(&address, "/v3/watch", &asked)?).await?;
        ensure!(answer.status() == 200, "/v3/watch: {}", answer.status());
        Ok(Self {
            answer: answer.into_body(),
            rest: BytesMut::new(),
            waiting: VecDeque::new(),
            _driver: driver,
        })
    }

    /// The next change, however long it takes.
    pub async fn next(&mut self) -> anyhow::Result<Change> {
        loop {
            if let Some(change) = self.waiting.pop_front() {
                return Ok(change);
            }
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line = self.rest.split_to(end + 1);
                self.take(&serde_json::from_slice(&line)?)?;
                continue;
            }
            let frame = self.answer.frame().await.context("etcd has ended the watch")??;
            self.rest.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
    }

    fn take(&mut self, told: &Value) -> anyhow::Result<()> {
        let result = &told["result"];
        ensure!(result.is_object() && result["canceled"] != true, "etcd says {told}");
        for event in result["events"].as_array().into_iter().flatten() {
            let kv = &event["kv"];
            let value = if event["type"] == "DELETE" {
                None
            } else {
                Some(bytes_of(&kv["value"])?)
            };
            self.waiting.push_back(Change {
                key: String::from_utf8(bytes_of(&kv["key"])?)?,
                revision: number(&kv["mod_revision"])?,
                is_new: kv["create_revision"] == kv["mod_revision"],
                value,
            });
        }
        Ok(())
    }
}

/// The present revision: what is written from now on has a higher one.
pub async fn revision(cluster: &Cluster) -> anyhow::Result<u64> {
    let now = call(&address(cluster)?, "/v3/kv/range", &json!({"key": "AA=="})).await?;
    number(&now["header"]["revision"])
}

/// The revision of the last change to any key with this prefix that is there; zero if none is.
pub async fn last_change(cluster: &Cluster, prefix: &str) -> anyhow::Result<u64> {
    let (key, end) = range(prefix);
    let asked = json!({"key": key, "range_end": end, "limit": 1, "keys_only": true, "sort_order": "DESCEND", "sort_target": "MOD"});
    let found = call(&address(cluster)?, "/v3/kv/range", &asked).await?;
    found["kvs"].get(0).map_or(Ok(0), |kv| number(&kv["mod_revision"]))
}

/// Makes etcd forget everything but the present.
pub async fn compact(cluster: &Cluster) -> anyhow::Result<()> {
    let body = json!({"revision": revision(cluster).await?, "physical": true});
    call(&address(cluster)?, "/v3/kv/compaction", &body).await.map(drop)
}

fn address(cluster: &Cluster) -> anyhow::Result<String> {
    let ports = std::fs::read(cluster.dir().join("ports.json")).context("no ports")?;
    let ports: Value = serde_json::from_slice(&ports)?;
    Ok(format!("127.0.0.1:{}", ports["etcd"]))
}

/// First key and end of the range of a prefix, as etcd is told them.
fn range(prefix: &str) -> (String, String) {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        // Prefixes are ASCII.
        *last += 1;
    }
    (BASE64.encode(prefix), BASE64.encode(end))
}

fn bytes_of(text: &Value) -> anyhow::Result<Vec<u8>> {
    Ok(BASE64.decode(text.as_str().unwrap_or_default())?)
}

/// 64 bits are text in etcd's JSON.
fn number(text: &Value) -> anyhow::Result<u64> {
    text.as_str().context("no number")?.parse().context("no number")
}

fn post(address: &str, path: &str, body: &Value) -> anyhow::Result<http::Request<Full<Bytes>>> {
    let request = http::Request::post(path).header("host", address);
    request
        .body(Full::new(Bytes::from(body.to_string())))
        .context("a request")
}

async fn call(address: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
    let stream = TcpStream::connect(address).await.context("no etcd")?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = post(address, path, body)?;
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
