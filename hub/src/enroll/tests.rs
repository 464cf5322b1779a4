//! Who gets which certificate, over the real port.

mod routers;

use portolan_crds::labels;
use portolan_runtime::Secret;
use portolan_runtime::pki::{CertificateAuthority, Issued, LeafSpec, Subject, Usage, subject_of};
use portolan_wire::identity::Identity;
use portolan_wire::subscription::Subscription;
use portolan_wire::v1;
use portolan_wire::v1::enroll_response::Outcome;
use portolan_wire::v1::enrollment_client::EnrollmentClient;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tonic::{Code, Status};

use crate::testing::{TestAgent, TestHub, enroll_request, facts_of, key_and_csr};

fn issued(outcome: Outcome) -> v1::Issued {
    match outcome {
        Outcome::Issued(issued) => issued,
        Outcome::Pending(pending) => panic!("pending: {}", pending.reason),
    }
}

fn subject(issued: &v1::Issued) -> Subject {
    let der = CertificateDer::from_pem_slice(issued.certificate_pem.as_bytes()).unwrap();
    subject_of(&der).unwrap()
}

fn identity_of(issued: &v1::Issued) -> Option<Identity> {
    let subject = subject(issued);
    Identity::from_subject(&subject.common_name, &subject.organizations)
}

#[tokio::test]
async fn a_token_serves_one_key_again_and_again() {
    let hub = TestHub::start().await;
    let token = hub.good_token("agent", "east");
    let (_, csr) = key_and_csr();
    let request = enroll_request(token.clone(), &csr, Some(facts_of("east")));
    for _ in 0..2 {
        let issued = issued(hub.enroll(request.clone()).await.unwrap());
        assert_eq!(identity_of(&issued), Some(Identity::Agent("east".into())));
        assert_eq!(issued.ca_pem, hub.ca.current().bundle());
        assert!(issued.not_after_unix_seconds > jiff::Timestamp::now().as_second());
    }
    let other_key = enroll_request(token, &key_and_csr().1, Some(facts_of("east")));
    let status = hub.enroll(other_key).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(
        status.message().contains("used with another key"),
        "{}",
        status.message()
    );
}

#[tokio::test]
async fn bad_proofs_are_refused() {
    let hub = TestHub::start().await;
    let (_, csr) = key_and_csr();
    let expired = hub.token("agent", "east", "2020-01-01T00:00:00Z");
    let good = hub.good_token("agent", "east");
    let wrong_half = format!("{}x", &good[..good.len() - 1]);
    let cases = [
        (expired, Code::Unauthenticated, "expired"),
        (wrong_half, Code::Unauthenticated, "unknown bootstrap token"),
        (
            "zzzzzz.0123456789abcdef".to_owned(),
            Code::Unauthenticated,
            "unknown bootstrap token",
        ),
        ("nonsense".to_owned(), Code::Unauthenticated, "unknown bootstrap token"),
    ];
    for (token, code, text) in cases {
        let status = hub
            .enroll(enroll_request(token.clone(), &csr, Some(facts_of("east"))))
            .await
            .unwrap_err();
        assert_eq!(status.code(), code);
        assert!(
            status.message().contains(text) && !status.message().contains(&token),
            "{}",
            status.message()
        );
    }
}

