//! Events on CircuitBreakers and FaultInjections: that one came into force or ended, that a rule opened or closed, that a fault
//! was injected for the first time. Caller: `status`, when it has written what they tell.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType};
use portolan_crds::circuit_breaker::LimitingState;
use tokio::time::Instant;

use self::standing::Stands;
use super::events::{Publisher, event};
use super::policies::{Common, Injected, MAX_SHOWN, Opened, RuleAt};
use super::presence::{Presence, Presences};
use crate::facts::{PolicyName, PolicyObject, PolicyStatus};

mod injected;
mod rules;
mod standing;

/// Rules of one object that are not told of, and that may refuse all as they did before.
const MAX_UNSURE: usize = 1_000;
/// Of a status that is full nobody knows what an earlier process has told: whatever is so in this time was told.
const SETTLED_AFTER: Duration = Duration::from_mins(1);
/// Events of one kind and object at a time; of more it is told how many they are. Its status is written every five seconds at most.
const MAX_AT_ONCE: usize = 10;

/// Tells of policies, each change once.
pub(super) struct PolicyEvents {
    publisher: Publisher,
    by_policy: BTreeMap<PolicyName, Told>,
}

/// What is told of one object.
#[derive(Debug)]
struct Told {
    uid: String,
    /// When this process found a status that may not have had room for all that was told.
    found_full: Option<Instant>,
    stands: Option<Stands>,
    opened: Opened,
    /// Faults that were injected since it came into force.
    injected: BTreeSet<String>,
    now: Now,
}

/// What is so now.
#[derive(Debug, Default)]
struct Now {
    stands: Option<Stands>,
    opened: Opened,
    /// What may be opened still, though nothing is said of it.
    unsure: BTreeSet<RuleAt>,
    injected: Injected,
}

impl PolicyEvents {
    pub(super) fn new(client: Client) -> Self {
        Self {
            publisher: Publisher::new(client),
            by_policy: BTreeMap::new(),
        }
    }

    /// What the policy's status says that this process finds: an earlier one has told of it.
    pub(super) fn found(&mut self, name: &PolicyName, object: &PolicyObject) {
        if self.by_policy.get(name).is_none_or(|told| told.uid != object.uid) {
            self.by_policy.insert(name.clone(), Told::found(object));
        }
    }

    /// What is so now. `status`: what is to be written.
    pub(super) fn now(&mut self, name: &PolicyName, object: &PolicyObject, status: &PolicyStatus, common: &Common<'_>) {
        let Some(told) = self.by_policy.get_mut(name) else {
            return;
        };
        told.now.stands = Stands::of(status);
        match status {
            PolicyStatus::Breaker(_) => {
                told.now.opened = common.opened(name);
                let is_unsure =
                    |rule: &&RuleAt| !told.now.opened.contains_key(rule) && common.may_be_opened(name, rule);
                let unsure = told.opened.keys().filter(is_unsure);
                told.now.unsure = unsure.take(MAX_UNSURE).cloned().collect();
            }
            PolicyStatus::Fault(_) => told.now.injected = common.injected(name),
        }
        told.settle();
        // Of a spec that is not known nothing is gone.
        if let Some(good) = &object.in_force {
            told.injected.retain(|fault| good.rules.has_rule(fault));
        }
    }

    /// These policies' statuses say so now.
    pub(super) async fn tell(&mut self, written: &BTreeSet<&PolicyName>, routers: &Presences) {
        let mut events = Vec::new();
        for (name, told) in &mut self.by_policy {
            let mut all = told.forget_gone(routers);
            if written.contains(name) {
                all.extend(told.tell(routers));
            }
            let of = reference(name, &told.uid);
            events.extend(all.into_iter().map(|event| (event, of.clone())));
        }
        self.publisher.publish(events).await;
    }

    /// Policies that are gone have nothing to be told of.
    pub(super) fn keep(&mut self, is_there: impl Fn(&PolicyName) -> bool) {
        self.by_policy.retain(|name, _| is_there(name));
    }
}

impl Told {
    fn found(object: &PolicyObject) -> Self {
        let stands = Stands::of(&object.status);
        let (opened, injected) = match &object.status {
            PolicyStatus::Breaker(status) => (rules::written(&status.target_status), BTreeSet::new()),
            PolicyStatus::Fault(status) => (Opened::new(), injected::written(&status.target_status)),
        };
        let now = Now {
            stands: stands.clone(),
            opened: opened.clone(),
            ..Now::default()
        };
        Self {
            uid: object.uid.clone(),
            found_full: is_full(&object.status).then(Instant::now),
            stands,
            opened,
            injected,
            now,
        }
    }

    /// What an earlier process may have told, and had no room for in the status, is news to nobody.
    fn settle(&mut self) {
        if self.found_full.is_some_and(|found| found.elapsed() < SETTLED_AFTER) {
            let opened = self.now.opened.iter();
            self.opened
                .extend(opened.map(|(rule, why)| (rule.clone(), why.clone())));
            self.injected.extend(self.now.injected.keys().cloned());
        }
    }

    /// What opened in routers that are gone has closed with them.
    fn forget_gone(&mut self, routers: &Presences) -> Vec<Event> {
        let is_here = |(router, ..): &RuleAt| routers.of_router(router) != Presence::Gone;
        if self.opened.keys().all(is_here) {
            return Vec::new();
        }
        let mut left = self.opened.clone();
        left.retain(|key, _| is_here(key));
        let events = rules::changes(&self.opened, &left);
        self.opened = left;
        events
    }

    fn tell(&mut self, routers: &Presences) -> Vec<Event> {
        let mut events = Vec::new();
        if let Some(now) = &self.now.stands {
            events.extend(standing::change(self.stands.as_ref(), now));
            self.stands = Some(now.clone());
        }
        // Of routers that are not here, after a restart of the hub all of them, what they said last holds. Nor does what a report
        // has no room for count as closed.
        let before = mem::take(&mut self.opened);
        let mut opened = self.now.opened.clone();
        let silent = before.iter().filter(|(rule, _)| {
            let is_away = routers.of_router(&rule.0) == Presence::Away;
            !opened.contains_key(*rule) && (is_away || self.now.unsure.contains(*rule))
        });
        let silent: Vec<_> = silent.collect();
        opened.extend(silent.into_iter().map(|(key, why)| (key.clone(), why.clone())));
        events.extend(rules::changes(&before, &opened));
        self.opened = opened;
        if self.stands.as_ref().is_some_and(Stands::is_over) {
            // Once it is in force again, it is news again.
            self.injected.clear();
        } else {
            events.extend(injected::first(&self.injected, &self.now.injected));
            self.injected.extend(self.now.injected.keys().cloned());
        }
        events
    }
}

/// Whether a status may say less than what was told.
fn is_full(status: &PolicyStatus) -> bool {
    match status {
        PolicyStatus::Breaker(status) => {
            let rules = status
                .target_status
                .iter()
                .flat_map(|target| &target.limiting_snapshots);
            let shown = rules.filter(|rule| rule.state == LimitingState::Opened).count();
            status
                .opened
                .is_some_and(|opened| usize::try_from(opened).is_ok_and(|opened| opened > shown))
        }
        PolicyStatus::Fault(status) => status.target_status.len() >= MAX_SHOWN,
    }
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
mod tests;
