//! Slow admission in members: each mark waits after the member's policies have let it pass, and is written then. So there are writes
//! that are admitted before their namespace changes hands, and would be written after it if nobody waited for them.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use portolan_runtime::pki::CertificateAuthority;
use portolan_runtime::tls::{self, ClientAuth, Identity, IdentityStore};
use portolan_tests::world::World;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

/// Begins the names of ConfigMaps that say who was there, each of one write.
pub(crate) const MARK: &str = "mark-";
/// For how long each mark waits, so that most of the time one does.
const WAITS: Duration = Duration::from_millis(1_500);
/// Every other one waits on while its namespace is being released, for so long in all: longer than a release takes on a busy machine.
pub(crate) const WAITS_MOST: Duration = Duration::from_secs(6);
/// Until a grant has been seen that it did not hold up.
const AFTER_THE_GRANT: Duration = Duration::from_millis(300);

/// Namespaces that are being released. A lock: who reads the ledger writes it, each mark looks.
pub(crate) type Releasing = Arc<Mutex<BTreeSet<&'static str>>>;
const POLL: Duration = Duration::from_millis(20);
const DAY: Duration = Duration::from_hours(24);

/// Running until it is dropped.
pub(crate) struct SlowAdmission {
    pub(crate) releasing: Releasing,
    _accepting: JoinSet<()>,
}

impl SlowAdmission {
    /// In these members.
    pub(crate) async fn start(world: &World, members: &[&str]) -> anyhow::Result<Self> {
        let ca = CertificateAuthority::generate("slow admission")?;
        let issued = ca.issue_server("slow", &["127.0.0.1"], DAY)?;
        let identity = IdentityStore::new(Identity::from_pem(&issued.cert_pem, &issued.key_pem)?);
        let acceptor = TlsAcceptor::from(tls::server_config(identity, ClientAuth::None, &[b"http/1.1"])?);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let webhook = webhook(&format!("https://{}/", listener.local_addr()?), ca.pem());
        let mut accepting = JoinSet::new();
        let releasing = Releasing::default();
        accepting.spawn(accept(listener, acceptor, releasing.clone()));
        for member in members {
            let all = Api::<ValidatingWebhookConfiguration>::all(world.cluster(member).client().await?);
            all.create(&PostParams::default(), &serde_json::from_value(webhook.clone())?)
                .await?;
        }
        Ok(Self {
            releasing,
            _accepting: accepting,
        })
    }
}

fn webhook(url: &str, ca_pem: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "slow"},
        "webhooks": [{
            "name": "slow.portolan.test",
            "clientConfig": {"url": url, "caBundle": BASE64.encode(ca_pem)},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}],
            "matchConditions": [{"name": "marks", "expression": format!("object.metadata.name.startsWith('{MARK}')")}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore", "timeoutSeconds": 10,
        }],
    })
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, releasing: Releasing) {
    let acceptor = Arc::new(acceptor);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                connections.spawn(serve(stream, acceptor.clone(), releasing.clone()));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, acceptor: Arc<TlsAcceptor>, releasing: Releasing) {
    if let Ok(stream) = acceptor.accept(stream).await {
        let allow = |request| allow(request, releasing.clone());
        // One that breaks is of an API server that was killed.
        let _ = http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service_fn(allow))
            .await;
    }
}

async fn allow(request: Request<Incoming>, releasing: Releasing) -> Result<Response<Full<Bytes>>, Infallible> {
    let asked = request.into_body().collect().await;
    let asked = asked.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let asked: Value = serde_json::from_slice(&asked).unwrap_or_default();
    let name = asked["request"]["object"]["metadata"]["name"]
        .as_str()
        .unwrap_or_default();
    let namespace = asked["request"]["namespace"].as_str().unwrap_or_default();
    let begun = Instant::now();
    sleep(WAITS).await;
    if name.ends_with(['0', '2', '4', '6', '8']) && releasing.lock().contains(namespace) {
        while begun.elapsed() < WAITS_MOST && releasing.lock().contains(namespace) {
            sleep(POLL).await;
        }
        sleep(AFTER_THE_GRANT).await;
    }
    let answer = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {"uid": asked["request"]["uid"], "allowed": true},
    });
    Ok(Response::new(Full::from(answer.to_string())))
}
