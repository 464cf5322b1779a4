//! Leader election by a coordination.k8s.io Lease, in the way of client-go: take it when it is free or stale, renew it
//! every two seconds, stop when renewing fails for longer than the lease lasts.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tracing::warn;

const LEASE_SECONDS: i32 = 15;
const RENEW_EVERY: Duration = Duration::from_secs(2);
/// Shorter than the lease, so that a leader that cannot renew stops before another may start.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// One candidate for one Lease.
pub(crate) struct Election {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) identity: String,
}

impl Election {
    /// Waits until the Lease is ours.
    pub(crate) async fn acquire(&self, client: &Client) {
        loop {
            match self.claim(client).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => warn!(%error, lease = self.name, "cannot take the lease yet"),
            }
            tokio::time::sleep(RENEW_EVERY).await;
        }
    }

    /// Renews until it fails for longer than the renew deadline; returns why.
    pub(crate) async fn hold(&self, client: &Client) -> anyhow::Error {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            let attempt = tokio::time::timeout(RENEW_DEADLINE, self.claim(client)).await;
            match attempt
                .map_err(anyhow::Error::from)
                .and_then(|claimed| claimed.map_err(anyhow::Error::from))
            {
                Ok(true) => renewed = Instant::now(),
                Ok(false) => return anyhow!("lease {} is held by another replica", self.name),
                Err(error) if renewed.elapsed() > RENEW_DEADLINE => return error,
                Err(error) => warn!(%error, lease = self.name, "renewal failed"),
            }
        }
    }

    /// Takes or renews the Lease; false when another holder is alive.
    async fn claim(&self, client: &Client) -> kube::Result<bool> {
        let leases: Api<Lease> = Api::namespaced(client.clone(), &self.namespace);
        let Some(mut lease) = leases.get_opt(&self.name).await? else {
            let metadata = ObjectMeta {
                name: Some(self.name.clone()),
                ..Default::default()
            };
            let lease = Lease {
                metadata,
                spec: Some(self.spec()),
            };
            return leases.create(&PostParams::default(), &lease).await.map(|_| true);
        };
        if self.held_by_another(lease.spec.as_ref()) {
            return Ok(false);
        }
        lease.spec = Some(self.spec());
        leases
            .replace(&self.name, &PostParams::default(), &lease)
            .await
            .map(|_| true)
    }

    fn held_by_another(&self, spec: Option<&LeaseSpec>) -> bool {
        let Some(spec) = spec else { return false };
        let other = spec
            .holder_identity
            .as_ref()
            .is_some_and(|holder| !holder.is_empty() && *holder != self.identity);
        let fresh = spec.renew_time.as_ref().is_some_and(|renewed| {
            Timestamp::now().duration_since(renewed.0).as_secs()
                < i64::from(spec.lease_duration_seconds.unwrap_or(LEASE_SECONDS))
        });
        other && fresh
    }

    fn spec(&self) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            renew_time: Some(MicroTime(Timestamp::now())),
            ..Default::default()
        }
    }
}
