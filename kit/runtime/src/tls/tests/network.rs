//! The listener and a client against each other, over loopback.

use super::*;
use axum::Router;
use axum::routing::get;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream};

async fn listen(config: Arc<ServerConfig>, tasks: &Tasks) -> (SocketAddr, TlsIncoming) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let incoming = TlsIncoming::new(listener, config, tasks).unwrap();
    (incoming.local_addr(), incoming)
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
