//! Leader election by a coordination.k8s.io Lease, in the way of client-go: take it when it is free or was not renewed
//! for as long as it lasts, renew it every two seconds, stop when renewing fails for too long, release it in the end.

use std::time::Duration;

use anyhow::anyhow;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::warn;

const LEASE_SECONDS: i32 = 15;
const RENEW_EVERY: Duration = Duration::from_secs(2);
/// Shorter than the lease, so that a leader that cannot renew stops before another may start.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// How long the end of the program waits for the release, which only spares the next leader a wait.
const RELEASE_PATIENCE: Duration = Duration::from_secs(3);

/// One candidate for one Lease.
pub(crate) struct Election {
    leases: Api<Lease>,
    name: String,
    identity: String,
    /// Version of another's Lease, and since when we see it. Our own clock measures its age: clocks of others may differ.
    seen: Option<(Option<String>, Instant)>,
}

impl Election {
    pub(crate) fn new(client: Client, namespace: &str, name: String, identity: String) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            name,
            identity,
            seen: None,
        }
    }

    /// Waits until the Lease is ours.
    pub(crate) async fn acquire(&mut self) {
        loop {
            match timeout(RENEW_DEADLINE, self.claim()).await {
                Ok(Ok(true)) => return,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => warn!(%error, lease = self.name, "cannot take the lease yet"),
                Err(_) => warn!(lease = self.name, "the lease's server does not answer"),
            }
            sleep(RENEW_EVERY).await;
        }
    }

    /// Renews until that fails for too long; returns why.
    pub(crate) async fn hold(&mut self) -> anyhow::Error {
        let mut renewed = Instant::now();
        loop {
            sleep(RENEW_EVERY).await;
            match timeout_at(renewed + RENEW_DEADLINE, self.claim()).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => return anyhow!("lease {} is held by another replica", self.name),
                Ok(Err(error)) => warn!(%error, lease = self.name, "renewal failed"),
                Err(_) => return anyhow!("lease {} was not renewed within {RENEW_DEADLINE:?}", self.name),
            }
        }
    }

    /// Gives the Lease back, so that the next leader need not wait until it expires.
    pub(crate) async fn release(&mut self) {
        let give_back = async {
            let Some(mut lease) = self.leases.get_opt(&self.name).await? else {
                return Ok(());
            };
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_ref() == Some(&self.identity) {
                spec.holder_identity = Some(String::new());
                spec.lease_duration_seconds = Some(1);
                self.leases.replace(&self.name, &PostParams::default(), &lease).await?;
            }
            Ok::<_, kube::Error>(())
        };
        match timeout(RELEASE_PATIENCE, give_back).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, lease = self.name, "the lease was not released"),
            Err(_) => warn!(lease = self.name, "the lease was not released in time"),
        }
    }

    /// Takes or renews the Lease; false while another holder is alive.
    async fn claim(&mut self) -> kube::Result<bool> {
        let Some(mut lease) = self.leases.get_opt(&self.name).await? else {
            let metadata = ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            };
            let spec = Some(self.spec(&LeaseSpec::default()));
            let lease = Lease { metadata, spec };
            return self.leases.create(&PostParams::default(), &lease).await.map(|_| true);
        };
        let found = lease.spec.take().unwrap_or_default();
        if self.held_by_another(&found, lease.metadata.resource_version.as_ref()) {
            return Ok(false);
        }
        // The version read goes back with it: of two that take an expired Lease at once, one is refused.
        lease.spec = Some(self.spec(&found));
        let replaced = self.leases.replace(&self.name, &PostParams::default(), &lease).await;
        replaced.map(|_| true)
    }

    fn held_by_another(&mut self, found: &LeaseSpec, version: Option<&String>) -> bool {
        let holder = found.holder_identity.as_deref().unwrap_or_default();
        if holder.is_empty() || holder == self.identity {
            return false;
        }
        let since = match &self.seen {
            Some((seen, since)) if seen.as_ref() == version => *since,
            _ => {
                self.seen = Some((version.cloned(), Instant::now()));
                return true;
            }
        };
        let lasts = found.lease_duration_seconds.unwrap_or(LEASE_SECONDS);
        since.elapsed() < Duration::from_secs(u64::try_from(lasts).unwrap_or_default())
    }

    /// What the Lease becomes when we take or renew it.
    fn spec(&self, found: &LeaseSpec) -> LeaseSpec {
        let now = Some(MicroTime(Timestamp::now()));
        let renewal = found.holder_identity.as_ref() == Some(&self.identity);
        let transitions = found.lease_transitions.unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            acquire_time: if renewal {
                found.acquire_time.clone()
            } else {
                now.clone()
            },
            renew_time: now,
            lease_transitions: Some(if renewal { transitions } else { transitions + 1 }),
            ..LeaseSpec::default()
        }
    }
}
