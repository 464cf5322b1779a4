//! Whether a router is here to be heard: what one said that is not holds until it is gone for good. Callers: what tells Events.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::Routers;
use crate::acks::{FORGOTTEN_AFTER, RouterState};

/// Whether a router's last word holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// It is connected and has spoken: what it does not say is not so.
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
    /// that it has not heard of since may have been there before. `has_spoken`: on its present stream.
    pub(super) fn of(
        enrolled: &BTreeSet<&String>,
        routers: &Routers,
        started: Instant,
        has_spoken: impl Fn(&RouterState) -> bool,
    ) -> Self {
        let connected = routers.iter().filter(|(_, state)| state.left.is_none());
        let connected = connected.map(|(name, state)| {
            // Who is silent for so long is waited for no more.
            let speaks = has_spoken(state) || state.came.elapsed() >= FORGOTTEN_AFTER;
            let presence = if speaks { Presence::Speaks } else { Presence::Away };
            (name.clone(), presence)
        });
        let last = |name: &String| routers.get(name).and_then(|state| state.left).unwrap_or(started);
        let away = enrolled.iter().filter(|name| last(name).elapsed() < FORGOTTEN_AFTER);
        let away = away.map(|name| ((*name).clone(), Presence::Away));
        Self(away.chain(connected).collect())
    }

    #[cfg(test)]
    pub(super) fn all_away<const N: usize>(names: [&str; N]) -> Self {
        Self(names.map(|name| (name.to_owned(), Presence::Away)).into())
    }

    /// Those that may come back, or have not spoken yet.
    pub(super) fn away(&self) -> impl Iterator<Item = &str> {
        let away = self.0.iter().filter(|(_, presence)| **presence == Presence::Away);
        away.map(|(name, _)| name.as_str())
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

    #[tokio::test(start_paused = true)]
    async fn who_is_away_is_waited_for_as_long_as_for_a_release() {
        let (started, second) = (Instant::now(), Duration::from_secs(1));
        let enrolled = ["left", "unheard"].map(str::to_owned);
        let enrolled = enrolled.iter().collect();
        tokio::time::advance(second).await;
        let state = |left| RouterState {
            left,
            heard: Some(Instant::now()),
            ..RouterState::new(1, BTreeMap::new())
        };
        let mut routers = Routers::new();
        routers.insert("here".to_owned(), state(None));
        let silent = RouterState::new(1, BTreeMap::new());
        routers.insert("silent".to_owned(), silent);
        routers.insert("left".to_owned(), state(Some(Instant::now())));
        routers.insert("forgotten".to_owned(), state(Some(Instant::now())));
        let seen = || {
            let presences = Presences::of(&enrolled, &routers, started, |router| router.heard.is_some());
            ["here", "silent", "left", "unheard", "forgotten"].map(|name| presences.of_router(name))
        };
        assert_eq!(seen(), [Speaks, Away, Away, Away, Gone]);
        tokio::time::advance(FORGOTTEN_AFTER.saturating_sub(second)).await;
        assert_eq!(seen(), [Speaks, Away, Away, Gone, Gone]);
        tokio::time::advance(second).await;
        assert_eq!(seen(), [Speaks, Speaks, Gone, Gone, Gone]);
    }
}
