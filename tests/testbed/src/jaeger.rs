//! A real Jaeger (in-memory, without its web pages) for tests that read back the traces they made.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::eventually::{patience, within};
use crate::port::Port;
use crate::process::{Process, Scratch};
use crate::tools::Bundle;

/// API servers and etcd that trace everything make some hundred a second.
const MAX_TRACES: u32 = 200_000;
/// How far back dependencies are looked for.
const HOUR: Duration = Duration::from_hours(1);

/// A running Jaeger. Dropping it ends it.
#[derive(Debug)]
pub struct Jaeger {
    /// Where programs send spans: OTLP over gRPC.
    pub otlp_grpc_url: String,
    /// The query API.
    pub query_url: String,
    query: Port,
    _otlp: Port,
    process: Process,
    _scratch: Scratch,
}

impl Jaeger {
    /// Builds Jaeger if need be, starts it, and returns once it answers queries.
    pub async fn start() -> Result<Self> {
        Self::start_with(None).await
    }

    /// Starts `program`, an all-in-one Jaeger 1.x, in place of the one built here: a released one has web pages.
    pub async fn start_with(program: Option<PathBuf>) -> Result<Self> {
        let program = match program {
            Some(program) => program,
            None => Bundle::JAEGER.ready().await?.join("bin/jaeger"),
        };
        let scratch = Scratch::new()?;
        let (otlp, query) = (Port::reserve(None)?, Port::reserve(None)?);
        let process = Process::spawn(&program, &flags(&otlp, &query), &scratch.path().join("jaeger.log"))?;
        let [otlp_grpc_url, query_url] = [&otlp, &query].map(|port| format!("http://127.0.0.1:{}", port.number()));
        let jaeger = Self {
            otlp_grpc_url,
            query_url,
            query,
            _otlp: otlp,
            process,
            _scratch: scratch,
        };
        match within(patience(), || jaeger.get("/api/services")).await {
            Ok(_) => Ok(jaeger),
            Err(last) => bail!("Jaeger does not answer: {last}\n{}", jaeger.process.describe()),
        }
    }

    /// The latest traces of `service`, as `/api/traces` gives them: an array under `data`, maybe empty.
    pub async fn traces(&self, service: &str) -> Result<Value> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        ensure!(service.bytes().all(plain), "{service:?} would need escaping in a query");
        self.get(&format!("/api/traces?service={service}&limit=1000")).await
    }

    /// The latest traces with a span of this service and name, as [`traces`](Self::traces).
    pub async fn find(&self, service: &str, operation: &str) -> Result<Value> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let escaped = |byte: u8| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        };
        let [service, operation] = [service, operation].map(|text| text.bytes().map(escaped).collect::<String>());
        self.get(&format!(
            "/api/traces?service={service}&operation={operation}&limit=200"
        ))
        .await
    }

    /// Which service calls which, over all traces of the last hour: what its architecture page draws.
    pub async fn dependencies(&self) -> Result<Vec<(String, String)>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
        let answer = self
            .get(&format!("/api/dependencies?endTs={now}&lookback={}", HOUR.as_millis()))
            .await?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let links = answer["data"].as_array().into_iter().flatten();
        Ok(links
            .map(|link| (text(&link["parent"]), text(&link["child"])))
            .collect())
    }

    /// One trace by its hex id; an error while it is unknown.
    pub async fn trace(&self, id: &str) -> Result<Value> {
        self.get(&format!("/api/traces/{id}")).await
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let answer = timeout(patience(), fetch(self.query.number(), path)).await;
        let (status, body) = answer.with_context(|| format!("{path} took too long"))??;
        ensure!(status == 200, "{path}: {status} {body}");
        serde_json::from_str(&body).with_context(|| format!("{path}: {body}"))
    }
}

/// Every port it would open: two of ours, the rest any free one on the loopback address.
fn flags(otlp: &Port, query: &Port) -> Vec<String> {
    let any = 0;
    [
        ("collector.otlp.grpc.host-port", otlp.number()),
        ("query.http-server.host-port", query.number()),
        ("collector.otlp.http.host-port", any),
        ("collector.grpc-server.host-port", any),
        ("collector.http-server.host-port", any),
        ("query.grpc-server.host-port", any),
        ("admin.http.host-port", any),
        ("http-server.host-port", any),
        ("processor.jaeger-binary.server-host-port", any),
        ("processor.jaeger-compact.server-host-port", any),
        ("processor.zipkin-compact.server-host-port", any),
    ]
    .map(|(flag, port)| format!("--{flag}=127.0.0.1:{port}"))
    .into_iter()
    .chain([format!("--memory.max-traces={MAX_TRACES}")])
    .collect()
}

/// One GET over HTTP/1.0, where the body ends with the connection: too little to want an HTTP client for.
async fn fetch(port: u16, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())
        .await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8(answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a head")?;
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .context("an answer without a status")?;
    Ok((status, body.to_owned()))
}
