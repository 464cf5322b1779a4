//! One GET of a program's admin server. Called by `router` and, while a fleet starts, by `dev`.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_secs(10);
/// A router with ten thousand watches of five legs each tells about 10 MB of them.
const ANSWER_MAX: usize = 64 << 20;

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