#[tokio::test]
async fn a_flood_of_enrolments_is_told_to_come_again() {
    let hub = TestHub::start().await;
    let request = enroll_request(
        hub.good_token("agent", "east"),
        &key_and_csr().1,
        Some(facts_of("east")),
    );
    let flood = u32::try_from(super::MAX_ENROLMENTS).unwrap();
    let flood = hub.enrolments.clone().try_acquire_many_owned(flood).unwrap();
    let status = hub.enroll(request.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    drop(flood);
    issued(hub.enroll(request).await.unwrap());
}

#[test]
fn the_log_takes_little_of_what_anybody_sends() {
    assert_eq!(crate::standing::for_log("short"), "short");
    assert_eq!(
        crate::standing::for_log(&"ü".repeat(1000)).chars().count(),
        crate::standing::LOGGED_MAX
    );
}

#[tokio::test]
async fn bad_requests_name_the_field() {
    let hub = TestHub::start().await;
    let (_, csr) = key_and_csr();
    let good = hub.good_token("agent", "east");
    let cases = [
        (enroll_request(good.clone(), &csr, None), "member:"),
        (enroll_request(good.clone(), b"junk", Some(facts_of("east"))), "csr:"),
        (
            enroll_request(
                good.clone(),
                &csr,
                Some(v1::MemberFacts {
                    jwks: "{}".into(),
                    ..facts_of("east")
                }),
            ),
            "member.jwks",
        ),
        (
            enroll_request(
                good,
                &csr,
                Some(v1::MemberFacts {
                    cluster_uid: String::new(),
                    ..facts_of("east")
                }),
            ),
            "member.clusterUID",
        ),
        (
            v1::EnrollRequest {
                csr,
                ..Default::default()
            },
            "proof:",
        ),
    ];
    for (request, field) in cases {
        let status = hub.enroll(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{}", status.message());
        assert!(status.message().starts_with(field), "{}", status.message());
    }
}

#[tokio::test]
async fn a_cluster_is_let_in_once_and_under_one_name() {
    let hub = TestHub::start().await;
    let _east = hub.join("east").await;
    let again = enroll_request(
        hub.good_token("agent", "west"),
        &key_and_csr().1,
        Some(facts_of("east")),
    );
    let status = hub.enroll(again).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(
        status.message().contains("a member already, as east"),
        "{}",
        status.message()
    );
    let noted = hub
        .index
        .read(|facts| facts.join_refusals.get("west").cloned())
        .unwrap();
    assert_eq!(noted.0, portolan_crds::ConditionReason::DuplicateCluster);

    let foreign = enroll_request(
        hub.good_token("agent", "east"),
        &key_and_csr().1,
        Some(facts_of("mars")),
    );
    let status = hub.enroll(foreign).await.unwrap_err();
    assert!(
        status.message().contains("pinned to the cluster with UID uid-east"),
        "{}",
        status.message()
    );

    // Publishing a key alone is nothing: it is proven on the stream.
    let key_thief = v1::MemberFacts {
        jwks: facts_of("east").jwks,
        ..facts_of("west")
    };
    let thief = enroll_request(hub.good_token("agent", "west"), &key_and_csr().1, Some(key_thief));
    issued(hub.enroll(thief).await.unwrap());
    let pinned = hub.index.read(|facts| facts.pins["west"].signing_keys.clone());
    assert!(pinned.is_empty(), "{pinned:?}");
}

#[tokio::test]
async fn enrolment_waits_for_the_opt_in() {
    let hub = TestHub::start().await;
    hub.member("north", false);
    let request = enroll_request(
        hub.good_token("agent", "north"),
        &key_and_csr().1,
        Some(facts_of("north")),
    );
    let accept = async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        hub.member("north", true);
    };
    let (outcome, ()) = tokio::join!(hub.enroll(request), accept);
    assert_eq!(
        identity_of(&issued(outcome.unwrap())),
        Some(Identity::Agent("north".into()))
    );
}

#[tokio::test]
async fn routers_get_the_names_of_their_token_and_keep_them() {
    let hub = TestHub::start().await;
    let (key, csr) = key_and_csr();
    let request = enroll_request(hub.good_token("router", "gateway"), &csr, None);
    let first = issued(hub.enroll(request).await.unwrap());
    assert_eq!(identity_of(&first), Some(Identity::Router("gateway".into())));
    let names = |issued: &v1::Issued| {
        let der = CertificateDer::from_pem_slice(issued.certificate_pem.as_bytes()).unwrap();
        subject_of(&der).unwrap().hosts
    };
    assert_eq!(names(&first), ["gateway.example", "127.0.0.1"]);
    let subscription = |issued: &v1::Issued| {
        let der = CertificateDer::from_pem_slice(issued.certificate_pem.as_bytes()).unwrap();
        Subscription::from_uris(&subject_of(&der).unwrap().uris)
    };
    assert_eq!(subscription(&first), Ok(Subscription::Everything));

    let mut client = EnrollmentClient::new(hub.channel_as(&first, &key));
    let renewed = client
        .renew(v1::RenewRequest { csr: key_and_csr().1 })
        .await
        .unwrap()
        .into_inner();
    let renewed = issued(renewed.outcome.unwrap());
    assert_eq!(identity_of(&renewed), identity_of(&first));
    assert_eq!(names(&renewed), names(&first));
    assert_eq!(subscription(&renewed), subscription(&first));

    let mut nobody = EnrollmentClient::new(hub.channel(None));
    let status = nobody
        .renew(v1::RenewRequest { csr: key_and_csr().1 })
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    let person = Identity::Person {
        user: "ada".into(),
        groups: Vec::new(),
    };
    let mut person = EnrollmentClient::new(hub.channel(Some(&person)));
    let status = person
        .renew(v1::RenewRequest { csr: key_and_csr().1 })
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    let mut unjoined = EnrollmentClient::new(hub.channel(Some(&Identity::Agent("west".into()))));
    let status = unjoined
        .renew(v1::RenewRequest { csr: key_and_csr().1 })
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn who_signs_for_people_names_no_program() {
    let hub = TestHub::start().await;
    let forged = |ca: &CertificateAuthority| {
        let leaf = LeafSpec {
            common_name: "portolan:router:gateway".to_owned(),
            organization: Some("portolan:routers".to_owned()),
            hosts: Vec::new(),
            uris: Subscription::Everything.to_uris(),
            ttl: std::time::Duration::from_hours(1),
            usage: Usage::Client,
        };
        let Issued { cert_pem, key_pem } = ca.issue(&leaf).unwrap();
        let issued = v1::Issued {
            certificate_pem: cert_pem,
            ..v1::Issued::default()
        };
        EnrollmentClient::new(hub.channel_as(&issued, &key_pem))
    };
    let request = || v1::RenewRequest { csr: key_and_csr().1 };
    let status = forged(hub.ca.current().of_people()).renew(request()).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(status.message().contains("is no identity"), "{}", status.message());
    // Who signs for routers does name one; its key is not the one that enrolled.
    let router = Identity::Router("gateway".to_owned());
    let status = forged(hub.ca.current().of(&router)).renew(request()).await.unwrap_err();
    assert!(
        status.message().contains("enrolled or renewed with last"),
        "{}",
        status.message()
    );
}

/// Answers the next review as the member's agent would.
async fn answer_review(agent: &mut TestAgent, answer: v1::TokenReviewed) {
    loop {
        if let v1::agent_update::Kind::ReviewToken(review) = agent.hear().await.unwrap() {
            assert_eq!(review.token, "canary-token");
            assert_eq!(review.audiences, ["portolan"]);
            let answer = v1::TokenReviewed {
                id: review.id,
                ..answer
            };
            return agent.say(v1::agent_message::Kind::TokenReviewed(answer)).await;
        }
    }
}

/// What a router asks for that runs in a member.
fn by_bound_token(cluster: &str) -> v1::EnrollRequest {
    v1::EnrollRequest {
        proof: Some(v1::enroll_request::Proof::BoundToken(v1::BoundToken {
            cluster: cluster.to_owned(),
            token: "canary-token".to_owned(),
        })),
        csr: key_and_csr().1,
        member: None,
        pod: None,
    }
}

#[tokio::test]
async fn a_router_in_a_member_is_vouched_for_by_its_agent() {
    let hub = TestHub::start().await;
    let mut agent = hub.join("east").await;
    let router = v1::TokenReviewed {
        authenticated: true,
        username: "system:serviceaccount:portolan-routers:portolan-router".into(),
        pod: "router-0".into(),
        ..Default::default()
    };
    let cases = [
        (router.clone(), Ok("east.router-0")),
        (
            v1::TokenReviewed {
                pod: String::new(),
                ..router.clone()
            },
            Err(Code::PermissionDenied),
        ),
        (
            v1::TokenReviewed {
                username: "system:admin".into(),
                ..router.clone()
            },
            Err(Code::PermissionDenied),
        ),
        (
            v1::TokenReviewed {
                authenticated: false,
                ..router
            },
            Err(Code::Unauthenticated),
        ),
    ];
    for (answer, expected) in cases {
        let answering = answer_review(&mut agent, answer);
        let (outcome, ()) = tokio::join!(hub.enroll(by_bound_token("east")), answering);
        match expected {
            Ok(name) => {
                let issued = issued(outcome.unwrap());
                assert_eq!(identity_of(&issued), Some(Identity::Router(name.into())));
                assert_eq!(subject(&issued).hosts, ["router.test"], "as the hub says");
            }
            Err(code) => {
                let status = outcome.unwrap_err();
                assert_eq!(status.code(), code);
                assert!(!status.message().contains("canary"), "{}", status.message());
            }
        }
    }
    let status = hub.enroll(by_bound_token("west")).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "west has not joined");
}

#[tokio::test]
async fn a_member_vouches_for_routers_only_if_the_hub_says_so_and_while_it_is_one() {
    let hub = TestHub::start().await;
    hub.member("north", true);
    let _north = hub.join("north").await;
    let status = hub.enroll(by_bound_token("north")).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(status.message().contains("--routers-of"), "{}", status.message());
    let status = hub.enroll(by_bound_token(labels::HUB_CLUSTER)).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "nor does the hub's own cluster");

    let _east = hub.join("east").await;
    let renew = async |name: &str| {
        let router = Identity::Router(name.to_owned());
        let mut client = EnrollmentClient::new(hub.channel(Some(&router)));
        let renewed = client.renew(v1::RenewRequest { csr: key_and_csr().1 }).await?;
        let renewed = issued(renewed.into_inner().outcome.unwrap());
        Ok::<_, Status>(subject(&renewed).hosts)
    };
    let before = renew("gateway").await.unwrap();
    assert_ne!(before, ["router.test"], "it keeps its own names");
    let hosts = renew("east.router-0").await.unwrap();
    assert_eq!(
        hosts,
        ["router.test"],
        "as the hub says by now, whatever it was at first"
    );
    assert!(renew("north.router-0").await.is_err());
    hub.member("east", false);
    let status = renew("east.router-0").await.unwrap_err();
    assert!(
        status.message().contains("spec.accept of MemberCluster east is false"),
        "{}",
        status.message()
    );
    let dotted = enroll_request(hub.good_token("router", "east.router-0"), &key_and_csr().1, None);
    let status = hub.enroll(dotted).await.unwrap_err();
    assert_eq!(
        status.code(),
        Code::FailedPrecondition,
        "no token passes for a member's word"
    );
}
