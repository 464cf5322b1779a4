//! Waiting until a member serves, as the hub says by its conditions.

use std::time::{Duration, Instant};

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

/// Since when something is so without a break.
#[derive(Default)]
struct Since(Option<Instant>);

impl Since {
    /// Whether it is so, and has been for so long.
    fn has_lasted(&mut self, is_so: bool, how_long: Duration) -> bool {
        if !is_so {
            self.0 = None;
            return false;
        }
        self.0.get_or_insert_with(Instant::now).elapsed() >= how_long
    }
}

pub(super) async fn wait(registration: &Registration<'_>, has_agent: bool, steps: &mut Steps) -> Result<(), Failure> {
    let clusters: Api<MemberCluster> = Api::all(registration.hub.client.clone());
    let deadline = Instant::now() + registration.args.timeout;
    let waiting = [String::new(), ConditionReason::WaitingForAgent.to_string()];
    let (mut told, mut serves, mut is_unreached, mut is_refused) =
        (0, Since::default(), Since::default(), Since::default());
    loop {
        let member = clusters.get(registration.name).await;
        let member = member.map_err(|error| Failure::Hub(error.into()))?;
        let first_unmet = STAGES
            .iter()
            .find_map(|(type_, _)| Some((*type_, unmet(&member, type_)?)));
        let met = STAGES.iter().take_while(|(type_, _)| has(&member, type_)).count();
        for (_, words) in STAGES.iter().take(met).skip(told) {
            steps.done(words);
            told += 1;
        }
        if serves.has_lasted(first_unmet.is_none(), SETTLED) {
            return Ok(());
        }
        if let Some((type_, (reason, message))) = first_unmet {
            if is_unreached.has_lasted(reason == ConditionReason::Unreachable.to_string(), UNREACHED_FOR) {
                return Err(Failure::Unreachable(message));
            }
            if is_refused.has_lasted(type_ == "Joined" && !waiting.contains(&reason), REFUSED_FOR) {
                return Err(Failure::Refused(message));
            }
            if Instant::now() >= deadline {
                return Err(Failure::Late(
                    late(registration, has_agent && type_ == "Joined", &message).await,
                ));
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

/// What is waited for: what keeps the agent's Pod from running, if that can be it, else what the hub says.
async fn late(registration: &Registration<'_>, looks_at_agent: bool, message: &str) -> String {
    let client = &registration.member.client;
    let trouble = if looks_at_agent {
        pods::trouble(client, pods::OF_AGENT).await
    } else {
        None
    };
    trouble.unwrap_or_else(|| format!("MemberCluster {}: {message}", registration.name))
}
