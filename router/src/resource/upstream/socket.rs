//! TCP connections, on both sides of the router: their options, and how bytes are moved in bulk.

mod bulk;

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

pub(crate) use self::bulk::Bulk;

/// Silence after which the kernel asks whether the peer is still there, and the time between its questions. A shell may
/// be silent for hours; one whose peer vanished is closed within minutes.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);

/// No delay for small frames, and keep-alive. Best effort: an error means that the peer is gone, which whoever reads
/// next will see.
pub(crate) fn tuned(stream: TcpStream) -> Bulk {
    let _ = stream.set_nodelay(true);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_EVERY);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
    Bulk::new(stream)
}
