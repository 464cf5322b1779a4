//! One question to a program's admin server. Called by `router` and, while a fleet starts, by `dev`.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::Request;
use http::header::{CONTENT_TYPE, HOST};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_secs(10);
/// A router with ten thousand watches of five legs each tells about 10 MB of them.
const ANSWER_MAX: usize = 64 << 20;

/// One GET of an admin server: plain HTTP, bounded in time and size.
pub(crate) async fn get(address: &str, path_and_query: &str) -> anyhow::Result<(u16, Bytes)> {
    exchange(address, Request::get(path_and_query), Bytes::new()).await
}

/// One POST of JSON, in the same way.
pub(crate) async fn post(address: &str, path_and_query: &str, json: Vec<u8>) -> anyhow::Result<(u16, Bytes)> {
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
