//! Heads that hide a second request, and heads that do not end.

use std::time::Duration;

use portolan_testbed::{eventually, patience};
use portolan_tests::door::Door;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::raw::{RawAnswer, endurance, send};
use crate::{heard, world};

/// Well over the head time-out of this fleet's router, well under what nobody set.
const SOON: Duration = Duration::from_secs(12);

/// Sends a POST that a member takes, framed by `framing`, with `body`, and after it a request that must stay unheard: it
/// has no identity, unless the bytes before it lend it theirs.
async fn hide(door: &Door, number: usize, framing: &str, body: &str) -> Vec<RawAnswer> {
    let hidden = format!(
        "GET /clusters/east/api/v1/namespaces/paths/secrets/hidden-{number} HTTP/1.1\r\nHost: {}\r\n\
         Connection: close\r\n\r\n",
        door.address
    );
    let token = door.token.as_ref().unwrap().trim();
    let head = format!(
        "POST /clusters/east/api/v1/namespaces/paths/configmaps?visible={number} HTTP/1.1\r\nHost: {}\r\n\
         Authorization: Bearer {token}\r\nContent-Type: application/json\r\n{framing}\r\n\r\n{body}{hidden}",
        door.address
    );
    send(door, head.as_bytes()).await
}

/// What a client may say about where its body ends, with a body that is a whole object if it is believed.
fn framings() -> Vec<(String, String)> {
    let object = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"seen-"}}"#;
    let chunked = format!("{:x}\r\n{object}\r\n0\r\n\r\n", object.len());
    let length = object.len();
    let te = "Transfer-Encoding: chunked";
    let cases = vec![
        // A pipelined request after an honest body: served as itself, which is nobody.
        (format!("Content-Length: {length}"), object),
        (te.to_owned(), chunked.as_str()),
        // One length for the router, another for whoever reads after it.
        (format!("Content-Length: {length}\r\n{te}"), &chunked),
        (format!("{te}\r\nContent-Length: 4"), &chunked),
        (format!("Content-Length: {}\r\n{te}", chunked.len()), &chunked),
        (format!("Content-Length: {length}\r\nContent-Length: 4"), object),
        (format!("Content-Length: {length}, 4"), object),
        (format!("Content-Length: +{length}"), object),
        (
            format!("Content-Length: {length}\r\nTransfer-Encoding: identity"),
            object,
        ),
        ("Transfer-Encoding: chunked, identity".to_owned(), &chunked),
        ("Transfer-Encoding: xchunked".to_owned(), &chunked),
        (format!("{te}\r\n{te}"), &chunked),
        (
            format!("Transfer-Encoding : chunked\r\nContent-Length: {length}"),
            object,
        ),
        (
            format!("Transfer-Encoding:\x0bchunked\r\nContent-Length: {length}"),
            object,
        ),
        // Obsolete folding, bare line feeds and carriage returns.
        (format!("X-Folded: a\r\n {te}\r\nContent-Length: {length}"), object),
        (
            format!("X-Folded: a\r\n\tContent-Length: 4\r\nContent-Length: {length}"),
            object,
        ),
        (
            format!("X-Bare: a\rContent-Length: 4\r\nContent-Length: {length}"),
            object,
        ),
        (format!("X-Bare: a\nX-Other: b\r\nContent-Length: {length}"), object),
        (
            format!("Content-Length: {length}\r\nConnection: Upgrade\r\nUpgrade: websocket"),
            object,
        ),
    ];
    let owned = |(framing, body): (String, &str)| (framing, body.to_owned());
    cases.into_iter().map(owned).collect()
}

#[tokio::test]
async fn no_second_request_reaches_a_member() {
    let world = world().await;
    let door = world.merged_door("alpha").await.unwrap();
    let cases = framings();
    let count = cases.len();
    for (number, (framing, body)) in cases.into_iter().enumerate() {
        let answers = hide(&door, number, &framing, &body).await;
        let (first, rest) = answers
            .split_first()
            .unwrap_or_else(|| panic!("no answer to {framing:?}"));
        assert!([201, 400, 411, 501].contains(&first.status), "{framing:?}: {first:?}");
        assert!(!first.head.contains("Retry-After"), "{framing:?}");
        for hidden in rest {
            assert!(hidden.status == 401 || hidden.status == 400, "{framing:?}: {hidden:?}");
        }
    }
    eventually("east heard the first", async || heard(world, "east", "visible=0")).await;
    for number in 0..count {
        let word = format!("hidden-{number}");
        assert!(!heard(world, "east", &word), "case {number} reached the member");
    }
}

/// An upgrade that the member refuses leaves its connection with bytes that nobody may read as a request.
#[tokio::test]
async fn nothing_hides_behind_an_upgrade() {
    let world = world().await;
    let door = world.merged_door("alpha").await.unwrap();
    let token = door.token.as_ref().unwrap().trim();
    let hidden = "GET /api/v1/namespaces/paths/secrets/hidden-upgrade HTTP/1.1\r\nHost: x\r\n\r\n".repeat(3);
    for upgrade in ["websocket", "SPDY/3.1", "h2c"] {
        let head = format!(
            "GET /clusters/east/api/v1/namespaces/paths/pods/none/exec?command=x&seen=upgrade HTTP/1.1\r\nHost: {}\r\n\
             Authorization: Bearer {token}\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n{hidden}",
            door.address
        );
        let mut stream = door.connect("http/1.1").await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut seen = vec![0; 4096];
        let read = tokio::time::timeout(patience(), stream.read(&mut seen))
            .await
            .unwrap()
            .unwrap();
        let seen = String::from_utf8_lossy(&seen[..read]).into_owned();
        assert!(seen.starts_with("HTTP/1.1 4"), "{upgrade}: {seen}");
    }
    eventually("east heard the upgrade", async || heard(world, "east", "seen=upgrade")).await;
    assert!(!heard(world, "east", "hidden-upgrade"));
}

#[tokio::test]
async fn half_a_head_is_not_waited_for() {
    let world = world().await;
    let door = world.merged_door("alpha").await.unwrap();
    let half = format!(
        "GET /clusters/east/version HTTP/1.1\r\nHost: {}\r\nX-Half: ",
        door.address
    );
    let (nothing, half, beside) = tokio::join!(
        endurance(&door, b""),
        endurance(&door, half.as_bytes()),
        door.get("/clusters/east/version", &[]),
    );
    assert!(nothing < SOON && half < SOON, "{nothing:?} {half:?}");
    assert!(half >= Duration::from_secs(1), "not at once either: {half:?}");
    assert_eq!(beside.unwrap().status, 200);

    // Nor for half a handshake.
    let mut stream = TcpStream::connect(&door.address).await.unwrap();
    stream.write_all(&[0x16, 0x03, 0x01, 0x02]).await.unwrap();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(SOON, stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "half a TLS record is waited for");
}
