//! Events on CircuitBreakers: that a rule opened or closed. Caller: `status`, when it has written that.

use std::collections::BTreeMap;
use std::mem;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType};
use portolan_crds::circuit_breaker::{LimitingState, TargetStatus};

use super::events::{Publisher, event};
use super::policies::Opened;
use crate::facts::{PolicyName, PolicyStatus};

/// Events of one object at a time; of more it is told how many they are. Its status is written every five seconds at most.
const MAX_AT_ONCE: usize = 10;

/// Tells of rules, each change once.
pub(super) struct RuleEvents {
    publisher: Publisher,
    by_policy: BTreeMap<PolicyName, Told>,
}

#[derive(Debug, Default)]
struct Told {
    /// What is told of.
    before: Opened,
    now: Opened,
}

impl RuleEvents {
    pub(super) fn new(client: Client) -> Self {
        Self {
            publisher: Publisher::new(client),
            by_policy: BTreeMap::new(),
        }
    }

    /// What the policy's status says that this process finds: an earlier one has told of it.
    pub(super) fn found(&mut self, name: &PolicyName, status: &PolicyStatus) {
        if self.by_policy.contains_key(name) {
            return;
        }
        let before = match status {
            PolicyStatus::Breaker(status) => opened(&status.target_status),
            PolicyStatus::Fault(_) => Opened::new(),
        };
        let now = before.clone();
        self.by_policy.insert(name.clone(), Told { before, now });
    }

    /// What is so now.
    pub(super) fn now(&mut self, name: &PolicyName, opened: impl FnOnce() -> Opened) {
        if let Some(told) = self.by_policy.get_mut(name) {
            told.now = opened();
        }
    }

    /// These policies' statuses, by name and uid, say so now. `speaks`: whether a router is here to be heard. Of those that
    /// are not, after a restart of the hub all of them, what they said last holds.
    pub(super) async fn tell<'a>(
        &mut self,
        written: impl Iterator<Item = (&'a PolicyName, &'a str)>,
        speaks: impl Fn(&str) -> bool,
    ) {
        let mut events = Vec::new();
        for (name, uid) in written {
            let Some(told) = self.by_policy.get_mut(name) else {
                continue;
            };
            let mut now = told.now.clone();
            let before = mem::take(&mut told.before);
            let silent = before.iter().filter(|((router, ..), _)| !speaks(router));
            now.extend(silent.map(|(key, why)| (key.clone(), why.clone())));
            let of = reference(name, uid);
            events.extend(changes(&before, &now).into_iter().map(|event| (event, of.clone())));
            told.before = now;
        }
        self.publisher.publish(events).await;
    }

    /// Policies that are gone have nothing to be told of.
    pub(super) fn keep(&mut self, is_there: impl Fn(&PolicyName) -> bool) {
        self.by_policy.retain(|name, _| is_there(name));
    }
}

fn opened(targets: &[TargetStatus]) -> Opened {
    let mut opened = Opened::new();
    for target in targets {
        let is_opened = target
            .limiting_snapshots
            .iter()
            .filter(|rule| rule.state == LimitingState::Opened);
        for rule in is_opened {
            let caller = match target.pod_name.as_str() {
                "" => String::new(),
                pod => format!("{pod} in {}", target.cluster),
            };
            opened.insert((target.router.clone(), caller, rule.name.clone()), rule.reason.clone());
        }
    }
    opened
}

/// Which opened and which closed.
fn changes(before: &Opened, now: &Opened) -> Vec<Event> {
    let whom = |caller: &str| match caller {
        "" => "all its callers".to_owned(),
        caller => format!("caller {caller}"),
    };
    let opened = now.iter().filter(|(key, _)| !before.contains_key(*key));
    let opened = opened.map(|((router, caller, rule), why)| {
        let note = format!("rule {rule} refuses all of {} in router {router}: {why}", whom(caller));
        let action = format!("{rule} {router} {caller}");
        event(EventType::Warning, "RuleOpened", &action, note)
    });
    let closed = before.keys().filter(|key| !now.contains_key(*key));
    let closed = closed.map(|(router, caller, rule)| {
        let note = format!(
            "rule {rule} lets {} through again in router {router}, or one of them is gone",
            whom(caller)
        );
        let action = format!("{rule} {router} {caller}");
        event(EventType::Normal, "RuleClosed", &action, note)
    });
    let mut events = bounded(opened.collect(), EventType::Warning, "RuleOpened");
    events.extend(bounded(closed.collect(), EventType::Normal, "RuleClosed"));
    events
}

/// The first few, and one that says how many more.
fn bounded(mut events: Vec<Event>, type_: EventType, reason: &str) -> Vec<Event> {
    let more = events.len().saturating_sub(MAX_AT_ONCE);
    if more > 0 {
        events.truncate(MAX_AT_ONCE);
        let note = format!("and {more} more at the same time: see status.targetStatus");
        events.push(event(type_, reason, "more", note));
    }
    events
}

fn reference(name: &PolicyName, uid: &str) -> ObjectReference {
    let resource = name.kind.resource();
    ObjectReference {
        api_version: Some(resource.api_version),
        kind: Some(resource.kind),
        namespace: Some(name.namespace.clone()),
        name: Some(name.name.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(rules: &[(&str, &str, &str)]) -> Opened {
        let rules = rules.iter().map(|(router, caller, rule)| {
            let key = ((*router).to_owned(), (*caller).to_owned(), (*rule).to_owned());
            (key, "LimitExceeded".to_owned())
        });
        rules.collect()
    }

    fn told(before: &Opened, now: &Opened) -> Vec<(String, String)> {
        let events = changes(before, now).into_iter();
        events.map(|event| (event.reason, event.action)).collect()
    }

    #[test]
    fn what_opened_and_what_closed_is_told_once() {
        let slow = all(&[("r", "p in east", "slow")]);
        let both = all(&[("r", "p in east", "slow"), ("r", "", "all")]);
        let opened = |action: &str| ("RuleOpened".to_owned(), action.to_owned());
        assert_eq!(told(&Opened::new(), &slow), [opened("slow r p in east")]);
        assert_eq!(told(&slow, &both), [opened("all r")]);
        assert_eq!(told(&both, &both), []);
        let closed = ("RuleClosed".to_owned(), "slow r p in east".to_owned());
        assert_eq!(told(&slow, &Opened::new()), [closed]);
    }

    #[test]
    fn a_storm_is_a_few_events() {
        let names: Vec<_> = (0..500).map(|number| format!("rule-{number}")).collect();
        let storm: Vec<_> = names.iter().map(|rule| ("r", "p in east", rule.as_str())).collect();
        let events = changes(&Opened::new(), &all(&storm));
        assert_eq!(events.len(), MAX_AT_ONCE + 1);
        let note = events[MAX_AT_ONCE].note.clone().unwrap();
        assert!(note.contains("490 more"), "{note}");
    }

    #[test]
    fn what_an_earlier_process_wrote_is_known() {
        let status = serde_json::json!({"targetStatus": [
            {"podName": "p", "cluster": "east", "router": "r", "limitingSnapshots": [
                {"name": "slow", "state": "Opened", "reason": "LimitExceeded"},
                {"name": "fast", "state": "Closed"},
            ]},
            {"router": "r", "limitingSnapshots": [{"name": "all", "state": "Opened"}]},
        ]});
        let status: portolan_crds::CircuitBreakerStatus = serde_json::from_value(status).unwrap();
        let found = opened(&status.target_status);
        assert!(
            found
                .keys()
                .eq(all(&[("r", "", "all"), ("r", "p in east", "slow")]).keys())
        );
    }
}
