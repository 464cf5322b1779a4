//! A dial that a pool counts, for as long as it is under way and no longer: also where its task ends in a panic or is dropped.
//! Caller: `pool`.

use super::{Pool, State};
use crate::resource::upstream::endpoint::ConnectError;

/// Who waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dial {
    /// Requests, unless the way was lost since: see [`Pool::retire`].
    Awaited { era: u64 },
    /// Nobody.
    Moving,
}

/// A dial under way.
pub(super) struct UnderWay<'a> {
    pool: &'a Pool,
    /// `None`: it is over.
    dial: Option<Dial>,
}

impl<'a> UnderWay<'a> {
    /// Of a dial that is counted already.
    pub(super) fn new(pool: &'a Pool, dial: Dial) -> Self {
        Self { pool, dial: Some(dial) }
    }

    /// There is a connection. Under the pool's lock, which the caller holds.
    pub(super) fn over(mut self, state: &mut State) {
        if let Some(dial) = self.dial.take() {
            state.dialed(dial);
        }
    }

    /// There is none.
    pub(super) fn failed(mut self, error: &ConnectError) {
        if let Some(dial) = self.dial.take() {
            self.pool.dial_failed(dial, error);
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(dial) = self.dial.take() {
            let error = ConnectError::Unusable("the attempt to connect broke off".to_owned());
            self.pool.dial_failed(dial, &error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::poll;
    use portolan_runtime::Tasks;
    use tokio::net::TcpListener;

    use super::*;
    use crate::resource::upstream::scripted::{Certified, snapshot, target};
    use crate::resource::upstream::{Connector, Upstreams};

    #[tokio::test]
    async fn a_dial_that_breaks_off_is_not_counted_for_ever() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connector = Connector::new(Duration::from_secs(20), Tasks::new());
        let east = target("east", &[silent.local_addr().unwrap()], &Certified::new().ca_pem());
        let all = connector.follow(&Upstreams::default(), &snapshot([east]).targets);
        let pool = &all.get("east").unwrap().transport.as_ref().unwrap().unary;
        let mut waits = Box::pin(pool.acquire(false));
        assert!(poll!(&mut waits).is_pending());
        let dials = || {
            let state = pool.shared.state.lock();
            (state.dialing, state.moving)
        };
        assert_eq!(dials(), (1, false));
        {
            let mut state = pool.shared.state.lock();
            state.dialing += 1;
            state.moving = true;
        }
        drop(UnderWay::new(pool, Dial::Moving));
        drop(UnderWay::new(pool, Dial::Awaited { era: 0 }));
        assert_eq!(dials(), (1, false));
        assert!(poll!(&mut waits).is_pending(), "another is under way");
        drop(UnderWay::new(pool, Dial::Awaited { era: 0 }));
        assert!(waits.await.is_err(), "nobody dials for it");
        assert_eq!(dials(), (0, false));
    }
}
