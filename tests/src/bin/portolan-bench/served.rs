//! What the two servers of the benchmark, `backend` and `forwarder`, have in common: their flags, TLS, a task per
//! connection, and an end with the benchmark's.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use portolan_runtime::tls::{self, ALPN_GRPC, ClientAuth, Identity, IdentityStore};
use portolan_runtime::{Secret, Tasks, files};
use rustls::ServerConfig;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Streams of one HTTP/2 connection: what kube-apiserver allows.
pub(crate) const MAX_STREAMS: u32 = 100;

/// Flags of both servers.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ServeArgs {
    /// PEM file with certificate chain and key.
    #[arg(long)]
    identity: PathBuf,
    #[arg(long)]
    addresses_file: PathBuf,
}

/// Binds to loopback, tells the address, and gives each connection to `serve` after its handshake.
pub(crate) async fn serve<F>(
    args: &ServeArgs,
    serve: impl Fn(TlsStream<TcpStream>) -> F + Clone + Send + 'static,
) -> anyhow::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let acceptor = TlsAcceptor::from(config(args)?);
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    let address = listener.local_addr()?.to_string();
    files::write_public(&args.addresses_file, json!({"bind": address}).to_string())?;
    let tasks = Tasks::new();
    loop {
        let (stream, _) = listener.accept().await.context("cannot accept")?;
        stream.set_nodelay(true)?;
        let (acceptor, serve) = (acceptor.clone(), serve.clone());
        tasks.spawn("bench-server", async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                serve(stream).await;
            }
        });
    }
}

fn config(args: &ServeArgs) -> anyhow::Result<Arc<ServerConfig>> {
    let pem = Secret::new(String::from_utf8(files::read(&args.identity)?).context("the identity is not text")?);
    let identity = IdentityStore::new(Identity::from_pem(pem.expose(), &pem)?);
    Ok(tls::server_config(identity, ClientAuth::None, ALPN_GRPC)?)
}
