//! What the hub says about a member cluster. Pure.
//!
//! Figures of which the agent has told nothing to this process are kept as they were observed, so that a restart of the
//! hub does not blank them.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use portolan_crds::{
    BREAKERS_MAX, BreakerState, BreakerStatus, ConditionReason, ConditionType, Finding, MemberClusterStatus,
    TrafficClass, accepted_reason, validate,
};
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;

use super::finding::{set, whole_seconds};
use super::reach::OfRouter;
use super::{Routers, Sources, figures_period};
use crate::compile::{AgentOrders, Ref, World, some_of};
use crate::facts::{AgentReport, Facts, MemberObject, Pin};

mod left_out;

use left_out::left_out;

/// Three heartbeats of five seconds that did not come.
const HEARTBEAT_LOST_AFTER: SignedDuration = SignedDuration::from_secs(15);

/// An agent's longest wait between two tries, a turn of the statuses (figures may be that much older), and some more.
const AGENT_RETURNS_WITHIN: Duration = Duration::from_secs(40);

const WITHDRAWN: &str = "withdrawn: the cluster had joined, and spec.accept is false since";

/// The status that the member ought to have.
pub(super) fn status(sources: Sources<'_>, cluster: &str, member: &MemberObject) -> MemberClusterStatus {
    let Sources {
        facts,
        world,
        routers,
        breakers,
        now,
    } = sources;
    let agent = facts.agents.get(cluster);
    let mut status = member.status.clone();
    status.observed_generation = Some(member.generation);
    figures(&mut status, agent);
    status.cluster_uid = facts.joined(cluster).map(|(_, pin)| pin.cluster_uid.clone());
    status.breakers = not_closed(breakers.of_member(cluster));
    let unconfirmed = told_of_labels(world, cluster).map_or(&[][..], |told| &told.unconfirmed);
    let mut findings = vec![
        accepted(member),
        joined(facts, cluster, agent),
        available(&status, agent, now, refused_target(cluster, routers)),
        credentials(
            (facts.joined(cluster).map(|(_, pin)| pin), agent),
            who_acts_in(world, cluster),
            now,
        ),
        labels(agent, facts.silent.contains(cluster), unconfirmed),
        left_out(agent, world.agent_configs.get(cluster)),
    ];
    if facts.withdrawn(cluster).is_some() {
        // What its agent says counts no more.
        let of_agent =
            |finding: &&mut Finding| !matches!(finding.type_, ConditionType::Accepted | ConditionType::Joined);
        for finding in findings.iter_mut().filter(of_agent) {
            *finding = Finding::unknown(finding.type_, ConditionReason::NotAccepted, WITHDRAWN);
        }
    } else if agent.is_none() && may_return(&status, facts.members.len(), now) {
        let is_known = |type_: ConditionType| status.conditions.iter().any(|known| known.type_ == type_.to_string());
        findings.retain(|finding| finding.status.is_some() || !is_known(finding.type_));
    }
    set(&mut status.conditions, findings, member.generation, now);
    status
}

/// Whether its agent was heard, and is not any more.
pub(super) fn is_unheard(facts: &Facts, cluster: &str, now: Timestamp) -> bool {
    let heartbeat = facts.agents.get(cluster).and_then(|agent| agent.heartbeat.as_ref());
    heartbeat.is_some_and(|beat| now.duration_since(beat.at) > HEARTBEAT_LOST_AFTER)
}

/// After a restart of the hub, what only the agent knows is left as it was until the agent has had time to come back. Of so many
/// members its last heartbeat may be later than the status says.
fn may_return(status: &MemberClusterStatus, members: usize, now: Timestamp) -> bool {
    let within = figures_period(members) + AGENT_RETURNS_WITHIN;
    let last = status.last_heartbeat.as_ref();
    last.is_some_and(|last| Duration::try_from(now.duration_since(last.0)).unwrap_or_default() <= within)
}

fn unix(seconds: i64) -> Option<Time> {
    Timestamp::from_second(seconds).ok().map(Time)
}

