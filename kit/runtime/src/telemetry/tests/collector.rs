//! Export by OTLP gRPC: to a collector that is there, and to one that is not.

use super::*;
use crate::tasks::Tasks;
use http::{HeaderMap, HeaderValue};
use opentelemetry::trace::TraceContextExt;
use std::convert::Infallible;
use tokio::net::TcpListener;
use tower::service_fn;
use tracing_opentelemetry::OpenTelemetrySpanExt;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A gRPC server that keeps the raw bytes of every export and takes them all.
async fn collector(tasks: &Tasks) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let received = Arc::new(Mutex::new(Vec::new()));
    let sink = received.clone();
    let take = service_fn(move |request: http::Request<axum::body::Body>| {
        let sink = sink.clone();
        async move {
            let path = request.uri().path().to_owned();
            let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
            sink.lock().extend_from_slice(path.as_bytes());
            sink.lock().extend_from_slice(&body);
            // An empty message in its gRPC frame, then the status as trailers-only headers would have it.
            let mut response = http::Response::new(axum::body::Body::from(vec![0; 5]));
            response
                .headers_mut()
                .insert("content-type", HeaderValue::from_static("application/grpc"));
            response
                .headers_mut()
                .insert("grpc-status", HeaderValue::from_static("0"));
            Ok::<_, Infallible>(response)
        }
    });
    let routes = axum::Router::new().fallback_service(take);
    let stop = tasks.token();
    let server = tonic::transport::Server::builder().add_routes(tonic::service::Routes::from(routes));
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    tasks.spawn("collector", async move {
        server
            .serve_with_incoming_shutdown(incoming, stop.cancelled_owned())
            .await
            .unwrap();
    });
    (endpoint, received)
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_reach_the_collector_as_children_of_the_callers_trace() {
    let tasks = Tasks::new();
    let (endpoint, received) = collector(&tasks).await;
    let args = TelemetryArgs {
        otlp_endpoint: Some(endpoint),
        // A caller who records is followed whatever our own ratio is.
        trace_sample_ratio: 0.0,
        instance_id: Some("pod-7".into()),
        ..TelemetryArgs::default()
    };
    let (telemetry, dispatch, buffer) = with_buffer(&args);
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", HeaderValue::from_static(PARENT));
    let onward = tracing::dispatcher::with_default(&dispatch, || {
        let received = extract_context(&headers);
        let span = tracing::info_span!("request", shard = 3);
        set_parent(&span, received.clone());
        let _entered = span.enter();
        tracing::info!("routed");
        let mut onward = HeaderMap::new();
        inject_context(&context_of(&span, &received), &mut onward);
        assert!(span.context().span().span_context().is_valid());
        onward
    });
    telemetry.shutdown().await;
    telemetry.shutdown().await;

    let onward = onward["traceparent"].to_str().unwrap().to_owned();
    assert_eq!((&onward[..36], &onward[52..]), (&PARENT[..36], "-01"));
    assert_ne!(onward, PARENT, "our span is the parent of what follows");
    let line: serde_json::Value = serde_json::from_str(&buffer.lines()[0]).unwrap();
    assert_eq!(
        (line["trace_id"].as_str().unwrap(), line["span_id"].as_str().unwrap()),
        (&onward[3..35], &onward[36..52])
    );

    let received = received.lock().clone();
    let expected: [&[u8]; 6] = [
        b"TraceService/Export",
        b"request",
        b"portolan-test",
        b"pod-7",
        b"service.version",
        &[0x4b, 0xf9, 0x2f, 0x35],
    ];
    for part in expected {
        assert!(contains(&received, part), "{}", String::from_utf8_lossy(part));
    }
    let registry = crate::metrics::Registry::new("test");
    registry.root(|root| telemetry.register(root));
    assert!(
        registry
            .encode()
            .unwrap()
            .contains("portolan_test_trace_spans_exported_total 1\n")
    );
    assert!(tasks.shutdown(Duration::from_secs(5)).await.is_clean());
}

