//! A TCP relay that counts what passes, TLS and all: what a stream costs on the wire. Beside `control`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use portolan_runtime::Tasks;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Bytes read at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// What has passed so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Passed {
    /// Bytes of the server.
    pub(crate) down: usize,
    /// When the client last said anything.
    pub(crate) answered: Option<Instant>,
}

/// A running relay; ends when dropped.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    passed: Arc<Mutex<Passed>>,
    tasks: Tasks,
}

impl Relay {
    /// In front of `target`, `host:port`.
    pub(crate) async fn start(target: String) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let address = listener.local_addr()?;
        let tasks = Tasks::new();
        let passed = Arc::new(Mutex::new(Passed::default()));
        tasks.spawn("relay", accept(listener, target, passed.clone(), tasks.clone()));
        Ok(Self { address, passed, tasks })
    }

    pub(crate) fn passed(&self) -> Passed {
        *self.passed.lock()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

async fn accept(listener: TcpListener, target: String, passed: Arc<Mutex<Passed>>, tasks: Tasks) {
    while let Ok((client, _)) = listener.accept().await {
        let Ok(server) = TcpStream::connect(&target).await else {
            continue;
        };
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let (up, down) = (passed.clone(), passed.clone());
        tasks.spawn(
            "relay-up",
            pass(from_client, to_server, move |_| {
                up.lock().answered = Some(Instant::now());
            }),
        );
        tasks.spawn(
            "relay-down",
            pass(from_server, to_client, move |bytes| down.lock().down += bytes),
        );
    }
}

/// Until either side ends; the halves close with it.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, note: impl Fn(usize)) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(bytes @ 1..) = from.read(&mut buffer).await {
        note(bytes);
        if to.write_all(&buffer[..bytes]).await.is_err() {
            return;
        }
    }
}
