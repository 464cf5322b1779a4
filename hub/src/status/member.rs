//! What the hub says about a member cluster. Pure.
//!
//! Figures of which the agent has told nothing to this process are kept as they were observed, so that a restart of the
//! hub does not blank them.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use portolan_crds::{
    BreakerState, BreakerStatus, ConditionReason, ConditionType, Finding, MemberClusterStatus, TrafficClass,
    accepted_reason, set_condition, validate,
};
use portolan_wire::v1;

use super::found::Found;
use super::named;
use crate::acks::RouterState;
use crate::compile::Ref;
use crate::facts::{AgentReport, Facts, Member};

/// Three heartbeats of five seconds that did not come.
const HEARTBEAT_LOST_AFTER: SignedDuration = SignedDuration::from_secs(15);

/// An agent's longest wait between two tries, and some more.
const AGENT_RETURNS_WITHIN: SignedDuration = SignedDuration::from_secs(45);

type Routers = BTreeMap<String, RouterState>;

/// The status that the member ought to have.
pub(super) fn status(
    facts: &Facts,
    (cluster, member): (&str, &Member),
    routers: &Routers,
    now: Timestamp,
) -> MemberClusterStatus {
    let agent = facts.agents.get(cluster);
    let mut status = member.status.clone();
    status.observed_generation = Some(member.generation);
    figures(&mut status, agent);
    status.cluster_uid = facts.joined(cluster).map(|(_, pin)| pin.cluster_uid.clone());
    status.breakers = breakers(cluster, routers);
    let findings = [
        accepted(member),
        joined(facts, cluster, agent),
        available(&status, agent, now, refused_target(cluster, routers)),
        credentials(agent, now),
        labels(agent),
    ];
    let returning = agent.is_none() && may_return(&status, now);
    for (type_, (holds, reason, message)) in findings {
        let known = status
            .conditions
            .iter()
            .any(|condition| condition.type_ == type_.as_str());
        if returning && known && holds.is_none() {
            continue;
        }
        let finding = Finding {
            type_,
            status: holds,
            reason,
            message,
            observed_generation: Some(member.generation),
        };
        set_condition(&mut status.conditions, finding, &whole_seconds(now));
    }
    status
}

/// After a restart of the hub, what only the agent knows is left as it was until the agent has had time to come back.
fn may_return(status: &MemberClusterStatus, now: Timestamp) -> bool {
    let last = status.last_heartbeat.as_ref();
    last.is_some_and(|last| now.duration_since(last.0) <= AGENT_RETURNS_WITHIN)
}

/// The API server keeps whole seconds; anything finer would look like a change when it comes back.
pub(super) fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
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
    if let Some(namespaces) = &agent.namespaces {
        status.namespaces = i64::try_from(namespaces.len()).ok();
    }
    if let Some(coverage) = &agent.coverage {
        status.labelled_objects = Some(count(coverage.values().map(|kind| kind.labelled).sum()));
        status.total_objects = Some(count(coverage.values().map(|kind| kind.total).sum()));
    }
    if let Some(token) = &agent.token {
        status.token_expiry = unix(token.expires_unix_seconds);
    }
    if let Some(allowed) = &agent.allowed {
        status.allowed_service_accounts.clone_from(&allowed.service_accounts);
        status.allowed_users.clone_from(&allowed.users);
    }
}

