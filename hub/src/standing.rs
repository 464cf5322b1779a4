//! Whether a member may speak: it is accepted, and its agent is the one that was pinned.
//!
//! Callers: `enroll` (first and renewed certificates), agent sessions, `vouched`.

use portolan_crds::ConditionReason;
use tonic::Status;

use crate::facts::{Facts, MemberObject, Pin};
use crate::index::Index;
use crate::pins::{AgentKey, PinError, Pins};

/// Most characters of a refusal in the log: it may quote what anybody sent.
pub(crate) const LOGGED_MAX: usize = 256;

/// The MemberCluster if it is accepted, else what is to be done first.
pub(crate) fn accepted<'a>(facts: &'a Facts, cluster: &str) -> Result<&'a MemberObject, String> {
    match facts.members.get(cluster) {
        Some(member) if member.accept => Ok(member),
        Some(_) => Err(format!(
            "spec.accept of MemberCluster {cluster} is false: set it to true on the hub to let the cluster join"
        )),
        None => Err(format!(
            "MemberCluster {cluster} does not exist on the hub: create it, with spec.accept: true"
        )),
    }
}

/// The pin of a member in good standing: accepted, and pinned.
pub(crate) fn standing(index: &Index, cluster: &str) -> Result<Pin, Status> {
    let pin = index.read(|facts| {
        accepted(facts, cluster)?;
        let joined = facts.joined(cluster).map(|(_, pin)| pin.clone());
        joined.ok_or_else(|| {
            format!("cluster {cluster} has not joined as the present MemberCluster {cluster}: run portolanctl join")
        })
    });
    pin.map_err(Status::permission_denied)
}

/// Pins, and keeps a refusal for the MemberCluster's status.
pub(crate) async fn pin_or_note(
    pins: &Pins,
    index: &Index,
    cluster: &str,
    pin: &Pin,
    key: AgentKey<'_>,
) -> Result<(), Status> {
    match pins.pin(cluster, pin, key).await {
        Ok(()) => {
            index.write(|facts| facts.note_refusal(cluster, None));
            Ok(())
        }
        Err(PinError::Refused(message)) => {
            let reason = if message.contains("is pinned to") {
                ConditionReason::ClusterUidChanged
            } else {
                ConditionReason::DuplicateCluster
            };
            index.write(|facts| facts.note_refusal(cluster, Some((reason, message.clone()))));
            Err(Status::permission_denied(message))
        }
        Err(error) => Err(not_pinned(cluster, &error)),
    }
}

/// The answer to an agent that cannot be pinned; what is the hub's fault is logged, not told.
pub(crate) fn not_pinned(cluster: &str, error: &PinError) -> Status {
    match error {
        PinError::Refused(message) | PinError::Stranger(message) => {
            tracing::warn!(cluster, reason = for_log(message), "agent refused");
            Status::permission_denied(message)
        }
        PinError::Kube(_) | PinError::Contended => {
            tracing::error!(cluster, %error, "cannot pin");
            Status::unavailable("the hub cannot record what it must pin: try again")
        }
    }
}

/// The beginning of a text that an agent or a router chose.
pub(crate) fn for_log(text: &str) -> &str {
    text.char_indices()
        .nth(LOGGED_MAX)
        .map_or(text, |(end, _)| &text[..end])
}
