//! What one caller, one connection or one source of tokens can take from all others.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, poll_fn};
use http::header::AUTHORIZATION;
use http_body_util::BodyExt as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use portolan_runtime::tls;
use portolan_wire::v1;
use tokio::task::JoinHandle;

use super::{PATIENCE, PODS, mirror};
use crate::edge::harness::{Bounds, OTHER, Router, USER, ask, json};
use crate::resource::access::{MemberAnswer, MemberApi};
use crate::resource::queues::Turn;
use crate::resource::upstream::scripted::{Backend, Script, head, plain, script, spawn};
use crate::stage::identify::signer::Signer;
use crate::value::snapshot::told;

/// Members that never answer a review.
#[derive(Default)]
struct Silent(AtomicUsize);

impl MemberApi for Silent {
    fn post(&self, _: &str, _: &'static str, _: Turn, _: Vec<u8>) -> BoxFuture<'static, MemberAnswer> {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::future::pending().boxed()
    }
}

const LEASE: &str = "/clusters/east/apis/coordination.k8s.io/v1/namespaces/ns/leases/leader";

/// Answers nobody whose path ends with `stuck`, all others at once.
fn sticky() -> Script {
    script(|request, mut respond| async move {
        if request.uri().path().ends_with("stuck") {
            let _ = poll_fn(|cx| respond.poll_reset(cx)).await;
        } else {
            respond.send_response(head(200), true).unwrap();
        }
    })
}

#[tokio::test]
async fn the_streams_of_one_connection_leave_others_served() {
    let bounds = Bounds {
        max_requests: 100,
        // Half of it is for some dozen.
        max_waiting: 512 << 10,
        ..Bounds::default()
    };
    let backend = Backend::start(100, sticky()).await;
    let router = Router::start([backend.target("east")], bounds).await;
    let client = router.http2().await;
    let refused = Arc::new(AtomicUsize::new(0));
    let flood: Vec<_> = (0..400)
        .map(|_| {
            let (mut client, refused) = (client.clone(), refused.clone());
            spawn(async move {
                let answer = client.send_request(ask("GET", &format!("{PODS}/stuck"), "")).await;
                if answer.is_ok_and(|answer| answer.status() == 429) {
                    refused.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let full = async {
        // Half of all are under way, some wait, the rest is told to come again.
        while backend.seen.requests() < 50 || refused.load(Ordering::SeqCst) < 400 - 50 - 50 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, full)
        .await
        .expect("its own bounds hold it");
    assert_eq!(router.get_as(OTHER, PODS).await.status(), 200, "others are served");
    assert_eq!(router.get(LEASE).await.status(), 200, "and its own Leases");
    assert_eq!(backend.seen.requests(), 50 + 2);
    for one in flood {
        one.abort();
    }
}

/// Sends all but the last byte of a body of this length, as far as it is let, and waits for the answer.
async fn stall(client: h2::client::SendRequest<Bytes>, length: usize, sent: Arc<AtomicUsize>) -> Option<u16> {
    let mut request = ask("POST", PODS, "").map(|_| ());
    let headers = request.headers_mut();
    headers.insert("content-length", length.to_string().parse().unwrap());
    let mut client = client.ready().await.ok()?;
    let (answer, mut stream) = client.send_request(request, false).ok()?;
    let send = async move {
        let mut left = length - 1;
        while left > 0 {
            stream.reserve_capacity(left.min(64 << 10));
            let Some(Ok(room)) = poll_fn(|cx| stream.poll_capacity(cx)).await else {
                break;
            };
            let data = vec![b' '; room.min(left)];
            left -= data.len();
            let bytes = data.len();
            if stream.send_data(data.into(), false).is_err() {
                break;
            }
            sent.fetch_add(bytes, Ordering::SeqCst);
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = send => None,
        answer = answer => answer.ok().map(|answer| answer.status().as_u16()),
    }
}

#[tokio::test]
async fn stalled_writes_of_one_caller_hold_no_more_than_its_bytes() {
    const WRITES: usize = 60;
    const LENGTH: usize = 8 << 20;
    let backend = Backend::start(100, mirror()).await;
    let router = Router::start([backend.target("east")], Bounds::default()).await;
    let stream = router.connect(tls::ALPN_GRPC).await;
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    spawn(async move {
        let _ = connection.await;
    });
    let (sent, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let stalled: Vec<_> = (0..WRITES)
        .map(|_| {
            let write = stall(client.clone(), LENGTH, sent.clone());
            let refused = refused.clone();
            spawn(async move {
                if write.await == Some(429) {
                    refused.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    // Four are read, eight wait in half of the connection's window.
    let held = async {
        while refused.load(Ordering::SeqCst) < WRITES - 12 || sent.load(Ordering::SeqCst) < 4 * (LENGTH - 1) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, held).await.expect("the rest is refused");
    let taken = sent.load(Ordering::SeqCst);
    assert!(taken <= 48 << 20, "{taken} bytes of one caller");
    assert_eq!(router.get(PODS).await.status(), 200, "its reads are served");
    let mut other = router.http2_as(OTHER).await;
    let write = other.send_request(ask("POST", PODS, "{}")).await.unwrap();
    assert_eq!(json(write).await["body"], "{}", "and others' writes");
    for one in stalled {
        one.abort();
    }
}

#[tokio::test]
async fn a_request_waits_for_its_callers_others_before_it_is_refused() {
    let bounds = Bounds {
        max_requests: 4,
        request_timeout: Duration::from_secs(1),
        ..Bounds::default()
    };
    let backend = Backend::start(100, sticky()).await;
    let router = Router::start([backend.target("east")], bounds).await;
    let mut clients = [router.http2_as(USER).await, router.http2_as(USER).await];
    let asked = clients
        .iter_mut()
        .map(|client| client.send_request(ask("GET", &format!("{PODS}/stuck"), "")));
    let (_, waited) = tokio::join!(futures::future::join_all(asked), async {
        while backend.seen.requests() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // It comes later than those that it waits for, whose time is over first, and has that long left then.
        tokio::time::sleep(bounds.request_timeout / 2).await;
        router.get(PODS).await
    });
    assert_eq!(waited.status(), 200);
    let _ = waited.into_body().collect().await;
}

/// Tells the router of the member `home`, whose key signs tokens.
fn home(router: &Router) -> Signer {
    let signer = Signer::ec("key");
    let home = told::Target {
        cluster: "home".to_owned(),
        endpoints: vec![v1::Endpoint {
            url: "https://127.0.0.1:6443".to_owned(),
            ..v1::Endpoint::default()
        }],
        signing_keys: vec![signer.jwk()],
        ..told::Target::default()
    };
    let mut known = told::upsert(&router.routing.load().snapshot, "2", home.bodies()).snapshot;
    known.generation = 2;
    router.routing.swap(known);
    signer
}

/// Requests over one connection, each with the token of another Pod of `home`.
async fn unknown(router: &Router, signer: &Signer, pods: Range<usize>) -> Vec<JoinHandle<()>> {
    let config = tls::client_config(router.trust.clone(), None, tls::ALPN_GRPC).unwrap();
    let stream = router.connect_with(config).await;
    let (client, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    spawn(async move {
        let _ = connection.await;
    });
    let asks = pods.map(|number| {
        let claims = serde_json::json!({
            "aud": ["portolan"], "exp": 4_000_000_000_u64, "kubernetes.io": {
                "namespace": "ns", "pod": {"name": "p", "uid": number.to_string()},
                "serviceaccount": {"name": "sa", "uid": "u"},
            },
        });
        let mut request = ask("GET", PODS, "");
        let token = format!("Bearer {}", signer.sign(&claims));
        request.headers_mut().insert(AUTHORIZATION, token.parse().unwrap());
        let mut client = client.clone();
        spawn(async move { drop(client.send_request(request).await) })
    });
    asks.collect()
}

#[tokio::test]
async fn callers_that_nobody_knows_are_found_out_a_few_at_a_time() {
    let bounds = Bounds::default();
    let (backend, members) = (Backend::start(100, plain()).await, Arc::new(Silent::default()));
    let router = Router::with_members([backend.target("east")], bounds, Some(members.clone())).await;
    let signer = home(&router);
    let asking = unknown(&router, &signer, 0..200).await;
    let full = async {
        while members.0.load(Ordering::SeqCst) < 56 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, full).await.expect("as many as it may");
    for _ in 0..10 {
        assert_eq!(router.get(PODS).await.status(), 200, "others are served");
    }
    assert_eq!(members.0.load(Ordering::SeqCst), 56, "an eighth is kept for others");
    for one in asking {
        one.abort();
    }
}

#[tokio::test]
async fn who_has_a_certificate_waits_for_no_review() {
    let bounds = Bounds {
        // A quarter of it is for some four of one tenant.
        max_waiting: 440 << 10,
        ..Bounds::default()
    };
    let (backend, members) = (Backend::start(100, plain()).await, Arc::new(Silent::default()));
    let router = Router::with_members([backend.target("east")], bounds, Some(members.clone())).await;
    let signer = home(&router);
    let mut asking = Vec::new();
    for connection in 0..16 {
        asking.extend(unknown(&router, &signer, connection * 2..connection * 2 + 2).await);
    }
    let full = async {
        while members.0.load(Ordering::SeqCst) < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, full).await.expect("as many as it may");
    for _ in 0..20 {
        assert_eq!(router.get(PODS).await.status(), 200);
    }
    assert_eq!(members.0.load(Ordering::SeqCst), 4, "a quarter waits for one member");
    for one in asking {
        one.abort();
    }
}

#[tokio::test]
async fn a_body_that_does_not_come_is_waited_for_no_longer_than_a_request() {
    let bounds = Bounds {
        request_timeout: Duration::from_millis(500),
        ..Bounds::default()
    };
    let backend = Backend::start(100, mirror()).await;
    let router = Router::start([backend.target("east")], bounds).await;
    let stream = router.connect(tls::ALPN_GRPC).await;
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    spawn(async move {
        let _ = connection.await;
    });
    for path in [PODS, &format!("{PODS}?timeout=1h")] {
        let mut client = client.clone().ready().await.unwrap();
        let (answer, mut body) = client.send_request(ask("POST", path, "").map(|_| ()), false).unwrap();
        body.send_data("{".into(), false).unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(10), answer).await;
        let answer = answer.unwrap_or_else(|_| panic!("{path}: the time-out asked for is not the body's"));
        assert!([400, 504].contains(&answer.unwrap().status().as_u16()), "{path}");
    }
}
