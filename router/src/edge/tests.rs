//! The data path from a client's socket to a scripted member's and back.

mod admission;
mod failing;
mod faults;
mod limits;
mod replicated;
mod swaps;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::harness::{Bounds, OTHER, Router, USER, ask, json};
use super::*;
use crate::resource::access::{MemberAnswer, MemberApi};
use crate::resource::breaker::{Readyz, State};
use crate::resource::queues::Turn;
use crate::resource::upstream::scripted::{Backend, Order, Script, head, plain, read_all, script, until_reset};
use crate::value::traffic::TrafficClass;

const PATIENCE: Duration = Duration::from_secs(20);
const PODS: &str = "/clusters/east/api/v1/namespaces/ns/pods";

async fn east(script: Script) -> (Backend, Router) {
    let backend = Backend::start(100, script).await;
    let router = Router::start([backend.target("east")], Bounds::default()).await;
    (backend, router)
}

/// Answers with what it was asked.
fn mirror() -> Script {
    script(|request, mut respond| async move {
        let (head_in, body) = request.into_parts();
        let headers: serde_json::Map<_, _> = head_in
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().into()))
            .collect();
        let body = read_all(body).await;
        let seen = serde_json::json!({
            "method": head_in.method.as_str(),
            "path": head_in.uri.path_and_query().unwrap().as_str(),
            "headers": headers,
            "body": String::from_utf8(body).unwrap(),
        });
        let mut out = respond.send_response(head(200), false).unwrap();
        out.send_data(seen.to_string().into(), true).unwrap();
    })
}

fn assert_status(seen: &serde_json::Value, code: u16, reason: &str) {
    assert_eq!(
        (&seen["kind"], &seen["apiVersion"]),
        (&"Status".into(), &"v1".into()),
        "{seen}"
    );
    assert_eq!(
        (seen["code"].as_u64(), seen["reason"].as_str()),
        (Some(code.into()), Some(reason)),
        "{seen}"
    );
}

#[tokio::test]
async fn requests_reach_the_member_as_the_person_and_with_nothing_of_the_clients_claims() {
    let (_backend, router) = east(mirror()).await;
    let mut request = ask("POST", &format!("{PODS}?dryRun=All"), "{\"a\":1}");
    for (name, value) in [
        ("authorization", "Bearer stolen"),
        ("x-remote-user", "root"),
        ("x-forwarded-for", "10.0.0.1"),
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("content-type", "application/json"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let response = router.http2().await.send_request(request).await.unwrap();
    assert_eq!(response.headers()["via"], "1.1 portolan");
    assert_eq!(
        response.headers()["audit-id"],
        "scripted",
        "the member's own headers pass"
    );
    let seen = json(response).await;
    assert_eq!(seen["path"], "/api/v1/namespaces/ns/pods?dryRun=All");
    assert_eq!(
        (seen["method"].as_str(), seen["body"].as_str()),
        (Some("POST"), Some("{\"a\":1}"))
    );
    let headers = &seen["headers"];
    assert_eq!(headers["authorization"], "Bearer member-token");
    assert_eq!(headers["impersonate-user"], USER);
    assert!(
        headers["traceparent"]
            .as_str()
            .unwrap()
            .contains("4bf92f3577b34da6a3ce929d0e0e4736"),
        "{headers}"
    );
    assert!(
        headers.get("x-remote-user").is_none() && headers.get("x-forwarded-for").is_none(),
        "{headers}"
    );
}

#[tokio::test]
async fn a_members_host_name_is_its_explicit_view() {
    let (_backend, router) = east(mirror()).await;
    for (host, path, reached) in [
        ("East.fleet.test:8443", "/api/v1/pods", Some("/api/v1/pods")),
        ("east.fleet.test", "/clusters/west/api", Some("/clusters/west/api")),
        ("nowhere.fleet.test", "/api/v1/pods", None),
        ("a.east.fleet.test", "/api/v1/pods", None),
        (".fleet.test", "/api/v1/pods", None),
        ("fleet.test", "/api/v1/pods", None),
        ("east.fleet.test.example", "/api/v1/pods", None),
        ("eastfleet.test", "/api/v1/pods", None),
    ] {
        let mut request = ask("GET", path, "");
        *request.uri_mut() = path.parse().unwrap();
        request.headers_mut().insert("host", host.parse().unwrap());
        let answer = router.http1().await.send_request(request).await.unwrap();
        let code = answer.status();
        let seen = json(answer).await;
        assert_eq!(seen["path"].as_str(), reached, "{host}{path}: {seen}");
        assert_eq!(code == 200, reached.is_some(), "{host}{path}: {seen}");
    }
    let mut request = ask("GET", "", "");
    *request.uri_mut() = "https://east.fleet.test/api/v1/nodes".parse().unwrap();
    request.headers_mut().remove("host");
    let seen = json(router.http2().await.send_request(request).await.unwrap()).await;
    assert_eq!(seen["path"], "/api/v1/nodes", "{seen}");
}

#[tokio::test]
async fn http1_is_served_too_and_a_connection_is_used_again() {
    let (backend, router) = east(mirror()).await;
    let mut client = router.http1().await;
    for _ in 0..3 {
        let mut request = ask("GET", PODS, "");
        *request.uri_mut() = PODS.parse().unwrap();
        let response = client.send_request(request).await.unwrap();
        assert_eq!(json(response).await["method"], "GET");
        client.ready().await.unwrap();
    }
    assert_eq!((backend.seen.requests(), backend.seen.connections()), (3, 1));
}

#[tokio::test]
async fn faults_are_statuses() {
    let (backend, router) = east(plain()).await;
    let unknown = router.get("/clusters/nowhere/api/v1/pods").await;
    assert_status(&json(unknown).await, 404, "NotFound");
    let tricks = router.get("/clusters/east/api/v1/namespaces/%2e%2e/pods").await;
    assert_status(&json(tricks).await, 400, "BadRequest");
    assert_eq!(backend.seen.requests(), 0);
    let healthy = router.get("/livez").await;
    assert_eq!(healthy.into_body().collect().await.unwrap().to_bytes(), "ok");
}

#[tokio::test]
async fn a_members_own_answer_passes_untouched() {
    const STATUS: &str = "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"code\":409,  \"reason\":\"Conflict\"}\n";
    let (_backend, router) = east(script(|_, mut respond| async move {
        let mut body = respond.send_response(head(409), false).unwrap();
        body.send_data(STATUS.into(), true).unwrap();
    }))
    .await;
    let response = router.get(PODS).await;
    assert_eq!(response.status(), 409);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), STATUS);
}

