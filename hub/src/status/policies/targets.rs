//! How rules stand by caller and router, from what routers report: the worst first, and bounded. Pure; called by `policies`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use portolan_crds::circuit_breaker::{LimitingSnapshot, LimitingState, TargetStatus};
use portolan_crds::fault_injection::InjectedStatus;
use portolan_wire::v1;
use portolan_wire::v1::ResourceKind;

use super::super::Routers;
use super::super::finding::whole_seconds;
use super::super::presence::{Presence, Presences};
use crate::acks::RuleReport;
use crate::compile::{Ref, World};
use crate::facts::PolicyName;

/// Rules of one policy, by caller and router, that its status shows: an object of etcd is a megabyte and a half.
pub(in crate::status) const MAX_SHOWN: usize = 200;

/// A rule by router, Pod with its cluster (`<Pod> in <cluster>`; empty: all callers have it together), and name.
pub(in crate::status) type RuleAt = (String, String, String);

/// Rules that refuse all, and why.
pub(in crate::status) type Opened = BTreeMap<RuleAt, String>;

/// Faults that were injected, each with the caller that it hits most and the router.
pub(in crate::status) type Injected = BTreeMap<String, String>;

/// What routers report, by policy: those that are here, and, as they said last, those that may come back.
pub(super) struct Reports<'a> {
    by_policy: BTreeMap<&'a str, Vec<Found<'a>>>,
    /// Routers that leave rules out, and of which policies they may.
    full: Vec<(&'a str, &'a RuleReport)>,
    world: &'a World,
    routers: &'a Routers,
    presences: &'a Presences,
}

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
    pub(super) fn of(world: &'a World, routers: &'a Routers, presences: &'a Presences) -> Self {
        let mut by_policy = BTreeMap::<&str, Vec<Found<'_>>>::new();
        let mut full = Vec::new();
        let counts = |router: &str| presences.of_router(router) != Presence::Gone;
        for (router, state) in routers.iter().filter(|(router, _)| counts(router)) {
            if state.rules.more_left_out || !state.rules.left_out.is_empty() {
                full.push((router.as_str(), &*state.rules));
            }
            for state in &state.rules.states {
                let Some((cluster, pod)) = caller(world, &state.caller) else {
                    continue;
                };
                let found = Found {
                    router,
                    pod,
                    cluster,
                    state,
                };
                by_policy.entry(&state.policy).or_default().push(found);
            }
        }
        for found in by_policy.values_mut() {
            found.sort_by_key(Found::order);
        }
        Self {
            by_policy,
            full,
            world,
            routers,
            presences,
        }
    }

    /// Whether a rule may refuse all of which nothing is said: its router leaves some of the policy's out, or of its caller or its
    /// member this hub does not know yet whether they are there.
    pub(super) fn may_be_opened(&self, name: &PolicyName, (router, caller, rule): &RuleAt) -> bool {
        let name = name.to_string();
        let is_left_out = |(full, report): &(&str, &RuleReport)| full == router && report.leaves_out(&name);
        let home = caller.rsplit_once(" in ").map(|(_, cluster)| cluster);
        let member = rule.split_once('@').map(|(_, cluster)| cluster);
        self.full.iter().any(is_left_out)
            || home.is_some_and(|home| self.world.is_unknown(ResourceKind::CallerView, home))
            || member.is_some_and(|member| self.world.is_unknown(ResourceKind::Target, member))
    }

    /// How many rules of a policy refuse all: those that are reported, those that reports leave out, and those that are `shown`
    /// as they stood last. `before`: as was said last, which may count more than was shown of who is not heard yet.
    pub(super) fn count_opened(&self, name: &PolicyName, shown: &[TargetStatus], before: Option<i64>) -> i64 {
        let reported = self.found(name).iter().filter(|found| found.state.opened).count();
        let name = name.to_string();
        let left_out = self.full.iter().filter_map(|(_, report)| report.left_out.get(&name));
        let left_out = left_out.fold(0, |sum: u64, count| sum.saturating_add(*count));
        let stands = shown
            .iter()
            .filter(|target| self.stands(&target.router, &target.cluster));
        let rules = stands.flat_map(|target| &target.limiting_snapshots);
        let stands = rules.filter(|rule| rule.state == LimitingState::Opened).count();
        let stands = u64::try_from(reported.saturating_add(stands)).unwrap_or(u64::MAX);
        let count = figure(stands.saturating_add(left_out));
        let unheard = self.presences.away().any(|router| !self.has_reported(router));
        before.filter(|_| unheard).map_or(count, |before| before.max(count))
    }

    /// Whether this process has heard from a router how rules stand.
    fn has_reported(&self, router: &str) -> bool {
        self.routers.get(router).is_some_and(|state| state.told_rules.is_some())
    }

    /// Whether what the object's status says of a router and of callers of a cluster is all that is known: this process has not
    /// heard the router, or does not know yet which callers there are.
    fn stands(&self, router: &str, cluster: &str) -> bool {
        match self.presences.of_router(router) {
            Presence::Gone => false,
            Presence::Away if !self.routers.contains_key(router) => true,
            _ => self.world.is_unknown(ResourceKind::CallerView, cluster),
        }
    }

    fn found(&self, name: &PolicyName) -> &[Found<'a>] {
        self.by_policy
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

    /// Callers and their rules, both in the order of the worst rule. `before`: what the status says.
    pub(super) fn limits(&self, name: &PolicyName, before: Vec<TargetStatus>) -> Vec<TargetStatus> {
        let mut targets = before;
        targets.retain(|target| self.stands(&target.router, &target.cluster));
        let shown: usize = targets.iter().map(|target| target.limiting_snapshots.len()).sum();
        for found in self.found(name).iter().take(MAX_SHOWN.saturating_sub(shown)) {
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

    pub(super) fn injected(&self, name: &PolicyName, before: Vec<InjectedStatus>) -> Vec<InjectedStatus> {
        let mut targets = before;
        targets.retain(|target| self.stands(&target.router, &target.cluster));
        let shown = self.found(name).iter().take(MAX_SHOWN.saturating_sub(targets.len()));
        let injected = shown.map(|found| InjectedStatus {
            pod_name: found.pod.to_owned(),
            cluster: found.cluster.to_owned(),
            router: found.router.to_owned(),
            name: found.state.rule.clone(),
            injected_last_minute: figure(found.state.last_minute),
            injected_total: figure(found.state.total),
        });
        targets.extend(injected);
        targets
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
