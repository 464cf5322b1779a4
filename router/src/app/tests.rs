//! A whole router in this process: scripted hub, scripted member, real sockets, the wiring of production.

mod policies;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use clap::Parser;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use portolan_runtime::pki::CertificateAuthority;
use portolan_runtime::tls::ALPN_HTTP1;
use portolan_runtime::{TelemetryArgs, telemetry};
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;
use portolan_wire::v1::router_message::Kind as In;
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::args::Args;
use crate::resource::subscribe::scripted::{HOUR, HubSession, ScriptedHub, Step};
use crate::resource::upstream::scripted::{Backend, SERVER_NAME, head, read_all, script};
use crate::stage::identify::signer::Signer;
use crate::value::snapshot::told;

const CANARY: &str = "canary-91f4";
const PATIENCE: Duration = Duration::from_secs(20);

struct World {
    /// With the router's stream; `None` when it is gone.
    hub: Option<(ScriptedHub, HubSession)>,
    authority: Arc<CertificateAuthority>,
    router: Bound,
    tasks: Tasks,
    signer: Signer,
    _member: Backend,
    folder: tempfile::TempDir,
}

/// What a router at `folder` is started with.
fn config(hub: &ScriptedHub, folder: &std::path::Path) -> Config {
    let file = |name: &str| folder.join(name).display().to_string();
    std::fs::write(folder.join("hub-ca.pem"), hub.authority.pem()).unwrap();
    std::fs::write(folder.join("token"), format!("abc123.{CANARY}-bootstrap")).unwrap();
    let args = Args::try_parse_from([
        "portolan-router",
        "--bind=127.0.0.1:0",
        "--admin-bind=127.0.0.1:0",
        &format!("--addresses-file={}", file("addresses.json")),
        &format!("--hub={}", hub.address),
        &format!("--hub-ca={}", file("hub-ca.pem")),
        &format!("--bootstrap-token-file={}", file("token")),
        &format!("--state-dir={}", file("state")),
        "--drain-timeout=60s",
    ]);
    Config::try_from(args.unwrap()).unwrap()
}

fn telemetry() -> Telemetry {
    static ONCE: std::sync::OnceLock<Telemetry> = std::sync::OnceLock::new();
    let args = TelemetryArgs {
        log_level: "error".to_owned(),
        ..TelemetryArgs::default()
    };
    ONCE.get_or_init(|| telemetry::init("portolan-router", &args).unwrap())
        .clone()
}

impl World {
    async fn start() -> Self {
        let (mut hub, folder, signer) = (
            ScriptedHub::start().await,
            tempfile::tempdir().unwrap(),
            Signer::ec("k1"),
        );
        hub.then(Step::Issue(HOUR));
        let tasks = Tasks::new();
        let router = build(config(&hub, folder.path()), &tasks, Handle::current(), telemetry())
            .await
            .unwrap();
        let mut session = hub.session().await;
        let member = Backend::start(100, script(member)).await;
        let answer = session.push(1, resources(&member, &signer), Vec::new()).await;
        assert_eq!(answer, In::Ack(v1::Ack { nonce: 1 }));
        let authority = hub.authority.clone();
        Self {
            hub: Some((hub, session)),
            authority,
            router,
            tasks,
            signer,
            _member: member,
            folder,
        }
    }

    fn token(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        self.signer.sign(&json!({
            "aud": ["portolan"], "exp": now + 3600, "jti": CANARY,
            "kubernetes.io": {
                "namespace": "ns", "pod": {"name": "operator-0", "uid": "u1"},
                "serviceaccount": {"name": "operator", "uid": "s"},
            },
        }))
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        let trust = TrustStore::from_pem(self.authority.pem()).unwrap();
        let tls = tls::client_config(trust, None, ALPN_HTTP1).unwrap();
        let stream = TcpStream::connect(self.router.addresses.bind).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(tls).connect(name, stream).await.unwrap()
    }

    async fn get(&self, path: &str, token: Option<&str>) -> (StatusCode, String) {
        request(TokioIo::new(self.connect().await), path, token).await
    }

    async fn admin(&self, path: &str) -> (StatusCode, String) {
        let stream = TcpStream::connect(self.router.addresses.admin).await.unwrap();
        request(TokioIo::new(stream), path, None).await
    }

    async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        let stream = TcpStream::connect(self.router.addresses.admin).await.unwrap();
        let request = Request::post(path)
            .header("host", "localhost")
            .header("content-type", "application/json");
        let request = request.body(Full::from(body.to_string())).unwrap();
        let (status, text) = send(TokioIo::new(stream), request).await;
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }
}

async fn request<S>(stream: TokioIo<S>, path: &str, token: Option<&str>) -> (StatusCode, String)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let mut request = Request::get(path).header("host", "localhost");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    send(stream, request.body(Full::default()).unwrap()).await
}

