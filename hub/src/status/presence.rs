//! Whether a router is here to be heard: what one said that is not holds until it is gone for good. Callers: what tells Events.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::Routers;
use crate::acks::FORGOTTEN_AFTER;

/// Whether a router's last word holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// It is connected: what it does not say is not so.
    Speaks,
    /// It may come back and say that all is as it was.
    Away,
    /// It was forgotten, or has been away for so long that nobody waits for it.
    Gone,
}

/// Of all routers that are not gone, by name.
#[derive(Debug, Default)]
pub(super) struct Presences(BTreeMap<String, Presence>);

impl Presences {
    /// `enrolled`: who has a Router object; others were forgotten by people. `started`: when this process began to listen. A router
    /// that it has not heard of since may have been there before.
    pub(super) fn of(enrolled: &BTreeSet<String>, routers: &Routers, started: Instant) -> Self {
        let connected = routers.iter().filter(|(_, state)| state.left.is_none());
        let connected = connected.map(|(name, _)| (name.clone(), Presence::Speaks));
        let last = |name: &String| routers.get(name).and_then(|state| state.left).unwrap_or(started);
        let away = enrolled.iter().filter(|name| last(name).elapsed() < FORGOTTEN_AFTER);
        let away = away.map(|name| (name.clone(), Presence::Away));
        Self(away.chain(connected).collect())
    }

    #[cfg(test)]
    pub(super) fn all_away<const N: usize>(names: [&str; N]) -> Self {
        Self(names.map(|name| (name.to_owned(), Presence::Away)).into())
    }

    pub(super) fn of_router(&self, name: &str) -> Presence {
        self.0.get(name).copied().unwrap_or(Presence::Gone)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Presence::{Away, Gone, Speaks};
    use super::*;
    use crate::acks::RouterState;

    #[tokio::test(start_paused = true)]
    async fn who_is_away_is_waited_for_as_long_as_for_a_release() {
        let started = Instant::now();
        let enrolled = ["left", "unheard"].map(str::to_owned).into();
        tokio::time::advance(Duration::from_secs(1)).await;
        let state = |left| RouterState {
            left,
            ..RouterState::new(1, BTreeMap::new())
        };
        let mut routers = Routers::new();
        routers.insert("here".to_owned(), state(None));
        routers.insert("left".to_owned(), state(Some(Instant::now())));
        routers.insert("forgotten".to_owned(), state(Some(Instant::now())));
        let seen = || {
            let presences = Presences::of(&enrolled, &routers, started);
            ["here", "left", "unheard", "forgotten"].map(|name| presences.of_router(name))
        };
        assert_eq!(seen(), [Speaks, Away, Away, Gone]);
        tokio::time::advance(FORGOTTEN_AFTER - Duration::from_secs(1)).await;
        assert_eq!(seen(), [Speaks, Away, Gone, Gone]);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(seen(), [Speaks, Gone, Gone, Gone]);
    }
}
