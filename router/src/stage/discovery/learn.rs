//! Kinds that a request knows before this router does: members are asked once more before it is planned by its path alone.
//!
//! One round of looks serves all who wait for it, and rounds have a pause between them, so that whoever makes up kinds costs a
//! member some conditional requests a second. For a kind for which it did not help it is not done again for a while. Caller: `edge`.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::Discovery;
use super::cache::FRESH;
use crate::value::classify::ResourceRequest;

/// For the members' answers; who hangs is not waited for.
const WITHIN: Duration = Duration::from_secs(1);
/// From the beginning of one round to that of the next.
const PAUSE: Duration = Duration::from_millis(100);
/// Kinds that are not asked for again; for more it is done all the same.
const MOST_NOES: usize = 1_024;

/// What was asked of late.
#[derive(Debug, Default)]
pub(super) struct Learning {
    /// When the last round began. Locked while one runs.
    last: tokio::sync::Mutex<Option<Instant>>,
    /// Until when a kind is not asked for, by group and plural name. A mutex: held for a look-up.
    noes: parking_lot::Mutex<HashMap<(String, String), Instant>>,
}

impl Discovery {
    /// Whether members serve other kinds than they were known to serve, so that it is worth to plan a request anew of whose kind
    /// nobody was known to serve any.
    pub(crate) async fn learn(&self, resource: &ResourceRequest) -> bool {
        let kind = (resource.group.clone(), resource.resource.clone());
        let arrived = Instant::now();
        if self
            .learning
            .noes
            .lock()
            .get(&kind)
            .is_some_and(|until| arrived < *until)
        {
            return false;
        }
        let before = self.routing.load().kinds.revision();
        // Those who answered in time have told all the same.
        let _ = timeout(WITHIN, self.look_again(arrived)).await;
        let learnt = self.routing.load().kinds.revision() != before;
        if !learnt {
            self.learning.keep_no(kind);
        }
        learnt
    }

    async fn look_again(&self, arrived: Instant) {
        let mut last = self.learning.last.lock().await;
        if last.is_some_and(|began| began >= arrived) {
            return;
        }
        if let Some(began) = *last {
            sleep_until(began + PAUSE).await;
        }
        *last = Some(Instant::now());
        self.round(&self.routing.load().snapshot).await;
    }
}

impl Learning {
    fn keep_no(&self, kind: (String, String)) {
        let now = Instant::now();
        let mut noes = self.noes.lock();
        if noes.len() >= MOST_NOES {
            noes.retain(|_, until| now < *until);
        }
        if noes.len() < MOST_NOES {
            noes.insert(kind, now + FRESH);
        }
    }
}
