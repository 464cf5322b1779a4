//! Byte-exact tunnels through a whole router, to scripted members that switch protocols.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use portolan_runtime::tls;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream as ClientStream;
use tokio_rustls::server::TlsStream as ServerStream;

use crate::edge::harness::{Bounds, Router};
use crate::resource::breaker::{Probe, Settings};
use crate::resource::upstream::scripted::{acceptor, spawn, target};
use crate::value::traffic::TrafficClass;

const PATIENCE: Duration = Duration::from_secs(20);
const EXEC: &str = "/clusters/east/api/v1/namespaces/ns/pods/a/exec?command=sh&stdin=true";
const SWITCH: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nx-stream-protocol-version: v4.channel.k8s.io\r\n\r\n";

/// A member that reads one head and hands it over with the connection.
async fn member<F, R>(serve: F) -> Router
where
    F: Fn(String, ServerStream<TcpStream>) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let (acceptor, ca_pem) = acceptor(tls::ALPN_HTTP1);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = acceptor.accept(stream).await.unwrap();
            let head = read_head(&mut stream).await;
            spawn(serve(head, stream));
        }
    });
    Router::start([target("east", &[address], &ca_pem)], Bounds::default()).await
}

async fn read_head(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Asks for a switch, with bytes of the tunnel right behind the head.
async fn ask(router: &Router, early: &[u8]) -> (String, ClientStream<TcpStream>) {
    let mut stream = router.connect(tls::ALPN_HTTP1).await;
    let head = format!(
        "POST {EXEC} HTTP/1.1\r\nHost: router.test\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), early].concat()).await.unwrap();
    let head = tokio::time::timeout(PATIENCE, read_head(&mut stream))
        .await
        .expect("an answer");
    (head, stream)
}

fn bytes(seed: u8, length: usize) -> Vec<u8> {
    let mut next = u32::from(seed);
    let step = || {
        next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        next.to_be_bytes()[0]
    };
    std::iter::repeat_with(step).take(length).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_byte_arrives_and_either_side_may_end_first() {
    let router = member(|head, mut stream| async move {
        assert!(
            head.starts_with("POST /api/v1/namespaces/ns/pods/a/exec?command=sh&stdin=true HTTP/1.1\r\n"),
            "{head}"
        );
        let head = head.to_ascii_lowercase();
        for line in [
            "connection: upgrade",
            "upgrade: spdy/3.1",
            "authorization: bearer member-token",
            "impersonate-user: ada",
        ] {
            assert!(head.contains(line), "{line}: {head}");
        }
        stream.write_all(SWITCH).await.unwrap();
        // All of the client's bytes, and its end, before the first of ours.
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, bytes(1, 3_000_017));
        stream.write_all(&bytes(2, 5_000_011)).await.unwrap();
        stream.shutdown().await.unwrap();
    })
    .await;
    let sent = bytes(1, 3_000_017);
    let (head, mut stream) = ask(&router, &sent[..100]).await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    let head = head.to_ascii_lowercase();
    for line in [
        "upgrade: spdy/3.1",
        "x-stream-protocol-version: v4.channel.k8s.io",
        "via: 1.1 portolan",
    ] {
        assert!(head.contains(line), "{line}: {head}");
    }
    stream.write_all(&sent[100..]).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut read = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut read))
        .await
        .expect("in time")
        .unwrap();
    assert_eq!(read, bytes(2, 5_000_011));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_member_may_end_first() {
    let (done, ended) = tokio::sync::oneshot::channel();
    let done = std::sync::Arc::new(parking_lot::Mutex::new(Some(done)));
    let router = member(move |_, mut stream| {
        let done = done.clone();
        async move {
            // The tunnel's first bytes in one write with the head.
            stream.write_all(&[SWITCH, &bytes(3, 100)].concat()).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut read = Vec::new();
            stream.read_to_end(&mut read).await.unwrap();
            let _ = done.lock().take().unwrap().send(read);
        }
    })
    .await;
    let (_, mut stream) = ask(&router, b"").await;
    let mut read = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut read))
        .await
        .expect("the member's end")
        .unwrap();
    assert_eq!(read, bytes(3, 100));
    stream.write_all(&bytes(4, 100_000)).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(
        tokio::time::timeout(PATIENCE, ended).await.expect("in time").unwrap(),
        bytes(4, 100_000)
    );
}

