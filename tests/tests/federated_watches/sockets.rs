//! Watches by WebSocket, as fabric8 opens every one.

use futures::{SinkExt as _, StreamExt as _};
use http::Method;
use portolan_testbed::patience;
use portolan_tests::door::Door;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::{MAPS, MEMBERS, door, make, position};

type Socket = WebSocketStream<TlsStream<TcpStream>>;

async fn socket(door: &Door, query: &str, accept: &str) -> Result<Socket, Error> {
    socket_of(door, &format!("{MAPS}?watch=true&{query}"), accept).await
}

async fn socket_of(door: &Door, path: &str, accept: &str) -> Result<Socket, Error> {
    let stream = door.connect("http/1.1").await.unwrap();
    let url = format!("wss://{}{}{path}", door.address, door.prefix);
    let mut request = url.into_client_request().unwrap();
    let headers = request.headers_mut();
    if let Some(token) = &door.token {
        let bearer = format!("Bearer {}", token.trim());
        headers.insert("authorization", bearer.parse().unwrap());
    }
    headers.insert("accept", accept.parse().unwrap());
    headers.insert("user-agent", "fabric8-kubernetes-client/7".parse().unwrap());
    headers.insert("origin", format!("https://{}", door.address).parse().unwrap());
    client_async(request, stream).await.map(|(socket, _)| socket)
}

async fn next(socket: &mut Socket) -> Message {
    tokio::time::timeout(patience(), socket.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap()
}

async fn event(socket: &mut Socket) -> Value {
    loop {
        if let Message::Text(text) = next(socket).await {
            return serde_json::from_str(&text).unwrap();
        }
    }
}

#[tokio::test]
async fn events_of_both_members_are_messages() {
    let _calm = MEMBERS.read().await;
    let door = door("sockets").await;
    let from = position(&door).await;
    let query = format!("resourceVersion={from}&allowWatchBookmarks=true");
    let mut json = socket(&door, &query, "application/json").await.unwrap();
    let mut protobuf = socket(&door, &query, "application/vnd.kubernetes.protobuf")
        .await
        .unwrap();
    json.send(Message::Ping("are you there".into())).await.unwrap();
    for (member, name) in [("east", "one"), ("west", "two")] {
        make("sockets", member, name).await;
        let added = event(&mut json).await;
        assert_eq!(
            (&added["type"], &added["object"]["metadata"]["name"]),
            (&"ADDED".into(), &name.into())
        );
        assert_eq!(event(&mut json).await["type"], "BOOKMARK");
        let binary = loop {
            if let Message::Binary(bytes) = next(&mut protobuf).await {
                break bytes;
            }
        };
        assert!(
            binary.windows(name.len()).any(|window| window == name.as_bytes()),
            "{binary:?}"
        );
        while !matches!(next(&mut protobuf).await, Message::Binary(_)) {}
    }
    json.close(None).await.unwrap();
    while let Some(Ok(message)) = json.next().await {
        assert!(
            matches!(message, Message::Close(_) | Message::Pong(_) | Message::Ping(_)),
            "{message:?}"
        );
    }
}

#[tokio::test]
async fn ends_and_refusals() {
    let _calm = MEMBERS.read().await;
    let door = door("sockets").await;
    // A position of one member only.
    let mut raw = socket(&door, "resourceVersion=7", "application/json").await.unwrap();
    let expired = event(&mut raw).await;
    assert_eq!(
        (&expired["type"], &expired["object"]["code"]),
        (&"ERROR".into(), &410.into())
    );
    assert!(matches!(next(&mut raw).await, Message::Close(_)));
    // Its own end.
    let query = format!("resourceVersion={}&timeoutSeconds=1", position(&door).await);
    let mut short = socket(&door, &query, "application/json").await.unwrap();
    while !matches!(next(&mut short).await, Message::Close(_)) {}
    // What members refuse is no socket.
    let refused = socket(&door, "resourceVersion=abc", "application/json").await;
    let Err(Error::Http(answer)) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(answer.status(), 400);
}

/// The Lease of the shard's leader election lies in the primary under another name.
#[tokio::test]
async fn the_lease_of_the_election_is_watched_by_its_own_name() {
    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/operators/leases";
    let _calm = MEMBERS.read().await;
    let door = door("sockets").await;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "greeting-operator"},
        "spec": {"holderIdentity": "one", "leaseDurationSeconds": 15},
    });
    let made = door.post(LEASES, &lease).await.unwrap();
    assert!(matches!(made.status, 201 | 409), "{}", made.message());
    let field = "fieldSelector=metadata.name%3Dgreeting-operator";
    let listed = door.get(&format!("{LEASES}?{field}"), &[]).await.unwrap().json();
    let cursor = listed["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{LEASES}?watch=true&{field}&resourceVersion={cursor}");
    let mut watch = socket_of(&door, &path, "application/json").await.unwrap();
    let patch = json!({"spec": {"holderIdentity": "two"}}).to_string();
    let headers = [("content-type", "application/merge-patch+json")];
    let one = format!("{LEASES}/greeting-operator");
    let patched = door
        .call(Method::PATCH, &one, &headers, patch.as_bytes())
        .await
        .unwrap();
    assert_eq!(patched.status, 200, "{}", patched.message());
    let told = event(&mut watch).await;
    let object = &told["object"];
    assert_eq!(
        (
            &told["type"],
            &object["metadata"]["name"],
            &object["spec"]["holderIdentity"]
        ),
        (&"MODIFIED".into(), &"greeting-operator".into(), &"two".into()),
        "{told}"
    );
}
