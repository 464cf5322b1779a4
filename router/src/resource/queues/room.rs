//! How many single requests may be on their way to one member at a time, or wait in its queues: fewer than seats and places,
//! for all and for each tenant, so that tenants that have come alike find no queue full. A third one that comes when two have all
//! that they may can: beyond its 256th, of the 320 that are left to it here, its places at the member may be taken.
//!
//! Who has no room yet waits before it takes what all members' requests share. Held from admission to the end of the answer.
//! Caller: `admit`; one per member (`upstream`).

use std::sync::Arc;

use crate::resource::fair::FairPermits;

/// At one member: all seats that single requests may have, and most of the places to wait for one.
const REQUESTS: usize = 1536;
/// Of one tenant: its seats, and as many as are soon seated then.
const TENANT_REQUESTS: usize = 512;

/// The room at one member.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) cluster: Arc<str>,
    pub(crate) permits: FairPermits,
}

impl Room {
    pub(crate) fn new(cluster: Arc<str>) -> Self {
        Self {
            cluster,
            permits: FairPermits::capped(REQUESTS, TENANT_REQUESTS),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::class::Class;
    use super::super::core::{Arrival, Core};
    use super::super::flow::Flow;
    use super::super::shared::{PLACES, SEATS};
    use super::*;

    #[tokio::test]
    async fn who_has_room_finds_no_queue_full() {
        for tenants in [1, 2, 3, 10, REQUESTS as u64] {
            let room = Room::new("east".into());
            let mut core = Core::new(SEATS, PLACES, 7);
            let mut held = Vec::new();
            for number in 0..8 * REQUESTS as u64 {
                let tenant = number % tenants;
                let Some(permit) = room.permits.try_take(&tenant.to_string().into(), 1) else {
                    continue;
                };
                held.push(permit);
                let arrival = core.arrive(Class::Single, Flow::numbered(tenant, 1), Instant::now());
                assert_ne!(arrival, Arrival::Full, "{} of {tenants} tenants", held.len());
            }
            assert!(held.len() >= TENANT_REQUESTS.min(REQUESTS * 7 / 8), "{}", held.len());
        }
    }
}
