//! What goes on between client and member after a switch of protocols.

use crate::resource::upstream::Ended;
use crate::stage::dispatch::upgrade::Tunnel;
use crate::stage::fanout::socket::Socket;

/// What goes on after a switch of protocols.
pub(super) enum Carried {
    Tunnel(Tunnel),
    Socket(Socket),
}

impl Carried {
    /// To its end: bytes to the client, and how it ended.
    pub(super) async fn run(self) -> (std::io::Result<u64>, Ended) {
        match self {
            Self::Tunnel(tunnel) => (tunnel.run().await, Ended::Complete),
            Self::Socket(socket) => {
                let (carried, body) = socket.run().await;
                (carried, body.ended())
            }
        }
    }
}
