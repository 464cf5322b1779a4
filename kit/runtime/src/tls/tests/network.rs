//! The listener and a client against each other, over loopback.

use super::*;
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn a_silent_client_holds_up_nobody() {
    let (ca, tasks) = (ca("hub CA"), Tasks::new());
    let store = IdentityStore::new(server_identity(&ca, "hub"));
    let config = server_config(store, ClientAuth::None, ALPN_HTTP1).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut incoming = TlsIncoming::new(listener, config, &tasks).unwrap();
    let addr = incoming.local_addr();
    let silent = TcpStream::connect(addr).await.unwrap();

    let client = client_config(trust(&ca), None, ALPN_HTTP1).unwrap();
    let connect = async {
        let tcp = TcpStream::connect(addr).await.unwrap();
        let name = ServerName::try_from(NAME).unwrap();
        TlsConnector::from(client).connect(name, tcp).await.unwrap()
    };
    let (mut near, far) = tokio::join!(connect, incoming.next());
    let mut far = far.unwrap().unwrap();
    far.write_all(b"hello").await.unwrap();
    far.shutdown().await.unwrap();
    let mut text = String::new();
    near.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "hello");
    drop((far, silent));
    assert!(tasks.shutdown(Duration::from_secs(5)).await.is_clean());
    assert!(incoming.next().await.is_none(), "it ends with its tasks");
}

#[tokio::test]
async fn who_has_no_certificate_does_not_stay() {
    let (ca, tasks) = (ca("hub CA"), Tasks::new());
    let store = IdentityStore::new(server_identity(&ca, "hub"));
    let config = server_config(store, ClientAuth::Optional(trust(&ca)), ALPN_HTTP1).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut incoming = TlsIncoming::with(listener, config, &tasks, Duration::from_millis(50)).unwrap();
    let addr = incoming.local_addr();
    let connect = async |identity| {
        let client = client_config(trust(&ca), identity, ALPN_HTTP1).unwrap();
        let tcp = TcpStream::connect(addr).await.unwrap();
        let name = ServerName::try_from(NAME).unwrap();
        TlsConnector::from(client).connect(name, tcp).await.unwrap()
    };
    let (_near, far) = tokio::join!(connect(None), incoming.next());
    let mut far = far.unwrap().unwrap();
    let mut buffer = [0; 8];
    let read = tokio::time::timeout(Duration::from_secs(20), far.read(&mut buffer)).await;
    assert_eq!(read.expect("its time is over").unwrap(), 0);
    let person = IdentityStore::new(client_identity(&ca, "ada"));
    let (mut near, far) = tokio::join!(connect(Some(person)), incoming.next());
    let mut far = far.unwrap().unwrap();
    let silence = tokio::time::timeout(Duration::from_millis(200), far.read(&mut buffer)).await;
    assert!(silence.is_err(), "who has one is waited for");
    near.write_all(b"hello").await.unwrap();
    assert_eq!(far.read(&mut buffer).await.unwrap(), 5);
}
