//! What an unknown client can do to the listener, and what becomes of old connections (`old`).

mod old;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use h2::SendStream;
use http_body_util::BodyExt as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use portolan_runtime::tls;
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::edge::harness::{Bounds, Router, ask};
use crate::resource::upstream::scripted::{Backend, Script, head, plain, script, spawn};

const PATIENCE: Duration = Duration::from_secs(20);

/// Writes raw HTTP/1.1 and reads until the router closes, or has been silent for a moment.
async fn raw(router: &Router, bytes: &[u8]) -> String {
    for _ in 0..20 {
        let (answer, reset) = once(router, bytes).await;
        // Who is refused before all of it was read may be reset before it reads the answer, as TCP has it.
        if !answer.is_empty() || !reset {
            return answer;
        }
    }
    panic!("reset each time");
}

/// What was answered, and whether the connection was reset.
async fn once(router: &Router, bytes: &[u8]) -> (String, bool) {
    let mut stream = router.connect(tls::ALPN_HTTP1).await;
    let mut reset = stream.write_all(bytes).await.is_err();
    let mut all = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    // Everybody here is answered; only what may follow the answer is not waited for.
    let mut wait = PATIENCE;
    while let Ok(read) = tokio::time::timeout(wait, stream.read(&mut buffer)).await {
        reset |= read.is_err();
        let Ok(read @ 1..) = read else { break };
        all.extend_from_slice(&buffer[..read]);
        wait = Duration::from_millis(200);
    }
    (String::from_utf8_lossy(&all).into_owned(), reset)
}

async fn start(bounds: Bounds) -> (Backend, Router) {
    let backend = Backend::start(100, plain()).await;
    let router = Router::start([backend.target("east")], bounds).await;
    (backend, router)
}

#[tokio::test]
async fn half_a_head_is_not_waited_for() {
    let (_backend, router) = start(Bounds {
        head_timeout: Duration::from_millis(100),
        ..Bounds::default()
    })
    .await;
    let mut stream = router.connect(tls::ALPN_HTTP1).await;
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: r").await.unwrap();
    let mut answer = Vec::new();
    let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    assert!(closed.is_ok(), "the connection is closed");
}

