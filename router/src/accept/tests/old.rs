//! Connections that are as old as they may become: no request fails, and what runs goes on.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::client::SendRequest;
use portolan_runtime::tls;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;

use super::PATIENCE;
use crate::edge::harness::{Bounds, Router, ask};
use crate::resource::upstream::scripted::{Backend, Script, head, plain, script, spawn};

const PODS: &str = "/clusters/east/api/v1/namespaces/ns/pods";
const EVENT: &[u8] = b"{\"type\":\"ADDED\"}\n";

async fn start(age: Duration, members: Script) -> (Backend, Router) {
    let backend = Backend::start(100, members).await;
    let bounds = Bounds {
        connection_age: Some(age),
        ..Bounds::default()
    };
    let router = Router::start([backend.target("east")], bounds).await;
    (backend, router)
}

/// A watch with one event at once, one when told, and then its end; all else is answered at once.
fn told(next: Arc<Notify>) -> Script {
    script(move |request, mut respond| {
        let next = next.clone();
        async move {
            let watch = request.uri().to_string().contains("watch");
            let mut body = respond.send_response(head(200), false).unwrap();
            if !watch {
                return body.send_data(Bytes::from_static(b"{}"), true).unwrap();
            }
            body.send_data(Bytes::from_static(EVENT), false).unwrap();
            next.notified().await;
            body.send_data(Bytes::from_static(EVENT), true).unwrap();
        }
    })
}

/// Asks again and again, until the client is told to ask elsewhere; how often it was answered.
async fn until_told(mut sender: SendRequest<Bytes>) -> usize {
    let mut answered = 0;
    let told = loop {
        sender = match sender.ready().await {
            Ok(ready) => ready,
            Err(told) => break told,
        };
        let asked = match sender.send_request(ask("GET", PODS, "").map(drop), true) {
            Ok((answer, _)) => answer.await,
            Err(told) => break told,
        };
        match asked {
            Ok(answer) => assert_eq!(answer.status(), 200),
            Err(told) => break told,
        }
        answered += 1;
    };
    // What it says of a request: that was not looked at, and may be made again.
    assert!(told.is_go_away() && told.is_remote(), "{told:?}");
    assert_eq!(told.reason(), Some(h2::Reason::NO_ERROR));
    answered
}

/// The next bytes; none at the end.
async fn next(watch: &mut RecvStream) -> Bytes {
    let data = tokio::time::timeout(PATIENCE, watch.data()).await.expect("in time");
    data.map(|data| data.expect("no reset")).unwrap_or_default()
}

#[tokio::test]
async fn over_http_2_what_runs_goes_on_and_new_requests_go_elsewhere() {
    let more = Arc::<Notify>::default();
    let (backend, router) = start(Duration::from_secs(3), told(more.clone())).await;
    let stream = router.connect(tls::ALPN_GRPC).await;
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = spawn(async move { connection.await.unwrap() });
    let watch = ask("GET", &format!("{PODS}?watch=1"), "").map(drop);
    let (watch, _) = sender.send_request(watch, true).unwrap();
    let mut watch = watch.await.unwrap().into_body();
    assert_eq!(next(&mut watch).await, EVENT);

    let answered = tokio::time::timeout(PATIENCE, until_told(sender)).await;
    let answered = answered.expect("the client is told");
    assert!(answered > 0);
    assert_eq!(
        backend.seen.requests(),
        1 + answered,
        "what was not answered was not done"
    );

    assert!(!connection.is_finished());
    more.notify_one();
    assert_eq!(next(&mut watch).await, EVENT);
    assert_eq!(next(&mut watch).await, "", "an orderly end");
    let ended = tokio::time::timeout(PATIENCE, connection).await;
    ended.expect("nothing runs on it any more").unwrap();
}

#[tokio::test]
async fn over_http_1_the_next_answer_says_so_and_an_idle_connection_is_not_closed() {
    const ASK: &[u8] = b"GET /livez HTTP/1.1\r\nHost: r\r\n\r\n";
    const AGE: Duration = Duration::from_secs(3);
    let (_backend, router) = start(AGE, plain()).await;
    let mut stream = router.connect(tls::ALPN_HTTP1).await;
    let mut buffer = [0; 4096];
    stream.write_all(ASK).await.unwrap();
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await.unwrap();
    let young = String::from_utf8_lossy(&buffer[..read.unwrap()]).into_owned();
    assert!(
        young.starts_with("HTTP/1.1 200") && !young.contains("connection"),
        "{young}"
    );

    let silent = tokio::time::timeout(2 * AGE, stream.read(&mut buffer)).await;
    assert!(silent.is_err(), "closed under the next request: {silent:?}");

    stream.write_all(ASK).await.unwrap();
    let mut rest = String::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut rest)).await;
    read.expect("closed after the answer").unwrap();
    assert!(
        rest.starts_with("HTTP/1.1 200") && rest.contains("connection: close"),
        "{rest}"
    );
}

#[tokio::test]
async fn a_drain_ends_the_watches_of_an_old_connection() {
    let (_backend, router) = start(Duration::from_secs(3), plain()).await;
    let stream = router.connect(tls::ALPN_GRPC).await;
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    spawn(async move {
        let _ = connection.await;
    });
    let watch = ask("GET", &format!("{PODS}?watch=1"), "").map(drop);
    let (watch, _) = sender.send_request(watch, true).unwrap();
    let mut watch = watch.await.unwrap().into_body();
    assert_eq!(next(&mut watch).await, EVENT);
    tokio::time::timeout(PATIENCE, until_told(sender)).await.expect("old");

    let (report, end) = tokio::join!(router.tasks.shutdown(Duration::from_secs(10)), next(&mut watch));
    assert_eq!(end, "", "an orderly end");
    assert!(report.cut.is_empty(), "{report:?}");
}
