//! Agents' messages as changes of the facts.
//!
//! A report of a stream that has been replaced is dropped: two agents of one cluster must not take turns. One beyond the
//! `bounds` is refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use portolan_crds::GroupResource;
use portolan_crds::labels::{FENCE_EPOCH, FENCE_SHARD};
use portolan_runtime::Secret;
use portolan_wire::protocol::NO_SUCH_NAMESPACE;
use portolan_wire::v1;

use super::Change;
use super::bounds::{OutOfBounds, check, cut};
use super::callers::callers;
use super::fold::fold;
use super::report::Report;
use crate::facts::{AgentReport, Facts, Heartbeat, Namespace, Token, counted, coverage_for_routers};

/// Without a word of its agent a member's objects may lack labels that it would have given: a namespace may have been made
/// anew. Six heartbeats.
const COVERAGE_AGES: Duration = Duration::from_secs(30);

/// A clock that is further from the hub's does not agree with it.
const CLOCK_MILLISECONDS: u64 = 2_000;
/// API servers tell whole seconds: so exactly a clock is known.
const CLOCK_READ_WITHIN: u64 = 500;
/// Six heartbeats: no clock drifts by much in that.
const CLOCK_STANDS_FOR: SignedDuration = SignedDuration::from_secs(30);
/// Two heartbeats: an agent that beats more seldom may have been told of as not heard.
const BEATS_WITHIN: SignedDuration = SignedDuration::from_secs(10);

/// No epoch of ours is beyond it. A member that said so would use up the epochs of all others.
const MAX_EPOCH: u64 = 1 << 40;

/// Agents tell of coverage at most once a second: by then they have told which objects of a new namespace lack their labels.
const NAMESPACE_SETTLES: Duration = Duration::from_secs(3);

impl Facts {
    /// A stream begins: what earlier ones reported stays until it is replaced.
    pub(crate) fn agent_connected(&mut self, cluster: &str, epoch: u64, hello: &v1::AgentHello) -> Change {
        let agent = self.agents.entry(cluster.to_owned()).or_default();
        agent.epoch = epoch;
        agent.connected = true;
        agent.left = None;
        agent.told_coverage = false;
        agent.version.clone_from(&hello.version);
        agent.kubernetes_version.clone_from(&hello.kubernetes_version);
        cut(&mut agent.version);
        cut(&mut agent.kubernetes_version);
        Change::Status
    }

    /// The member is at this version again, which is to be counted.
    pub(crate) fn went_back(&mut self, cluster: &str, version: u64) -> Change {
        if let Some(agent) = self.agents.get_mut(cluster) {
            agent.version_read = version;
            agent.owes_restore = true;
        }
        Change::Nothing
    }

    /// That the member went back is counted.
    pub(crate) fn restore_counted(&mut self, cluster: &str) -> Change {
        if let Some(agent) = self.agents.get_mut(cluster) {
            agent.restored = Some(Instant::now());
            agent.owes_restore = false;
        }
        Change::Nothing
    }

    /// Folds a report in. Nothing is changed by one that is refused.
    pub(super) fn apply_report(&mut self, cluster: &str, epoch: u64, report: Report) -> Result<Change, OutOfBounds> {
        // Of a router that was forgotten, or enrolled anew since, there is no token any more.
        if let Report::Token(token) = &report
            && !self.is_of_router(token)
        {
            return Ok(Change::Nothing);
        }
        match self.agents.get_mut(cluster).filter(|agent| agent.epoch == epoch) {
            Some(agent) => {
                let report = check(agent, report)?;
                // Who does not see its member knows nothing of namespaces made anew.
                let vouches = match &report {
                    Report::Heartbeat(beat, _) => beat.api_ready,
                    Report::Disconnected => false,
                    _ => true,
                };
                agent.told_coverage |= matches!(report, Report::Coverage(_));
                let change = agent.apply(report);
                if !vouches || !agent.told_coverage {
                    return Ok(change);
                }
                agent.vouched = Some(Instant::now());
                let spoke_again = self.silent.remove(cluster);
                if spoke_again {
                    self.spoke_again.insert(cluster.to_owned(), Timestamp::now());
                }
                Ok(if spoke_again { Change::Compile } else { change })
            }
            None => Ok(Change::Nothing),
        }
    }

