//! Permits for those of whom nothing is known but where they come from: connections before anybody said whose they are.
//!
//! While permits are scarce, one source address has a part of them. Only then, because many clients share one address behind a
//! balancer. Caller: `accept`.

use std::net::IpAddr;

use crate::resource::bulkhead::{Bulkhead, Full, Permit};
use crate::resource::keyed::{Entry, Keyed};

/// One source address has this part of all while they are scarce.
const ADDRESS_PART: usize = 8;

/// Permits of which no source address takes all.
#[derive(Debug)]
pub(crate) struct Shares {
    all: Bulkhead,
    /// Permits of one address while they are scarce.
    in_flight: usize,
    queue: usize,
    addresses: Keyed<IpAddr, Bulkhead>,
}

/// One permit of [`Shares`].
pub(crate) struct Share {
    _all: Permit,
    _own: Option<(Permit, Entry<IpAddr, Bulkhead>)>,
}

impl Shares {
    pub(crate) fn new(in_flight: usize, queue: usize) -> Self {
        Self {
            all: Bulkhead::new(in_flight, queue),
            in_flight: (in_flight / ADDRESS_PART).max(1),
            queue: queue / ADDRESS_PART,
            addresses: Keyed::default(),
        }
    }

    pub(crate) async fn enter(&self, address: IpAddr) -> Result<Share, Full> {
        if !self.all.is_scarce()
            && let Some(all) = self.all.try_enter()
        {
            return Ok(Share { _all: all, _own: None });
        }
        let entry = self
            .addresses
            .entry(address, || Bulkhead::new(self.in_flight, self.queue));
        let own = entry.enter().await?;
        let all = self.all.enter().await?;
        Ok(Share {
            _all: all,
            _own: Some((own, entry)),
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn while_places_are_scarce_one_address_has_a_part_of_them() {
        let shares = Shares::new(64, 64);
        let [one, other] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let mut held = Vec::new();
        // A half while there is plenty, an eighth then; the rest waits.
        while let Some(share) = shares.enter(one).now_or_never() {
            held.push(share.unwrap());
        }
        assert_eq!(held.len(), 33 + 8);
        let served = shares.enter(other).now_or_never();
        assert!(matches!(served, Some(Ok(_))), "another address is served");
    }
}
