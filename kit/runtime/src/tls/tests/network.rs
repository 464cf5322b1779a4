//! The listener and the gRPC channel against each other, over loopback.

use super::*;
use crate::grpc::{AddressError, channel};
use axum::Router;
use axum::routing::get;
use futures::StreamExt;
use http::Uri;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

async fn listen(config: Arc<ServerConfig>, tasks: &Tasks) -> (SocketAddr, TlsIncoming) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let incoming = TlsIncoming::new(listener, config, tasks).unwrap();
    (incoming.local_addr(), incoming)
}

/// A unary call of a method that no server has: its answer proves the connection.
async fn call(channel: tonic::transport::Channel) -> Result<http::StatusCode, tonic::transport::Error> {
    let uri: Uri = "http://any/portolan.Test/Ping".parse().unwrap();
    let mut request = http::Request::new(tonic::body::Body::empty());
    *request.uri_mut() = uri;
    *request.method_mut() = http::Method::POST;
    Ok(channel.oneshot(request).await?.status())
}

#[tokio::test]
async fn grpc_reconnects_with_the_identity_of_the_moment() {
    let (ca, tasks) = (ca("hub CA"), Tasks::new());
    let store = IdentityStore::new(server_identity(&ca, "hub"));
    let config = server_config(store, ClientAuth::Required(trust(&ca)), ALPN_GRPC).unwrap();
    let (addr, incoming) = listen(config, &tasks).await;
    let (seen, mut names) = tokio::sync::mpsc::unbounded_channel();
    let incoming = incoming.inspect(move |stream| {
        let chain = stream.as_ref().unwrap().get_ref().1.peer_certificates();
        seen.send(common_name(chain).unwrap()).unwrap();
    });
    let server = tonic::transport::Server::builder().add_routes(tonic::service::Routes::default());
    let stop = tasks.token();
    tasks.spawn("grpc", async move {
        server
            .serve_with_incoming_shutdown(incoming, stop.cancelled_owned())
            .await
            .unwrap();
    });

    let identity = IdentityStore::new(client_identity(&ca, "router-1"));
    let client = client_config(trust(&ca), Some(identity.clone()), ALPN_GRPC).unwrap();
    let first = channel(&addr.to_string(), Some(NAME), client.clone()).unwrap();
    assert_eq!(call(first.clone()).await.unwrap(), http::StatusCode::OK);
    identity.set(client_identity(&ca, "router-2"));
    assert_eq!(
        call(first).await.unwrap(),
        http::StatusCode::OK,
        "an open connection goes on"
    );
    let second = channel(&addr.to_string(), Some(NAME), client).unwrap();
    assert_eq!(call(second).await.unwrap(), http::StatusCode::OK);
    assert_eq!(names.recv().await.unwrap(), "router-1");
    assert_eq!(names.recv().await.unwrap(), "router-2");

    let stranger = client_config(trust(&ca), None, ALPN_GRPC).unwrap();
    assert!(
        call(channel(&addr.to_string(), Some(NAME), stranger).unwrap())
            .await
            .is_err()
    );
    assert!(tasks.shutdown(Duration::from_secs(5)).await.is_clean());
}

#[tokio::test]
async fn a_silent_client_holds_up_nobody_and_axum_is_served() {
    let (ca, tasks) = (ca("hub CA"), Tasks::new());
    let config = server_config(
        IdentityStore::new(server_identity(&ca, "hub")),
        ClientAuth::None,
        ALPN_HTTP1,
    )
    .unwrap();
    let (addr, incoming) = listen(config, &tasks).await;
    let stop = tasks.token();
    let app = Router::new().route("/", get(|| async { "hello" }));
    tasks.spawn("https", async move {
        axum::serve(incoming, app)
            .with_graceful_shutdown(stop.cancelled_owned())
            .await
            .unwrap();
    });
    let silent = TcpStream::connect(addr).await.unwrap();

    let client = client_config(trust(&ca), None, ALPN_HTTP1).unwrap();
    let tcp = TcpStream::connect(addr).await.unwrap();
    let stream = TlsConnector::from(client)
        .connect(ServerName::try_from(NAME).unwrap(), tcp)
        .await
        .unwrap();
    let (mut send, connection) = hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream))
        .await
        .unwrap();
    tasks.spawn("client", async move { drop(connection.await) });
    let request = http::Request::get("/")
        .header("host", NAME)
        .body(axum::body::Body::empty())
        .unwrap();
    let response = send.send_request(request).await.unwrap();
    let body = axum::body::to_bytes(axum::body::Body::new(response.into_body()), 100)
        .await
        .unwrap();
    assert_eq!(body, "hello");
    drop((send, silent));
    assert!(tasks.shutdown(Duration::from_secs(5)).await.is_clean());
}

#[tokio::test]
async fn addresses_are_checked_at_once() {
    let config = client_config(trust(&ca("hub CA")), None, ALPN_GRPC).unwrap();
    let make = |address| channel(address, None, config.clone());
    assert!(make("hub.example:443").is_ok() && make("[::1]:443").is_ok() && make("127.0.0.1:443").is_ok());
    for bad in ["", "hub.example", "https://hub.example:443", "hub example:1"] {
        assert!(matches!(make(bad), Err(AddressError::Form(_))), "{bad}");
    }
    assert!(matches!(
        channel("hub:1", Some("-"), config),
        Err(AddressError::Name { .. })
    ));
}
