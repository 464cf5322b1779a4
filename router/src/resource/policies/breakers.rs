//! Breakers that CircuitBreakers give their callers: one for each policy, name, caller and member, made when the caller first
//! asks the member.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dashmap::{DashMap, Entry as Slot};
use parking_lot::Mutex;
use portolan_crds::circuit_breaker::CallerBreaker;
use tokio::sync::watch;

use super::aside::{ASIDE, MOST_ASIDE};
use crate::decision::policy::{Recent, Tick};
use crate::resource::breaker::{Beside, BesidePass, Settings};
use crate::value::policy::Policy;
use crate::value::snapshot::{CallerKey, CallerView, Snapshot};

/// By what one is known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct BreakerKey {
    /// Of the policy.
    uid: Arc<str>,
    /// Its own.
    name: Box<str>,
    pub(super) caller: CallerKey,
    pub(super) cluster: Arc<str>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) policy: Arc<str>,
    spec: CallerBreaker,
    /// Of the snapshot that said so.
    generation: u64,
    pub(super) breaker: Arc<Beside>,
    /// What it refused. A mutex: held for an addition.
    pub(super) refused: Mutex<Recent>,
    /// When a person closed it last, in milliseconds of Unix time, as far as that was carried out.
    closed_at: Mutex<i64>,
    /// Until when it is laid aside, as its policy holds its caller no more.
    aside: Mutex<Option<Tick>>,
}

/// All of them. Bounded by known callers, as each swap takes out whose caller is gone, or whose policy has been for minutes.
#[derive(Debug, Default)]
pub(super) struct CallerBreakers {
    // Sharded locks: a look-up for each request of a caller that has any.
    all: DashMap<BreakerKey, Arc<Entry>>,
    changes: watch::Sender<u64>,
}

/// Refused by one.
pub(super) struct Open<'a> {
    pub(super) policy: &'a Policy,
    pub(super) name: &'a str,
    pub(super) retry_in: Duration,
}

impl Entry {
    /// Its own name.
    pub(super) fn rule(&self) -> &str {
        &self.spec.name
    }

    /// `<breaker>@<cluster>`, as the hub knows it.
    pub(super) fn name(&self, key: &BreakerKey) -> String {
        format!("{}@{}", self.spec.name, key.cluster)
    }

    /// A person closed it then. One that is not later than the last is no news.
    fn close_by_hand(&self, at: i64) {
        let mut last = self.closed_at.lock();
        if at > *last {
            *last = at;
            self.breaker.close();
        }
    }
}

impl CallerBreakers {
    /// Bumps this at transitions.
    pub(super) fn telling(changes: watch::Sender<u64>) -> Self {
        Self {
            all: DashMap::default(),
            changes,
        }
    }