async fn send<S>(stream: TokioIo<S>, request: Request<Full<Bytes>>) -> (StatusCode, String)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let asking = async {
        let (mut send, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        let asked = send.send_request(request);
        let (response, _) = tokio::join!(
            async {
                let response: Response<hyper::body::Incoming> = asked.await.unwrap();
                let (head, body) = response.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                drop(send);
                (head.status, String::from_utf8(body.to_vec()).unwrap())
            },
            connection
        );
        response
    };
    tokio::time::timeout(PATIENCE, asking).await.expect("an answer")
}

/// Confirms the Pod of every token and every right; tells of any other request whom it was for.
async fn member(request: http::Request<h2::RecvStream>, mut respond: h2::server::SendResponse<Bytes>) {
    let (parts, body) = request.into_parts();
    assert_eq!(parts.headers["authorization"], format!("Bearer {CANARY}-credential"));
    let _ = read_all(body).await;
    let answer = if parts.uri.path().ends_with("/tokenreviews") {
        json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}, "spec": {"token": ""},
            "status": {"authenticated": true, "audiences": ["portolan"], "user": {
                "username": "system:serviceaccount:ns:operator",
                "extra": {
                    "authentication.kubernetes.io/pod-name": ["operator-0"],
                    "authentication.kubernetes.io/pod-uid": ["u1"],
                },
            }},
        })
    } else if parts.uri.path().ends_with("/subjectaccessreviews") {
        json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}, "spec": {},
            "status": {"allowed": true},
        })
    } else {
        json!({"path": parts.uri.path(), "user": parts.headers["impersonate-user"].to_str().unwrap()})
    };
    let mut stream = respond.send_response(head(200), false).unwrap();
    stream.send_data(answer.to_string().into(), true).unwrap();
}

