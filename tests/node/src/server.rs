//! The node's HTTPS endpoint, as far as the API server asks a kubelet: logs of containers, and programs beside them. Whoever
//! asks shows a certificate of the cluster's CA.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path as Captured, Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::{StreamExt, stream};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use portolan_runtime::Tasks;
use portolan_runtime::pki::CertificateAuthority;
use portolan_runtime::tls::{ALPN_HTTP1, ClientAuth, Identity, IdentityStore, TlsIncoming, TrustStore, server_config};
use serde::Deserialize;
use tokio::net::TcpListener;

use crate::exec;
use crate::log::{self, Wanted};
use crate::machine::Machine;
use crate::pods::Pods;

/// No node lives that long.
const CERTIFICATE_LIFE: Duration = Duration::from_hours(365 * 24);
/// Between two looks at a log that is followed.
const FOLLOW: Duration = Duration::from_millis(100);

/// What answers need.
#[derive(Clone)]
struct Kubelet {
    machine: Arc<Machine>,
    pods: Pods,
    tasks: Tasks,
}

/// Serves until the tasks are cancelled. `ca` is the cluster's, as certificates in DER.
pub(crate) fn serve(
    machine: Arc<Machine>,
    pods: Pods,
    listener: TcpListener,
    ca: &[Vec<u8>],
    tasks: &Tasks,
) -> Result<()> {
    let trust = TrustStore::from_pem(&pem(ca)).context("the CA of the cluster")?;
    let own = CertificateAuthority::generate("portolan-node")?;
    let address = machine.address.to_string();
    let issued = own.issue_server(&machine.node, &[&address], CERTIFICATE_LIFE)?;
    let identity = IdentityStore::new(Identity::from_pem(&issued.cert_pem, &issued.key_pem)?);
    let config = server_config(identity, ClientAuth::Required(trust), ALPN_HTTP1)?;
    let mut incoming = TlsIncoming::new(listener, config, tasks)?;
    let router = Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/containerLogs/{namespace}/{pod}/{container}", get(logs))
        .route("/exec/{namespace}/{pod}/{container}", any(exec))
        .with_state(Kubelet {
            machine,
            pods,
            tasks: tasks.clone(),
        });
    let connections = tasks.clone();
    tasks.spawn("kubelet", async move {
        while let Some(Ok(connection)) = incoming.next().await {
            let (router, stop) = (router.clone(), connections.token());
            connections.spawn("kubelet-connection", async move {
                let service = TowerToHyperService::new(router);
                let serving = http1::Builder::new().serve_connection(TokioIo::new(connection), service);
                // An error is the client's.
                let _ = stop.run_until_cancelled(serving.with_upgrades()).await;
            });
        }
    });
    Ok(())
}

/// Certificates in DER as one PEM text.
fn pem(certificates: &[Vec<u8>]) -> String {
    let mut text = String::new();
    for der in certificates {
        let body = STANDARD.encode(der);
        let _ = writeln!(text, "-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----");
    }
    text
}

/// As the API server puts it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LogOptions {
    follow: bool,
    previous: bool,
    timestamps: bool,
    tail_lines: Option<usize>,
    since_seconds: Option<i64>,
    since_time: Option<Timestamp>,
    limit_bytes: Option<usize>,
}

impl LogOptions {
    fn wanted(&self) -> Wanted {
        let ago = self
            .since_seconds
            .map(|seconds| Timestamp::now() - Duration::from_secs(seconds.try_into().unwrap_or_default()));
        Wanted {
            tail: self.tail_lines,
            since: self.since_time.or(ago),
            timestamps: self.timestamps,
            limit: self.limit_bytes,
        }
    }
}

async fn logs(
    State(kubelet): State<Kubelet>,
    Captured((namespace, name, container)): Captured<(String, String, String)>,
    Query(options): Query<LogOptions>,
) -> Response {
    let Some(pod) = kubelet.pods.find(&namespace, &name) else {
        return (StatusCode::NOT_FOUND, format!("pod {name:?} not found")).into_response();
    };
    let Some(log) = find(&kubelet.machine, &pod, &container, options.previous) else {
        let which = if options.previous {
            "previous terminated container"
        } else {
            "container"
        };
        let why = format!("{which} {container:?} in pod {name:?} has not run");
        return (StatusCode::BAD_REQUEST, why).into_response();
    };
    let reader = Reader {
        path: log,
        read: 0,
        wanted: options.wanted(),
        follow: options.follow,
        over: false,
    };
    Body::from_stream(stream::unfold(reader, Reader::next)).into_response()
}

async fn exec(
    State(kubelet): State<Kubelet>,
    Captured((namespace, name, container)): Captured<(String, String, String)>,
    Query(query): Query<Vec<(String, String)>>,
    request: Request,
) -> Response {
    let pod = kubelet.pods.find(&namespace, &name);
    let uid = pod.and_then(|pod| pod.metadata.uid.clone()).unwrap_or_default();
    let Some(inside) = kubelet.machine.running.lock().get(&(uid, container.clone())).cloned() else {
        let why = format!("container {container:?} in pod {name:?} does not run");
        return (StatusCode::NOT_FOUND, why).into_response();
    };
    let wanted = exec::Wanted::parse(&query);
    let line = kubelet.machine.beside(&inside, &wanted.command);
    match exec::accept(request, &wanted, &line) {
        Ok((response, streams)) => {
            let stop = kubelet.tasks.token();
            kubelet.tasks.spawn("exec", async move {
                if let Some(Err(error)) = stop.run_until_cancelled(streams).await {
                    tracing::debug!(error = format!("{error:#}"), "the streams of a program broke");
                }
            });
            response
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error:#}")).into_response(),
    }
}

/// The log of the newest run, or of the one before.
fn find(machine: &Machine, pod: &Pod, container: &str, previous: bool) -> Option<PathBuf> {
    if container.contains(['/', '.']) {
        return None;
    }
    let folder = machine.log(pod, container, 0).parent()?.to_owned();
    let newest = log::newest(&folder)?;
    let run = if previous { newest.checked_sub(1)? } else { newest };
    Some(machine.log(pod, container, run)).filter(|log| log.exists())
}

/// A log on its way.
struct Reader {
    path: PathBuf,
    /// Bytes of the file that were looked at.
    read: usize,
    wanted: Wanted,
    follow: bool,
    over: bool,
}

impl Reader {
    /// The next part; None at the end.
    async fn next(mut self) -> Option<(Result<Vec<u8>, Infallible>, Self)> {
        while !self.over {
            // Before the look: what comes after it is no part of a log that has ended.
            let ended = !self.follow || log::has_ended(&self.path);
            let log = read_from(&self.path, self.read);
            let (shown, looked) = self.wanted.of(&log);
            self.read += looked;
            // The first part was all that the end of the log is about.
            self.wanted.tail = None;
            self.wanted.limit = self.wanted.limit.map(|limit| limit - shown.len());
            self.over = ended || self.wanted.limit == Some(0);
            if !shown.is_empty() {
                return Some((Ok(shown), self));
            }
            if !self.over {
                tokio::time::sleep(FOLLOW).await;
            }
        }
        None
    }
}

/// A file without its beginning; nothing if it is gone.
fn read_from(path: &Path, beginning: usize) -> Vec<u8> {
    let mut log = std::fs::read(path).unwrap_or_default();
    log.drain(..beginning.min(log.len()));
    log
}
