//! A member by its host name: for tools that drop the path of a server address.

use std::net::SocketAddr;
use std::process::Stdio;

use anyhow::Context as _;
use portolan_tests::kubectl::Kubectl;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::{EXPLICIT_HOST, world};

/// Stands for the DNS record that leads every name to the router: a proxy for CONNECT, which kubectl takes from its
/// environment.
async fn names_lead_to(router: SocketAddr) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut proxy = JoinSet::new();
    proxy.spawn(async move {
        let mut tunnels = JoinSet::new();
        while let Ok((mut client, _)) = listener.accept().await {
            tunnels.spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(client.read_u8().await?);
                }
                let mut router = TcpStream::connect(router).await?;
                client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
                copy_bidirectional(&mut client, &mut router).await
            });
        }
    });
    (format!("http://{address}"), proxy)
}

#[tokio::test]
async fn a_tool_that_drops_the_path_gets_the_member() {
    let world = world().await;
    let router = world.fleet.router_url().unwrap();
    let router = router.strip_prefix("https://").unwrap().parse().unwrap();
    let (proxy, _running) = names_lead_to(router).await;
    let context = format!("--context=west.{EXPLICIT_HOST}");
    let kubectl = Kubectl::new(&world.fleet.explicit_kubeconfig()).with(&context);
    let shown = kubectl
        .command(&["get", "namespace", "kube-system", "-o=jsonpath={.metadata.uid}"])
        .env("HTTPS_PROXY", &proxy)
        .output()
        .await
        .unwrap();
    let wanted = world.direct("west");
    let wanted = wanted.ok(&["get", "namespace", "kube-system", "-o=jsonpath={.metadata.uid}"]);
    let wanted = wanted.await.unwrap();
    assert_eq!(String::from_utf8_lossy(&shown.stdout), wanted, "{shown:?}");

    let mut child = kubectl
        .command(&["proxy", "--port=0"])
        .env("HTTPS_PROXY", &proxy)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(portolan_testbed::patience(), lines.next_line()).await;
    let line = line.unwrap().unwrap().context("kubectl proxy ended").unwrap();
    let address = line.rsplit(' ').next().unwrap();
    let mut local = TcpStream::connect(address).await.unwrap();
    let ask = "GET /api/v1/namespaces/kube-system HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    local.write_all(ask.as_bytes()).await.unwrap();
    let mut answer = String::new();
    local.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains(&wanted), "{answer}");
    child.kill().await.unwrap();
}
