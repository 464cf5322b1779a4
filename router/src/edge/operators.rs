//! Operators in a test: replicas with tokens that their home cluster has signed and reviews, held by policies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::header::AUTHORIZATION;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use portolan_crds::names::service_account_user;
use portolan_runtime::tls;
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;
use serde_json::{Value, json};

use super::harness::{Bounds, Router, ask};
use crate::resource::access::{MemberAnswer, MemberApi};
use crate::resource::queues::Turn;
use crate::resource::upstream::scripted::{Backend, spawn};
use crate::stage::identify::signer::Signer;
use crate::value::snapshot::told;

/// Where the operator's Pods run, and their ServiceAccount.
const NAMESPACE: &str = "ops";
const ACCOUNT: &str = "operator";
/// The namespace of each member that is the shard's: the member's name.
const HOME: &str = "east";

/// A router with an operator whose shard has one namespace, called as the member, of each member.
pub(crate) struct Operators {
    pub(crate) router: Router,
    signer: Signer,
    members: Vec<String>,
    version: AtomicU64,
}

/// A member that confirms every token by what it says itself.
struct Reviewer;

impl MemberApi for Reviewer {
    fn post(&self, _: &str, _: &'static str, _: Turn, body: Vec<u8>) -> BoxFuture<'static, MemberAnswer> {
        let review: Value = serde_json::from_slice(&body).unwrap();
        let token = review["spec"]["token"].as_str().unwrap_or_default();
        let payload = token.split('.').nth(1).unwrap_or_default();
        let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap();
        let pod = &claims["kubernetes.io"]["pod"];
        let answer = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}, "spec": {"token": ""},
            "status": {
                "authenticated": true,
                "audiences": ["portolan"],
                "user": {
                    "username": service_account_user(NAMESPACE, ACCOUNT),
                    "extra": {
                        "authentication.kubernetes.io/pod-name": [pod["name"]],
                        "authentication.kubernetes.io/pod-uid": [pod["uid"]],
                    },
                },
            },
        });
        let answer: MemberAnswer = Ok((StatusCode::CREATED, Bytes::from(answer.to_string())));
        std::future::ready(answer).boxed()
    }
}

impl Operators {
    /// Before these members, the home cluster `east` among them. Two replicas, `a` and `b`.
    pub(crate) async fn bounded(members: &[(&str, &Backend)], bounds: Bounds) -> Self {
        let targets = members.iter().map(|(name, backend)| backend.target(name));
        let router = Router::with_members(targets, bounds, Some(Arc::new(Reviewer))).await;
        let operators = Self {
            router,
            signer: Signer::ec("key"),
            members: members.iter().map(|(name, _)| (*name).to_owned()).collect(),
            version: AtomicU64::new(1),
        };
        let identities = operators.members.iter().map(|cluster| {
            Body::MemberIdentity(v1::MemberIdentity {
                cluster: cluster.clone(),
                signing_keys: if cluster == HOME {
                    vec![operators.signer.jwk()]
                } else {
                    Vec::new()
                },
                allowed_service_accounts: vec![format!("{NAMESPACE}/{ACCOUNT}")],
                ..v1::MemberIdentity::default()
            })
        });
        operators.tell(identities.collect::<Vec<_>>());
        operators.hold(&[]);
        operators
    }

    /// The hub tells these.
    pub(crate) fn tell(&self, bodies: impl IntoIterator<Item = Body>) {
        let version = self.version.fetch_add(1, Ordering::Relaxed).to_string();
        let routing = &self.router.routing;
        let applied = told::upsert(&routing.load().snapshot, &version, bodies);
        assert!(applied.rejected.is_empty(), "{:?}", applied.rejected);
        routing.swap(applied.snapshot);
    }

    /// Replica `a` is held by these policies from now on, `b` by none.
    pub(crate) fn hold(&self, policies: &[&str]) {
        self.are(policies, &[]);
    }

    /// The shard is limited so from now on.
    pub(crate) fn limit(&self, limits: &[v1::Limit]) {
        self.are(&[], limits);
    }

    fn are(&self, policies: &[&str], limits: &[v1::Limit]) {
        let grant = |cluster: &String| told::MemberGrant {
            cluster: cluster.clone(),
            namespaces: vec![v1::NamespaceGrant {
                namespace: cluster.clone(),
                state: v1::GrantState::Granted.into(),
                ..v1::NamespaceGrant::default()
            }],
            ..told::MemberGrant::default()
        };
        let view = |uid: &str, policies: &[&str]| told::CallerView {
            home_cluster: HOME.to_owned(),
            pod_uid: uid.to_owned(),
            namespace: NAMESPACE.to_owned(),
            pod: format!("operator-{uid}"),
            service_account: ACCOUNT.to_owned(),
            shards: vec!["ops/shard".to_owned()],
            policies: policies.iter().map(|&name| name.to_owned()).collect(),
            created_unix_seconds: None,
            writes_closed: None,
            shard: Some(told::Shard {
                rules: v1::Shard {
                    primary_cluster: HOME.to_owned(),
                    label_prefix: "ctrlmesh.kusionstack.io/".to_owned(),
                    explicit_view: true,
                    leader_election_name: "leader".to_owned(),
                    limits: limits.to_vec(),
                    enforcement: v1::Enforcement::Enforce.into(),
                    replicated: vec![v1::ReplicatedKind {
                        group: "apiextensions.k8s.io".to_owned(),
                        resource: "customresourcedefinitions".to_owned(),
                    }],
                    ..v1::Shard::default()
                },
                members: self.members.iter().map(grant).collect(),
            }),
        };
        self.tell([view("a", policies).bodies(), view("b", &[]).bodies()].concat());
    }

    /// A FaultInjection `ops/fj` holds replica `a` from now on.
    pub(crate) fn order(&self, spec: &Value) {
        self.tell([told::fault_injection(spec)]);
        self.hold(&[told::FAULT_INJECTION]);
    }

    /// The kill switch: it is told of no more.
    pub(crate) fn stop(&self) {
        self.hold(&[]);
    }

    /// A connection of nobody in particular.
    pub(crate) async fn connect(&self) -> SendRequest<Full<Bytes>> {
        let config = tls::client_config(self.router.trust.clone(), None, tls::ALPN_GRPC).unwrap();
        let stream = self.router.connect_with(config).await;
        let (client, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
        spawn(async move {
            let _ = connection.await;
        });
        client
    }

    /// A request of a replica.
    pub(crate) fn request(&self, uid: &str, method: &str, path: &str, body: &'static str) -> Request<Full<Bytes>> {
        let claims = json!({
            "aud": ["portolan"], "exp": 4_000_000_000_u64, "kubernetes.io": {
                "namespace": NAMESPACE, "pod": {"name": format!("operator-{uid}"), "uid": uid},
                "serviceaccount": {"name": ACCOUNT, "uid": "u"},
            },
        });
        let mut request = ask(method, path, body);
        let token = format!("Bearer {}", self.signer.sign(&claims));
        request.headers_mut().insert(AUTHORIZATION, token.parse().unwrap());
        request
    }

    /// One request of a replica, on a connection of its own.
    pub(crate) async fn ask(&self, uid: &str, method: &str, path: &str) -> Response<Incoming> {
        let body = if method == "POST" { "{}" } else { "" };
        let request = self.request(uid, method, path, body);
        self.connect().await.send_request(request).await.unwrap()
    }

    /// One GET of replica `a`.
    pub(crate) async fn get(&self, path: &str) -> Response<Incoming> {
        self.ask("a", "GET", path).await
    }
}