    fn is_of_router(&self, token: &v1::MemberToken) -> bool {
        let router = token.router.as_ref();
        router.is_some_and(|router| {
            self.routers
                .get(&router.name)
                .is_some_and(|known| known.uid == router.uid)
        })
    }

    /// Whether the agent of the member has been heard all the time since then, as far as this process and those before it know.
    pub(crate) fn is_heard_since(&self, cluster: &str, since: Timestamp) -> bool {
        let written = self.pins.get(cluster).map_or(0, |pin| pin.history.silent_at);
        let silent_at = self.silent_at(cluster, i64::MAX).max(written);
        !self.listening && silent_at <= since.as_second()
    }

    /// When the member was not heard last, as far as this process knows, in seconds of Unix time: now, or when it spoke again; 0: never.
    pub(crate) fn silent_at(&self, cluster: &str, now_unix_seconds: i64) -> i64 {
        if self.silent.contains(cluster) {
            return now_unix_seconds;
        }
        self.spoke_again.get(cluster).map_or(0, |again| again.as_second())
    }

    /// What agents said of labels ages, and new namespaces settle: of each member without a word within [`COVERAGE_AGES`] it does not count any more. Not
    /// counted is the time before `since`, when there was no hub that it could have told.
    pub(crate) fn age_coverage(&mut self, now: Instant, since: Instant) -> Change {
        let settled = self.agents.values_mut().map(|agent| agent.settle(now)).max();
        let mut change = settled.unwrap_or(Change::Nothing);
        self.listening = now.saturating_duration_since(since) < COVERAGE_AGES;
        for cluster in self.members.keys() {
            let vouched = self.agents.get(cluster).and_then(|agent| agent.vouched);
            let last = vouched.map_or(since, |vouched| vouched.max(since));
            if now.saturating_duration_since(last) >= COVERAGE_AGES && self.silent.insert(cluster.clone()) {
                tracing::warn!(
                    cluster,
                    "the agent is not heard: what it said of labels does not count any more"
                );
                change = Change::Compile;
            }
        }
        change
    }
}

impl AgentReport {
    fn apply(&mut self, report: Report) -> Change {
        match report {
            Report::Heartbeat(beat, at) => self.beat(beat, at),
            Report::Namespaces(delta) => self.namespaces(delta),
            Report::Coverage(delta) => self.coverage(delta),
            Report::Callers(delta) => callers(self, delta),
            Report::Token(token) => self.token(token),
            Report::Allowed(mut allowed) => {
                allowed.service_accounts.sort();
                allowed.users.sort();
                allowed
                    .extras
                    .retain(|key| [FENCE_SHARD, FENCE_EPOCH].contains(&key.as_str()));
                allowed.extras.sort();
                allowed.extras.dedup();
                replace(&mut self.allowed, allowed)
            }
            Report::Fences(told) => {
                let states = told.fences.into_iter().map(|mut state| {
                    cut(&mut state.message);
                    (state.namespace.clone(), state)
                });
                let states: BTreeMap<_, _> = states.collect();
                if *self.fences == states {
                    return Change::Nothing;
                }
                let closed = states
                    .values()
                    .filter(|state| state.closed && state.message != NO_SUCH_NAMESPACE);
                // Kept when the order is over: what was closed so stays so.
                let doubts = closed.map(|state| Some(&state.message).filter(|message| !message.is_empty()));
                if let Some(doubt) = doubts.max() {
                    self.fence_doubt = doubt.cloned();
                }
                self.fences = states.into();
                Change::Compile
            }
            Report::Nodes(mut names) => {
                names.digests.sort_unstable();
                names.digests.dedup();
                replace(&mut self.nodes, names)
            }
            Report::Excess(excess) => status(&mut self.excess, excess.selectors),
            Report::Policies(policies) => status(&mut self.policies, policies.fault),
            Report::Key(refused) => status(&mut self.refused_key, refused),
            Report::Disconnected => {
                let was_unready = self.is_unready();
                self.connected = false;
                self.left = Some(Instant::now());
                self.told_unready(was_unready)
            }
        }
    }

