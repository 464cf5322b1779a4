//! Certificates that are made, signed and read back, and requests that are refused.

use super::*;
use rcgen::{CustomExtension, ExtendedKeyUsagePurpose};

const HOUR: Duration = Duration::from_hours(1);

fn leaf(common_name: &str) -> LeafSpec {
    LeafSpec {
        common_name: common_name.to_owned(),
        organization: Some("portolan:agents".to_owned()),
        hosts: vec!["agent.example".to_owned(), "10.0.0.7".to_owned()],
        uris: vec!["portolan://cluster/east".to_owned()],
        ttl: HOUR,
        usage: Usage::Both,
    }
}

fn der(pem: &str) -> CertificateDer<'static> {
    first_certificate(pem).unwrap()
}

#[test]
fn the_subject_of_a_signed_csr_follows_from_the_caller() {
    let ca = CertificateAuthority::generate("hub CA").unwrap();
    // A CSR that asks for everything one must not get.
    let key = new_key().unwrap();
    let mut greedy = params("system:admin", Some("system:masters"));
    greedy.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    greedy.subject_alt_names = vec![SanType::DnsName("kubernetes.default".try_into().unwrap())];
    greedy.extended_key_usages = vec![ExtendedKeyUsagePurpose::Any];
    greedy.custom_extensions = vec![CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0])];
    let csr = greedy.serialize_request(&key).unwrap();
    let csr = csr.der();

    let chain = ca.sign_csr(csr, &leaf("agent:east")).unwrap();
    let der = der(&chain);
    let subject = subject_of(&der).unwrap();
    assert_eq!(subject.common_name, "agent:east");
    assert_eq!(subject.organizations, ["portolan:agents"]);
    assert_eq!(subject.hosts, ["agent.example", "10.0.0.7"]);
    assert_eq!(subject.uris, ["portolan://cluster/east"]);
    let certificate = parse(&der).unwrap();
    assert!(!certificate.is_ca());
    assert_eq!(
        certificate.public_key().subject_public_key.data.as_ref(),
        key.public_key_raw()
    );
    let usage = certificate.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && usage.server_auth && !usage.any);
    certificate
        .verify_signature(Some(parse(&first_certificate(ca.pem()).unwrap()).unwrap().public_key()))
        .unwrap();
}

#[test]
fn validity_is_what_was_asked_but_ends_with_the_ca() {
    let ca = CertificateAuthority::generate("hub CA").unwrap();
    let near = |a: SystemTime, b: SystemTime| {
        a.duration_since(b).or_else(|_| b.duration_since(a)).unwrap() < Duration::from_secs(10)
    };
    let now = SystemTime::now();
    let short = subject_of(&der(&ca.issue(&leaf("a")).unwrap().cert_pem)).unwrap();
    assert!(
        near(short.not_after, now + HOUR) && near(short.not_before, now - BACKDATE),
        "{short:?}"
    );
    let long = ca.issue_server("b", &["b.example"], Duration::MAX).unwrap();
    assert_eq!(
        subject_of(&der(&long.cert_pem)).unwrap().not_after,
        ca.subject.not_after
    );
    let first = parse(&der(&long.cert_pem)).unwrap().raw_serial().to_vec();
    let again = ca.issue_server("b", &["b.example"], HOUR).unwrap();
    assert_ne!(parse(&der(&again.cert_pem)).unwrap().raw_serial(), first);
}

#[test]
fn a_csr_must_be_signed_by_its_own_key_and_small() {
    let ca = CertificateAuthority::generate("hub CA").unwrap();
    let request = params("agent", None).serialize_request(&new_key().unwrap()).unwrap();
    let csr = request.der().to_vec();
    assert!(ca.sign_csr(&csr, &leaf("agent")).is_ok());

    let mut forged = csr.clone();
    // Inside the subject's name: signed, and still well formed.
    let name = forged.windows(5).position(|window| window == b"agent").unwrap();
    forged[name] = b'A';
    assert!(matches!(
        ca.sign_csr(&forged, &leaf("agent")),
        Err(PkiError::CsrSignature)
    ));

    assert!(matches!(
        ca.sign_csr(b"nonsense", &leaf("agent")),
        Err(PkiError::Csr(_))
    ));
    assert!(matches!(
        ca.sign_csr(&first_certificate(ca.pem()).unwrap(), &leaf("agent")),
        Err(PkiError::Csr(_))
    ));
    let huge = [csr, vec![0; MAX_CSR_BYTES]].concat();
    assert!(matches!(
        ca.sign_csr(&huge, &leaf("agent")),
        Err(PkiError::CsrTooLarge(_))
    ));
}

#[test]
fn a_stored_key_asks_again_with_the_same_public_key() {
    let key = new_private_key().unwrap();
    let public_key = |csr: &[u8]| {
        let (_, request) = X509CertificationRequest::from_der(csr).unwrap();
        request.certification_request_info.subject_pki.raw.to_vec()
    };
    let (first, second) = (signing_request(&key).unwrap(), signing_request(&key).unwrap());
    assert_eq!(public_key(&first), public_key(&second));
}

