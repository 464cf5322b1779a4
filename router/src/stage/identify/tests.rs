//! Keys made here, tokens signed here, a scripted member; the snapshot is built from the wire as in production.

mod members;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, pending};
use http::{Request, StatusCode};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use parking_lot::Mutex;
use portolan_runtime::pki::CertificateAuthority;
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::signer::Signer;
use super::*;
use crate::resource::access::MemberAnswer;
use crate::resource::load::Load;
use crate::resource::queues::Turn;
use crate::stage::admit::Limits;
use crate::stage::admit::metrics::AdmitMetrics;
use crate::value::snapshot::told;

const NOW: u64 = 1_800_000_000;
const CANARY: &str = "canary";

/// Claims of the Pod `ns/operator-0` of ServiceAccount `operator`, with `uid`.
fn claims(uid: &str) -> Value {
    json!({
        "aud": ["portolan"], "exp": NOW + 3600, "nbf": NOW - 10, "iss": "https://kubernetes.default.svc",
        "jti": CANARY, "sub": "system:serviceaccount:ns:operator",
        "kubernetes.io": {
            "namespace": "ns",
            "pod": {"name": "operator-0", "uid": uid},
            "serviceaccount": {"name": "operator", "uid": "sa-uid"},
        },
    })
}

fn edited(mut claims: Value, edit: impl FnOnce(&mut Value)) -> Value {
    edit(&mut claims);
    claims
}

fn get(path: &str) -> ApiRequest {
    crate::value::classify::classify(&http::Method::GET, &path.parse().unwrap(), &HeaderMap::new()).unwrap()
}

type Script = Box<dyn Fn(&str, &Value) -> MemberAnswer + Send + Sync>;

/// Members that answer as told.
struct Members {
    script: Script,
    asked: AtomicUsize,
    clusters: Mutex<Vec<String>>,
}

impl MemberApi for Members {
    fn post(&self, cluster: &str, _: &'static str, _: Turn, body: Vec<u8>) -> BoxFuture<'static, MemberAnswer> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.clusters.lock().push(cluster.to_owned());
        let answer = (self.script)(cluster, &serde_json::from_slice(&body).unwrap());
        async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            answer
        }
        .boxed()
    }
}

#[allow(clippy::unnecessary_wraps)] // what every script returns
fn reviewed(status: &Value) -> MemberAnswer {
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}, "spec": {"token": ""},
        "status": status,
    });
    Ok((StatusCode::CREATED, Bytes::from(review.to_string())))
}

/// What a member says of a good token of `uid`.
fn good(uid: &str) -> Value {
    json!({
        "authenticated": true,
        "audiences": ["portolan"],
        "user": {
            "username": "system:serviceaccount:ns:operator",
            "extra": {
                "authentication.kubernetes.io/pod-name": ["operator-0"],
                "authentication.kubernetes.io/pod-uid": [uid],
            },
        },
    })
}

fn target(cluster: &str, keys: &[&Signer]) -> Vec<Body> {
    let target = told::Target {
        cluster: cluster.to_owned(),
        endpoints: vec![v1::Endpoint {
            url: "https://127.0.0.1:6443".to_owned(),
            ..v1::Endpoint::default()
        }],
        signing_keys: keys.iter().map(|key| key.jwk()).collect(),
        ..told::Target::default()
    };
    target.bodies()
}

fn view(cluster: &str, uid: &str, shards: &[&str]) -> Vec<Body> {
    let shard = told::Shard {
        rules: v1::Shard {
            primary_cluster: cluster.to_owned(),
            label_prefix: "ctrlmesh.kusionstack.io/".to_owned(),
            ..v1::Shard::default()
        },
        members: vec![told::MemberGrant {
            cluster: cluster.to_owned(),
            ..told::MemberGrant::default()
        }],
    };
    let view = told::CallerView {
        created_unix_seconds: None,
        writes_closed: None,
        policies: Vec::new(),
        home_cluster: cluster.to_owned(),
        pod_uid: uid.to_owned(),
        namespace: "ns".to_owned(),
        pod: "operator-0".to_owned(),
        service_account: "operator".to_owned(),
        shards: shards.iter().map(|&shard| shard.to_owned()).collect(),
        shard: (shards.len() == 1).then_some(shard),
    };
    view.bodies()
}

fn snapshot(bodies: Vec<Vec<Body>>) -> Snapshot {
    let applied = told::upsert(&Snapshot::default(), "1", bodies.into_iter().flatten());
    assert!(applied.rejected.is_empty(), "{:?}", applied.rejected);
    applied.snapshot
}