    /// Forgets tokens of routers that are not among these.
    pub(super) fn retain_tokens(&mut self, is_kept: impl Fn(&str) -> bool) {
        if !self.tokens.keys().all(|router| is_kept(router)) {
            Arc::make_mut(&mut self.tokens).retain(|router, _| is_kept(router));
        }
    }

    /// Forgets a token of the router of this name, unless it is of the object with this UID.
    pub(super) fn drop_token(&mut self, router: &str, uid: Option<&str>) {
        let token = self.tokens.get(router);
        if token.is_some_and(|token| Some(&*token.router_uid) != uid) {
            Arc::make_mut(&mut self.tokens).remove(router);
        }
    }

    fn token(&mut self, told: v1::MemberToken) -> Change {
        let router = told.router.unwrap_or_default();
        let token = Token {
            router_uid: router.uid,
            token: Secret::new(told.token),
            expires_unix_seconds: told.expires_unix_seconds,
        };
        if self.tokens.get(&*router.name).is_some_and(|known| **known == token) {
            return Change::Nothing;
        }
        Arc::make_mut(&mut self.tokens).insert(router.name.into(), token.into());
        Change::Compile
    }

    fn beat(&mut self, beat: v1::Heartbeat, at: Timestamp) -> Change {
        let mut is_news = false;
        if !beat.kubernetes_version.is_empty() && beat.kubernetes_version != self.kubernetes_version {
            self.kubernetes_version = beat.kubernetes_version;
            is_news = true;
        }
        if beat.resource_version > 0 {
            self.version_read = beat.resource_version;
        }
        let was_unready = self.is_unready();
        let had_agreed = self.clock_agrees;
        self.read_clock(beat.api_clock_unix_milliseconds, at);
        let beat = Heartbeat {
            at,
            api_ready: beat.api_ready,
            latency_milliseconds: beat.latency_milliseconds,
            message: beat.message,
        };
        let before = self.heartbeat.replace(beat.clone());
        is_news |= before.is_none_or(|before| {
            let is_late = at.duration_since(before.at) > BEATS_WITHIN;
            is_late || before.api_ready != beat.api_ready || before.message != beat.message
        });
        match self.told_unready(was_unready) {
            Change::Status if had_agreed != self.clock_agrees => Change::Compile,
            Change::Status if !is_news => Change::Figures,
            change => change,
        }
    }

    /// One that could not be read of late, as an API server is slow now and then, is where it was.
    fn read_clock(&mut self, unix_milliseconds: Option<i64>, at: Timestamp) {
        if let Some(clock) = unix_milliseconds {
            self.clock_agrees = agrees(clock, at, self.clock_agrees);
            self.clock_read = Some(at);
        } else if self
            .clock_read
            .is_none_or(|read| at.duration_since(read) > CLOCK_STANDS_FOR)
        {
            self.clock_agrees = false;
        }
    }

    /// Routers are told when it says otherwise than before.
    fn told_unready(&self, was: bool) -> Change {
        if self.is_unready() == was {
            Change::Status
        } else {
            Change::Compile
        }
    }

    fn namespaces(&mut self, delta: v1::NamespaceDelta) -> Change {
        if let Some(known) = &*self.namespaces {
            let is_new = |fact: &&v1::NamespaceFact| known.get(&fact.name).is_none_or(|known| known.uid != fact.uid);
            let new = delta.upserted.iter().filter(is_new);
            let now = Instant::now();
            self.settling.extend(new.map(|fact| (fact.name.clone(), now)));
        }
        let upserted = delta.upserted.into_iter().map(|fact| {
            let namespace = Namespace {
                uid: fact.uid,
                labels: fact.labels.into_iter().collect(),
                labels_cut: fact.labels_cut,
                terminating: fact.terminating,
                epochs: epochs(fact.epoch, fact.epochs),
            };
            (fact.name, namespace)
        });
        let mut change = Change::Nothing;
        self.namespaces.change(|known| {
            change = fold(known, delta.reset, upserted, delta.removed);
            change != Change::Nothing
        });
        let there = self.namespaces.as_ref();
        self.settling
            .retain(|name, _| there.is_some_and(|all| all.contains_key(name)));
        change
    }

