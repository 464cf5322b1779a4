//! How rules stand by caller and router, from what routers report: the worst first, and bounded. Pure; called by `policies`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use portolan_crds::circuit_breaker::{LimitingSnapshot, LimitingState, TargetStatus};
use portolan_crds::fault_injection::InjectedStatus;
use portolan_wire::v1;

use super::super::Routers;
use super::super::finding::whole_seconds;
use crate::compile::{Ref, World};
use crate::facts::PolicyName;

/// Rules of one policy, by caller and router, that its status shows: an object of etcd is a megabyte and a half.
const MAX_SHOWN: usize = 200;

/// Rules that refuse all, by router, Pod with its cluster, and rule; and why.
pub(in crate::status) type Opened = BTreeMap<(String, String, String), String>;

/// Faults that were injected, each with the caller that it hits most and the router.
pub(in crate::status) type Injected = BTreeMap<String, String>;

/// What connected routers report, by policy.
pub(super) struct Reports<'a>(BTreeMap<&'a str, Vec<Found<'a>>>);

/// One rule of one caller in one router.
#[derive(Debug, Clone, Copy)]
struct Found<'a> {
    router: &'a str,
    /// Empty for a rule that all callers have together.
    pod: &'a str,
    cluster: &'a str,
    state: &'a v1::RuleState,
}

impl<'a> Reports<'a> {
    /// Of callers that are gone nothing is shown.
    pub(super) fn of(world: &'a World, routers: &'a Routers) -> Self {
        let mut reports = BTreeMap::<&str, Vec<Found<'_>>>::new();
        for (router, state) in routers.iter().filter(|(_, state)| state.left.is_none()) {
            for state in &*state.rules {
                let Some((cluster, pod)) = caller(world, &state.caller) else {
                    continue;
                };
                let found = Found {
                    router,
                    pod,
                    cluster,
                    state,
                };
                reports.entry(&state.policy).or_default().push(found);
            }
        }
        for found in reports.values_mut() {
            found.sort_by_key(Found::order);
        }
        Self(reports)
    }

    fn found(&self, name: &PolicyName) -> &[Found<'a>] {
        self.0
            .get(name.to_string().as_str())
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    pub(super) fn opened(&self, name: &PolicyName) -> Opened {
        let opened = self.found(name).iter().filter(|found| found.state.opened);
        let named = opened.map(|found| {
            let key = (found.router.to_owned(), found.caller(), found.state.rule.clone());
            (key, found.state.reason.clone())
        });
        named.collect()
    }

    pub(super) fn hits(&self, name: &PolicyName) -> Injected {
        let mut hits = Injected::new();
        for found in self.found(name).iter().filter(|found| found.state.total > 0) {
            let whom = || format!("caller {} through router {}", found.caller(), found.router);
            hits.entry(found.state.rule.clone()).or_insert_with(whom);
        }
        hits
    }

    /// Callers and their rules, both in the order of the worst rule.
    pub(super) fn limits(&self, name: &PolicyName) -> Vec<TargetStatus> {
        let mut targets: Vec<TargetStatus> = Vec::new();
        for found in self.found(name).iter().take(MAX_SHOWN) {
            let is_it = |target: &&mut TargetStatus| {
                (
                    target.router.as_str(),
                    target.cluster.as_str(),
                    target.pod_name.as_str(),
                ) == (found.router, found.cluster, found.pod)
            };
            let snapshot = snapshot(found.state);
            match targets.iter_mut().find(is_it) {
                Some(target) => target.limiting_snapshots.push(snapshot),
                None => targets.push(TargetStatus {
                    pod_name: found.pod.to_owned(),
                    cluster: found.cluster.to_owned(),
                    router: found.router.to_owned(),
                    limiting_snapshots: vec![snapshot],
                }),
            }
        }
        targets
    }

    pub(super) fn injected(&self, name: &PolicyName) -> Vec<InjectedStatus> {
        let shown = self.found(name).iter().take(MAX_SHOWN);
        let injected = shown.map(|found| InjectedStatus {
            pod_name: found.pod.to_owned(),
            cluster: found.cluster.to_owned(),
            router: found.router.to_owned(),
            name: found.state.rule.clone(),
            injected_last_minute: figure(found.state.last_minute),
            injected_total: figure(found.state.total),
        });
        injected.collect()
    }
}

impl<'a> Found<'a> {
    /// What refuses all first, then what refuses most.
    fn order(&self) -> impl Ord + use<'a> {
        let state = self.state;
        let worst = (Reverse(state.opened), Reverse(state.last_minute), Reverse(state.total));
        (worst, self.cluster, self.pod, &state.rule, self.router)
    }

    fn caller(&self) -> String {
        if self.pod.is_empty() {
            return String::new();
        }
        format!("{} in {}", self.pod, self.cluster)
    }
}

/// Cluster and name of a caller's Pod by its name in reports; both empty for a rule that all callers have together.
fn caller<'a>(world: &'a World, name: &str) -> Option<(&'a str, &'a str)> {
    if name.is_empty() {
        return Some(("", ""));
    }
    let (home, pod_uid) = name.split_once('/')?;
    let view = Ref::View {
        home: home.to_owned(),
        pod_uid: pod_uid.to_owned(),
    };
    let view = world.view_of(&view)?;
    Some((&view.home_cluster, &view.pod))
}

fn snapshot(state: &v1::RuleState) -> LimitingSnapshot {
    LimitingSnapshot {
        name: state.rule.clone(),
        state: if state.opened {
            LimitingState::Opened
        } else {
            LimitingState::Closed
        },
        reason: state.reason.clone(),
        last_transition_time: since(state.since_unix_milliseconds),
        refused_last_minute: figure(state.last_minute),
        refused_total: figure(state.total),
        tokens: state.tokens.map(figure),
    }
}

fn since(unix_milliseconds: i64) -> Option<Time> {
    let since = (unix_milliseconds > 0).then(|| Timestamp::from_millisecond(unix_milliseconds).ok());
    since.flatten().map(whole_seconds)
}

fn figure(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
