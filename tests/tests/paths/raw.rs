//! Bytes into a TLS connection, bytes out of it.

use std::time::Duration;

use portolan_testbed::patience;
use portolan_tests::door::Door;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// One answer of HTTP/1.1, as far as tests look.
#[derive(Debug)]
pub(crate) struct RawAnswer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl RawAnswer {
    /// Whether the body is a Status with the answer's own code.
    pub(crate) fn is_status(&self) -> bool {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        body["kind"] == "Status" && body["apiVersion"] == "v1" && body["code"] == self.status
    }
}

/// Sends `bytes` on a new connection and reads until the server ends it; all answers, in order.
pub(crate) async fn send(door: &Door, bytes: &[u8]) -> Vec<RawAnswer> {
    let mut stream = door.connect("http/1.1").await.unwrap();
    // A server that refuses a head need not read the rest.
    let _ = stream.write_all(bytes).await;
    let mut read = Vec::new();
    // A connection that is cut without a close of TLS is an end too.
    let reading = tokio::time::timeout(patience(), stream.read_to_end(&mut read)).await;
    assert!(
        reading.is_ok(),
        "the connection stays open after {:?}",
        String::from_utf8_lossy(&read)
    );
    answers(&read)
}

/// The only answer, where there must be one.
pub(crate) async fn send_one(door: &Door, bytes: &[u8]) -> RawAnswer {
    let mut answers = send(door, bytes).await;
    assert_eq!(answers.len(), 1, "{answers:?} to {:?}", String::from_utf8_lossy(bytes));
    answers.remove(0)
}

fn answers(mut bytes: &[u8]) -> Vec<RawAnswer> {
    let mut answers = Vec::new();
    while let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        bytes = &bytes[end + 4..];
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse().unwrap())
        });
        let length: usize = length.unwrap_or(if head.contains("chunked") { bytes.len() } else { 0 });
        let (body, rest) = bytes.split_at(length.min(bytes.len()));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        answers.push(RawAnswer {
            status,
            head,
            body: body.to_vec(),
        });
        bytes = rest;
    }
    answers
}

/// How long the server keeps a connection on which `bytes` is all that comes.
pub(crate) async fn endurance(door: &Door, bytes: &[u8]) -> Duration {
    let mut stream = door.connect("http/1.1").await.unwrap();
    let began = std::time::Instant::now();
    stream.write_all(bytes).await.unwrap();
    let mut read = Vec::new();
    let reading = tokio::time::timeout(patience(), stream.read_to_end(&mut read)).await;
    assert!(reading.is_ok(), "it waits for ever");
    began.elapsed()
}
