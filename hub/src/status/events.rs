//! Events on MemberClusters: that a router's breaker opened or closed; and how Events are made and written. Callers:
//! `status`, when it has written what they tell, `policy_events`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource as _};
use portolan_crds::{BREAKERS_MAX, BreakerState, BreakerStatus, MemberCluster, MemberClusterSpec, TrafficClass};

use super::presence::{Presence, Presences};

/// Events that are not written by then are not written: the status says the same.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Events under way at once.
const CONCURRENCY: usize = 8;
/// Of an Event's note, and of its action (events.k8s.io/v1), in bytes.
const MAX_NOTE: usize = 1000;
const MAX_ACTION: usize = 128;

/// Writes Events.
pub(super) struct Publisher(Recorder);

impl Publisher {
    pub(super) fn new(client: Client) -> Self {
        let reporter = Reporter {
            controller: "portolan-hub".to_owned(),
            instance: None,
        };
        Self(Recorder::new(client, reporter))
    }

    /// All of them within one time-out: statuses wait for this.
    pub(super) async fn publish(&self, events: Vec<(Event, ObjectReference)>) {
        let recorder = &self.0;
        let publish = |(event, of)| async move { recorder.publish(&event, &of).await };
        let publishing = stream::iter(events).map(publish).buffer_unordered(CONCURRENCY);
        let failures = publishing.filter_map(|published| async { published.err() }).take(1);
        if let Ok(failures) = tokio::time::timeout(TIMEOUT, failures.collect::<Vec<_>>()).await {
            for error in failures {
                tracing::warn!(%error, "Events are not written");
            }
        } else {
            tracing::warn!("Events are not written in time");
        }
    }
}

/// Tells of breakers, each change once.
pub(super) struct BreakerEvents {
    publisher: Publisher,
    /// What is told of, by member. Of a member that is not here nothing was told by this process.
    told: BTreeMap<String, Vec<BreakerStatus>>,
}

impl BreakerEvents {
    pub(super) fn new(client: Client) -> Self {
        Self {
            publisher: Publisher::new(client),
            told: BTreeMap::new(),
        }
    }

    /// What the member's status says that this process finds: an earlier one has told of it.
    pub(super) fn found(&mut self, cluster: &str, breakers: &[BreakerStatus]) {
        if !self.told.contains_key(cluster) {
            self.told.insert(cluster.to_owned(), breakers.to_vec());
        }
    }

    /// Members' statuses say so now. Of routers that are away, after a restart of the hub all of them, what they said last holds.
    pub(super) async fn tell(
        &mut self,
        written: impl Iterator<Item = (&str, &str, &[BreakerStatus])>,
        routers: &Presences,
    ) {
        let mut events = Vec::new();
        for (cluster, uid, breakers) in written {
            let before = self.told.remove(cluster).unwrap_or_default();
            let is_silent = |router: &str| routers.of_router(router) == Presence::Away;
            let now = standing(&before, breakers, is_silent);
            let mut member = MemberCluster::new(cluster, MemberClusterSpec::default()).object_ref(&());
            member.uid = Some(uid.to_owned());
            events.extend(changes(&before, &now).into_iter().map(|event| (event, member.clone())));
            self.told.insert(cluster.to_owned(), now);
        }
        self.publisher.publish(events).await;
    }

    /// Members that are gone have nothing to be told of.
    pub(super) fn keep(&mut self, is_there: impl Fn(&str) -> bool) {
        self.told.retain(|cluster, _| is_there(cluster));
    }
}

/// What holds now: what the status says, and what was told of routers that are not here to be heard. Of a status that is full
/// nobody can tell what is missing from what is closed.
fn standing(before: &[BreakerStatus], said: &[BreakerStatus], is_silent: impl Fn(&str) -> bool) -> Vec<BreakerStatus> {
    let is_full = said.len() >= BREAKERS_MAX;
    let keys: BTreeSet<_> = said.iter().map(key).collect();
    let holds = |breaker: &&BreakerStatus| is_full || is_silent(&breaker.router);
    let held = before
        .iter()
        .filter(holds)
        .filter(|breaker| !keys.contains(&key(breaker)));
    held.chain(said).cloned().collect()
}

