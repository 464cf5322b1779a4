//! What RFC 9113 and RFC 7541 ask of a server, by h2spec: `make h2spec`. It speaks neither TLS with a certificate of its own nor
//! with tokens, so it stands behind a pipe that does: each byte of HTTP/2 is h2spec's and the router's.

use std::path::PathBuf;

use portolan_tests::door::Door;
use portolan_tests::programs::program;
use portolan_tests::world::{Plan, World};
use tokio::io::copy_bidirectional;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::JoinSet;

/// Bodies of POST are read there, and GET has something to tell.
const PATH: &str = "/clusters/east/api/v1/namespaces/default/configmaps";

/// Each connection to `listener` is one of HTTP/2 over TLS to the router.
async fn pipe(listener: TcpListener, door: Door) {
    let mut open = JoinSet::new();
    loop {
        let (mut plain, _) = listener.accept().await.unwrap();
        let door = door.clone();
        open.spawn(async move {
            let mut tls = door.connect("h2").await.unwrap();
            let _ = copy_bidirectional(&mut plain, &mut tls).await;
        });
        while open.try_join_next().is_some() {}
    }
}

#[tokio::test]
#[ignore = "needs h2spec: make h2spec"]
async fn a_server_of_http2_as_it_should_be() {
    let plan = Plan {
        members: &["east"],
        ..Plan::default()
    };
    let world = World::start(plan).await.unwrap();
    let door = world.explicit_door("east").await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let mut tasks = JoinSet::new();
    tasks.spawn(pipe(listener, door));
    let h2spec: PathBuf = program("h2spec").unwrap();
    let mut asked = Command::new(h2spec);
    asked.args(["--strict", "--timeout", "5", "--path", PATH, "--port", &port]);
    let ended = asked.status().await.unwrap();
    assert!(ended.success(), "see what h2spec said, above");
}
