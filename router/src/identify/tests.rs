//! Keys made here, tokens signed here, a scripted member; the snapshot is built from the wire as in production.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::StatusCode;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use parking_lot::Mutex;
use portolan_runtime::pki::CertificateAuthority;
use portolan_wire::v1;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::signer::Signer;
use super::*;
use crate::access::MemberAnswer;
use crate::snapshot::build::{Transaction, apply};

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

type Script = Box<dyn Fn(&str, &Value) -> MemberAnswer + Send + Sync>;

/// Members that answer as told.
struct Members {
    script: Script,
    asked: AtomicUsize,
    clusters: Mutex<Vec<String>>,
}

impl MemberApi for Members {
    fn post(&self, cluster: &str, _: &'static str, body: Vec<u8>) -> BoxFuture<'static, MemberAnswer> {
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

fn target(cluster: &str, keys: &[&Signer]) -> v1::Resource {
    let target = v1::Target {
        cluster: cluster.to_owned(),
        endpoints: vec![v1::Endpoint {
            url: "https://127.0.0.1:6443".to_owned(),
            ..v1::Endpoint::default()
        }],
        signing_keys: keys.iter().map(|key| key.jwk()).collect(),
        ..v1::Target::default()
    };
    v1::Resource {
        version: "1".to_owned(),
        body: Some(v1::resource::Body::Target(target)),
    }
}

fn view(cluster: &str, uid: &str, shards: &[&str]) -> v1::Resource {
    let shard = v1::Shard {
        name: shards
            .first()
            .and_then(|name| name.split('/').nth(1))
            .unwrap_or_default()
            .to_owned(),
        primary_cluster: cluster.to_owned(),
        members: vec![v1::MemberGrant {
            cluster: cluster.to_owned(),
            ..v1::MemberGrant::default()
        }],
        label_prefix: "ctrlmesh.kusionstack.io/".to_owned(),
        ..v1::Shard::default()
    };
    let view = v1::CallerView {
        home_cluster: cluster.to_owned(),
        pod_uid: uid.to_owned(),
        namespace: "ns".to_owned(),
        pod: "operator-0".to_owned(),
        service_account: "operator".to_owned(),
        shards: shards.iter().map(|&shard| shard.to_owned()).collect(),
        shard: (shards.len() == 1).then_some(shard),
    };
    v1::Resource {
        version: "1".to_owned(),
        body: Some(v1::resource::Body::CallerView(view)),
    }
}

fn snapshot(resources: Vec<v1::Resource>) -> Snapshot {
    let applied = apply(
        &Snapshot::default(),
        &Transaction {
            upserted: resources,
            removed: Vec::new(),
        },
    );
    assert!(applied.rejected.is_empty(), "{:?}", applied.rejected);
    applied.snapshot
}

struct World {
    members: Arc<Members>,
    identifier: Identifier,
    snapshot: Snapshot,
}

impl World {
    fn new(
        resources: Vec<v1::Resource>,
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
        let identifier = Identifier::new(config, members.clone(), IdentifyMetrics::default());
        Self {
            members,
            identifier,
            snapshot: snapshot(resources),
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
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        let outcome = self.identifier.identify_at(&map, peer, &self.snapshot, now).await;
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

#[tokio::test(start_paused = true)]
async fn what_the_member_says_is_final() {
    let signer = Signer::ec("k1");
    let other_pod = edited(good("uid-1"), |status| {
        status["user"]["extra"]["authentication.kubernetes.io/pod-uid"] = json!(["uid-2"]);
    });
    let other_account = edited(good("uid-1"), |status| {
        status["user"]["username"] = json!("system:admin");
    });
    let cases = [
        (
            json!({"authenticated": false, "error": CANARY}),
            "expired or invalid there",
        ),
        (
            edited(good("uid-1"), |status| status["audiences"] = json!(["api"])),
            "another audience",
        ),
        (other_pod, "another Pod"),
        (other_account, "another ServiceAccount"),
    ];
    for (status, part) in cases {
        let resources = vec![target("east", &[&signer]), view("east", "uid-1", &["ns/shard"])];
        let world = World::new(resources, move |_, _| reviewed(&status));
        let token = signer.sign(&claims("uid-1"));
        for _ in 0..2 {
            is_401(world.ask(&token).await, part);
        }
        assert_eq!(world.asked(), 1, "a refusal is kept");
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_that_cannot_be_asked_is_a_503_that_names_it() {
    let signer = Signer::ec("k1");
    let away = || {
        Err(Fault::Unavailable {
            message: "east is away".into(),
            cluster: Some("east".into()),
            sent: false,
        })
    };
    let answers: [fn() -> MemberAnswer; 3] = [
        || Ok((StatusCode::FORBIDDEN, Bytes::new())),
        || Ok((StatusCode::INTERNAL_SERVER_ERROR, Bytes::from_static(b"{}"))),
        || Ok((StatusCode::CREATED, Bytes::from_static(b"<html>"))),
    ];
    for answer in answers.into_iter().map(Some).chain([None]) {
        let resources = vec![target("east", &[&signer]), view("east", "uid-1", &["ns/shard"])];
        let world = World::new(resources, move |_, _| answer.map_or_else(away, |answer| answer()));
        for _ in 0..2 {
            match world.ask(&signer.sign(&claims("uid-1"))).await {
                Err(Fault::Unavailable {
                    message,
                    cluster,
                    sent: false,
                }) => {
                    assert!(message.contains("east"), "{message}");
                    assert_eq!(cluster.as_deref(), Some("east"));
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(world.asked(), 2, "not kept");
    }
}

#[tokio::test(start_paused = true)]
async fn pods_of_no_shard_or_two_and_replaced_pods_are_named() {
    let signer = Signer::ec("k1");
    let confirm = |_: &str, _: &Value| reviewed(&good("uid-9"));
    let token = signer.sign(&claims("uid-9"));
    let none = World::new(vec![target("east", &[&signer])], confirm);
    is_403(
        none.ask(&token).await,
        &["Pod ns/operator-0", "member east", "no shard"],
    );
    let unselected = World::new(vec![target("east", &[&signer]), view("east", "uid-9", &[])], confirm);
    is_403(unselected.ask(&token).await, &["no shard"]);
    let two = World::new(
        vec![target("east", &[&signer]), view("east", "uid-9", &["ns/a", "ns/b"])],
        confirm,
    );
    is_403(two.ask(&token).await, &["2 shards", "ns/a, ns/b"]);
    let replaced = World::new(
        vec![target("east", &[&signer]), view("east", "uid-1", &["ns/shard"])],
        confirm,
    );
    is_403(replaced.ask(&token).await, &["another uid"]);
}

#[tokio::test(start_paused = true)]
async fn without_identity_there_is_nothing() {
    let signer = Signer::ec("k1");
    let world = World::usual(&signer);
    is_401(world.ask_with(&[], None).await, "no identity");
    is_401(
        world.ask_with(&[("authorization", "Basic eDp5")], None).await,
        "no bearer token",
    );
    is_401(
        world.ask_with(&[("authorization", "Bearer ")], None).await,
        "no bearer token",
    );
    let token = format!("Bearer {}", signer.sign(&claims("uid-1")));
    let twice = [("authorization", token.as_str()), ("authorization", token.as_str())];
    is_401(world.ask_with(&twice, None).await, "several Authorization");
    assert!(
        world
            .ask_with(&[("authorization", &token.replace("Bearer", "bearer"))], None)
            .await
            .is_ok()
    );
}

#[tokio::test(start_paused = true)]
async fn a_websocket_may_carry_its_token_among_its_protocols() {
    let signer = Signer::ec("k1");
    let world = World::usual(&signer);
    let offer = format!(
        "v5.channel.k8s.io, {TOKEN_PROTOCOL}{}",
        URL_SAFE_NO_PAD.encode(signer.sign(&claims("uid-1")))
    );
    let header = [("sec-websocket-protocol", offer.as_str())];
    assert!(world.ask_with(&header, None).await.is_ok());
    is_401(
        world
            .ask_with(&[("sec-websocket-protocol", "v5.channel.k8s.io")], None)
            .await,
        "no identity",
    );
}

#[tokio::test(start_paused = true)]
async fn certificates_of_people_count_and_those_of_programs_do_not() {
    let authority = CertificateAuthority::generate("hub").unwrap();
    let peer = |user: &str, group: Option<&str>| {
        let issued = authority.issue_client(user, group, Duration::from_hours(1)).unwrap();
        let chain: Vec<_> = CertificateDer::pem_slice_iter(issued.cert_pem.as_bytes())
            .map(Result::unwrap)
            .collect();
        PeerIdentity::from_certificates(&chain)
    };
    let signer = Signer::ec("k1");
    let world = World::usual(&signer);
    // Before any expiry at NOW: the certificates are of today.
    let mut ada = peer("portolan:dev", Some("sre")).unwrap();
    ada.not_after = UNIX_EPOCH + Duration::from_secs(NOW + 1);
    let caller = world.ask_with(&[], Some(&ada)).await.unwrap();
    assert_eq!(
        caller,
        Caller::Person {
            user: "portolan:dev".into(),
            groups: vec!["sre".into()]
        }
    );
    let expired = PeerIdentity {
        not_after: UNIX_EPOCH + Duration::from_secs(NOW),
        ..ada
    };
    is_401(world.ask_with(&[], Some(&expired)).await, "expired");
    let router = peer("portolan:router:gateway", Some("portolan:routers")).unwrap();
    is_401(world.ask_with(&[], Some(&router)).await, "agent or router");
    assert_eq!(peer("portolan:router:gateway", None), None);
}

#[tokio::test(start_paused = true)]
async fn before_the_first_snapshot_it_is_a_503() {
    let signer = Signer::ec("k1");
    let mut world = World::usual(&signer);
    world.snapshot = Snapshot::default();
    assert!(matches!(
        world.ask(&signer.sign(&claims("uid-1"))).await,
        Err(Fault::Unavailable { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn the_api_servers_own_audience_is_an_opt_in() {
    let signer = Signer::ec("k1");
    let resources = || vec![target("east", &[&signer]), view("east", "uid-1", &["ns/shard"])];
    let mut world = World::new(resources(), |_, review| {
        assert_eq!(review["spec"].get("audiences"), None);
        reviewed(&edited(good("uid-1"), |status| {
            status["audiences"] = json!(["https://kubernetes.default.svc"]);
        }))
    });
    let token = signer.sign(&edited(claims("uid-1"), |claims| {
        claims["aud"] = json!(["https://kubernetes.default.svc"]);
    }));
    is_401(world.ask(&token).await, "audience");
    world.identifier.config.accept_api_audience = true;
    world.ask(&token).await.unwrap();
}

proptest::proptest! {
    /// Whatever a client sends as a token, it is refused and not repeated.
    #[test]
    fn any_text_is_no_token(text in "\\PC{0,200}", dots in "[A-Za-z0-9_-]{0,80}\\.[A-Za-z0-9_-]{0,80}\\.[A-Za-z0-9_-]{0,80}") {
        for token in [text, dots] {
            proptest::prop_assert!(matches!(token::parse_header(&token), Err(TokenError::NotAToken)));
        }
    }
}