fn figures(status: &mut MemberClusterStatus, agent: Option<&AgentReport>) {
    let Some(agent) = agent else { return };
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    status.agent_version = text(&agent.version).or(status.agent_version.take());
    status.kubernetes_version = text(&agent.kubernetes_version).or(status.kubernetes_version.take());
    if let Some(beat) = &agent.heartbeat {
        status.last_heartbeat = Some(whole_seconds(beat.at));
        status.api_latency_milliseconds = Some(i64::from(beat.latency_milliseconds));
    }
    if let Some(namespaces) = &*agent.namespaces {
        status.namespaces = i64::try_from(namespaces.len()).ok();
    }
    if let Some(coverage) = &agent.coverage {
        status.labelled_objects = Some(count(coverage.values().map(|kind| kind.labelled).sum()));
        status.total_objects = Some(count(coverage.values().map(|kind| kind.total).sum()));
    }
    let ends = agent.tokens.values().map(|token| token.expires_unix_seconds);
    if let Some(first) = ends.min() {
        status.token_expiry = unix(first);
    }
    if let Some(allowed) = &agent.allowed {
        status.allowed_service_accounts.clone_from(&allowed.service_accounts);
        status.allowed_users.clone_from(&allowed.users);
    }
}

/// Breakers of connected routers that are not closed, as many as have room.
fn not_closed(breakers: &[OfRouter<'_>]) -> Vec<BreakerStatus> {
    let breakers = breakers.iter();
    let mut breakers: Vec<_> = breakers
        .filter_map(|(router, breaker)| breaker_status(router, breaker))
        .collect();
    breakers.sort_by(|a, b| (a.traffic_class, &a.router).cmp(&(b.traffic_class, &b.router)));
    breakers.truncate(BREAKERS_MAX);
    breakers.sort_by(|a, b| (&a.router, a.traffic_class).cmp(&(&b.router, b.traffic_class)));
    breakers
}

fn breaker_status(router: &str, breaker: &v1::BreakerState) -> Option<BreakerStatus> {
    let state = match breaker.state.as_str() {
        "open" => BreakerState::Open,
        "half-open" => BreakerState::HalfOpen,
        _ => return None,
    };
    let traffic_class = match breaker.traffic_class.as_str() {
        "list" => TrafficClass::List,
        "watch" => TrafficClass::WatchStart,
        "upgrade" => TrafficClass::Upgrade,
        "token-review" => TrafficClass::TokenReview,
        _ => TrafficClass::Unary,
    };
    Some(BreakerStatus {
        router: router.to_owned(),
        traffic_class,
        state,
        reason: breaker.reason.clone(),
        since: unix(breaker.since_unix_seconds),
    })
}

fn accepted(member: &MemberObject) -> Finding {
    const TYPE: ConditionType = ConditionType::Accepted;
    if !member.accept {
        let message = "spec.accept is false: set it to true to let this cluster join";
        Finding::fails(TYPE, ConditionReason::NotAccepted, message)
    } else if member.problems.is_empty() {
        Finding::holds(TYPE, "the spec is valid and in force")
    } else {
        let reason = accepted_reason(&member.problems);
        Finding::fails(TYPE, reason, validate::summary(&member.problems))
    }
}

fn joined(facts: &Facts, cluster: &str, agent: Option<&AgentReport>) -> Finding {
    const TYPE: ConditionType = ConditionType::Joined;
    let refusal = facts.join_refusals.get(cluster);
    let connected = agent.is_some_and(|agent| agent.connected);
    match (facts.joined(cluster), refusal) {
        (Some((_, pin)), None) => Finding::holds(TYPE, format!("pinned to the cluster with UID {}", pin.cluster_uid)),
        (None, _) if facts.withdrawn(cluster).is_some() => Finding::fails(
            TYPE,
            ConditionReason::NotAccepted,
            format!("{WITHDRAWN}; set it to true to have it back"),
        ),
        (Some(_), Some((_, refusal))) if connected => {
            Finding::holds(TYPE, format!("joined; another attempt to join was refused: {refusal}"))
        }
        (_, Some((reason, refusal))) => Finding::fails(TYPE, *reason, refusal.clone()),
        (None, None) => {
            let message =
                format!("no agent has joined as {cluster}: after portolanctl join, start portolan-agent there");
            Finding::fails(TYPE, ConditionReason::WaitingForAgent, message)
        }
    }
}

/// What a router says that cannot use the member's target at all.
fn refused_target(cluster: &str, routers: &Routers) -> Option<String> {
    let target = Ref::Target(cluster.to_owned());
    let connected = routers.iter().filter(|(_, router)| router.left.is_none());
    let mut refusals = connected.filter_map(|(name, router)| Some((name, &router.rejected.get(&target)?.1)));
    let (name, reason) = refusals.next()?;
    Some(format!(
        "router {name} cannot use the spec: {reason}; it goes on with the last one that it could, if any"
    ))
}

fn available(
    status: &MemberClusterStatus,
    agent: Option<&AgentReport>,
    now: Timestamp,
    refused: Option<String>,
) -> Finding {
    const TYPE: ConditionType = ConditionType::Available;
    if let Some(message) = refused {
        return Finding::fails(TYPE, ConditionReason::Rejected, message);
    }
    let heartbeat = agent.and_then(|agent| agent.heartbeat.as_ref());
    let fresh = heartbeat.filter(|beat| now.duration_since(beat.at) <= HEARTBEAT_LOST_AFTER);
    match (fresh, &status.last_heartbeat) {
        (Some(beat), _) if !beat.api_ready => {
            let message = format!("the agent reports that the API server is not ready: {}", beat.message);
            Finding::fails(TYPE, ConditionReason::ApiServerNotReady, message)
        }
        (Some(_), _) => match unreachable(&status.breakers) {
            Some(message) => Finding::fails(TYPE, ConditionReason::Unreachable, message),
            None => Finding::holds(TYPE, "the agent reports a ready API server"),
        },
        (None, Some(last)) => {
            let message = format!(
                "the agent was last heard at {}: routers go on with what they have; look at the agent in {} there",
                last.0,
                portolan_crds::labels::SYSTEM_NAMESPACE
            );
            Finding::unknown(TYPE, ConditionReason::HeartbeatLost, message)
        }
        (None, None) => {
            let message = "the agent has not been heard yet";
            Finding::unknown(TYPE, ConditionReason::WaitingForAgent, message)
        }
    }
}

/// What routers say who do not get through, whatever the agent says.
fn unreachable(breakers: &[BreakerStatus]) -> Option<String> {
    let unary = breakers
        .iter()
        .filter(|breaker| breaker.traffic_class == TrafficClass::Unary);
    let open: Vec<_> = unary.collect();
    let first = open.first()?;
    let names = some_of(open.iter().map(|breaker| &breaker.router), ", ");
    Some(format!(
        "circuit open in router {names}: {}; if it stays so, check spec.endpoints and spec.caBundle",
        first.reason
    ))
}

/// The routers that ought to have a token of the member.
fn who_acts_in<'a>(world: &'a World, cluster: &str) -> &'a [v1::RouterRef] {
    let orders = world.agent_configs.get(cluster);
    orders.map_or(&[], AgentOrders::routers)
}

