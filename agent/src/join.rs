//! How the agent gets its identity: bootstrap token and key → a certificate of the hub → a Secret in the member.
//!
//! The life of the identity is `wire::client`'s; here is where it is kept, and when a stored one is given up for a new
//! join. A restart with a stored identity needs neither token nor hub. Caller: `app`.

pub(crate) mod bootstrap;
pub(crate) mod identity;

use std::sync::Arc;
use std::time::SystemTime;

use kube::Client;
use portolan_crds::labels::SECRET_AGENT_BOOTSTRAP;
use portolan_runtime::files::FileError;
use portolan_runtime::pki::{self, PkiError};
use portolan_runtime::tls::{Identity, IdentityStore, TrustStore};
use portolan_runtime::{Chain, Secret};
use portolan_wire::client::{About, Answer, Applicant, Applied, CaNews, EnrollError, HubLink, LinkError};
use portolan_wire::v1::Trust;
use portolan_wire::v1::enroll_request::Proof;
use thiserror::Error;
use tokio::sync::{Notify, watch};

use crate::member::{self, CallError};
use bootstrap::{Bootstrap, BootstrapSource};
use identity::{AgentIdentity, IdentityError, IdentitySecret, StoredIdentity};

/// Why there is no identity yet. All are retried: a person can mend each without a restart.
#[derive(Debug, Error)]
pub(crate) enum JoinError {
    #[error(
        "no {what}: give {flag}, or run `portolanctl join` for this cluster, which writes Secret {namespace}/{SECRET_AGENT_BOOTSTRAP}"
    )]
    Missing {
        what: &'static str,
        flag: &'static str,
        namespace: String,
    },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Member(#[from] CallError),
    #[error("the way to the hub")]
    Link(#[from] LinkError),
    #[error("the hub refuses the bootstrap token ({0}): make a new one with `portolanctl join`")]
    Refused(String),
    #[error(transparent)]
    Enroll(EnrollError),
    #[error(transparent)]
    Key(#[from] PkiError),
    #[error("the hub issued a certificate that cannot be used")]
    Identity(#[from] IdentityError),
}

impl From<EnrollError> for JoinError {
    fn from(error: EnrollError) -> Self {
        match error.refusal() {
            Some(reason) => Self::Refused(reason.to_owned()),
            None => Self::Enroll(error),
        }
    }
}

/// Everything needed to get an identity.
pub(crate) struct Joiner {
    pub(crate) client: Client,
    pub(crate) source: BootstrapSource,
    pub(crate) secret: IdentitySecret,
    /// The identity in use; none before the first join.
    pub(crate) current: watch::Sender<Option<Arc<AgentIdentity>>>,
    /// Told by the stream when the hub would not take the identity. A Notify: once is as good as often.
    pub(crate) refused: Arc<Notify>,
    /// What the hub says of its CAs, by the stream.
    pub(crate) news: Arc<CaNews>,
}

impl Applicant for Joiner {
    type Error = JoinError;

    fn identity(&self) -> Option<Arc<Identity>> {
        self.current
            .borrow()
            .as_ref()
            .map(|current| current.certificate.clone())
    }

    /// The stored identity, unless this cluster was joined again since or it has expired; else a new one.
    #[tracing::instrument(name = "join", skip_all)]
    async fn apply(&self) -> Result<Applied, JoinError> {
        let stored = self.secret.load().await?;
        let bootstrap = self.source.read(&self.client).await;
        let identity = match stored {
            StoredIdentity::Nothing => return self.enroll(&bootstrap?, None).await,
            StoredIdentity::KeyOnly(key) => return self.enroll(&bootstrap?, Some(key)).await,
            StoredIdentity::Whole(identity) => *identity,
        };
        let now = SystemTime::now();
        let Some(reason) = rejoin_reason(&identity, bootstrap.as_ref().ok(), now) else {
            return Ok(self.take(identity));
        };
        tracing::warn!(cluster = identity.cluster, reason, "joining anew");
        let bootstrap = bootstrap?;
        match self
            .enroll(&bootstrap, Some(identity.certificate.key_pem().clone()))
            .await
        {
            Err(error @ JoinError::Refused(_))
                if identity.certificate.not_after() > now && bootstrap.is_of_ca(&identity.ca_pem) =>
            {
                tracing::warn!(error = %Chain(&error), "going on with the identity of the earlier join");
                Ok(self.take(identity))
            }
            outcome => outcome,
        }
    }

    async fn renew(&self) -> Result<(), JoinError> {
        let current = self.current.borrow().clone().expect("who renews has joined");
        let renewed = AgentIdentity::new(current.link()?.renew().await?, &current.ca_pem, current.origin.clone())?;
        self.secret.store(&renewed).await?;
        self.take(renewed);
        Ok(())
    }

    async fn refused(&self) {
        self.refused.notified().await;
    }

    async fn told(&self) -> Trust {
        self.news.take().await
    }

    /// The stream comes back by it.
    async fn trust(&self, ca_pem: &str) -> Result<(), JoinError> {
        let current = self.current.borrow().clone().expect("who has a stream has joined");
        let Some(next) = current.trusting(ca_pem)? else {
            return Ok(());
        };
        self.secret.store(&next).await?;
        self.current.send_replace(Some(Arc::new(next)));
        Ok(())
    }
}

impl Joiner {
    /// Uses an identity that is stored. `--hub` says where the hub is now, whatever it was when that was issued.
    fn take(&self, mut identity: AgentIdentity) -> Applied {
        if let Some(hub) = &self.source.hub {
            identity.origin.hub.clone_from(hub);
        }
        self.current.send_if_modified(|current| {
            let same = |current: &AgentIdentity| current.certificate.cert_pem() == identity.certificate.cert_pem();
            let changed = !current.as_deref().is_some_and(same);
            if changed {
                *current = Some(Arc::new(identity));
            }
            changed
        });
        Applied::Enrolled
    }

    async fn enroll(&self, bootstrap: &Bootstrap, key: Option<Secret>) -> Result<Applied, JoinError> {
        let facts = member::facts(&self.client).await?;
        let key = if let Some(key) = key {
            key
        } else {
            let key = pki::new_private_key()?;
            self.secret.store_key(&key).await?;
            key
        };
        let trust = TrustStore::from_pem(&bootstrap.ca_pem).map_err(LinkError::from)?;
        let link = HubLink::new(&bootstrap.hub, trust, IdentityStore::empty())?;
        let proof = Proof::BootstrapToken(bootstrap.token.expose().clone());
        match link.enroll(proof, About::Member(facts), &key).await? {
            Answer::Pending { reason, wait } => Ok(Applied::Pending { reason, wait }),
            Answer::Issued(certificate) => {
                let identity = AgentIdentity::new(certificate, &bootstrap.ca_pem, bootstrap.origin())?;
                self.secret.store_joined(&identity).await?;
                tracing::info!(cluster = identity.cluster, hub = identity.origin.hub, "joined");
                Ok(self.take(identity))
            }
        }
    }
}

/// Why a stored identity is not to be used any more. The bootstrap's CA says nothing of it: that is the hub's of the day of the
/// join, and the identity's is what the hub has said since.
fn rejoin_reason(identity: &AgentIdentity, bootstrap: Option<&Bootstrap>, now: SystemTime) -> Option<&'static str> {
    if identity.certificate.not_after() <= now {
        Some("the stored identity has expired")
    } else if bootstrap.is_some_and(|bootstrap| bootstrap.hash() != identity.origin.bootstrap) {
        Some("this cluster was joined again")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tonic::Status;

    use super::*;
    use bootstrap::tests::bootstrap;
    use identity::tests::identity;

    #[test]
    fn when_a_stored_identity_is_given_up() {
        let (now, mut mine) = (
            SystemTime::now(),
            identity("portolan:agent:east", "portolan:agents").unwrap(),
        );
        let same = bootstrap(&mine.ca_pem, "abc123.first");
        mine.origin = same.origin();
        let again = bootstrap(&mine.ca_pem, "abc123.second");
        let since = bootstrap("the CA before", "abc123.first");
        let reason = |bootstrap, now| rejoin_reason(&mine, bootstrap, now).unwrap_or("none");
        assert_eq!(reason(None, now), "none");
        assert_eq!(reason(Some(&same), now), "none");
        assert!(reason(Some(&again), now).contains("joined again"));
        assert_eq!(reason(Some(&since), now), "none", "the hub's CA was rotated");
        assert!(reason(None, now + Duration::from_hours(2)).contains("expired"));
    }

    #[test]
    fn refusals_name_the_fix() {
        let answer = |status| JoinError::from(EnrollError::Status(Box::new(status)));
        let error = answer(Status::unauthenticated("token abc123 has expired")).to_string();
        assert!(
            error.contains("portolanctl join") && error.contains("expired"),
            "{error}"
        );
        assert!(matches!(answer(Status::unavailable("starting")), JoinError::Enroll(_)));
    }
}
