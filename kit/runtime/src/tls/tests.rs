//! Real handshakes over an in-memory pipe, with stores that change between them.

use super::*;
use crate::pki::{CertificateAuthority, Issued, LeafSpec, Usage, new_private_key, signing_request, subject_of};
use crate::tasks::Tasks;
use rustls_pki_types::ServerName;
use std::io;
use std::time::Duration;
use tokio_rustls::{TlsAcceptor, TlsConnector};

mod files;
mod network;

const HOUR: Duration = Duration::from_hours(1);
const NAME: &str = "hub.example";

fn ca(name: &str) -> CertificateAuthority {
    CertificateAuthority::generate(name).unwrap()
}

fn identity(issued: &Issued) -> Identity {
    Identity::from_pem(&issued.cert_pem, &issued.key_pem).unwrap()
}

fn server_identity(ca: &CertificateAuthority, common_name: &str) -> Identity {
    identity(&ca.issue_server(common_name, &[NAME], HOUR).unwrap())
}

fn client_identity(ca: &CertificateAuthority, common_name: &str) -> Identity {
    identity(&ca.issue_client(common_name, Some("portolan:routers"), HOUR).unwrap())
}

fn trust(ca: &CertificateAuthority) -> Arc<TrustStore> {
    TrustStore::from_pem(ca.pem()).unwrap()
}

/// What each side learnt of the other: the common names of (server, client).
async fn shake(server: &Arc<ServerConfig>, client: &Arc<ClientConfig>) -> io::Result<(String, Option<String>)> {
    let (near, far) = tokio::io::duplex(16 * 1024);
    let name = ServerName::try_from(NAME).unwrap();
    let accept = async {
        let stream = TlsAcceptor::from(server.clone()).accept(far).await?;
        Ok::<_, io::Error>(common_name(stream.get_ref().1.peer_certificates()))
    };
    let connect = async {
        let stream = TlsConnector::from(client.clone()).connect(name, near).await?;
        Ok::<_, io::Error>(common_name(stream.get_ref().1.peer_certificates()))
    };
    let (client_name, server_name) = tokio::try_join!(accept, connect)?;
    Ok((server_name.unwrap(), client_name))
}

