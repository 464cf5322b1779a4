//! A way to a TCP server that can be shut: what cuts one program off and leaves the others where they are.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Passes connections on until it is shut.
pub(crate) struct Gate {
    /// `host:port` to connect to.
    pub(crate) address: String,
    open: watch::Sender<bool>,
}

impl Gate {
    /// To `server`, open.
    pub(crate) async fn open(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (open, is_open) = watch::channel(true);
        let server = server.to_owned();
        let accepting = async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (server, mut is_open) = (server.clone(), is_open.clone());
                let passing = async move {
                    let passed = async {
                        let mut far = TcpStream::connect(server).await?;
                        copy_bidirectional(&mut near, &mut far).await
                    };
                    tokio::select! {
                        _ = is_open.wait_for(|open| !open) => {}
                        _ = passed => {}
                    }
                };
                #[allow(clippy::disallowed_methods)] // ends with the gate
                tokio::spawn(passing);
            }
        };
        #[allow(clippy::disallowed_methods)] // ends with the test
        tokio::spawn(accepting);
        Self { address, open }
    }

    /// Ends all connections, and those to come.
    pub(crate) fn shut(&self) {
        self.open.send_replace(false);
    }

    /// Lets connections through again.
    pub(crate) fn let_through(&self) {
        self.open.send_replace(true);
    }
}