fn credentials(
    (pin, agent): (Option<&Pin>, Option<&AgentReport>),
    routers: &[v1::RouterRef],
    now: Timestamp,
) -> Finding {
    const TYPE: ConditionType = ConditionType::CredentialsReady;
    if let Some(refused) = agent.and_then(|agent| agent.refused_key.as_ref()) {
        return Finding::fails(TYPE, ConditionReason::DuplicateCluster, refused);
    }
    let Some(agent) = agent else {
        let message = "the agent has minted no token since the hub started";
        return Finding::unknown(TYPE, ConditionReason::WaitingForAgent, message);
    };
    let Lacking { expired, none } = lacking(agent, routers, now);
    if !expired.is_empty() {
        let names = some_of(&expired, ", ");
        let message =
            format!("the token of router {names} has expired: the agent must reach its API server to renew it");
        return Finding::fails(TYPE, ConditionReason::TokenExpired, message);
    }
    if !none.is_empty() {
        let names = some_of(&none, ", ");
        let message = format!("the agent has minted no token for router {names} since the hub started");
        return Finding::unknown(TYPE, ConditionReason::WaitingForAgent, message);
    }
    if pin.is_some_and(|pin| pin.signing_keys.is_empty()) {
        let message = "the routers have a token, and do not know callers of this cluster yet: its agent has not proven a \
                       token-signing key (ServiceAccount portolan-system/portolan-proof, made by portolanctl join)";
        return Finding::fails(TYPE, ConditionReason::WaitingForAgent, message);
    }
    let nobody = |allowed: &v1::Allowed| allowed.service_accounts.is_empty() && allowed.users.is_empty();
    if agent.allowed.as_ref().is_some_and(nobody) {
        let message = "this cluster lets routers act as nobody: run portolanctl allow";
        let reason = ConditionReason::NothingAllowed;
        return Finding {
            reason,
            ..Finding::holds(TYPE, message)
        };
    }
    if routers.is_empty() {
        return Finding::holds(TYPE, "no router has enrolled that may act here");
    }
    Finding::holds(TYPE, "each router has its token")
}