    /// Asks all of the caller's for this member, until one refuses. `generation`: of the snapshot that the view is of.
    pub(super) fn admit<'a>(
        &self,
        (view, generation): (&'a CallerView, u64),
        cluster: &'a Arc<str>,
        now: Tick,
    ) -> Result<Vec<BesidePass>, Open<'a>> {
        let mut passes = Vec::new();
        let of = view.policies.iter();
        for (policy, spec) in of.flat_map(|policies| policies.breakers(cluster)) {
            let entry = self.entry((policy, spec), (view, generation), cluster);
            match entry.breaker.admit() {
                Ok(pass) => passes.push(pass),
                Err(retry_in) => {
                    entry.refused.lock().count(now);
                    return Err(Open {
                        policy,
                        name: &spec.name,
                        retry_in,
                    });
                }
            }
        }
        Ok(passes)
    }

    /// Takes out whose caller is gone, those that are another rule now, and those that were laid aside for long; and carries out
    /// what people closed.
    pub(super) fn follow(&self, snapshot: &Snapshot, now: Tick) {
        self.all.retain(|key, entry| {
            let Some(view) = snapshot.callers.get(&key.caller) else {
                return false;
            };
            let of = view.policies.as_ref().map(|of| of.policies()).unwrap_or_default();
            let Some(policy) = of.iter().find(|policy| policy.uid == key.uid) else {
                let mut aside = entry.aside.lock();
                return now < *aside.get_or_insert(now.after(ASIDE));
            };
            *entry.aside.lock() = None;
            let kept = policy.breakers().iter().find(|spec| **spec == entry.spec);
            if let Some(spec) = kept
                && let Some(at) = closed_at(policy, spec, &key.cluster)
            {
                entry.close_by_hand(at);
            }
            kept.is_some()
        });
        self.bound();
    }

    /// Takes out what is laid aside beyond [`MOST_ASIDE`] of a caller: policies that are made anew all the time fill no memory.
    fn bound(&self) {
        let mut of_callers: HashMap<CallerKey, Vec<(Tick, BreakerKey)>> = HashMap::new();
        for entry in &self.all {
            if let Some(until) = *entry.value().aside.lock() {
                let key = entry.key();
                of_callers
                    .entry(key.caller.clone())
                    .or_default()
                    .push((until, key.clone()));
            }
        }
        for mut aside in of_callers.into_values().filter(|aside| aside.len() > MOST_ASIDE) {
            aside.sort_by_key(|(until, _)| Reverse(*until));
            for (_, key) in &aside[MOST_ASIDE..] {
                self.all.remove(key);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Tells each of them that is in force.
    pub(super) fn each(&self, mut tell: impl FnMut(&BreakerKey, &Entry)) {
        for entry in &self.all {
            if entry.value().aside.lock().is_none() {
                tell(entry.key(), entry.value());
            }
        }
    }

    /// The one by these words. One that says otherwise is replaced, unless it is of a newer snapshot than the request.
    fn entry(
        &self,
        (policy, spec): (&Policy, &CallerBreaker),
        (view, generation): (&CallerView, u64),
        cluster: &Arc<str>,
    ) -> Arc<Entry> {
        let key = BreakerKey {
            uid: policy.uid.clone(),
            name: spec.name.as_str().into(),
            caller: view.key.clone(),
            cluster: cluster.clone(),
        };
        let holds = |entry: &Entry| entry.spec == *spec || entry.generation > generation;
        if let Some(entry) = self.all.get(&key).filter(|entry| holds(entry)) {
            return entry.clone();
        }
        let make = || {
            Arc::new(Entry {
                policy: policy.name.clone(),
                spec: spec.clone(),
                generation,
                breaker: Beside::new(settings(spec), self.changes.clone()),
                refused: Mutex::default(),
                closed_at: Mutex::new(closed_at(policy, spec, cluster).unwrap_or(i64::MIN)),
                aside: Mutex::default(),
            })
        };
        match self.all.entry(key) {
            Slot::Occupied(found) if holds(found.get()) => found.get().clone(),
            Slot::Occupied(mut found) => {
                found.insert(make());
                found.get().clone()
            }
            Slot::Vacant(free) => free.insert(make()).clone(),
        }
    }
}

/// By its name for all members, or by `<breaker>@<cluster>` for one.
fn closed_at(policy: &Policy, spec: &CallerBreaker, cluster: &str) -> Option<i64> {
    let of_all = policy.closed_at(&spec.name);
    of_all.max(policy.closed_at(&format!("{}@{cluster}", spec.name)))
}

/// As the router has them for members, but for what the object says.
fn settings(spec: &CallerBreaker) -> Settings {
    let default = Settings::default();
    let count = |wanted: Option<i64>, default: u32| {
        wanted.map_or(default, |wanted| u32::try_from(wanted.max(1)).unwrap_or(u32::MAX))
    };
    let time = |wanted: &Option<portolan_crds::Duration>, default: Duration| {
        let wanted = wanted.as_ref().and_then(|wanted| wanted.parse().ok());
        wanted.unwrap_or(default)
    };
    let open_for = time(&spec.open_for, default.open_for);
    Settings {
        consecutive_failures: count(spec.consecutive_failures, default.consecutive_failures),
        failure_ratio: spec.failure_ratio.unwrap_or(default.failure_ratio),
        min_requests: count(spec.min_requests, default.min_requests),
        window: time(&spec.window, default.window),
        open_for,
        max_open_for: time(&spec.max_open_for, default.max_open_for).max(open_for),
        // It is told of no times.
        slow: default.slow,
    }
}