/// Breakers of connected routers that are not closed.
fn breakers(cluster: &str, routers: &Routers) -> Vec<BreakerStatus> {
    let connected = routers.iter().filter(|(_, router)| router.left.is_none());
    let reports = connected.flat_map(|(name, router)| router.breakers.iter().map(move |breaker| (name, breaker)));
    let mut breakers: Vec<_> = reports
        .filter(|(_, breaker)| breaker.cluster == cluster)
        .filter_map(|(router, breaker)| breaker_status(router, breaker))
        .collect();
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
        "watch" => TrafficClass::WatchStart,
        "upgrade" => TrafficClass::Upgrade,
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

fn accepted(member: &Member) -> Found {
    let found = if !member.accept {
        let message = "spec.accept is false: set it to true to let this cluster join";
        (Some(false), ConditionReason::NotAccepted, message.to_owned())
    } else if member.problems.is_empty() {
        (
            Some(true),
            ConditionReason::Ok,
            "the spec is valid and in force".to_owned(),
        )
    } else {
        let reason = accepted_reason(&member.problems);
        (Some(false), reason, validate::summary(&member.problems))
    };
    (ConditionType::Accepted, found)
}

fn joined(facts: &Facts, cluster: &str, agent: Option<&AgentReport>) -> Found {
    let refusal = facts.join_refusals.get(cluster);
    let connected = agent.is_some_and(|agent| agent.connected);
    let found = match (facts.joined(cluster), refusal) {
        (Some((_, pin)), None) => {
            let message = format!("pinned to the cluster with UID {}", pin.cluster_uid);
            (Some(true), ConditionReason::Ok, message)
        }
        (Some(_), Some((_, refusal))) if connected => {
            let message = format!("joined; another attempt to join was refused: {refusal}");
            (Some(true), ConditionReason::Ok, message)
        }
        (_, Some((reason, refusal))) => (Some(false), *reason, refusal.clone()),
        (None, None) => {
            let message =
                format!("no agent has joined as {cluster}: after portolanctl join, start portolan-agent there");
            (Some(false), ConditionReason::WaitingForAgent, message)
        }
    };
    (ConditionType::Joined, found)
}

/// What a router says that cannot use the member's target at all.
fn refused_target(cluster: &str, routers: &Routers) -> Option<String> {
    let target = Ref::Target(cluster.to_owned());
    let connected = routers.iter().filter(|(_, router)| router.left.is_none());
    let refusals = connected.filter_map(|(name, router)| Some((name, &router.rejected.get(&target)?.1)));
    let (name, reason) = refusals.into_iter().next()?;
    Some(format!(
        "router {name} cannot use the spec: {reason}; it goes on with the last one that it could, if any"
    ))
}

fn available(
    status: &MemberClusterStatus,
    agent: Option<&AgentReport>,
    now: Timestamp,
    refused: Option<String>,
) -> Found {
    if let Some(message) = refused {
        return (
            ConditionType::Available,
            (Some(false), ConditionReason::Rejected, message),
        );
    }
    let heartbeat = agent.and_then(|agent| agent.heartbeat.as_ref());
    let last = status.last_heartbeat.as_ref();
    let fresh = heartbeat.filter(|beat| now.duration_since(beat.at) <= HEARTBEAT_LOST_AFTER);
    let found = match (fresh, last) {
        (Some(beat), _) if !beat.api_ready => {
            let message = format!("the agent reports that the API server is not ready: {}", beat.message);
            (Some(false), ConditionReason::ApiServerNotReady, message)
        }
        (Some(_), _) => {
            let ready = || {
                let message = "the agent reports a ready API server";
                (Some(true), ConditionReason::Ok, message.to_owned())
            };
            let unreachable = unreachable(&status.breakers);
            unreachable.map_or_else(ready, |message| (Some(false), ConditionReason::Unreachable, message))
        }
        (None, Some(last)) => {
            let message = format!(
                "the agent was last heard at {}: routers go on with what they have; look at the agent in {} there",
                last.0,
                portolan_crds::labels::SYSTEM_NAMESPACE
            );
            (None, ConditionReason::HeartbeatLost, message)
        }
        (None, None) => {
            let message = "the agent has not been heard yet";
            (None, ConditionReason::WaitingForAgent, message.to_owned())
        }
    };
    (ConditionType::Available, found)
}

/// What routers say who do not get through, whatever the agent says.
fn unreachable(breakers: &[BreakerStatus]) -> Option<String> {
    let unary = breakers
        .iter()
        .filter(|breaker| breaker.traffic_class == TrafficClass::Unary);
    let open: Vec<_> = unary.collect();
    let first = open.first()?;
    let names = named(open.iter().map(|breaker| breaker.router.as_str()));
    Some(format!(
        "circuit open in router {names}: {}; if it stays so, check spec.endpoints and spec.caBundle",
        first.reason
    ))
}

fn credentials(agent: Option<&AgentReport>, now: Timestamp) -> Found {
    let token = agent.and_then(|agent| agent.token.as_ref());
    let found = match token {
        None => {
            let message = "the agent has minted no token since the hub started";
            (None, ConditionReason::WaitingForAgent, message.to_owned())
        }
        Some(token) if token.expires_unix_seconds <= now.as_second() => {
            let message = "the routers' token has expired: the agent must reach its API server to renew it";
            (Some(false), ConditionReason::TokenExpired, message.to_owned())
        }
        Some(_) => {
            let allowed = agent.and_then(|agent| agent.allowed.as_ref());
            match allowed.filter(|allowed| allowed.service_accounts.is_empty() && allowed.users.is_empty()) {
                Some(_) => {
                    let message = "the routers have a token, but this cluster lets them act as nobody: \
                                   run portolanctl allow";
                    (Some(true), ConditionReason::NothingAllowed, message.to_owned())
                }
                None => (Some(true), ConditionReason::Ok, "the routers have a token".to_owned()),
            }
        }
    };
    (ConditionType::CredentialsReady, found)
}

fn labels(agent: Option<&AgentReport>) -> Found {
    let found = match agent.and_then(|agent| agent.coverage.as_ref()) {
        None => {
            let message = "the agent has not reported on labels since the hub started";
            (None, ConditionReason::WaitingForAgent, message.to_owned())
        }
        Some(coverage) => {
            let missing = coverage.iter().filter(|(_, coverage)| !coverage.complete);
            let missing: Vec<_> = missing
                .map(|(kind, _)| match kind.group.as_str() {
                    "" => kind.resource.clone(),
                    group => format!("{}.{group}", kind.resource),
                })
                .collect();
            if coverage.is_empty() {
                let message = "the agent is finding out which kinds there are";
                (Some(false), ConditionReason::Labelling, message.to_owned())
            } else if missing.is_empty() {
                let message = "every object has its labels";
                (Some(true), ConditionReason::Ok, message.to_owned())
            } else {
                let message = format!("being labelled: {}", named(missing.iter().map(String::as_str)));
                (Some(false), ConditionReason::Labelling, message)
            }
        }
    };
    (ConditionType::LabelsSynced, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Coverage, Kind};

    #[test]
    fn labels_are_synced_when_every_kind_says_so_and_there_is_one() {
        let coverage = |complete: &[bool]| {
            let kinds = complete.iter().enumerate().map(|(number, complete)| {
                let kind = Kind {
                    group: String::new(),
                    resource: number.to_string(),
                };
                let coverage = Coverage {
                    complete: *complete,
                    ..Coverage::default()
                };
                (kind, coverage)
            });
            Some(kinds.collect())
        };
        for (coverage, holds) in [
            (None, None),
            (coverage(&[]), Some(false)),
            (coverage(&[true, false]), Some(false)),
            (coverage(&[true]), Some(true)),
        ] {
            let agent = AgentReport {
                coverage,
                ..AgentReport::default()
            };
            assert_eq!(labels(Some(&agent)).1.0, holds);
        }
    }
}