/// Names of routers without a good token.
#[derive(Default)]
struct Lacking<'a> {
    expired: Vec<&'a str>,
    none: Vec<&'a str>,
}

/// Both are in the order of names, and walked side by side: there are as many tokens as routers, of each member.
fn lacking<'a>(agent: &AgentReport, routers: &'a [v1::RouterRef], now: Timestamp) -> Lacking<'a> {
    let mut lacking = Lacking::default();
    let mut tokens = agent.tokens.iter().peekable();
    for v1::RouterRef { name, .. } in routers {
        while tokens.next_if(|(known, _)| ***known < **name).is_some() {}
        match tokens.next_if(|(known, _)| ***known == **name) {
            None => lacking.none.push(name),
            Some((_, token)) if token.expires_unix_seconds <= now.as_second() => lacking.expired.push(name),
            Some(_) => {}
        }
    }
    lacking
}

/// What routers are told of labels.
pub(super) fn told_of_labels<'a>(world: &'a World, cluster: &str) -> Option<&'a v1::Coverage> {
    let told = world.resources.get(&Ref::Coverage(cluster.to_owned()))?;
    match told.resource.body.as_ref()? {
        Body::Coverage(coverage) => Some(coverage),
        _ => None,
    }
}

fn labels(agent: Option<&AgentReport>, silent: bool, unconfirmed: &[String]) -> Finding {
    const TYPE: ConditionType = ConditionType::LabelsSynced;
    if silent {
        let message = "the agent has said nothing of labels for more than 30 s: whether new objects have theirs is not known, \
                       so routers choose by namespace what callers see";
        return Finding::unknown(TYPE, ConditionReason::HeartbeatLost, message);
    }
    let Some(coverage) = agent.and_then(|agent| agent.coverage.as_ref()) else {
        let message = "the agent has not reported on labels since the hub started";
        return Finding::unknown(TYPE, ConditionReason::WaitingForAgent, message);
    };
    let missing = coverage.iter().filter(|(_, coverage)| !coverage.complete);
    let missing: Vec<_> = missing.map(|(kind, _)| kind.to_string()).collect();
    let policies = agent.map_or("", |agent| &agent.policies);
    if !policies.is_empty() {
        return Finding::fails(TYPE, ConditionReason::PoliciesChanged, policies);
    }
    if coverage.is_empty() {
        let message = "the agent is finding out which kinds there are";
        Finding::fails(TYPE, ConditionReason::Labelling, message)
    } else if missing.is_empty() && unconfirmed.is_empty() {
        Finding::holds(TYPE, "every object has its labels")
    } else if missing.is_empty() {
        let names = some_of(unconfirmed, ", ");
        let message = format!("routers show these namespaces by name, new or without labels as they are: {names}");
        Finding::fails(TYPE, ConditionReason::Labelling, message)
    } else if coverage.values().all(is_labelled_by_agent_alone) {
        let message = "every object has its labels, and new ones get theirs a moment after their creation, as this API server serves no \
                       mutating admission policies (Kubernetes 1.36, or the beta switched on before): routers choose by namespace what \
                       callers see";
        Finding::fails(TYPE, ConditionReason::NotAtAdmission, message)
    } else {
        let message = format!("being labelled: {}", some_of(missing, ", "));
        Finding::fails(TYPE, ConditionReason::Labelling, message)
    }
}

/// All that can be had of a member that does not label at admission.
fn is_labelled_by_agent_alone(kind: &v1::KindCoverage) -> bool {
    kind.complete || (kind.at_admission == Some(false) && kind.labelled == kind.total)
}

#[cfg(test)]
mod tests;
