//! Which of an agent's replicas works: the one that holds Lease `portolan-agent` in the member and renews it. The other stands by.
//!
//! What an agent writes it would write again, so that two that work for a moment, as where one was cut off, do no harm; at the hub the
//! one that came last counts. Callers: `app`, `uninstall`.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::DeleteParams;
use kube::{Api, Client};
use portolan_crds::labels::LEASE_AGENT;
use portolan_election::{Candidate, Leads, Terms};
use portolan_runtime::{Backoff, ReadyHandle};
use tokio::sync::watch;

use crate::member::{CallError, bounded};

/// Slower than replicas of the hub, as each member bears it, and soon enough that no condition on the hub tells of it: that takes 15 s
/// without an agent.
const TERMS: Terms = Terms {
    lease: LEASE_AGENT,
    runs_out_after: Duration::from_secs(5),
    renew_every: Duration::from_secs(2),
    look_every: Duration::from_secs(1),
    fresh_for: Duration::from_millis(4_500),
};

/// Whether an agent works, or whom it stands by for.
pub(crate) type Role = portolan_election::Role<Replica>;

/// One agent's part in the election.
pub(crate) type Election = portolan_election::Election<Replica>;

/// A replica, by its name. One that is started anew under it goes on at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Replica(String);

impl Candidate for Replica {
    type Leader = Self;

    fn identity(&self) -> &str {
        &self.0
    }
}

impl Leads for Replica {
    fn identity(&self) -> &str {
        &self.0
    }

    fn read(identity: String, _: &BTreeMap<String, String>) -> Self {
        Self(identity)
    }
}

/// `namespace`: of Portolan's own objects in the member.
pub(crate) fn election(client: Client, namespace: &str, replica: &str) -> Election {
    Election::new(client, namespace, TERMS, Replica(replica.to_owned()))
}

/// Asks who holds the Lease.
#[derive(Clone)]
pub(crate) struct Holder {
    leases: Api<Lease>,
    replica: String,
}

impl Holder {
    pub(crate) fn new(client: Client, namespace: &str, replica: &str) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            replica: replica.to_owned(),
        }
    }

    /// Returns once the API server says that this replica does: one that is cut off from it may have been replaced without knowing.
    pub(crate) async fn is_this(&self) {
        let mut backoff = Backoff::new(Duration::from_millis(200), TERMS.runs_out_after);
        loop {
            let spec = bounded(self.leases.get(LEASE_AGENT))
                .await
                .ok()
                .and_then(|lease| lease.spec);
            if spec.and_then(|spec| spec.holder_identity).as_ref() == Some(&self.replica) {
                return;
            }
            backoff.sleep().await;
        }
    }
}

/// Deletes the Lease. Absent already is as good.
pub(crate) async fn forget(client: Client, namespace: &str) -> Result<(), CallError> {
    let leases = Api::<Lease>::namespaced(client, namespace);
    match bounded(leases.delete(LEASE_AGENT, &DeleteParams::default())).await {
        Err(error) if error.status() != Some(404) => Err(error),
        _ => Ok(()),
    }
}

/// Stands by until this one works. One that stands by is ready: it has nothing to do.
pub(crate) async fn stand_by(mut role: watch::Receiver<Role>, ready: &ReadyHandle) {
    loop {
        match &*role.borrow_and_update() {
            Role::Leads => return,
            Role::Follows(_) => ready.ready(),
            Role::Unknown(why) => {
                ready.not_ready(format!("a look at Lease {LEASE_AGENT}, which tells who works {why}"));
            }
        }
        if role.changed().await.is_err() {
            // The election has ended, and the program does.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use portolan_runtime::Readiness;

    use super::*;

    #[tokio::test]
    async fn who_stands_by_is_ready_and_works_once_the_lease_is_its_own() {
        let readiness = Readiness::new();
        let ready = readiness.task("hub");
        let role = watch::Sender::new(Role::Unknown("fails".to_owned()));
        let mut stands_by = std::pin::pin!(stand_by(role.subscribe(), &ready));
        assert!(stands_by.as_mut().now_or_never().is_none());
        assert!(!readiness.is_ready() && readiness.report().contains("fails"));
        role.send_replace(Role::Follows(Replica("other".to_owned())));
        assert!(stands_by.as_mut().now_or_never().is_none());
        assert!(readiness.is_ready());
        role.send_replace(Role::Leads);
        assert!(stands_by.now_or_never().is_some());
    }
}