#[tokio::test]
async fn bodies_are_bounded_by_their_length_and_by_their_bytes() {
    let (backend, router) = east(mirror()).await;
    let mut claimed = ask("POST", PODS, "");
    *claimed.body_mut() = Bytes::from(vec![b'x'; 9 << 20]).into();
    let response = router.http2().await.send_request(claimed).await.unwrap();
    assert_status(&json(response).await, 413, "RequestEntityTooLarge");
    assert_eq!(backend.seen.requests(), 0);

    let mut stream = router.connect(portolan_runtime::tls::ALPN_HTTP1).await;
    let head = format!("POST {PODS} HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = [b"100000\r\n".as_slice(), &vec![b'x'; 1 << 20], b"\r\n"].concat();
    for _ in 0..9 {
        if stream.write_all(&chunk).await.is_err() {
            break;
        }
    }
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 413");
}

#[tokio::test]
async fn watches_see_events_at_once_and_a_drain_ends_them_between_two() {
    let (_backend, router) = east(plain()).await;
    let mut watch = router.get(&format!("{PODS}?watch=true")).await;
    let event = tokio::time::timeout(PATIENCE, watch.body_mut().frame())
        .await
        .expect("at once");
    assert!(event.unwrap().unwrap().into_data().unwrap().ends_with(b"\n"));
    let (report, rest) = tokio::join!(
        router.tasks.shutdown(Duration::from_secs(10)),
        tokio::time::timeout(PATIENCE, watch.into_body().collect()),
    );
    assert_eq!(rest.expect("in time").expect("a clean end").to_bytes(), "");
    assert!(report.cut.is_empty(), "{report:?}");
    assert!(report.took < Duration::from_secs(5), "{report:?}");
}

#[tokio::test]
async fn a_write_whose_body_is_under_way_is_taken_back_when_it_may_no_longer_go() {
    let (backend, router) = east(mirror()).await;
    let mut stream = router.connect(portolan_runtime::tls::ALPN_HTTP1).await;
    let head = format!("POST {PODS} HTTP/1.1\r\nhost: r\r\ncontent-length: 10\r\n\r\nhalf");
    stream.write_all(head.as_bytes()).await.unwrap();
    while backend.seen.requests() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut closed = backend.target("east");
    closed.version = "2".to_owned();
    router.swap([closed], &[]);
    let mut answer = vec![0; 12];
    let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer)).await;
    read.expect("before the body is whole").unwrap();
    assert_eq!(answer, b"HTTP/1.1 403");
}

#[tokio::test]
async fn over_the_bound_is_shed_and_said_so() {
    let bounds = Bounds {
        max_requests: 1,
        // Nobody can wait.
        max_waiting: 0,
        ..Bounds::default()
    };
    let backend = Backend::start(100, {
        script(|_, mut respond| async move {
            let mut body = respond.send_response(head(200), false).unwrap();
            until_reset(&mut body).await;
        })
    })
    .await;
    let router = Router::start([backend.target("east")], bounds).await;
    let held = router.get(PODS).await;
    let shed = router.get_as(OTHER, PODS).await;
    let again = shed.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=5).contains(&again), "{again}");
    assert_status(&json(shed).await, 429, "TooManyRequests");
    let lease = router
        .get("/clusters/east/apis/coordination.k8s.io/v1/namespaces/ns/leases/leader")
        .await;
    assert_eq!(lease.status(), 200, "leases have a reserve");
    drop(held);
    let again = async {
        while router.get(PODS).await.status() != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, again)
        .await
        .expect("the place is free again");
}

struct Panics;

impl MemberApi for Panics {
    fn post(&self, _: &str, _: &'static str, _: Turn, _: Vec<u8>) -> BoxFuture<'static, MemberAnswer> {
        async { panic!("planted") }.boxed()
    }
}

#[tokio::test]
async fn a_panic_is_this_requests_500_and_counted() {
    let backend = Backend::start(100, plain()).await;
    let router = Router::with_members([backend.target("east")], Bounds::default(), Some(Arc::new(Panics))).await;
    let mut request = ask("GET", PODS, "");
    request
        .headers_mut()
        .insert("impersonate-user", "robot".parse().unwrap());
    let mut client = router.http2().await;
    let response = client.send_request(request).await.unwrap();
    assert_status(&json(response).await, 500, "InternalError");
    assert_eq!(router.tasks.panics(), 1);
    assert_eq!(client.send_request(ask("GET", PODS, "")).await.unwrap().status(), 200);
}

/// What a request takes of memory while it waits is mostly its own future.
#[test]
fn a_request_is_counted_for_what_it_takes() {
    fn size<A, B, C, F: Future>(_: impl FnOnce(A, B, C) -> F) -> usize {
        size_of::<F>()
    }
    let future = size(Edge::serve);
    let counted = crate::stage::admit::REQUEST_BYTES;
    assert!(future < counted && future > counted / 8, "{future} of {counted} bytes");
}
