//! One address for several servers: each connection goes to the next that takes it, as a cloud's load balancer of TCP does it. It
//! knows nothing of TLS or HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use parking_lot::RwLock;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A balancer that runs until it is dropped.
#[derive(Debug)]
pub struct Balancer {
    /// Where it listens.
    pub address: String,
    first_alone: Arc<AtomicBool>,
    servers: Servers,
    _accepting: JoinSet<()>,
}

/// A lock: read once for each connection.
type Servers = Arc<RwLock<Arc<[String]>>>;

impl Balancer {
    /// In front of these addresses.
    pub async fn start(servers: Vec<String>) -> anyhow::Result<Self> {
        Self::at("127.0.0.1:0", servers).await
    }

    /// A balancer that listens at this address.
    pub async fn at(address: &str, servers: Vec<String>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).await.context("no port")?;
        let address = listener.local_addr()?.to_string();
        let first_alone = Arc::<AtomicBool>::default();
        let servers: Servers = Arc::new(RwLock::new(servers.into()));
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, servers.clone(), first_alone.clone()));
        Ok(Self {
            address,
            first_alone,
            servers,
            _accepting: accepting,
        })
    }

    /// New connections go to these from now on.
    pub fn serve_by(&self, servers: Vec<String>) {
        *self.servers.write() = servers.into();
    }

    /// Whether new connections go to the first server alone from now on.
    pub fn first_alone(&self, alone: bool) {
        self.first_alone.store(alone, Ordering::Relaxed);
    }
}

async fn accept(listener: TcpListener, servers: Servers, first_alone: Arc<AtomicBool>) {
    let mut connections = JoinSet::new();
    let mut turn = 0;
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((client, _)) = accepted {
                turn += 1;
                let servers = servers.read().clone();
                let order: Vec<_> = if first_alone.load(Ordering::Relaxed) {
                    vec![0]
                } else {
                    (0..servers.len()).map(|step| (turn + step) % servers.len()).collect()
                };
                connections.spawn(pass(client, servers, order));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One that refuses is passed over. An end by either side ends both, by RST if it was one.
async fn pass(mut client: TcpStream, servers: Arc<[String]>, order: Vec<usize>) {
    let _ = client.set_nodelay(true);
    for place in order {
        let Ok(mut server) = TcpStream::connect(&servers[place]).await else {
            continue;
        };
        let _ = server.set_nodelay(true);
        if tokio::io::copy_bidirectional(&mut client, &mut server).await.is_err() {
            let _ = client.set_zero_linger();
            let _ = server.set_zero_linger();
        }
        return;
    }
    let _ = client.set_zero_linger();
}
