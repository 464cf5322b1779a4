//! Ports that stay ours. A free port that is merely looked up can be taken before the program binds it, or while a
//! killed API server is down; a [`Port`] keeps a bound socket that never listens, for as long as it lives.
//!
//! Linux lets a second socket listen there because both set SO_REUSEADDR (Go always does) and hands the port to
//! nobody who asks for any free one. Without a listener a connection is refused, as it should be.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use tokio::net::TcpSocket;

#[derive(Debug)]
pub(crate) struct Port {
    address: SocketAddrV4,
    /// None where two sockets cannot share an address like this (macOS): there the port is only looked up.
    _held: Option<TcpSocket>,
}

impl Port {
    /// `preferred` on the loopback address if nobody has it, else any free port there.
    pub(crate) fn reserve(preferred: Option<u16>) -> io::Result<Self> {
        Self::reserve_at(Ipv4Addr::LOCALHOST, preferred)
    }

    /// `preferred` on an address of this machine if nobody has it, else any free port there.
    pub(crate) fn reserve_at(address: Ipv4Addr, preferred: Option<u16>) -> io::Result<Self> {
        match preferred.map(|number| Self::bind(address, number)) {
            Some(Ok(port)) => Ok(port),
            _ => Self::bind(address, 0),
        }
    }

    fn bind(address: Ipv4Addr, number: u16) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::from((address, number)))?;
        let number = socket.local_addr()?.port();
        Ok(Self {
            address: SocketAddrV4::new(address, number),
            _held: cfg!(target_os = "linux").then_some(socket),
        })
    }

    pub(crate) fn number(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn address(&self) -> SocketAddrV4 {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::eventually::eventually;

    #[test]
    fn a_reserved_port_is_given_to_nobody_else() {
        let reserved: Vec<Port> = (0..50).map(|_| Port::reserve(None).unwrap()).collect();
        let others: Vec<TcpListener> = (0..50).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let mut all: BTreeSet<u16> = reserved.iter().map(Port::number).collect();
        all.extend(others.iter().map(|listener| listener.local_addr().unwrap().port()));
        assert_eq!(all.len(), 100);
    }

    #[tokio::test]
    async fn the_owner_may_listen_again_and_again() {
        let port = Port::reserve(None).unwrap();
        let connect = || TcpStream::connect(("127.0.0.1", port.number()));
        for _ in 0..3 {
            // Not at once: a child that another test has forked holds our old listener until it calls exec.
            eventually("connections are refused", || async { connect().is_err() }).await;
            let listener = TcpListener::bind(("127.0.0.1", port.number())).unwrap();
            drop(connect().unwrap());
            drop(listener);
        }
    }

    #[test]
    fn a_preferred_port_that_is_taken_gives_another() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = taken.local_addr().unwrap().port();
        assert_ne!(Port::reserve(Some(number)).unwrap().number(), number);
    }
}