fn resources(member: &Backend, signer: &Signer) -> Vec<v1::Resource> {
    let endpoint = v1::Endpoint {
        url: format!("https://{}", member.address),
        tls_server_name: SERVER_NAME.to_owned(),
    };
    let target = told::Target {
        cluster: "east".to_owned(),
        endpoints: vec![endpoint],
        ca_pem: member.ca_pem.clone(),
        signing_keys: vec![signer.jwk()],
        allowed_service_accounts: vec!["ns/operator".to_owned()],
        allowed_users: vec!["ada".to_owned()],
        ..told::Target::default()
    };
    let mut credential = told::credential("east", &format!("{CANARY}-credential"));
    credential.expires_unix_seconds = 4_000_000_000;
    let grant = v1::NamespaceGrant {
        namespace: "ns-a".to_owned(),
        owner_count: 1,
        fenced: false,
        state: v1::GrantState::Granted.into(),
        ..v1::NamespaceGrant::default()
    };
    let shard = told::Shard {
        rules: v1::Shard {
            primary_cluster: "east".to_owned(),
            label_prefix: "ctrlmesh.kusionstack.io/".to_owned(),
            ..v1::Shard::default()
        },
        members: vec![told::MemberGrant {
            cluster: "east".to_owned(),
            all_namespaces: false,
            namespaces: vec![grant],
            ..told::MemberGrant::default()
        }],
    };
    let view = told::CallerView {
        created_unix_seconds: None,
        writes_closed: None,
        policies: Vec::new(),
        home_cluster: "east".to_owned(),
        pod_uid: "u1".to_owned(),
        namespace: "ns".to_owned(),
        pod: "operator-0".to_owned(),
        service_account: "operator".to_owned(),
        shards: vec!["ns/shard".to_owned()],
        shard: Some(shard),
    };
    let credential = [Body::Credential(credential)];
    told::resources("1", target.bodies().into_iter().chain(credential).chain(view.bodies()))
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn enrols_follows_the_hub_identifies_and_serves() {
    let world = World::start().await;
    let token = world.token();
    let path = "/api/v1/namespaces/ns-a/configmaps/x";
    let (status, body) = world.get(path, Some(&token)).await;
    assert_eq!(
        (status, json_of(&body)["path"].as_str()),
        (StatusCode::OK, Some(path)),
        "{body}"
    );
    assert_eq!(json_of(&body)["user"], "system:serviceaccount:ns:operator");

    let (status, body) = world.get(path, None).await;
    assert_eq!(
        (status, json_of(&body)["kind"].as_str()),
        (StatusCode::UNAUTHORIZED, Some("Status")),
        "{body}"
    );
    let (status, body) = world
        .get("/api/v1/namespaces/elsewhere/configmaps/x", Some(&token))
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{body}");
    assert_eq!(world.get("/readyz", None).await.0, StatusCode::OK);

    let mut told = String::new();
    for (page, part) in [
        ("/readyz", "[+]snapshot ok"),
        ("/configz", "\"ns-a\""),
        ("/breakers", "closed"),
        ("/metrics", "portolan_router_requests_finished_total{verb=\"get\""),
        (
            "/metrics",
            "portolan_router_credential_not_after_seconds{cluster=\"east\"} 4000000000",
        ),
        ("/metrics", "portolan_router_identify_requests_total{outcome=\"pod\"} 2"),
        ("/metrics", "portolan_router_hub_connected 1"),
    ] {
        let (status, text) = world.admin(page).await;
        assert_eq!(status, StatusCode::OK, "{page}");
        assert!(text.contains(part), "{page} lacks {part}: {text}");
        told.push_str(&text);
    }
    assert!(!told.contains(CANARY) && !told.contains("eyJ"), "no token, no key");
    let addresses = std::fs::read_to_string(world.folder.path().join("addresses.json")).unwrap();
    assert_eq!(json_of(&addresses)["bind"], world.router.addresses.bind.to_string());

    let report = world.router.drain.now().await;
    assert!(report.is_clean(), "{report:?}");
    assert!(world.tasks.is_cancelled());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explains_a_plan() {
    let world = World::start().await;
    let explain = async |query: &str| {
        let (status, text) = world.admin(&format!("/explain?{query}")).await;
        (status, json_of(&text))
    };
    let caller = "as=east/ns/operator-0";
    let (status, told) = explain(&format!("verb=GET&path=/api/v1/namespaces/ns-a/pods/p&{caller}")).await;
    assert_eq!(
        (status, told["plan"]["forward"]["cluster"].as_str()),
        (StatusCode::OK, Some("east")),
        "{told}"
    );
    assert_eq!(told["caller"]["binding"], "ns/shard");
    assert!(!told["why"].as_array().unwrap().is_empty(), "{told}");
    let (_, told) = explain(&format!("verb=watch&path=/api/v1/namespaces/ns-a/pods&{caller}")).await;
    assert_eq!(told["request"]["verb"], "watch", "{told}");
    let (_, told) = explain(&format!(
        "verb=delete&path=/api/v1/namespaces/elsewhere/pods/p&{caller}"
    ))
    .await;
    let finds_out = json!("404 if none of east has Namespace elsewhere, else 403");
    assert!(told["why"].as_array().unwrap().contains(&finds_out), "{told}");
    let (_, told) = explain("verb=get&path=/clusters/east/api/v1/pods&as=user:ada&groups=sre").await;
    assert!(
        told["plan"]["forward"]["needs"][0]["access"]
            .as_str()
            .unwrap()
            .contains("ada"),
        "{told}"
    );
    let (_, told) = explain(&format!("verb=get&path=/api/v1/../secrets&{caller}")).await;
    assert!(told["plan"]["refuse"].is_string(), "{told}");
    assert_eq!(
        explain("verb=get&path=/api&as=east/ns/nobody").await.0,
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        explain(&format!("verb=frob&path=/api&{caller}")).await.0,
        StatusCode::BAD_REQUEST
    );
    world.router.drain.now().await;
}

/// It would be reset there, which costs a client-go watch a relist; refused it tries again where it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_is_let_go_finds_the_listener_closed() {
    const CLIENTS: usize = 20;
    let world = World::start().await;
    let mut clients = Vec::new();
    let mut answer = [0; 4096];
    for _ in 0..CLIENTS {
        let mut stream = world.connect().await;
        stream
            .write_all(b"GET /livez HTTP/1.1\r\nhost: r\r\n\r\n")
            .await
            .unwrap();
        assert!(stream.read(&mut answer).await.unwrap() > 0);
        clients.push(stream);
    }
    let address = world.router.addresses.bind;
    let refused = clients.into_iter().map(|mut stream| async move {
        let _ = stream.read_to_end(&mut Vec::new()).await;
        TcpStream::connect(address).await.is_err()
    });
    let ended = futures::future::join_all(refused);
    let (_, refused) = tokio::join!(world.router.drain.now(), tokio::time::timeout(PATIENCE, ended));
    assert_eq!(refused.unwrap(), [true; CLIENTS]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_without_the_hub_serves_on() {
    let world = World::start().await;
    let token = world.token();
    let World {
        hub,
        authority,
        router,
        signer,
        _member: member,
        folder,
        ..
    } = world;
    assert!(router.drain.now().await.is_clean());
    let (hub, session) = hub.unwrap();
    drop(session);
    let config = config(&hub, folder.path());
    hub.stop().await;
    let tasks = Tasks::new();
    let router = build(config, &tasks, Handle::current(), telemetry()).await.unwrap();
    let world = World {
        hub: None,
        authority,
        router,
        tasks,
        signer,
        _member: member,
        folder,
    };
    let (status, body) = world.get("/api/v1/namespaces/ns-a/configmaps/x", Some(&token)).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert_eq!(world.get("/readyz", None).await.0, StatusCode::OK);
    world.router.drain.now().await;
}
