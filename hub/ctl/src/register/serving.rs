//! Waiting until a member serves, as the hub says by its conditions.

use std::time::{Duration, Instant};

use kube::ResourceExt as _;
use kube::api::Api;
use portolan_crds::{ConditionReason, MemberCluster};

use super::Registration;
use crate::pods;
use crate::steps::Steps;

const POLL: Duration = Duration::from_millis(300);
/// Two reports of a router, and what its breaker takes to open: a member that serves for so long is reached.
const SETTLED: Duration = Duration::from_secs(8);
/// A router that has just heard of a member, or whose network has just been set up, may fail for a moment.
const UNREACHED_FOR: Duration = Duration::from_secs(15);
/// What the hub said of an earlier try stands until it hears the agent again.
const REFUSED_FOR: Duration = Duration::from_secs(30);
/// What is waited for, in this order, and how it is told.
const STAGES: [(&str, &str); 4] = [
    ("Joined", "the agent has joined, with a certificate of the hub's"),
    ("Available", "agent and routers reach the API server"),
    ("CredentialsReady", "each router has a token"),
    ("LabelsSynced", "the objects that are there have their labels"),
];

/// Why a member does not serve.
pub(super) enum Failure {
    /// Routers do not get through to it.
    Unreachable(String),
    /// The hub does not let its agent join.
    Refused(String),
    /// The time is up.
    Late(String),
    /// The hub cluster does not say.
    Hub(anyhow::Error),
}

/// Whether the condition holds.
pub(super) fn has(member: &MemberCluster, type_: &str) -> bool {
    unmet(member, type_).is_none()
}

/// Why the condition does not hold; the reason first.
fn unmet(member: &MemberCluster, type_: &str) -> Option<(String, String)> {
    let conditions = member.status.iter().flat_map(|status| &status.conditions);
    let Some(condition) = conditions.into_iter().find(|condition| condition.type_ == type_) else {
        return Some((String::new(), format!("{type_} is not reported yet")));
    };
    // All that can be had of a member whose API server labels nothing.
    let holds = condition.status == "True" || condition.reason == ConditionReason::NotAtAdmission.to_string();
    (!holds).then(|| (condition.reason.clone(), condition.message.clone()))
}

pub(super) async fn wait(registration: &Registration<'_>, has_agent: bool, steps: &mut Steps) -> Result<(), Failure> {
    let clusters: Api<MemberCluster> = Api::all(registration.hub.client.clone());
    let deadline = Instant::now() + registration.args.timeout;
    let (mut told, mut serves_since) = (0, None);
    let (mut unreached_since, mut refused_since) = (None::<Instant>, None::<Instant>);
    loop {
        let member = clusters
            .get(registration.name)
            .await
            .map_err(|error| Failure::Hub(error.into()))?;
        let first = STAGES.iter().position(|(type_, _)| !has(&member, type_));
        for (_, words) in &STAGES[told.min(first.unwrap_or(STAGES.len()))..first.unwrap_or(STAGES.len())] {
            steps.done(words);
            told += 1;
        }
        let now = Instant::now();
        let Some(stage) = first else {
            if now.duration_since(*serves_since.get_or_insert(now)) >= SETTLED {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
            continue;
        };
        serves_since = None;
        let (reason, message) = unmet(&member, STAGES[stage].0).unwrap_or_default();
        if reason == ConditionReason::Unreachable.to_string() {
            if now.duration_since(*unreached_since.get_or_insert(now)) >= UNREACHED_FOR {
                return Err(Failure::Unreachable(message));
            }
        } else {
            unreached_since = None;
        }
        let waits = ["", &ConditionReason::WaitingForAgent.to_string()].contains(&reason.as_str());
        if STAGES[stage].0 == "Joined" && !waits {
            if now.duration_since(*refused_since.get_or_insert(now)) >= REFUSED_FOR {
                return Err(Failure::Refused(message));
            }
        } else {
            refused_since = None;
        }
        if now >= deadline {
            let trouble = if has_agent && stage == 0 {
                pods::trouble(&registration.member.client, pods::OF_AGENT).await
            } else {
                None
            };
            let name = member.name_any();
            return Err(Failure::Late(
                trouble.unwrap_or_else(|| format!("MemberCluster {name}: {message}")),
            ));
        }
        tokio::time::sleep(POLL).await;
    }
}
