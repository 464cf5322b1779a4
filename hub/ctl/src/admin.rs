//! One question to a program's admin server. Called by `router`, `shards` and, while a fleet starts, by `dev`.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::Request;
use http::header::{CONTENT_TYPE, HOST};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_secs(10);
/// A router with ten thousand watches of five legs each tells about 10 MB of them.
const ANSWER_MAX: usize = 64 << 20;

/// A page of a program (`the router`), as JSON.
pub(crate) async fn ask(program: &str, address: &str, path_and_query: &str) -> anyhow::Result<Value> {
    let answer = get(address, path_and_query).await;
    read(program, answer.with_context(|| cannot_ask(program, address))?)
}

/// What a program makes of JSON that is sent to one of its pages.
pub(crate) async fn send(program: &str, address: &str, path: &str, question: &Value) -> anyhow::Result<Value> {
    let answer = post(address, path, question.to_string().into_bytes()).await;
    read(program, answer.with_context(|| cannot_ask(program, address))?)
}

fn cannot_ask(program: &str, address: &str) -> String {
    format!("cannot ask {program}'s admin port at {address}")
}

fn read(program: &str, (code, body): (u16, Bytes)) -> anyhow::Result<Value> {
    let answer: Value = serde_json::from_slice(&body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).trim().to_owned()));
    if code != 200 {
        bail!(
            "{program} answered {code}: {}",
            answer["error"].as_str().or(answer.as_str()).unwrap_or("no reason")
        );
    }
    Ok(answer)
}

/// One GET of an admin server: plain HTTP, bounded in time and size.
pub(crate) async fn get(address: &str, path_and_query: &str) -> anyhow::Result<(u16, Bytes)> {
    exchange(address, Request::get(path_and_query), Bytes::new()).await
}

/// One POST of JSON, in the same way.
async fn post(address: &str, path_and_query: &str, json: Vec<u8>) -> anyhow::Result<(u16, Bytes)> {
    let request = Request::post(path_and_query).header(CONTENT_TYPE, "application/json");
    exchange(address, request, json.into()).await
}

async fn exchange(address: &str, request: http::request::Builder, body: Bytes) -> anyhow::Result<(u16, Bytes)> {
    let exchange = async {
        let stream = TcpStream::connect(address).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let request = request.header(HOST, address).body(Full::new(body))?;
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

/// What stays as it is in a query value: the unreserved characters of RFC 3986, and slashes.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// Percent-encodes a query value.
pub(crate) fn encode(text: &str) -> impl std::fmt::Display {
    utf8_percent_encode(text, PLAIN)
}
