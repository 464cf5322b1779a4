//! Whether a replica of the hub leads: whether its Lease is renewed while it is looked at, by no clock but this machine's.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::Api;
use portolan_crds::labels::{LEASE_HUB, SYSTEM_NAMESPACE};

/// A Lease that nobody renews for so long has run out: the hub renews it each second.
const RENEWED_WITHIN: Duration = Duration::from_secs(4);
const POLL: Duration = Duration::from_millis(200);

/// The Lease, for messages.
pub(crate) fn object() -> String {
    format!("Lease {SYSTEM_NAMESPACE}/{LEASE_HUB}")
}

/// Who renews the Lease; `Err`: nobody does, and what it says.
pub(crate) async fn look(hub: &Client) -> Result<Result<String, String>, kube::Error> {
    let leases: Api<Lease> = Api::namespaced(hub.clone(), SYSTEM_NAMESPACE);
    let started = Instant::now();
    let mut first = None;
    loop {
        let Some(spec) = leases.get_opt(LEASE_HUB).await?.and_then(|lease| lease.spec) else {
            return Ok(Err("it is not there".to_owned()));
        };
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let first = first.get_or_insert_with(|| spec.clone());
        if *first != spec && !holder.is_empty() {
            return Ok(Ok(holder));
        }
        if started.elapsed() > RENEWED_WITHIN {
            let last = spec
                .renew_time
                .map_or_else(|| "nothing".to_owned(), |last| last.0.to_string());
            let seconds = RENEWED_WITHIN.as_secs();
            return Ok(Err(format!(
                "spec.renewTime was not renewed for {seconds} s and says {last}"
            )));
        }
        tokio::time::sleep(POLL).await;
    }
}
