//! Stands for the DNS record that leads every name below a suffix to the router: a proxy for CONNECT, which kubectl and client-go take
//! from `HTTPS_PROXY`.

use std::net::SocketAddr;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A head of CONNECT that is longer is nobody's.
const LONGEST_HEAD: usize = 16 * 1024;

/// A running proxy; ends when dropped.
#[derive(Debug)]
pub struct Names {
    /// For `HTTPS_PROXY`.
    pub proxy: String,
    _running: JoinSet<()>,
}

impl Names {
    /// Whatever host is asked for, `router` is connected to.
    pub async fn lead_to(router: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port for a proxy")?;
        let proxy = format!("http://{}", listener.local_addr()?);
        let mut running = JoinSet::new();
        running.spawn(async move {
            let mut tunnels = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                tunnels.spawn(tunnel(client, router));
                while tunnels.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            proxy,
            _running: running,
        })
    }
}

async fn tunnel(mut client: TcpStream, router: SocketAddr) -> std::io::Result<(u64, u64)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < LONGEST_HEAD {
        head.push(client.read_u8().await?);
    }
    let mut router = TcpStream::connect(router).await?;
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    copy_bidirectional(&mut client, &mut router).await
}