#[test]
fn a_ca_below_signs_leaves_that_chain_to_the_root_and_no_more() {
    let root = CertificateAuthority::generate("root").unwrap();
    let below = root.intermediate("below").unwrap().unwrap();
    assert!(below.intermediate("deeper").unwrap().is_none());
    let issued = below.issue_client("ada", None, HOUR).unwrap();
    let chain: Vec<_> = CertificateDer::pem_slice_iter(issued.cert_pem.as_bytes())
        .map(|der| subject_of(&der.unwrap()).unwrap())
        .collect();
    let names: Vec<_> = chain
        .iter()
        .map(|one| (one.common_name.as_str(), one.issuer.as_str()))
        .collect();
    assert_eq!(names, [("ada", "below"), ("below", "root"), ("root", "root")]);
}

#[test]
fn a_request_says_whom_it_wants_to_be() {
    let key = new_private_key().unwrap();
    let asked = named_request(&key, "ada", Some("sre")).unwrap();
    let read = requested(asked.as_bytes()).unwrap();
    assert_eq!(
        (read.common_name.as_str(), &read.organizations[..]),
        ("ada", &["sre".to_owned()][..])
    );
    let ca = CertificateAuthority::generate("hub CA").unwrap();
    assert!(ca.sign_csr(&read.der, &leaf("ada")).is_ok());
    for bad in [
        "",
        "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
        ca.pem(),
    ] {
        assert!(requested(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn damaged_requests_never_panic() {
    let ca = CertificateAuthority::generate("hub CA").unwrap();
    let sound = signing_request(&new_private_key().unwrap()).unwrap();
    for position in 0..sound.len() {
        let mut damaged = sound.clone();
        damaged[position] ^= 0xff;
        assert!(ca.sign_csr(&damaged, &leaf("agent")).is_err(), "byte {position}");
        assert!(
            ca.sign_csr(&sound[..position], &leaf("agent")).is_err(),
            "cut at {position}"
        );
    }
}

#[test]
fn a_ca_survives_its_pem_and_refuses_what_does_not_fit() {
    let ca = CertificateAuthority::generate("hub CA").unwrap();
    let again = CertificateAuthority::from_pem(ca.pem(), &ca.key_pem()).unwrap();
    assert_eq!((again.pem(), &again.subject), (ca.pem(), &ca.subject));

    let other = CertificateAuthority::generate("hub CA").unwrap();
    assert!(matches!(
        CertificateAuthority::from_pem(ca.pem(), &other.key_pem()),
        Err(PkiError::CaMismatch)
    ));
    let server = ca.issue_server("hub", &["hub.example"], HOUR).unwrap();
    assert!(matches!(
        CertificateAuthority::from_pem(&server.cert_pem, &server.key_pem),
        Err(PkiError::NotACa)
    ));
    assert!(matches!(
        CertificateAuthority::from_pem(ca.pem(), &"nonsense".into()),
        Err(PkiError::CaKey(_))
    ));
    assert!(matches!(
        CertificateAuthority::from_pem("", &ca.key_pem()),
        Err(PkiError::Certificate(_))
    ));
}

#[test]
fn an_expired_ca_issues_nothing() {
    let key = new_key().unwrap();
    let mut old = params("hub CA", None);
    old.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    complete(&mut old, SystemTime::now() - HOUR);
    old.not_before = (SystemTime::now() - 2 * HOUR).into();
    let pem = old.self_signed(&key).unwrap().pem();
    let ca = CertificateAuthority::from_pem(&pem, &Secret::new(key.serialize_pem())).unwrap();
    assert!(matches!(ca.issue(&leaf("late")), Err(PkiError::CaExpired)));
}

#[test]
fn a_ca_whose_subject_cannot_be_written_is_refused() {
    let key = new_key().unwrap();
    let mut twice = params("hub CA", Some("one"));
    twice
        .distinguished_name
        .push(DnType::CustomDnType(vec![2, 5, 4, 10]), "two");
    twice.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    complete(&mut twice, SystemTime::now() + HOUR);
    let pem = twice.self_signed(&key).unwrap().pem();
    let error = CertificateAuthority::from_pem(&pem, &Secret::new(key.serialize_pem())).unwrap_err();
    assert!(
        matches!(&error, PkiError::CaSubject(kind) if kind == "2.5.4.10"),
        "{error}"
    );
}

#[test]
fn names_that_no_certificate_can_bear_are_refused() {
    let ca = CertificateAuthority::generate("hub CA").unwrap();
    let error = ca.issue_server("hub", &["höchst.example"], HOUR).unwrap_err();
    assert!(error.to_string().contains("höchst"), "{error}");
}

#[test]
fn keys_never_show_in_debug() {
    let ca = CertificateAuthority::generate("hub CA").unwrap();
    let issued = ca.issue_server("hub", &["hub.example"], HOUR).unwrap();
    for (text, key) in [
        (format!("{ca:?}"), ca.key_pem()),
        (format!("{issued:?}"), issued.key_pem),
    ] {
        let canary = key.expose().lines().nth(1).unwrap();
        assert!(!text.contains(canary) && !text.contains("PRIVATE"), "{text}");
    }
}
