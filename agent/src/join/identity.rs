//! The agent's identity towards the hub, and the member Secret that keeps it over restarts.
//!
//! The key is stored *before* the hub sees it: a bootstrap token is spent on the first public key it meets, so an agent
//! that forgot its key after asking could never ask again. Callers: `join`, `join::renew`, `uninstall`.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret as KubeSecret;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, Client};
use portolan_crds::labels::SECRET_AGENT_IDENTITY;
use portolan_runtime::Secret;
use portolan_runtime::pki::{PkiError, subject_of};
use portolan_wire::identity::Identity;
use portolan_wire::v1::Issued;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use thiserror::Error;

use crate::member::{CallError, bounded};

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const CA: &str = "ca.crt";
const HUB: &str = "hub";
const BOOTSTRAP: &str = "bootstrap";

/// A certificate of the hub CA for this agent, with its key and the CA that the hub is verified by.
#[derive(Debug, Clone)]
pub(crate) struct AgentIdentity {
    /// Name of this member cluster, as the certificate says.
    pub(crate) cluster: String,
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: Secret<String>,
    pub(crate) ca_pem: String,
    pub(crate) origin: Origin,
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
}

/// By what an identity was got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// `host:port` of the hub.
    pub(crate) hub: String,
    /// Hash of the bootstrap token: another one is another join.
    pub(crate) bootstrap: String,
}

/// Why a certificate is not an agent's identity.
#[derive(Debug, Error)]
pub(crate) enum IdentityError {
    #[error("no certificate in the PEM text")]
    NoCertificate,
    #[error(transparent)]
    Unreadable(#[from] PkiError),
    #[error("the certificate names {0:?}, which is no agent")]
    NotAnAgent(String),
}

/// What the Secret holds: a whole identity, or the key of one that was asked for and not yet given.
#[derive(Debug)]
pub(crate) enum Stored {
    Nothing,
    KeyOnly(Secret<String>),
    Whole(Box<AgentIdentity>),
}

impl AgentIdentity {
    /// Reads the certificate. `ca_pem` is the CA that is pinned from now on.
    pub(crate) fn new(
        certificate_pem: String,
        key_pem: Secret<String>,
        ca_pem: String,
        origin: Origin,
    ) -> Result<Self, IdentityError> {
        let der =
            CertificateDer::from_pem_slice(certificate_pem.as_bytes()).map_err(|_| IdentityError::NoCertificate)?;
        let subject = subject_of(&der)?;
        let Some(Identity::Agent(cluster)) = Identity::from_subject(&subject.common_name, &subject.organizations)
        else {
            return Err(IdentityError::NotAnAgent(subject.common_name));
        };
        Ok(Self {
            cluster,
            certificate_pem,
            key_pem,
            ca_pem,
            origin,
            not_before: subject.not_before,
            not_after: subject.not_after,
        })
    }

    /// From the hub's answer. The CA stays the one that was pinned: an answer cannot replace what verified it.
    pub(crate) fn issued(
        issued: Issued,
        key_pem: Secret<String>,
        pinned_ca: &str,
        origin: Origin,
    ) -> Result<Self, IdentityError> {
        Self::new(issued.certificate_pem, key_pem, pinned_ca.to_owned(), origin)
    }

    pub(crate) fn is_valid_at(&self, now: SystemTime) -> bool {
        self.not_before <= now && now < self.not_after
    }

    /// How long from `now` until half of its life is over; zero if it is.
    pub(crate) fn until_half_life(&self, now: SystemTime) -> Duration {
        let life = self.not_after.duration_since(self.not_before).unwrap_or_default();
        (self.not_before + life / 2).duration_since(now).unwrap_or_default()
    }
}

/// The Secret in the member that keeps the identity.
#[derive(Debug, Clone)]
pub(crate) struct IdentityStore {
    secrets: Api<KubeSecret>,
}

impl IdentityStore {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self {
            secrets: Api::namespaced(client, namespace),
        }
    }

    pub(crate) async fn load(&self) -> Result<Stored, CallError> {
        let Some(secret) = bounded(self.secrets.get_opt(SECRET_AGENT_IDENTITY)).await? else {
            return Ok(Stored::Nothing);
        };
        let text = |key: &str| raw_text(&secret, key);
        let Some(key) = text(KEY).map(Secret::new) else {
            return Ok(Stored::Nothing);
        };
        let (Some(certificate), Some(ca), Some(hub)) = (text(CERTIFICATE), text(CA), text(HUB)) else {
            return Ok(Stored::KeyOnly(key));
        };
        let origin = Origin {
            hub,
            bootstrap: text(BOOTSTRAP).unwrap_or_default(),
        };
        Ok(match AgentIdentity::new(certificate, key.clone(), ca, origin) {
            Ok(identity) => Stored::Whole(Box::new(identity)),
            Err(error) => {
                tracing::warn!(secret = SECRET_AGENT_IDENTITY, %error, "stored identity cannot be used, joining anew");
                Stored::KeyOnly(key)
            }
        })
    }

