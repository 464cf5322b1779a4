//! A member by its host name: for tools that drop the path of a server address.

use std::process::Stdio;

use anyhow::Context as _;
use portolan_tests::kubectl::Kubectl;
use portolan_tests::names::Names;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::{EXPLICIT_HOST, world};

#[tokio::test]
async fn a_tool_that_drops_the_path_gets_the_member() {
    let world = world().await;
    let router = world.fleet.router_url().unwrap();
    let router = router.strip_prefix("https://").unwrap().parse().unwrap();
    let names = Names::lead_to(router).await.unwrap();
    let context = format!("--context=west.{EXPLICIT_HOST}");
    let kubectl = Kubectl::new(&world.fleet.explicit_kubeconfig()).with(&context);
    let shown = kubectl
        .command(&["get", "namespace", "kube-system", "-o=jsonpath={.metadata.uid}"])
        .env("HTTPS_PROXY", &names.proxy)
        .output()
        .await
        .unwrap();
    let wanted = world.direct("west");
    let wanted = wanted.ok(&["get", "namespace", "kube-system", "-o=jsonpath={.metadata.uid}"]);
    let wanted = wanted.await.unwrap();
    assert_eq!(String::from_utf8_lossy(&shown.stdout), wanted, "{shown:?}");

    let mut child = kubectl
        .command(&["proxy", "--port=0"])
        .env("HTTPS_PROXY", &names.proxy)
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
