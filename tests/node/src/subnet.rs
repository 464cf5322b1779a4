//! The addresses of one node's Pods.

use std::net::Ipv4Addr;
use std::sync::Arc;

use parking_lot::Mutex;

/// Addresses of one node: 10.244.N.1 to 10.244.N.254.
const HOSTS: u8 = 254;

/// A part of a bridge's network whose addresses one node gives to its Pods.
#[derive(Clone, Debug)]
pub struct Subnet {
    /// Name of the bridge's interface.
    pub(crate) bridge: String,
    /// Address of the bridge itself, where programs outside of Pods listen.
    pub(crate) gateway: Ipv4Addr,
    /// The third byte of all addresses of Pods.
    number: u8,
    /// A mutex: held for one look at 254 flags.
    taken: Arc<Mutex<Taken>>,
}

/// Going round, so that no address comes back while somebody still knows it as another Pod's.
#[derive(Debug)]
struct Taken {
    hosts: [bool; HOSTS as usize + 1],
    last: u8,
}

/// An address that is one Pod's until this is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) address: Ipv4Addr,
    subnet: Subnet,
}

impl Subnet {
    /// Length of the prefix that all Pods of all nodes and the bridge are on.
    pub(crate) const PREFIX: u8 = 16;

    /// Part `number` of the network of a bridge, which has part 0 itself.
    pub fn new(bridge: &str, gateway: Ipv4Addr, number: u8) -> Self {
        let taken = Taken {
            hosts: [false; HOSTS as usize + 1],
            last: 0,
        };
        Self {
            bridge: bridge.to_owned(),
            gateway,
            number,
            taken: Arc::new(Mutex::new(taken)),
        }
    }

    /// The next address that nobody has.
    pub(crate) fn lease(&self) -> Option<Lease> {
        let host = self.taken.lock().next()?;
        let [a, b, ..] = self.gateway.octets();
        let address = Ipv4Addr::new(a, b, self.number, host);
        let subnet = self.clone();
        Some(Lease { address, subnet })
    }
}

impl PartialEq for Subnet {
    fn eq(&self, other: &Self) -> bool {
        (&self.bridge, self.gateway, self.number) == (&other.bridge, other.gateway, other.number)
    }
}

impl Eq for Subnet {}

impl Taken {
    fn next(&mut self) -> Option<u8> {
        let round = (self.last..HOSTS).map(|before| before + 1).chain(1..=self.last);
        let free = round.into_iter().find(|host| !self.hosts[usize::from(*host)])?;
        self.hosts[usize::from(free)] = true;
        self.last = free;
        Some(free)
    }
}

impl Lease {
    /// Name of the interface on the bridge's side; those of several nodes are told apart.
    pub(crate) fn interface(&self) -> String {
        let [_, _, part, host] = self.address.octets();
        format!("pod-{part}-{host}")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let [.., host] = self.address.octets();
        self.subnet.taken.lock().hosts[usize::from(host)] = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_given_once_and_come_back_last() {
        let subnet = Subnet::new("br", Ipv4Addr::new(10, 244, 0, 1), 3);
        let first = subnet.lease().unwrap();
        assert_eq!(first.address, Ipv4Addr::new(10, 244, 3, 1));
        assert_eq!(first.interface(), "pod-3-1");
        drop(first);
        let mut others: Vec<_> = (0..254).map(|_| subnet.lease().unwrap()).collect();
        assert_eq!(others[0].address, Ipv4Addr::new(10, 244, 3, 2));
        assert_eq!(others[253].address, Ipv4Addr::new(10, 244, 3, 1));
        assert!(subnet.lease().is_none());
        drop(others.remove(7));
        assert_eq!(subnet.lease().unwrap().address, Ipv4Addr::new(10, 244, 3, 9));
    }
}