struct World {
    members: Arc<Members>,
    identifier: Identifier,
    snapshot: Snapshot,
    /// All requests come over one connection.
    last: LastToken,
}

impl World {
    fn new(resources: Vec<Vec<Body>>, script: impl Fn(&str, &Value) -> MemberAnswer + Send + Sync + 'static) -> Self {
        Self::bounded(Limits::default(), resources, script)
    }

    fn bounded(
        limits: Limits,
        resources: Vec<Vec<Body>>,
        script: impl Fn(&str, &Value) -> MemberAnswer + Send + Sync + 'static,
    ) -> Self {
        let members = Arc::new(Members {
            script: Box::new(script),
            asked: AtomicUsize::new(0),
            clusters: Mutex::default(),
        });
        let config = IdentityConfig {
            audience: "portolan".to_owned(),
            accept_api_audience: false,
        };
        let admit = Admit::new(limits, Load::default(), AdmitMetrics::default());
        let identifier = Identifier::new(config, members.clone(), admit, IdentifyMetrics::default());
        Self {
            members,
            identifier,
            snapshot: snapshot(resources),
            last: LastToken::default(),
        }
    }

    /// One member `east` with `signer`, one caller with uid `uid-1`, and a member that confirms that Pod.
    fn usual(signer: &Signer) -> Self {
        let resources = vec![target("east", &[signer]), view("east", "uid-1", &["ns/shard"])];
        Self::new(resources, |_, _| reviewed(&good("uid-1")))
    }

    async fn ask(&self, token: &str) -> Result<Caller, Fault> {
        self.ask_with(&[("authorization", &format!("Bearer {token}"))], None)
            .await
    }

