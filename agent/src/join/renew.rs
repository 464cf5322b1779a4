//! A new certificate with a new key at half of the old one's life, for ever.
//!
//! A failed renewal leaves the old identity in force and is tried again; an identity that expired all the same is
//! bootstrapped anew. Caller: `app`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use portolan_runtime::Backoff;
use portolan_runtime::pki::new_key_and_csr;
use portolan_wire::v1::RenewRequest;
use portolan_wire::v1::enroll_response::Outcome;
use portolan_wire::v1::enrollment_client::EnrollmentClient;
use tokio::sync::watch;

use super::identity::AgentIdentity;
use super::{CSR_NAME, ENROLL_TIMEOUT, JoinError, Joiner, csr_der, jittered, refusal};
use crate::explain::chain;
use crate::hub::{HubAddress, dial};

/// Longest wait between two tries: half of a life is left for many.
const RETRY_MAX: Duration = Duration::from_mins(5);
/// Shortest time between two renewals, however short-lived the hub's certificates are.
const RENEW_MIN: Duration = Duration::from_secs(10);
/// Timers run while a laptop sleeps or a clock is set: look again at least this often.
const LOOK_AGAIN: Duration = Duration::from_hours(1);

/// Keeps the identity in `current` alive until cancelled. `refused` wakes it when the hub would not take the identity.
pub(crate) async fn run(joiner: Joiner, current: watch::Sender<Arc<AgentIdentity>>, mut refused: watch::Receiver<u64>) {
    let mut backoff = Backoff::new(Duration::from_secs(1), RETRY_MAX);
    loop {
        let identity = current.borrow().clone();
        let wait = identity.until_half_life(SystemTime::now());
        if !wait.is_zero() {
            tokio::select! {
                () = tokio::time::sleep(jittered(wait.min(LOOK_AGAIN))) => {}
                Ok(()) = refused.changed() => match joiner.rejoin(&identity).await {
                    Ok(Some(identity)) => drop(current.send_replace(Arc::new(identity))),
                    Ok(None) => {}
                    Err(error) => tracing::warn!(error = %chain(&error), "cannot join again yet"),
                },
            }
            continue;
        }
        if !identity.is_valid_at(SystemTime::now()) {
            tracing::error!(
                cluster = identity.cluster,
                "identity has expired before it could be renewed"
            );
            current.send_replace(Arc::new(joiner.identity().await));
            continue;
        }
        match renew(&joiner, &identity).await {
            Ok(renewed) => {
                tracing::info!(cluster = renewed.cluster, "identity renewed");
                backoff.reset();
                current.send_replace(Arc::new(renewed));
                tokio::time::sleep(RENEW_MIN).await;
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), "identity not renewed yet");
                backoff.sleep().await;
            }
        }
    }
}

async fn renew(joiner: &Joiner, identity: &AgentIdentity) -> Result<AgentIdentity, JoinError> {
    let (key, csr) = new_key_and_csr(CSR_NAME)?;
    let address = HubAddress {
        hub: &identity.origin.hub,
        ca_pem: &identity.ca_pem,
    };
    let channel = dial(address, Some((&identity.certificate_pem, &identity.key_pem))).await?;
    let request = RenewRequest { csr: csr_der(&csr)? };
    let mut client = EnrollmentClient::new(channel);
    let answer = tokio::time::timeout(ENROLL_TIMEOUT, client.renew(request))
        .await
        .map_err(|_| JoinError::Timeout)?;
    match answer.map_err(|status| refusal(&status))?.into_inner().outcome {
        Some(Outcome::Issued(issued)) => {
            let renewed = AgentIdentity::issued(issued, key, &identity.ca_pem, identity.origin.clone())?;
            joiner.store.store(&renewed).await?;
            Ok(renewed)
        }
        Some(Outcome::Pending(pending)) => Err(JoinError::Hub(pending.reason)),
        None => Err(JoinError::Hub("an empty answer".to_owned())),
    }
}