    /// Forgets which namespaces are new once it has been so for [`NAMESPACE_SETTLES`].
    fn settle(&mut self, now: Instant) -> Change {
        let before = self.settling.len();
        self.settling
            .retain(|_, heard| now.saturating_duration_since(*heard) < NAMESPACE_SETTLES);
        if self.settling.len() < before {
            Change::Compile
        } else {
            Change::Nothing
        }
    }

    /// Counts by bucket are looked at now and then (`distribute`), but for the first ones, which somebody may be waiting for.
    fn coverage(&mut self, delta: v1::CoverageDelta) -> Change {
        let had_counted = self.has_counted();
        self.count(&delta);
        let upserted = delta.upserted.into_iter().filter_map(|fact| {
            let kind = GroupResource::from(fact.kind?);
            let coverage = v1::KindCoverage {
                group: kind.group.clone(),
                resource: kind.resource.clone(),
                complete: fact.complete,
                labelled: fact.labelled,
                total: fact.total,
                rule: fact.rule,
                at_admission: fact.at_admission,
            };
            Some((kind, coverage))
        });
        let removed = delta.removed.into_iter().map(GroupResource::from);
        let told = |coverage: &Option<BTreeMap<_, _>>| -> Option<Vec<_>> {
            Some(coverage.as_ref()?.values().map(coverage_for_routers).collect())
        };
        let before = told(&self.coverage);
        match fold(&mut self.coverage, delta.reset, upserted, removed) {
            _ if self.has_counted() && !had_counted => Change::Compile,
            Change::Compile if before == told(&self.coverage) => Change::Figures,
            change => change,
        }
    }

    fn count(&mut self, delta: &v1::CoverageDelta) {
        if delta.reset {
            self.counts.clear();
        }
        for fact in &delta.upserted {
            let Some(kind) = fact.kind.clone().map(GroupResource::from) else {
                continue;
            };
            if fact.by_bucket.is_empty() {
                self.counts.remove(&kind);
            } else {
                self.counts.insert(kind, counted(&fact.by_bucket));
            }
        }
        for kind in &delta.removed {
            self.counts.remove(&GroupResource::from(kind.clone()));
        }
    }
}

/// The epochs that an annotation says, in order; none if any is beyond what there could be.
fn epochs(epoch: Option<u64>, mut epochs: Vec<u64>) -> Vec<u64> {
    if epochs.is_empty() {
        epochs.extend(epoch);
    }
    epochs.sort_unstable();
    epochs.dedup();
    if epochs.last().is_some_and(|last| *last > MAX_EPOCH) {
        epochs.clear();
    }
    epochs
}

fn replace<T: PartialEq>(slot: &mut Option<T>, value: T) -> Change {
    if slot.as_ref() == Some(&value) {
        return Change::Nothing;
    }
    *slot = Some(value);
    Change::Compile
}

/// A word that routers have no use for.
fn status<T: PartialEq>(slot: &mut T, value: T) -> Change {
    if *slot == value {
        return Change::Nothing;
    }
    *slot = value;
    Change::Status
}

/// Whether a clock agrees with the hub's, which is `at`. One that did may be off by a little more before it does not.
fn agrees(clock_unix_milliseconds: i64, at: Timestamp, agreed: bool) -> bool {
    let most = if agreed {
        CLOCK_MILLISECONDS
    } else {
        CLOCK_MILLISECONDS - CLOCK_READ_WITHIN
    };
    clock_unix_milliseconds.abs_diff(at.as_millisecond()) <= most
}