    async fn ask_with(&self, headers: &[(&'static str, &str)], peer: Option<&PeerIdentity>) -> Result<Caller, Fault> {
        self.send((headers, peer), "/api/v1/namespaces/ns/pods").await
    }

    async fn ask_for(&self, token: &str, path: &str) -> Result<Caller, Fault> {
        let bearer = format!("Bearer {token}");
        self.send((&[("authorization", &bearer)], None), path).await
    }

    async fn send(
        &self,
        (headers, peer): (&[(&'static str, &str)], Option<&PeerIdentity>),
        path: &str,
    ) -> Result<Caller, Fault> {
        let mut head = Request::get(path);
        for (name, value) in headers {
            head = head.header(*name, *value);
        }
        let (head, ()) = head.body(()).unwrap().into_parts();
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        let sender = Sender {
            head: &head,
            peer,
            last: &self.last,
            asked: &get(path),
        };
        let outcome = self.identifier.identify_at(&sender, &self.snapshot, now).await;
        if let Err(fault) = &outcome {
            // No part of a token in any message.
            let text = fault.to_string();
            assert!(!text.contains("eyJ") && !text.contains(CANARY), "{text}");
        }
        outcome
    }

    fn asked(&self) -> usize {
        self.members.asked.load(Ordering::SeqCst)
    }
}

fn is_401(outcome: Result<Caller, Fault>, part: &str) {
    match outcome {
        Err(Fault::Unauthenticated(text)) => assert!(text.contains(part), "{text:?} lacks {part:?}"),
        other => panic!("not a 401: {other:?}"),
    }
}

fn is_403(outcome: Result<Caller, Fault>, parts: &[&str]) {
    match outcome {
        Err(Fault::Forbidden(text)) => {
            for part in parts {
                assert!(text.contains(part), "{text:?} lacks {part:?}");
            }
        }
        other => panic!("not a 403: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_bound_token_of_either_key_type_is_its_pod() {
    for signer in [Signer::ec("k1"), Signer::rsa("k1")] {
        let world = World::usual(&signer);
        let token = signer.sign(&claims("uid-1"));
        for _ in 0..3 {
            let Caller::Pod(view) = world.ask(&token).await.unwrap() else {
                panic!("not a Pod")
            };
            assert_eq!(*view.key.pod_uid, *"uid-1");
        }
        assert_eq!(world.asked(), 1, "kept for ten seconds");
        tokio::time::sleep(cache::TTL).await;
        world.ask(&token).await.unwrap();
        assert_eq!(world.asked(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn the_member_is_asked_for_the_audience_and_by_token() {
    let signer = Signer::ec("k1");
    let token = signer.sign(&claims("uid-1"));
    let expected = token.clone();
    let resources = vec![target("east", &[&signer]), view("east", "uid-1", &["ns/shard"])];
    let world = World::new(resources, move |cluster, review| {
        assert_eq!(cluster, "east");
        assert_eq!(review["spec"], json!({"token": expected, "audiences": ["portolan"]}));
        assert_eq!(review["kind"], "TokenReview");
        reviewed(&good("uid-1"))
    });
    world.ask(&token).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn many_at_once_are_one_review() {
    let signer = Signer::ec("k1");
    let world = World::usual(&signer);
    let token = signer.sign(&claims("uid-1"));
    let all = futures::future::join_all((0..100).map(|_| world.ask(&token))).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(world.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn bad_tokens_are_refused_without_asking_anybody() {
    let (signer, foreign) = (Signer::ec("k1"), Signer::ec("k2"));
    let impostor = Signer {
        kid: "k1",
        ..Signer::ec("")
    };
    let world = World::usual(&signer);
    let hmac = jsonwebtoken::encode(
        &Header {
            kid: Some("k1".to_owned()),
            ..Header::new(Algorithm::HS256)
        },
        &claims("uid-1"),
        &EncodingKey::from_secret(signer.jwk().as_bytes()),
    );
    // {"alg":"none","kid":"k1"}
    let none = format!(
        "eyJhbGciOiJub25lIiwia2lkIjoiazEifQ.{}.",
        signer.sign(&claims("uid-1")).split('.').nth(1).unwrap()
    );
    let unbound = edited(claims("uid-1"), |claims| {
        claims["kubernetes.io"].as_object_mut().unwrap().remove("pod");
    });
    let cases = [
        (foreign.sign(&claims("uid-1")), "no member cluster published the key"),
        (impostor.sign(&claims("uid-1")), "signature does not verify"),
        (
            signer.sign(&edited(claims("uid-1"), |claims| claims["exp"] = json!(NOW - 5))),
            "expired 5 s ago",
        ),
        (
            signer.sign(&edited(claims("uid-1"), |claims| claims["nbf"] = json!(NOW + 300))),
            "not valid for another 300 s",
        ),
        (
            signer.sign(&edited(claims("uid-1"), |claims| claims["aud"] = json!("other"))),
            "audience \"portolan\"",
        ),
        (signer.sign(&unbound), "not bound to a Pod"),
        (
            signer.sign(&json!({"sub": CANARY, "aud": "portolan"})),
            "not bound to a Pod",
        ),
        (hmac.unwrap(), "no ServiceAccount token"),
        (none, "no ServiceAccount token"),
        ("opaque".to_owned(), "no ServiceAccount token"),
        ("x".repeat(MAX_TOKEN_BYTES + 1), "no ServiceAccount token"),
    ];
    for (token, part) in cases {
        is_401(world.ask(&token).await, part);
    }
    assert_eq!(world.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_algorithm_of_another_key_type_is_refused() {
    let (ec, rsa) = (Signer::ec("k1"), Signer::rsa("k1"));
    let world = World::usual(&ec);
    is_401(world.ask(&rsa.sign(&claims("uid-1"))).await, "algorithm");
    assert_eq!(world.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_key_of_two_members_identifies_nobody() {
    let signer = Signer::ec("k1");
    let resources = vec![
        target("east", &[&signer]),
        target("west", &[&signer]),
        view("east", "uid-1", &["ns/shard"]),
    ];
    let world = World::new(resources, |_, _| reviewed(&good("uid-1")));
    let outcome = world.ask(&signer.sign(&claims("uid-1"))).await;
    is_401(outcome, "several members (east, west)");
    assert_eq!(world.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_shut_out_by_other_keys_under_the_same_name() {
    let (mine, theirs) = (Signer::ec("same"), Signer::ec("same"));
    let resources = vec![
        target("east", &[&mine]),
        target("west", &[&theirs]),
        target("evil", &[&theirs]),
        view("east", "uid-1", &["ns/shard"]),
    ];
    let world = World::new(resources, |_, _| reviewed(&good("uid-1")));
    world.ask(&mine.sign(&claims("uid-1"))).await.unwrap();
    is_401(
        world.ask(&theirs.sign(&claims("uid-1"))).await,
        "several members (evil, west)",
    );
}

#[tokio::test(start_paused = true)]
async fn only_the_member_of_the_key_is_asked_also_when_a_kid_is_shared() {
    let (east, west) = (Signer::ec("same"), Signer::ec("same"));
    let resources = vec![
        target("east", &[&east]),
        target("west", &[&west]),
        view("west", "uid-1", &["ns/shard"]),
    ];
    let world = World::new(resources, |_, _| reviewed(&good("uid-1")));
    world.ask(&west.sign(&claims("uid-1"))).await.unwrap();
    assert_eq!(*world.members.clusters.lock(), ["west"]);
    // The same Pod uid, by a token of the other cluster: another Pod.
    is_403(
        world.ask(&east.sign(&claims("uid-1"))).await,
        &["member east", "no shard"],
    );
}