    pub(crate) async fn store_key(&self, key: &Secret<String>) -> Result<(), CallError> {
        self.write(BTreeMap::from([(KEY, key.expose().clone())])).await
    }

    pub(crate) async fn store(&self, identity: &AgentIdentity) -> Result<(), CallError> {
        self.write(BTreeMap::from([
            (CERTIFICATE, identity.certificate_pem.clone()),
            (KEY, identity.key_pem.expose().clone()),
            (CA, identity.ca_pem.clone()),
            (HUB, identity.origin.hub.clone()),
            (BOOTSTRAP, identity.origin.bootstrap.clone()),
        ]))
        .await
    }

    /// Absent already is as good.
    pub(crate) async fn delete(&self) -> Result<(), CallError> {
        match bounded(self.secrets.delete(SECRET_AGENT_IDENTITY, &DeleteParams::default())).await {
            Err(error) if error.status() != Some(404) => Err(error),
            _ => Ok(()),
        }
    }

    /// Creates or replaces. One agent writes it, so the last one wins and no precondition is needed.
    async fn write(&self, data: BTreeMap<&str, String>) -> Result<(), CallError> {
        let data = data
            .into_iter()
            .map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())))
            .collect();
        let secret = KubeSecret {
            metadata: ObjectMeta {
                name: Some(SECRET_AGENT_IDENTITY.to_owned()),
                ..ObjectMeta::default()
            },
            data: Some(data),
            ..KubeSecret::default()
        };
        match bounded(
            self.secrets
                .replace(SECRET_AGENT_IDENTITY, &PostParams::default(), &secret),
        )
        .await
        {
            Err(error) if error.status() == Some(404) => bounded(self.secrets.create(&PostParams::default(), &secret))
                .await
                .map(drop),
            outcome => outcome.map(drop),
        }
    }
}

/// A text in a Secret, without the newline that an editor leaves at its end.
pub(super) fn text_of(secret: &KubeSecret, key: &str) -> Option<String> {
    raw_text(secret, key).map(|text| text.trim_end().to_owned())
}

/// A text in a Secret as it is; an empty one counts as absent.
fn raw_text(secret: &KubeSecret, key: &str) -> Option<String> {
    let bytes = &secret.data.as_ref()?.get(key)?.0;
    let text = std::str::from_utf8(bytes).ok()?;
    (!text.trim().is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use portolan_runtime::pki::CertificateAuthority;

    pub(in crate::join) fn identity(common_name: &str, group: &str) -> Result<AgentIdentity, IdentityError> {
        let ca = CertificateAuthority::generate("test").unwrap();
        let issued = ca
            .issue_client(common_name, Some(group), Duration::from_hours(1))
            .unwrap();
        AgentIdentity::new(
            issued.cert_pem,
            issued.key_pem,
            ca.pem().to_owned(),
            Origin {
                hub: "hub:7443".to_owned(),
                bootstrap: String::new(),
            },
        )
    }

    #[test]
    fn the_cluster_is_what_the_certificate_says() {
        let identity = identity("portolan:agent:east", "portolan:agents").unwrap();
        assert_eq!(identity.cluster, "east");
        let now = SystemTime::now();
        assert!(identity.is_valid_at(now));
        assert!(!identity.is_valid_at(now + Duration::from_secs(3700)));
        let half = identity.until_half_life(now);
        assert!(
            half > Duration::from_mins(25) && half < Duration::from_mins(30),
            "{half:?}"
        );
        assert_eq!(identity.until_half_life(now + Duration::from_mins(50)), Duration::ZERO);
    }

    #[test]
    fn a_router_or_a_person_is_no_agent() {
        for (name, groups) in [("portolan:router:gw", "portolan:routers"), ("ada", "sre")] {
            assert!(matches!(identity(name, groups), Err(IdentityError::NotAnAgent(_))));
        }
    }

    #[test]
    fn the_key_never_shows() {
        let identity = identity("portolan:agent:east", "portolan:agents").unwrap();
        assert!(!format!("{identity:?}").contains("PRIVATE KEY"));
    }
}