#[tokio::test]
async fn a_client_that_never_speaks_tls_is_let_go() {
    let (_backend, router) = start(Bounds::default()).await;
    let mut stream = TcpStream::connect(router.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("closed");
}

#[tokio::test]
async fn heads_are_bounded() {
    let (backend, router) = start(Bounds::default()).await;
    let with = |header: usize| format!("GET /livez HTTP/1.1\r\nHost: r\r\nx: {}\r\n\r\n", "y".repeat(header));
    for (kib, status, told) in [
        (70, "200", "ok"),
        (1000, "200", "ok"),
        (1100, "431", "\"kind\":\"Status\""),
        (3000, "431", ""),
    ] {
        let answer = raw(&router, with(kib << 10).as_bytes()).await;
        let expected = format!("HTTP/1.1 {status}");
        assert!(
            answer.starts_with(&expected) && answer.contains(told),
            "{kib}: {answer}"
        );
    }
    let many = format!("GET /livez HTTP/1.1\r\nHost: r\r\n{}\r\n", "x: y\r\n".repeat(1_000));
    assert!(raw(&router, many.as_bytes()).await.starts_with("HTTP/1.1 200"));
    let path = format!("GET /livez?{} HTTP/1.1\r\nHost: r\r\n\r\n", "y".repeat(60 << 10));
    let fits = raw(&router, path.as_bytes()).await;
    assert!(fits.starts_with("HTTP/1.1 200"), "{fits}");
    assert_eq!(backend.seen.requests(), 0);
}

/// As an HTTP/2 client sends it, in as many frames as it takes.
#[tokio::test]
async fn a_large_head_over_http_2_is_served_or_refused_by_a_status() {
    let (_backend, router) = start(Bounds::default()).await;
    for config in [
        None,
        Some(tls::client_config(router.trust.clone(), None, tls::ALPN_GRPC).unwrap()),
    ] {
        let stream = match config {
            None => router.connect(tls::ALPN_GRPC).await,
            // Nobody knows whose it is.
            Some(config) => router.connect_with(config).await,
        };
        let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
        spawn(async move {
            let _ = connection.await;
        });
        for (kib, status) in [(70, 200), (1_000, 200), (1_100, 431), (5, 200)] {
            let mut request = ask("GET", "/livez", "").map(drop);
            let long = "y".repeat(kib << 10);
            request.headers_mut().insert("x-long", long.parse().unwrap());
            sender = sender.ready().await.unwrap();
            let (answer, _) = sender.send_request(request, true).unwrap();
            let answer = tokio::time::timeout(PATIENCE, answer).await.expect("an answer");
            assert_eq!(answer.unwrap().status(), status, "{kib} KiB");
        }
        let mut request = ask("GET", "/livez", "").map(drop);
        for _ in 0..5_000 {
            request.headers_mut().append("x", "y".parse().unwrap());
        }
        let (answer, _) = sender.send_request(request, true).unwrap();
        assert_eq!(answer.await.unwrap().status(), 200, "however many there are");
    }
}

#[tokio::test]
async fn health_checks_of_load_balancers_need_no_host_and_no_identity() {
    let (backend, router) = start(Bounds::default()).await;
    for (request, status) in [
        ("GET /livez HTTP/1.0\r\n\r\n", "200"),
        ("OPTIONS / HTTP/1.0\r\n\r\n", "405"),
        ("OPTIONS / HTTP/1.1\r\nHost: r\r\n\r\n", "405"),
        ("GET /livez HTTP/1.1\r\n\r\n", "400"),
    ] {
        let answer = raw(&router, request.as_bytes()).await;
        let answered = answer.split(' ').nth(1);
        assert_eq!(answered, Some(status), "{request}: {answer}");
    }
    assert_eq!(backend.seen.requests(), 0);
}

#[tokio::test]
async fn an_idle_connection_outlives_the_time_for_a_head() {
    let (_backend, router) = start(Bounds {
        head_timeout: Duration::from_millis(200),
        ..Bounds::default()
    })
    .await;
    let mut stream = router.connect(tls::ALPN_HTTP1).await;
    let mut buffer = [0; 4096];
    for _ in 0..3 {
        stream
            .write_all(b"GET /livez HTTP/1.1\r\nHost: r\r\n\r\n")
            .await
            .unwrap();
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await.unwrap();
        assert!(buffer[..read.unwrap()].starts_with(b"HTTP/1.1 200"));
        let silent = tokio::time::timeout(Duration::from_millis(500), stream.read(&mut buffer)).await;
        assert!(silent.is_err(), "it stays: {silent:?}");
    }
    // The next head has its own time, from its first byte.
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: r").await.unwrap();
    let closed = tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await;
    assert!(matches!(closed, Ok(Ok(0) | Err(_))), "{closed:?}");
}

/// Closed under a request that is on its way, that one fails.
#[tokio::test]
async fn a_drain_waits_for_what_is_on_its_way_over_http_1() {
    let (_backend, router) = start(Bounds::default()).await;
    let mut stream = router.connect(tls::ALPN_HTTP1).await;
    let mut idle = router.connect(tls::ALPN_HTTP1).await;
    let mut buffer = [0; 4096];
    let mut told = String::new();
    for drains in [false, true] {
        if drains {
            router.tasks.cancel();
            // All that follows from it has happened.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let asks = b"GET /livez HTTP/1.1\r\nHost: r\r\n\r\n";
        stream.write_all(asks).await.unwrap();
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await.unwrap();
        told = String::from_utf8_lossy(&buffer[..read.unwrap()]).into_owned();
        assert!(told.starts_with("HTTP/1.1 "), "{told}");
        assert_eq!(told.contains("connection: close"), drains, "{told}");
    }
    let closed = tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await;
    assert!(matches!(closed, Ok(Ok(0) | Err(_))), "{closed:?} after {told}");
    // One that nobody uses is let go.
    let closed = tokio::time::timeout(PATIENCE, idle.read(&mut buffer)).await;
    assert!(matches!(closed, Ok(Ok(0) | Err(_))), "{closed:?}");
}

#[tokio::test]
async fn no_second_request_is_smuggled_to_a_member() {
    const PATH: &str = "/clusters/east/api/v1/namespaces/ns/pods";
    const SMUGGLED: &str = "GET /clusters/east/api/v1/secrets HTTP/1.1\r\nHost: r\r\n\r\n";
    let (backend, router) = start(Bounds::default()).await;
    for (what, head, most) in [
        (
            "length and chunks",
            format!(
                "POST {PATH} HTTP/1.1\r\nHost: r\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            ),
            2,
        ),
        (
            "two lengths",
            format!("POST {PATH} HTTP/1.1\r\nHost: r\r\nContent-Length: 0\r\nContent-Length: 60\r\n\r\n"),
            0,
        ),
        (
            "a folded header",
            format!("GET {PATH} HTTP/1.1\r\nHost: r\r\nx: a\r\n b\r\n\r\n"),
            0,
        ),
        ("no host", format!("GET {PATH} HTTP/1.1\r\n\r\n"), 1),
        (
            "two hosts",
            format!("GET {PATH} HTTP/1.1\r\nHost: r\r\nHost: s\r\n\r\n"),
            1,
        ),
        (
            "a foreign absolute form",
            format!("GET http://foreign{PATH} HTTP/1.1\r\nHost: r\r\n\r\n"),
            1,
        ),
    ] {
        let before = backend.seen.requests();
        let answer = raw(&router, format!("{head}{SMUGGLED}").as_bytes()).await;
        let reached = backend.seen.requests() - before;
        // What follows a whole request is the client's own next one, in its own name; inside one it is never split off.
        assert!(
            reached <= most,
            "{what}: {reached} requests reached the member, {answer}"
        );
        assert!(
            answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.1 2"),
            "{what}: {answer:?}"
        );
    }
}

#[tokio::test]
async fn connections_are_capped() {
    let (_backend, router) = start(Bounds {
        max_connections: 1,
        ..Bounds::default()
    })
    .await;
    let held = router.connect(tls::ALPN_HTTP1).await;
    let mut second = TcpStream::connect(router.address).await.unwrap();
    let mut answer = [0; 1];
    let read = tokio::time::timeout(PATIENCE, second.read(&mut answer))
        .await
        .expect("closed at once");
    assert!(!matches!(read, Ok(1..)), "{read:?}");
    drop(held);
    let again = async {
        loop {
            let mut stream = TcpStream::connect(router.address).await.unwrap();
            let read = tokio::time::timeout(Duration::from_millis(20), stream.read(&mut answer)).await;
            if read.is_err() {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, again)
        .await
        .expect("the place is free again");
}

/// Answers everything with events for as long as the router takes them; `flowing` counts those answers.
fn flood(flowing: Arc<AtomicUsize>) -> Script {
    script(move |_, mut respond| {
        let flowing = flowing.clone();
        async move {
            let mut body = respond.send_response(head(200), false).unwrap();
            flowing.fetch_add(1, Ordering::SeqCst);
            while write_event(&mut body).await {}
            flowing.fetch_sub(1, Ordering::SeqCst);
        }
    })
}

/// False once the stream was reset.
async fn write_event(body: &mut SendStream<Bytes>) -> bool {
    const EVENT: &[u8] = &[b' '; 1 << 10];
    body.reserve_capacity(EVENT.len());
    let granted = std::future::poll_fn(|cx| body.poll_capacity(cx)).await;
    let Some(Ok(granted)) = granted else { return false };
    body.send_data(Bytes::from_static(&EVENT[..granted.min(EVENT.len())]), false)
        .is_ok()
}

/// Reads some of a flood over HTTP/2 and is then gone with a RST, as a killed process with unread bytes is.
async fn killed_while_reading(router: &Router) {
    let stream = router.connect(tls::ALPN_GRPC).await;
    SockRef::from(stream.get_ref().0)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    let connection = spawn(async move {
        let _ = connection.await;
    });
    let path = "/clusters/east/api/v1/namespaces/ns/pods?watch=1";
    let mut answer = sender.send_request(ask("GET", path, "")).await.unwrap().into_body();
    let mut read = 0;
    while read < 64 << 10 {
        read += answer
            .frame()
            .await
            .unwrap()
            .unwrap()
            .into_data()
            .map_or(0, |data| data.len());
    }
    connection.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_goes_on_for_a_client_that_died_while_events_flowed() {
    const CLIENTS: usize = 80;
    let flowing = Arc::new(AtomicUsize::new(0));
    let backend = Backend::start(1000, flood(flowing.clone())).await;
    let router = Router::start(
        [backend.target("east")],
        Bounds {
            max_connections: 1000,
            max_requests: 1000,
            ..Bounds::default()
        },
    )
    .await;
    join_all((0..CLIENTS).map(|_| killed_while_reading(&router))).await;
    let over = async {
        while flowing.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let ended = tokio::time::timeout(PATIENCE, over).await;
    assert!(ended.is_ok(), "{} watches go on", flowing.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_connection_whose_client_nobody_knows_is_ended() {
    let (_backend, router) = start(Bounds {
        known_within: Duration::from_millis(300),
        ..Bounds::default()
    })
    .await;
    let person = router.connect(tls::ALPN_GRPC).await;
    let (mut known, connection) = h2::client::handshake(person).await.unwrap();
    spawn(async move {
        let _ = connection.await;
    });
    let config = tls::client_config(router.trust.clone(), None, tls::ALPN_GRPC).unwrap();
    let silent = router.connect_with(config.clone()).await;
    let (_, silent) = h2::client::handshake(silent).await.unwrap();
    // Neither a whole preface nor what no identity is needed for is enough.
    let mut mute = router.connect_with(config.clone()).await;
    let (mut probing, probes) = h2::client::handshake(router.connect_with(config).await).await.unwrap();
    let (probed, _) = probing.send_request(ask("GET", "/livez", "").map(drop), true).unwrap();
    let ended = async {
        let reads = async {
            let mut buffer = [0; 1024];
            while matches!(mute.read(&mut buffer).await, Ok(1..)) {}
        };
        let ((), _, _) = tokio::join!(reads, silent, probes);
    };
    let (probed, ended) = tokio::join!(probed, tokio::time::timeout(PATIENCE, ended));
    assert_eq!(probed.unwrap().status(), 200);
    assert!(ended.is_ok(), "strangers are let go");
    let (answer, _) = known.send_request(ask("GET", "/livez", "").map(drop), true).unwrap();
    assert_eq!(answer.await.unwrap().status(), 200, "who is known stays");
}
