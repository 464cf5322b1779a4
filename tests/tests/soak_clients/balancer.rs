//! One address for both routers: each connection goes to the next router that takes it, as a cloud's load balancer of TCP
//! does it. It knows nothing of TLS or HTTP.

use std::sync::Arc;

use anyhow::Context as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Running until it is dropped.
pub(crate) struct Balancer {
    pub(crate) address: String,
    _accepting: JoinSet<()>,
}

impl Balancer {
    /// In front of these addresses.
    pub(crate) async fn start(routers: Vec<String>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port")?;
        let address = listener.local_addr()?.to_string();
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, routers.into()));
        Ok(Self {
            address,
            _accepting: accepting,
        })
    }
}

async fn accept(listener: TcpListener, routers: Arc<[String]>) {
    let mut connections = JoinSet::new();
    let mut turn = 0;
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((client, _)) = accepted {
                turn += 1;
                connections.spawn(pass(client, routers.clone(), turn));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One that refuses is passed over. An end by either side ends both, by RST if it was one.
async fn pass(mut client: TcpStream, routers: Arc<[String]>, turn: usize) {
    let _ = client.set_nodelay(true);
    for step in 0..routers.len() {
        let Ok(mut router) = TcpStream::connect(&routers[(turn + step) % routers.len()]).await else {
            continue;
        };
        let _ = router.set_nodelay(true);
        if tokio::io::copy_bidirectional(&mut client, &mut router).await.is_err() {
            let _ = client.set_zero_linger();
            let _ = router.set_zero_linger();
        }
        return;
    }
    let _ = client.set_zero_linger();
}
