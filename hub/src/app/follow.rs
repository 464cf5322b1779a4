//! A replica that follows: it is ready while it can pass connections on to the one that leads, and leads once the election says so.

use std::sync::Arc;

use portolan_runtime::ReadyHandle;
use portolan_runtime::tls::TlsIncoming;
use tokio::sync::watch;

use super::Parts;
use crate::ca::Authorities;
use crate::lead::{self, Pulse, Role};
use crate::rotation;

/// What a replica has that may lead at any moment.
pub(super) struct Follower {
    pub(super) parts: Parts,
    pub(super) ca: Arc<Authorities>,
    pub(super) incoming: TlsIncoming,
    /// The name of this replica in the Lease.
    pub(super) identity: String,
    pub(super) pulse: Pulse,
    pub(super) role: watch::Receiver<Role>,
    pub(super) serving: ReadyHandle,
}

impl Follower {
    /// Follows the replica that leads, until this one does; then leads.
    pub(super) async fn follow(mut self) -> anyhow::Result<()> {
        let (client, namespace) = (self.parts.client.clone(), self.parts.config.namespace.clone());
        let mut follow_ca = std::pin::pin!(rotation::follow(client, namespace, self.ca.clone()));
        while !self.leads() {
            tokio::select! {
                changed = self.role.changed() => changed?,
                () = &mut follow_ca => {}
            }
        }
        let (client, namespace) = (self.parts.client.clone(), self.parts.config.namespace.clone());
        let told = lead::announce(client, namespace, self.identity);
        self.parts.tasks.spawn("announce", told);
        let by = (self.pulse, self.serving);
        Box::pin(self.parts.lead(self.ca, self.incoming, by)).await
    }

    /// Whether this replica leads by now; says on `/readyz` what it waits for if not.
    fn leads(&mut self) -> bool {
        let role = self.role.borrow_and_update().clone();
        let leader = match &role {
            Role::Leads => {
                self.serving.not_ready("what it needs to lead");
                return true;
            }
            Role::Unknown(why) => {
                self.serving.not_ready(format!("a replica that leads {why}"));
                return false;
            }
            Role::Follows(leader) => leader,
        };
        let who = &leader.identity;
        match (leader.differs(&self.parts.config.agreed), &leader.address) {
            (Some(differs), _) => self
                .serving
                .not_ready(format!("the settings of the replica that leads, {who}: {differs}")),
            (None, None) => self.serving.not_ready(format!(
                "an address of the replica that leads, {who}: it has no --replica-address"
            )),
            (None, Some(_)) => self.serving.ready(),
        }
        false
    }
}