fn key(breaker: &BreakerStatus) -> (&str, TrafficClass) {
    (&breaker.router, breaker.traffic_class)
}

/// Which opened and which closed. That one is half-open is a moment of an open one.
fn changes(before: &[BreakerStatus], after: &[BreakerStatus]) -> Vec<Event> {
    let (before, after) = (open(before), open(after));
    let opened = after.iter().filter(|(key, _)| !before.contains_key(key));
    let opened = opened.map(|((router, class), reason)| {
        let note = format!("the {class:?} breaker of router {router} is open: {reason}");
        let action = format!("{class:?}/{router} {reason}");
        event(EventType::Warning, "BreakerOpened", &action, note)
    });
    let closed = before.keys().filter(|key| !after.contains_key(key));
    let closed = closed.map(|(router, class)| {
        let note = format!("the {class:?} breaker of router {router} is closed, or the router is gone");
        event(EventType::Normal, "BreakerClosed", &format!("{class:?}/{router}"), note)
    });
    opened.chain(closed).collect()
}

fn open(all: &[BreakerStatus]) -> BTreeMap<(&str, TrafficClass), &str> {
    let open = all.iter().filter(|breaker| breaker.state != BreakerState::Closed);
    open.map(|breaker| (key(breaker), breaker.reason.as_str())).collect()
}

/// Events that differ in their action are series of their own: a series keeps its first note.
pub(super) fn event(type_: EventType, reason: &str, action: &str, mut note: String) -> Event {
    note.truncate(note.floor_char_boundary(MAX_NOTE));
    let action = action.trim_end();
    let action = &action[..action.floor_char_boundary(MAX_ACTION)];
    Event {
        type_,
        reason: reason.to_owned(),
        note: Some(note),
        action: action.to_owned(),
        secondary: None,
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    #[test]
    fn what_opened_and_what_closed_is_told_once() {
        let breaker = |router: &str, state| BreakerStatus {
            router: router.to_owned(),
            state,
            reason: "ä".repeat(2000),
            ..BreakerStatus::default()
        };
        let (one, half) = (
            breaker("one", BreakerState::Open),
            breaker("one", BreakerState::HalfOpen),
        );
        let two = breaker("two", BreakerState::Open);
        let told = |before: &[_], after: &[_]| -> Vec<(String, String)> {
            let all = changes(before, after).into_iter();
            all.map(|event| {
                assert!(event.note.unwrap().len() <= MAX_NOTE);
                (event.reason, event.action.replace(['ä', ' '], ""))
            })
            .collect()
        };
        let opened = |router: &str| ("BreakerOpened".to_owned(), format!("Unary/{router}"));
        let closed = |router: &str| ("BreakerClosed".to_owned(), format!("Unary/{router}"));
        assert_eq!(told(&[], slice::from_ref(&one)), [opened("one")]);
        assert_eq!(told(&[one], slice::from_ref(&half)), []);
        assert_eq!(told(&[half], slice::from_ref(&two)), [opened("two"), closed("one")]);
        assert_eq!(told(&[two], &[]), [closed("two")]);
    }

    #[test]
    fn what_has_no_room_is_not_taken_for_closed() {
        let breaker = |router: String| BreakerStatus {
            router,
            state: BreakerState::Open,
            ..BreakerStatus::default()
        };
        let all: Vec<_> = (0..=BREAKERS_MAX)
            .map(|router| breaker(format!("{router:04}")))
            .collect();
        let (rest, first) = (&all[1..], &all[..1]);
        let held = standing(first, rest, |_| false);
        assert_eq!(held.len(), all.len());
        assert_eq!(standing(&held, rest, |_| false).len(), all.len());
        assert!(changes(&held, &standing(&held, rest, |_| false)).is_empty());
        assert_eq!(standing(&held, first, |_| false), first);
    }
}
