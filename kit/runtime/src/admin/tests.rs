//! The pages through `oneshot`; the server over loopback for what only a socket shows.

use std::time::Duration;

use tokio::net::TcpStream;

use super::*;
use crate::telemetry::{TelemetryArgs, for_tests};
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;

fn pages() -> AdminPages {
    let telemetry = for_tests(&TelemetryArgs::default());
    AdminPages::new(Readiness::new(), Registry::new("router"), telemetry)
}

async fn ask(router: &Router, request: Request<Body>) -> (StatusCode, String) {
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn fetch(router: &Router, path: &str) -> (StatusCode, String) {
    ask(router, Request::get(path).body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn health_follows_readiness() {
    let pages = pages();
    let snapshot = pages.readiness.task("snapshot");
    snapshot.not_ready("the hub");
    let (local, _) = pages::routers(pages);
    assert_eq!(fetch(&local, "/livez").await, (StatusCode::OK, "ok\n".into()));
    let (status, text) = fetch(&local, "/readyz").await;
    assert_eq!(
        (status, text.as_str()),
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "[-]snapshot waiting for the hub\nnot ready\n"
        )
    );
    snapshot.ready();
    assert_eq!(
        fetch(&local, "/readyz?verbose").await,
        (StatusCode::OK, "[+]snapshot ok\nready\n".into())
    );
}

#[tokio::test]
async fn the_log_filter_can_be_changed_and_nonsense_changes_nothing() {
    let (local, _) = pages::routers(pages());
    let put = |text: &'static str| Request::put("/loglevel").body(Body::from(text)).unwrap();
    assert_eq!(
        ask(&local, put("warn,portolan_router=trace\n")).await,
        (StatusCode::OK, "warn,portolan_router=trace\n".into())
    );
    for bad in ["", "debgu", "info,", "a=b=c", "a=loud"] {
        assert_eq!(ask(&local, put(bad)).await.0, StatusCode::BAD_REQUEST, "{bad}");
    }
    assert_eq!(fetch(&local, "/loglevel").await.1, "warn,portolan_router=trace\n");
    let huge = Request::put("/loglevel").body(Body::from("x".repeat(100_000))).unwrap();
    assert_eq!(ask(&local, huge).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn other_machines_see_health_and_metrics_only() {
    let routes = || Router::new().route("/status", get(|| async { "page" }));
    let configured = || pages().configz(|| serde_json::json!({"version": 7})).extra(routes());
    let (local, public) = pages::routers(configured());
    assert_eq!(
        fetch(&local, "/configz").await,
        (StatusCode::OK, "{\"version\":7}".into())
    );
    assert_eq!(fetch(&local, "/status").await.1, "page");
    assert_eq!(fetch(&local, "/nothing").await.0, StatusCode::NOT_FOUND);
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(fetch(&public, path).await.0, StatusCode::OK, "{path}");
    }
    for path in ["/configz", "/loglevel", "/status", "/nothing"] {
        let (status, text) = fetch(&public, path).await;
        assert!(
            status == StatusCode::FORBIDDEN && text.contains("--admin-remote"),
            "{path}: {text}"
        );
    }
    let (_, open) = pages::routers(configured().remote(true));
    assert_eq!(fetch(&open, "/status").await.1, "page");
    for (ip, local) in [
        ("127.0.0.1", true),
        ("::1", true),
        ("::ffff:127.0.0.1", true),
        ("10.0.0.1", false),
        ("::ffff:10.0.0.1", false),
    ] {
        assert_eq!(is_local(ip.parse().unwrap()), local, "{ip}");
    }
}

#[tokio::test]
async fn serves_on_a_free_port_and_drains() {
    let tasks = Tasks::new();
    let bound = AdminServer::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addr = bound.addr;
    assert_ne!(addr.port(), 0);
    bound.serve(&tasks, pages());
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    assert!(
        text.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{text}"
    );
    for name in [
        "portolan_router_panics_total 0",
        "portolan_router_build_info",
        "process_start_time_seconds",
    ] {
        assert!(text.contains(name), "{name}: {text}");
    }
    // Kept alive and idle: must not hold up the end.
    let mut idle = TcpStream::connect(addr).await.unwrap();
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = [0; 15];
    idle.read_exact(&mut answer).await.unwrap();
    assert!(tasks.shutdown(Duration::from_secs(5)).await.is_clean());
    assert!(TcpStream::connect(addr).await.is_err());

    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let error = AdminServer::bind(taken.local_addr().unwrap())
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("cannot bind the admin server to 127.0.0.1:"), "{error}");
}

#[tokio::test]
async fn silent_and_idle_clients_are_cut_off() {
    let tasks = Tasks::new();
    let bound = AdminServer::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addr = bound.addr;
    bound.serve(&tasks, pages());
    let mut silent = TcpStream::connect(addr).await.unwrap();
    let mut idle = TcpStream::connect(addr).await.unwrap();
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = [0; 15];
    idle.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    // Not before: paused time leaps over timers while the kernel still carries the bytes.
    tokio::time::pause();
    let mut text = String::new();
    // To the end of the stream, which only the server can bring about.
    idle.read_to_string(&mut text).await.unwrap();
    text.clear();
    silent.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "");
    assert!(tasks.shutdown(Duration::from_secs(5)).await.is_clean());
}

#[tokio::test]
async fn a_name_that_somebody_points_here_opens_no_page() {
    let (local, _) = pages::routers(pages());
    let host = |host: &str| {
        Request::get("/configz")
            .header("host", host)
            .body(Body::empty())
            .unwrap()
    };
    for (name, status) in [
        ("evil.example", StatusCode::MISDIRECTED_REQUEST),
        ("evil.example:8080", StatusCode::MISDIRECTED_REQUEST),
        ("127.0.0.1.evil.example", StatusCode::MISDIRECTED_REQUEST),
        ("", StatusCode::MISDIRECTED_REQUEST),
        ("127.0.0.1:8080", StatusCode::OK),
        ("[::1]:8080", StatusCode::OK),
        ("LocalHost:1", StatusCode::OK),
    ] {
        assert_eq!(ask(&local, host(name)).await.0, status, "{name}");
    }
    let scraped = Request::get("/metrics")
        .header("host", "router.portolan-system")
        .body(Body::empty());
    assert_eq!(ask(&local, scraped.unwrap()).await.0, StatusCode::OK);
    let (opened, _) = pages::routers(pages().remote(true));
    assert_eq!(ask(&opened, host("admin.example")).await.0, StatusCode::OK);
}