#[tokio::test]
async fn an_answer_that_is_no_switch_passes_as_it_is() {
    const BODY: &str = "{\"kind\":\"Status\",\"code\":403}";
    let router = member(|_, mut stream| async move {
        let answer = format!(
            "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{BODY}",
            BODY.len()
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
    })
    .await;
    let (head, mut stream) = ask(&router, b"").await;
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    let mut body = vec![0; BODY.len()];
    stream.read_exact(&mut body).await.unwrap();
    assert_eq!(body, BODY.as_bytes());
}

#[tokio::test]
async fn a_tunnel_lives_through_a_drain_until_its_deadline() {
    let router = member(|_, mut stream| async move {
        stream.write_all(SWITCH).await.unwrap();
        let (mut read, mut write) = tokio::io::split(stream);
        let _ = tokio::io::copy(&mut read, &mut write).await;
    })
    .await;
    let (_, mut stream) = ask(&router, b"").await;
    let tasks = router.tasks.clone();
    let drained = spawn(async move {
        let report = tasks.shutdown(Duration::from_secs(3)).await;
        assert!(report.cut.contains_key("tunnel"), "{report:?}");
    });
    while !router.tasks.is_cancelled() {
        tokio::task::yield_now().await;
    }
    stream.write_all(b"still here").await.unwrap();
    let mut echo = [0; 10];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut echo))
        .await
        .expect("in time")
        .unwrap();
    assert_eq!(&echo, b"still here");
    drained.await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, stream.read(&mut echo))
        .await
        .expect("cut at the deadline");
    assert!(!matches!(ended, Ok(1..)), "{ended:?}");
}

#[tokio::test]
async fn a_body_before_the_switch_travels_as_one() {
    let router = member(|head, mut stream| async move {
        assert!(head.to_ascii_lowercase().contains("content-length: 5\r\n"), "{head}");
        let mut body = [0; 5];
        stream.read_exact(&mut body).await.unwrap();
        assert_eq!(&body, b"hello");
        stream
            .write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
            .await
            .unwrap();
    })
    .await;
    let mut stream = router.connect(tls::ALPN_HTTP1).await;
    let head = "POST /clusters/east/api/v1/namespaces/ns/pods/a/exec HTTP/1.1\r\nHost: router.test\r\n\
                Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\nhelloGET /livez HTTP/1.1\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let head = tokio::time::timeout(PATIENCE, read_head(&mut stream))
        .await
        .expect("an answer");
    assert!(head.starts_with("HTTP/1.1 201"), "{head}");
}

/// Says this, ends or waits, and cannot be written to.
struct Deaf {
    says: &'static [u8],
    ends: bool,
}

impl tokio::io::AsyncRead for Deaf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let says = std::mem::take(&mut self.says);
        buf.put_slice(says);
        if says.is_empty() && !self.ends {
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl tokio::io::AsyncWrite for Deaf {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Err(std::io::ErrorKind::NotConnected.into()))
    }
}

#[tokio::test]
async fn who_hangs_up_after_all_was_said_breaks_nothing() {
    let side = |says, ends| Deaf { says, ends };
    // The client is gone when the member's end reaches it.
    let carried = super::carry(side(b"", false), side(b"", true)).await;
    assert_eq!(carried.unwrap(), (0, 0));
    let carried = super::carry(side(b"", true), side(b"", false)).await;
    assert_eq!(carried.unwrap(), (0, 0));
    // In the middle.
    let carried = super::carry(side(b"", false), side(b"more", false)).await;
    assert!(carried.is_err());
}

#[tokio::test]
async fn what_breaks_once_there_is_a_connection_is_the_requests_own() {
    for (body, status) in [("1\r\nx\r\n0\r\n\r\n", "HTTP/1.1 503"), ("zz\r\n\r\n", "HTTP/1.1 400")] {
        // A Pod behind the API server says what no server of HTTP would.
        let router = member(|_, mut stream| async move {
            let _ = stream.read_u8().await;
            let _ = stream.write_all(b"what\r\n\r\n").await;
        })
        .await;
        let routing = router.routing.load();
        let breaker = routing.upstreams.get("east").unwrap().breaker(TrafficClass::Upgrade);
        breaker.configure(Settings {
            consecutive_failures: 1,
            ..Settings::default()
        });
        let mut stream = router.connect(tls::ALPN_HTTP1).await;
        let head = format!(
            "POST {EXEC} HTTP/1.1\r\nHost: router.test\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
             Transfer-Encoding: chunked\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = tokio::time::timeout(PATIENCE, read_head(&mut stream))
            .await
            .expect("an answer");
        assert!(
            breaker.admit(None, Probe::Telling).is_ok(),
            "{status}: others get through"
        );
        assert!(answer.starts_with(status), "{answer}");
    }
}
