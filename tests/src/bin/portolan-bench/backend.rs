//! A member cluster's API server reduced to what the benchmark asks of it, as cheap as hyper can be: the floor that a
//! router's costs are compared with.
//!
//! It answers `/version`, TokenReview, a GET of one ConfigMap of about a kilobyte and of one Pod of four, and watches that are silent until
//! `/bench/emit` makes each of them tell of one event. It believes every token. Run as a process of its own by the
//! hidden subcommand `backend`.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use futures::Stream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Either, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;

use crate::pods::{Burst, PodEvents, Pods};
use crate::served::{self, MAX_STREAMS, ServeArgs};

const VERSION: &[u8] = br#"{"major":"1","minor":"36","gitVersion":"v1.36.3"}"#;
const EVENT_LINE_END: &[u8] = b"\n";
/// The collection of [`Pods`].
pub(crate) const PODS: &str = "/api/v1/pods";

/// One pod of [`POD_BYTES`], as requests of operators are for.
pub(crate) const POD: &str = "/api/v1/namespaces/bench/pods/pod";
pub(crate) const POD_BYTES: usize = 4_096;

type Answer = Response<Either<Full<Bytes>, StreamBody<Events>>>;

/// Flags of the backend.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BackendArgs {
    #[command(flatten)]
    serve: ServeArgs,
    /// Pods in its list
    #[arg(long, default_value_t = 0)]
    pods: usize,
    /// Name of the member, part of the pods' names
    #[arg(long, default_value = "bench")]
    member: String,
}

/// What is served.
struct Backend {
    config_map: Bytes,
    pod: Bytes,
    event: Bytes,
    /// Counts the events of all watches. A watch channel: a sleeping watch costs a receiver, not a queue.
    emitted: watch::Sender<u64>,
    pods: Arc<Pods>,
    bursts: watch::Sender<Burst>,
    /// Watches of pods so far.
    watches: AtomicUsize,
}

pub(crate) async fn run(args: &BackendArgs) -> anyhow::Result<()> {
    let object = config_map("bench", "settings");
    let mut event = json!({"type": "MODIFIED", "object": object}).to_string().into_bytes();
    event.extend_from_slice(EVENT_LINE_END);
    let pods = Arc::new(Pods::new(&args.member, args.pods));
    let backend = Arc::new(Backend {
        pod: pods.one(POD_BYTES),
        config_map: object.to_string().into(),
        event: event.into(),
        emitted: watch::Sender::new(0),
        pods,
        bursts: watch::Sender::new(Burst::default()),
        watches: AtomicUsize::new(0),
    });
    served::serve(&args.serve, move |stream| {
        let backend = backend.clone();
        async move {
            let service = service_fn(move |request| answer(backend.clone(), request));
            // A connection that breaks is the client's to report.
            let _ = http2::Builder::new(TokioExecutor::new())
                .max_concurrent_streams(MAX_STREAMS)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }
    })
    .await
}

/// About a kilobyte of JSON, as an API server writes it.
pub(crate) fn config_map(namespace: &str, name: &str) -> Value {
    let data: Value = (0..12)
        .map(|n| (format!("setting-{n:02}"), Value::from("0123456789abcdef".repeat(3))))
        .collect::<serde_json::Map<_, _>>()
        .into();
    json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {
            "name": name, "namespace": namespace, "uid": "5f0c33a1-0c53-4b1c-9d5e-0d1f2a3b4c5d",
            "resourceVersion": "4711", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app.kubernetes.io/name": "bench"},
        },
        "data": data,
    })
}

async fn answer(backend: Arc<Backend>, request: Request<Incoming>) -> Result<Answer, Infallible> {
    let path = request.uri().path();
    Ok(match path {
        "/version" => json_answer(Bytes::from_static(VERSION)),
        "/bench/emit" => {
            backend.emitted.send_modify(|emitted| *emitted += 1);
            json_answer(Bytes::from_static(b"{}"))
        }
        "/apis/authentication.k8s.io/v1/tokenreviews" if request.method() == Method::POST => review(request).await,
        "/bench/burst" => {
            let (events, rate) = (number(request.uri(), "events"), number(request.uri(), "rate"));
            backend.bursts.send_modify(|burst| {
                *burst = Burst {
                    number: burst.number + 1,
                    events,
                    rate,
                }
            });
            json_answer(Bytes::from_static(b"{}"))
        }
        _ if request.uri().query().is_some_and(|query| query.contains("watch=")) => {
            let events = if path == PODS {
                let bursts = WatchStream::from_changes(backend.bursts.subscribe());
                let number = backend.watches.fetch_add(1, Ordering::Relaxed);
                Events::Pods(Box::new(PodEvents::new(backend.pods.clone(), bursts, number)))
            } else {
                let emitted = WatchStream::from_changes(backend.emitted.subscribe());
                Events::Same {
                    emitted,
                    event: backend.event.clone(),
                }
            };
            answer_of(StatusCode::OK, Either::Right(StreamBody::new(events)))
        }
        POD => json_answer(backend.pod.clone()),
        PODS => json_answer(backend.pods.list()),
        "/api/v1/namespaces/bench/configmaps/settings" => json_answer(backend.config_map.clone()),
        _ => answer_of(
            StatusCode::NOT_FOUND,
            Either::Left(Full::new(Bytes::from_static(b"{}"))),
        ),
    })
}

fn json_answer(body: Bytes) -> Answer {
    answer_of(StatusCode::OK, Either::Left(Full::new(body)))
}

fn answer_of(status: StatusCode, body: Either<Full<Bytes>, StreamBody<Events>>) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let json = http::HeaderValue::from_static("application/json");
    answer.headers_mut().insert(http::header::CONTENT_TYPE, json);
    answer
}

/// Says of a token what it says of itself.
async fn review(request: Request<Incoming>) -> Answer {
    let asked = match request.into_body().collect().await {
        Ok(body) => serde_json::from_slice::<Value>(&body.to_bytes()).unwrap_or_default(),
        Err(_) => Value::Null,
    };
    let claims = asked["spec"]["token"].as_str().and_then(claims).unwrap_or_default();
    let pod = &claims["kubernetes.io"]["pod"];
    let answer = json!({
        "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": asked["spec"],
        "status": {
            "authenticated": claims != Value::Null,
            "audiences": asked["spec"]["audiences"],
            "user": {
                "username": claims["sub"],
                "extra": {
                    "authentication.kubernetes.io/pod-name": [pod["name"]],
                    "authentication.kubernetes.io/pod-uid": [pod["uid"]],
                },
            },
        },
    });
    answer_of(StatusCode::CREATED, Either::Left(Full::new(answer.to_string().into())))
}

fn claims(token: &str) -> Option<Value> {
    let bytes = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// The events of one watch.
enum Events {
    /// One event, again and again.
    Same { emitted: WatchStream<u64>, event: Bytes },
    /// Bursts of pods.
    Pods(Box<PodEvents>),
}

impl Stream for Events {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut *self {
            Self::Same { emitted, event } => {
                let next = Pin::new(emitted).poll_next(cx);
                next.map(|number| number.map(|_| Ok(Frame::data(event.clone()))))
            }
            Self::Pods(events) => Pin::new(&mut **events).poll_next(cx),
        }
    }
}

/// A number in the query; 0 without.
fn number(uri: &http::Uri, name: &str) -> u64 {
    let mut pairs = uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='));
    pairs
        .find(|(key, _)| *key == name)
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or_default()
}
