//! Asks the admin server of a program, mostly a router's. Called by `explain`, `watch_state`, `kinds` and `dev`.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::cli::RouterArgs;
use crate::dev::fleet::Fleet;

const TIMEOUT: Duration = Duration::from_secs(10);
/// A router with ten thousand watches of five legs each tells about 10 MB of them.
const ANSWER_MAX: usize = 64 << 20;

/// A page of a router, as JSON.
pub(crate) async fn ask(router: &RouterArgs, path_and_query: &str) -> anyhow::Result<Value> {
    let admin = match &router.dir {
        Some(dir) => Fleet::read(dir)?.router_admin,
        None => router.router_admin.clone(),
    };
    let (code, body) = get(&admin, path_and_query)
        .await
        .with_context(|| format!("cannot ask the router's admin port at {admin}"))?;
    let answer: Value = serde_json::from_slice(&body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).trim().to_owned()));
    if code != 200 {
        bail!(
            "the router answered {code}: {}",
            answer["error"].as_str().or(answer.as_str()).unwrap_or("no reason")
        );
    }
    Ok(answer)
}

/// One GET of an admin server: plain HTTP, bounded in time and size.
pub(crate) async fn get(address: &str, path_and_query: &str) -> anyhow::Result<(u16, Bytes)> {
    let exchange = async {
        let stream = TcpStream::connect(address).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let request = http::Request::get(path_and_query)
            .header(http::header::HOST, address)
            .body(Empty::<Bytes>::new())?;
        let answer = async move {
            let response = sender.send_request(request).await?;
            let code = response.status().as_u16();
            let body = Limited::new(response.into_body(), ANSWER_MAX)
                .collect()
                .await
                .map_err(|error| anyhow::anyhow!(error))?;
            anyhow::Ok((code, body.to_bytes()))
        };
        let (_, answer) = tokio::join!(connection, answer);
        answer
    };
    tokio::time::timeout(TIMEOUT, exchange)
        .await
        .context("no answer in time")?
}

/// Percent-encodes a query value (RFC 3986 unreserved stay).
pub(crate) fn encode(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}