/// With the ids that others were told, and nothing for what is good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_sampled_is_kept_when_it_is_worth_it() {
    let tasks = Tasks::new();
    let (endpoint, received) = collector(&tasks).await;
    let args = TelemetryArgs {
        otlp_endpoint: Some(endpoint),
        trace_sample_ratio: 0.0,
        ..TelemetryArgs::default()
    };
    let (telemetry, dispatch, _) = with_buffer(&args);
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", HeaderValue::from_static(PARENT));
    let caller = extract_untrusted(&headers, Some(0.0));
    let ids = tracing::dispatcher::with_default(&dispatch, || {
        let span = tracing::info_span!("request");
        set_parent(&span, caller.clone());
        let _entered = span.enter();
        assert!(child(|| tracing::info_span!("part")).is_none(), "nobody records it");
        Unsampled::of(&span, &caller).expect("it is not sampled")
    });
    assert_eq!(ids.trace_id(), PARENT[3..35]);
    telemetry.keeper().expect("there is a collector").keep(KeptSpan {
        ids,
        name: "list pods".to_owned(),
        took: Duration::from_secs(3),
        attributes: vec![KeyValue::new("kept", "slow")],
        error: Some("east is away".to_owned()),
    });
    telemetry.shutdown().await;
    let received = received.lock().clone();
    let expected: [&[u8]; 6] = [
        b"list pods",
        b"slow",
        b"east is away",
        b"portolan-test",
        &[0x4b, 0xf9, 0x2f, 0x35],
        &[0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7],
    ];
    for part in expected {
        assert!(contains(&received, part), "{}", String::from_utf8_lossy(part));
    }
    for part in [&b"request"[..], b"part\x00"] {
        assert!(!contains(&received, part), "{}", String::from_utf8_lossy(part));
    }
    assert_eq!(telemetry.exports.spans.get(), 1);
    assert!(tasks.shutdown(Duration::from_secs(5)).await.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sampled_has_parts_and_is_not_kept_twice() {
    let tasks = Tasks::new();
    let (endpoint, _received) = collector(&tasks).await;
    let args = TelemetryArgs {
        otlp_endpoint: Some(endpoint),
        trace_sample_ratio: 1.0,
        ..TelemetryArgs::default()
    };
    let (telemetry, dispatch, _) = with_buffer(&args);
    tracing::dispatcher::with_default(&dispatch, || {
        let span = tracing::info_span!("request");
        let _entered = span.enter();
        assert!(!child(|| tracing::info_span!("part")).is_none());
        assert!(Unsampled::of(&span, &opentelemetry::Context::new()).is_none());
    });
    telemetry.shutdown().await;
    assert_eq!(telemetry.exports.spans.get(), 2);
    assert!(tasks.shutdown(Duration::from_secs(5)).await.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_not_there_costs_spans_and_one_warning() {
    // Bound and dropped: nobody listens there.
    let port = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let args = TelemetryArgs {
        otlp_endpoint: Some(format!("http://127.0.0.1:{port}")),
        trace_sample_ratio: 1.0,
        ..TelemetryArgs::default()
    };
    let (telemetry, dispatch, _) = with_buffer(&args);
    spans(&dispatch);
    shut_down(&telemetry).await;
    assert!(telemetry.exports.lost.get() > 0);
    assert_eq!(telemetry.exports.spans.get(), 0);
}

/// An export to it takes ten seconds, and these are twenty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_do_not_wait_for_a_collector_that_never_answers() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let args = TelemetryArgs {
        otlp_endpoint: Some(format!("http://{}", silent.local_addr().unwrap())),
        trace_sample_ratio: 1.0,
        ..TelemetryArgs::default()
    };
    let (telemetry, dispatch, _) = with_buffer(&args);
    let started = std::time::Instant::now();
    spans(&dispatch);
    assert!(started.elapsed() < Duration::from_mins(1), "{:?}", started.elapsed());
    shut_down(&telemetry).await;
    assert_eq!(telemetry.exports.spans.get(), 0);
}

/// Several times what the exporter's queue holds.
fn spans(dispatch: &tracing::Dispatch) {
    tracing::dispatcher::with_default(dispatch, || {
        for _ in 0..10_000 {
            drop(tracing::info_span!("request").entered());
        }
    });
}

async fn shut_down(telemetry: &Telemetry) {
    let started = std::time::Instant::now();
    telemetry.shutdown().await;
    assert!(
        started.elapsed() <= SHUTDOWN_TIMEOUT + Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
}
