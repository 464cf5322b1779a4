//! What members say of tokens, and who else may come in.

use super::*;

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

#[test]
fn a_ca_for_programs_names_no_person() {
    let root = CertificateAuthority::generate("hub").unwrap();
    for (issuer, known) in [
        ("portolan people", true),
        ("portolan routers", false),
        ("portolan agents", false),
    ] {
        let authority = root.intermediate(issuer).unwrap().unwrap();
        let issued = authority.issue_client("ada", None, Duration::from_hours(1)).unwrap();
        let chain: Vec<_> = CertificateDer::pem_slice_iter(issued.cert_pem.as_bytes())
            .map(Result::unwrap)
            .collect();
        assert_eq!(PeerIdentity::from_certificates(&chain).is_some(), known, "{issuer}");
    }
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

#[tokio::test(start_paused = true)]
async fn a_review_takes_one_of_its_members_permits() {
    let signer = Signer::ec("key");
    let world = World::usual(&signer);
    let admit = &world.identifier.admit;
    let member: Arc<str> = "east".into();
    let mut held = Vec::new();
    for shard in 0..=u8::MAX {
        let tenant = format!("ns/{shard}").into();
        while let Some(permit) = admit.review(&member, &tenant, pending()).now_or_never() {
            held.push(permit.unwrap());
        }
    }
    let token = signer.sign(&claims("uid-1"));
    let refused = world.ask(&token).await;
    assert!(matches!(refused, Err(Fault::TooManyRequests { .. })), "{refused:?}");
    assert_eq!(world.asked(), 0);
    let mut waits = Box::pin(world.ask(&token));
    assert!((&mut waits).now_or_never().is_none());
    let lease = world.ask_for(&token, "/apis/coordination.k8s.io/v1/namespaces/ns/leases/leader");
    let (lease, first) = futures::join!(lease, waits);
    assert!(
        lease.is_ok(),
        "the reserve, also for a review that waits already: {lease:?}"
    );
    assert!(first.is_ok());
    drop(held);
    let other = signer.sign(&claims("uid-2"));
    is_401(world.ask(&other).await, "");
}

#[tokio::test(start_paused = true)]
async fn who_is_known_waits_for_nobody_who_is_not() {
    let signer = Signer::ec("key");
    let world = World::usual(&signer);
    let (admit, member) = (&world.identifier.admit, Arc::from("east"));
    let token = signer.sign(&claims("uid-1"));
    world.ask(&token).await.unwrap();
    let asked = get("/api/v1/namespaces/ns/pods");
    let arrive = |tenant: usize| {
        let tenant = format!("ns/{tenant}").into();
        admit.arrive(&Arrival {
            member: &member,
            tenant: &tenant,
            head: 1 << 10,
            asked: &asked,
        })
    };
    let mut held = Vec::new();
    for tenant in 0..10_000 {
        held.extend(arrive(tenant));
    }
    let known = world.ask(&token).now_or_never();
    assert!(matches!(known, Some(Ok(_))), "its review is kept: {known:?}");
    let nobody = world.ask("e30.e30.e30").now_or_never();
    is_401(nobody.expect("no member signed it"), "");
    let other = signer.sign(&claims("uid-2"));
    let refused = world.ask(&other).now_or_never();
    assert!(
        matches!(refused, Some(Err(Fault::TooManyRequests { .. }))),
        "{refused:?}"
    );
    drop(held);
    assert!(world.ask(&other).now_or_never().is_none(), "who is not known waits");
}

#[tokio::test(start_paused = true)]
async fn who_asks_with_a_long_query_waits_for_its_review_with_more_memory() {
    let signer = Signer::ec("k1");
    let resources = vec![target("east", &[&signer]), view("east", "uid-1", &["ns/shard"])];
    let limits = Limits {
        // A quarter of it is for one that is as long twice as it should be.
        waiting: 4 * (60 << 10),
        ..Limits::default()
    };
    let world = World::bounded(limits, resources, |_, _| reviewed(&good("uid-1")));
    let token = signer.sign(&claims("uid-1"));
    let long = format!("/api/v1/namespaces/ns/pods?labelSelector={}", "a".repeat(24 << 10));
    let refused = world.ask_for(&token, &long).await;
    assert!(matches!(refused, Err(Fault::TooManyRequests { .. })), "{refused:?}");
    world.ask_for(&token, "/api/v1/namespaces/ns/pods").await.unwrap();
}