fn common_name(chain: Option<&[rustls_pki_types::CertificateDer<'_>]>) -> Option<String> {
    Some(subject_of(chain?.first()?).unwrap().common_name)
}

/// As while one replaces the other: nothing but their keys tells them apart.
#[tokio::test]
async fn of_two_cas_of_one_name_either_is_found() {
    let [old, new] = [(); 2].map(|()| ca("hub CA"));
    let bundle = format!("{}\n{}\n", old.pem().trim_end(), new.pem().trim_end());
    let both = TrustStore::from_pem(&bundle).unwrap();
    let other_way = TrustStore::from_pem(&format!("{}{}", new.pem(), old.pem())).unwrap();
    assert_eq!(both.fingerprint(), other_way.fingerprint());
    assert!(both.shares(&trust(&old)) && both.shares(&trust(&new)) && !trust(&old).shares(&trust(&new)));

    let mut changes = both.subscribe();
    both.set_pem(&other_way.pem()).unwrap();
    assert!(!changes.has_changed().unwrap(), "the same certificates");
    for issuer in [&old, &new] {
        let routers = issuer.intermediate("portolan routers").unwrap().unwrap();
        let router = client_identity(&routers, "gateway");
        let chain: Vec<_> = rustls_pki_types::pem::PemObject::pem_slice_iter(router.cert_pem().as_bytes())
            .map(Result::unwrap)
            .collect();
        assert!(both.verifies_client(&chain) && trust(issuer).verifies_client(&chain));
        let other = if issuer.pem() == old.pem() { &new } else { &old };
        assert!(!trust(other).verifies_client(&chain));
        let server = IdentityStore::new(server_identity(issuer, "hub"));
        let server = server_config(server, ClientAuth::Required(both.clone()), ALPN_GRPC).unwrap();
        let client = client_config(both.clone(), Some(IdentityStore::new(router)), ALPN_GRPC).unwrap();
        shake(&server, &client).await.unwrap();
    }
    both.set_pem(new.pem()).unwrap();
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    assert!(!both.verifies_client(&[]));
}

#[tokio::test]
async fn mutual_tls_follows_every_store() {
    let (old, new) = (ca("old CA"), ca("new CA"));
    let (server_store, client_store) = (IdentityStore::empty(), IdentityStore::empty());
    let (server_trust, client_trust) = (trust(&old), trust(&old));
    let required = ClientAuth::Required(server_trust.clone());
    let server = server_config(server_store.clone(), required, ALPN_GRPC).unwrap();
    let client = client_config(client_trust.clone(), Some(client_store.clone()), ALPN_GRPC).unwrap();

    assert!(shake(&server, &client).await.is_err(), "a server without identity");
    let generation = server_store.subscribe();
    server_store.set(server_identity(&old, "hub-1"));
    assert!(generation.has_changed().unwrap());
    assert!(shake(&server, &client).await.is_err(), "a client without identity");
    client_store.set(client_identity(&old, "router-1"));
    assert_eq!(
        shake(&server, &client).await.unwrap(),
        ("hub-1".into(), Some("router-1".into()))
    );

    server_store.set(server_identity(&new, "hub-2"));
    assert!(shake(&server, &client).await.is_err(), "a server of an unknown CA");
    client_trust.set_pem(&format!("{}{}", old.pem(), new.pem())).unwrap();
    assert_eq!(
        shake(&server, &client).await.unwrap(),
        ("hub-2".into(), Some("router-1".into()))
    );

    server_trust.set_pem(new.pem()).unwrap();
    assert!(
        shake(&server, &client).await.is_err(),
        "a client of a CA that was withdrawn"
    );
    client_store.set(client_identity(&new, "router-2"));
    assert_eq!(
        shake(&server, &client).await.unwrap(),
        ("hub-2".into(), Some("router-2".into()))
    );
}

#[tokio::test]
async fn optional_client_certificates_are_optional_but_not_arbitrary() {
    let (ours, theirs) = (ca("hub CA"), ca("other CA"));
    let store = IdentityStore::new(server_identity(&ours, "hub"));
    let server = server_config(store, ClientAuth::Optional(trust(&ours)), ALPN_HTTP).unwrap();
    let client = |identity| client_config(trust(&ours), identity, ALPN_HTTP).unwrap();
    assert_eq!(shake(&server, &client(None)).await.unwrap().1, None);
    let known = IdentityStore::new(client_identity(&ours, "agent"));
    assert_eq!(
        shake(&server, &client(Some(known))).await.unwrap().1,
        Some("agent".into())
    );
    let unknown = IdentityStore::new(client_identity(&theirs, "agent"));
    assert!(shake(&server, &client(Some(unknown))).await.is_err());
}

#[tokio::test]
async fn names_and_usages_are_checked() {
    let ca = ca("hub CA");
    let client = client_config(trust(&ca), None, ALPN_HTTP).unwrap();
    let wrong = [
        ca.issue_server("hub", &["other.example"], HOUR).unwrap(),
        ca.issue_client("hub", None, HOUR).unwrap(),
        ca.issue(&LeafSpec {
            common_name: "hub".into(),
            organization: None,
            hosts: vec![NAME.into()],
            uris: vec![],
            ttl: HOUR,
            usage: Usage::Client,
        })
        .unwrap(),
    ];
    for issued in wrong {
        let store = IdentityStore::new(identity(&issued));
        let server = server_config(store, ClientAuth::None, ALPN_HTTP).unwrap();
        assert!(shake(&server, &client).await.is_err());
    }
    let server_as_client = IdentityStore::new(server_identity(&ca, "hub"));
    let server = server_config(server_as_client.clone(), ClientAuth::Required(trust(&ca)), ALPN_HTTP).unwrap();
    let client = client_config(trust(&ca), Some(server_as_client), ALPN_HTTP).unwrap();
    assert!(
        shake(&server, &client).await.is_err(),
        "a server's certificate is none of a client"
    );
}

#[test]
fn unusable_material_is_refused_before_it_is_stored() {
    let ca = ca("hub CA");
    let (issued, other) = (
        ca.issue_server("a", &[NAME], HOUR).unwrap(),
        ca.issue_server("b", &[NAME], HOUR).unwrap(),
    );
    let identity = |cert: &str, key: &str| Identity::from_pem(cert, &key.into());
    let (cert, key) = (&issued.cert_pem, issued.key_pem.expose());
    assert!(identity(cert, key).is_ok());
    assert!(matches!(identity("", key), Err(TlsError::NoCertificate)));
    assert!(matches!(identity(cert, ""), Err(TlsError::NoKey)));
    assert!(matches!(identity(cert, cert), Err(TlsError::NoKey)));
    assert!(matches!(
        identity(cert, other.key_pem.expose()),
        Err(TlsError::Identity(_))
    ));
    assert!(matches!(
        identity(&cert[..cert.len() / 3], key),
        Err(TlsError::Pem(_) | TlsError::NoCertificate)
    ));

    let store = TrustStore::from_pem(ca.pem()).unwrap();
    assert!(matches!(store.set_pem(""), Err(TlsError::NoCertificate)));
    assert!(
        store
            .set_pem("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
            .is_err()
    );
    assert_eq!(store.pem(), ca.pem());
}

#[test]
fn an_enrolled_identity_is_put_in_by_hand() {
    let ca = ca("hub CA");
    let key_pem = new_private_key().unwrap();
    let csr = signing_request(&key_pem).unwrap();
    let leaf = LeafSpec {
        common_name: "agent:east".into(),
        organization: None,
        hosts: vec![],
        uris: vec![],
        ttl: HOUR,
        usage: Usage::Client,
    };
    let store = IdentityStore::empty();
    assert!(store.load().is_none());
    store.set(Identity::from_pem(&ca.sign_csr(&csr, &leaf).unwrap(), &key_pem).unwrap());
    assert_eq!(store.load().unwrap().subject().common_name, "agent:east");
}

#[test]
fn keys_never_show_in_debug() {
    let issued = ca("hub CA").issue_server("hub", &[NAME], HOUR).unwrap();
    let store = IdentityStore::new(identity(&issued));
    let config = server_config(store.clone(), ClientAuth::None, ALPN_HTTP).unwrap();
    let canary = issued.key_pem.expose().lines().nth(1).unwrap().to_owned();
    for text in [
        format!("{store:?}"),
        format!("{config:?}"),
        format!("{:?}", store.load()),
    ] {
        assert!(!text.contains(&canary) && !text.contains("PRIVATE"), "{text}");
        assert!(!text.contains("308187"), "{text}");
    }
}
