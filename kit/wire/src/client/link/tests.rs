//! Addresses, and connections over loopback with an identity that changes between them.

use futures::StreamExt;
use portolan_runtime::Tasks;
use portolan_runtime::pki::{CertificateAuthority, Issued, subject_of};
use portolan_runtime::tls::{ClientAuth, Identity, TlsIncoming};
use tokio::net::TcpListener;
use tower::ServiceExt;

use super::*;

const HOUR: Duration = Duration::from_hours(1);

fn identity(issued: &Issued) -> Identity {
    Identity::from_pem(&issued.cert_pem, &issued.key_pem).unwrap()
}

fn router(ca: &CertificateAuthority, name: &str) -> Identity {
    identity(&ca.issue_client(name, Some("portolan:routers"), HOUR).unwrap())
}

/// A unary call of a method that no server has: its answer proves the connection.
async fn call(channel: Channel) -> Result<http::StatusCode, tonic::transport::Error> {
    let mut request = http::Request::new(tonic::body::Body::empty());
    *request.uri_mut() = "http://any/portolan.Test/Ping".parse().unwrap();
    *request.method_mut() = http::Method::POST;
    Ok(channel.oneshot(request).await?.status())
}

#[tokio::test]
async fn a_new_channel_has_the_identity_of_the_moment() {
    let (ca, tasks) = (CertificateAuthority::generate("hub CA").unwrap(), Tasks::new());
    let trust = || TrustStore::from_pem(ca.pem()).unwrap();
    let serving = IdentityStore::new(identity(&ca.issue_server("hub", &["127.0.0.1"], HOUR).unwrap()));
    let config = tls::server_config(serving, ClientAuth::Required(trust()), ALPN_GRPC).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let incoming = TlsIncoming::new(listener, config, &tasks).unwrap();
    let address = incoming.local_addr().to_string();
    let (seen, mut names) = tokio::sync::mpsc::channel(8);
    let incoming = incoming.inspect(move |stream| {
        let chain = stream.as_ref().unwrap().get_ref().1.peer_certificates().unwrap();
        seen.try_send(subject_of(&chain[0]).unwrap().common_name).unwrap();
    });
    let server = tonic::transport::Server::builder().add_routes(tonic::service::Routes::default());
    let stop = tasks.token();
    tasks.spawn("grpc", async move {
        server
            .serve_with_incoming_shutdown(incoming, stop.cancelled_owned())
            .await
            .unwrap();
    });

    let mine = IdentityStore::new(router(&ca, "router-1"));
    let link = HubLink::new(&address, trust(), mine.clone()).unwrap();
    let first = link.channel();
    assert_eq!(call(first.clone()).await.unwrap(), http::StatusCode::OK);
    mine.set(router(&ca, "router-2"));
    assert_eq!(
        call(first).await.unwrap(),
        http::StatusCode::OK,
        "an open connection goes on"
    );
    assert_eq!(call(link.channel()).await.unwrap(), http::StatusCode::OK);
    assert_eq!(names.recv().await.unwrap(), "router-1");
    assert_eq!(names.recv().await.unwrap(), "router-2");

    let stranger = HubLink::new(&address, trust(), IdentityStore::empty()).unwrap();
    assert!(call(stranger.channel()).await.is_err());
    assert!(tasks.shutdown(Duration::from_secs(5)).await.is_clean());
}

#[test]
fn addresses_are_checked_at_once() {
    let ca = CertificateAuthority::generate("hub CA").unwrap();
    let trust = TrustStore::from_pem(ca.pem()).unwrap();
    let make = |address| HubLink::new(address, trust.clone(), IdentityStore::empty());
    assert!(make("hub.example:443").is_ok() && make("[::1]:443").is_ok() && make("127.0.0.1:443").is_ok());
    for bad in ["", "hub.example", "https://hub.example:443", "hub example:1", "-:1"] {
        assert!(matches!(make(bad), Err(LinkError::Address(_))), "{bad}");
    }
}

#[test]
fn hosts_of_addresses() {
    for (address, host) in [
        ("hub.example.com:7443", Some("hub.example.com")),
        ("127.0.0.1:7443", Some("127.0.0.1")),
        ("[::1]:7443", Some("::1")),
        ("hub.example.com", None),
        ("https://hub:7443", None),
        ("hub:port", None),
        ("hub:0", None),
        ("hub:65536", None),
        (":7443", None),
        ("::1:7443", None),
    ] {
        assert_eq!(host_of(address), host, "{address}");
    }
}
