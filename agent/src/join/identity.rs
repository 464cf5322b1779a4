//! The agent's identity towards the hub, and the member Secret that keeps it over restarts.
//!
//! The key is stored *before* the hub sees it: a bootstrap token is spent on the first public key it meets, so an agent
//! that forgot its key after asking could never ask again. Callers: `join`, `uninstall`.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret as KubeSecret;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, Client};
use portolan_crds::labels::SECRET_AGENT_IDENTITY;
use portolan_runtime::tls::{self, IdentityStore, TlsError, TrustStore};
use portolan_runtime::{Chain, Secret};
use portolan_wire::client::{HubLink, LinkError};
use portolan_wire::identity::Identity;
use thiserror::Error;

use crate::member::{CallError, bounded};

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const CA: &str = "ca.crt";
const HUB: &str = "hub";
const BOOTSTRAP: &str = "bootstrap";
/// The highest term of a hub that this agent has heard.
const TERM: &str = "term";

/// A certificate of the hub CA for this agent, with its key and the CA that the hub is verified by.
#[derive(Debug, Clone)]
pub(crate) struct AgentIdentity {
    /// Name of this member cluster, as the certificate says.
    pub(crate) cluster: String,
    pub(crate) certificate: Arc<tls::Identity>,
    pub(crate) ca_pem: String,
    pub(crate) origin: Origin,
}

/// The hub and the join that an identity is from.
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
    #[error(transparent)]
    Unusable(#[from] TlsError),
    #[error("the certificate names {0:?}, which is no agent")]
    NotAnAgent(String),
}

/// What the Secret holds: a whole identity, or the key of one that was asked for and not yet given.
#[derive(Debug)]
pub(crate) enum StoredIdentity {
    Nothing,
    KeyOnly(Secret),
    Whole(Box<AgentIdentity>),
}

impl AgentIdentity {
    /// Reads whose the certificate is. `ca_pem` is what is trusted from now on, until a hub that it verifies says otherwise on
    /// the agent's stream.
    pub(crate) fn new(certificate: tls::Identity, ca_pem: &str, origin: Origin) -> Result<Self, IdentityError> {
        let subject = certificate.subject();
        let Some(Identity::Agent(cluster)) = Identity::from_subject(&subject.common_name, &subject.organizations)
        else {
            return Err(IdentityError::NotAnAgent(subject.common_name.clone()));
        };
        Ok(Self {
            cluster,
            certificate: Arc::new(certificate),
            ca_pem: ca_pem.to_owned(),
            origin,
        })
    }

    /// The same with other CAs; `None` if it trusts just these already.
    pub(crate) fn trusting(&self, ca_pem: &str) -> Result<Option<Self>, IdentityError> {
        let fingerprint = |pem: &str| TrustStore::from_pem(pem).map(|trust| trust.fingerprint());
        let next = Self {
            ca_pem: ca_pem.to_owned(),
            ..self.clone()
        };
        let same = fingerprint(ca_pem)? == fingerprint(&self.ca_pem)?;
        Ok((!same).then_some(next))
    }

    /// The way to the hub that issued it, by this identity.
    pub(crate) fn link(&self) -> Result<HubLink, LinkError> {
        let trust = TrustStore::from_pem(&self.ca_pem)?;
        HubLink::new(&self.origin.hub, trust, IdentityStore::new(self.certificate.clone()))
    }
}

/// The Secret in the member that keeps the identity.
#[derive(Debug, Clone)]
pub(crate) struct IdentitySecret {
    secrets: Api<KubeSecret>,
}

impl IdentitySecret {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self {
            secrets: Api::namespaced(client, namespace),
        }
    }

    pub(crate) async fn load(&self) -> Result<StoredIdentity, CallError> {
        let Some(secret) = bounded(self.secrets.get_opt(SECRET_AGENT_IDENTITY)).await? else {
            return Ok(StoredIdentity::Nothing);
        };
        let text = |key: &str| raw_text(&secret, key);
        let Some(key) = text(KEY).map(Secret::new) else {
            return Ok(StoredIdentity::Nothing);
        };
        let (Some(certificate), Some(ca), Some(hub)) = (text(CERTIFICATE), text(CA), text(HUB)) else {
            return Ok(StoredIdentity::KeyOnly(key));
        };
        let origin = Origin {
            hub,
            bootstrap: text(BOOTSTRAP).unwrap_or_default(),
        };
        let read = tls::Identity::from_pem(&certificate, &key).map_err(IdentityError::from);
        Ok(
            match read.and_then(|certificate| AgentIdentity::new(certificate, &ca, origin)) {
                Ok(identity) => StoredIdentity::Whole(Box::new(identity)),
                Err(error) => {
                    tracing::warn!(secret = SECRET_AGENT_IDENTITY, error = %Chain(&error), "stored identity cannot be used, joining anew");
                    StoredIdentity::KeyOnly(key)
                }
            },
        )
    }

    pub(crate) async fn store_key(&self, key: &Secret) -> Result<(), CallError> {
        self.write(&BTreeMap::from([(KEY, key.expose().clone())]), KeptTerm::Stays)
            .await
    }

    /// Keeps an identity of the hub that is known: renewed, or with other CAs.
    pub(crate) async fn store(&self, identity: &AgentIdentity) -> Result<(), CallError> {
        self.write(&entries(identity), KeptTerm::Stays).await
    }

    /// Keeps an identity that a bootstrap token was given for: that may be another hub's, with terms of its own.
    pub(crate) async fn store_joined(&self, identity: &AgentIdentity) -> Result<(), CallError> {
        self.write(&entries(identity), KeptTerm::Goes).await
    }

    /// The highest term of a hub that was heard; 0: none was.
    pub(crate) async fn term(&self) -> Result<u64, CallError> {
        let secret = bounded(self.secrets.get_opt(SECRET_AGENT_IDENTITY)).await?;
        let text = secret.and_then(|secret| raw_text(&secret, TERM));
        Ok(text.and_then(|text| text.trim().parse().ok()).unwrap_or_default())
    }

    /// Keeps `term` if it is higher than what is kept.
    pub(crate) async fn note_term(&self, term: u64) -> Result<(), CallError> {
        let Some(mut secret) = bounded(self.secrets.get_opt(SECRET_AGENT_IDENTITY)).await? else {
            return Ok(());
        };
        let kept = raw_text(&secret, TERM).and_then(|text| text.trim().parse::<u64>().ok());
        if kept.is_some_and(|kept| kept >= term) {
            return Ok(());
        }
        let data = secret.data.get_or_insert_default();
        data.insert(TERM.to_owned(), ByteString(term.to_string().into_bytes()));
        let params = PostParams::default();
        let replaced = self.secrets.replace(SECRET_AGENT_IDENTITY, &params, &secret);
        bounded(replaced).await.map(drop)
    }

    /// Absent already is as good.
    pub(crate) async fn delete(&self) -> Result<(), CallError> {
        match bounded(self.secrets.delete(SECRET_AGENT_IDENTITY, &DeleteParams::default())).await {
            Err(error) if error.status() != Some(404) => Err(error),
            _ => Ok(()),
        }
    }

    /// Replaces what join has made: the agent's RBAC lets it create no Secret; where it runs with more, it does. A term that is noted
    /// meanwhile is not written over.
    async fn write(&self, data: &BTreeMap<&str, String>, term: KeptTerm) -> Result<(), CallError> {
        match self.write_once(data, term).await {
            Err(error) if error.status() == Some(409) => self.write_once(data, term).await,
            outcome => outcome,
        }
    }

    async fn write_once(&self, data: &BTreeMap<&str, String>, term: KeptTerm) -> Result<(), CallError> {
        let present = bounded(self.secrets.get_opt(SECRET_AGENT_IDENTITY)).await?;
        let kept = present.as_ref().filter(|_| term == KeptTerm::Stays);
        let kept = kept.and_then(|secret| raw_text(secret, TERM)).map(|term| (TERM, term));
        let data = data.iter().map(|(key, value)| (*key, value.clone())).chain(kept);
        let data = data
            .map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())))
            .collect();
        let secret = KubeSecret {
            metadata: ObjectMeta {
                name: Some(SECRET_AGENT_IDENTITY.to_owned()),
                resource_version: present.and_then(|secret| secret.metadata.resource_version),
                ..ObjectMeta::default()
            },
            data: Some(data),
            ..KubeSecret::default()
        };
        let params = PostParams::default();
        match bounded(self.secrets.replace(SECRET_AGENT_IDENTITY, &params, &secret)).await {
            Err(error) if error.status() == Some(404) => bounded(self.secrets.create(&params, &secret)).await.map(drop),
            outcome => outcome.map(drop),
        }
    }
}

/// What becomes of the term that the Secret holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeptTerm {
    Stays,
    Goes,
}

fn entries(identity: &AgentIdentity) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        (CERTIFICATE, identity.certificate.cert_pem().to_owned()),
        (KEY, identity.certificate.key_pem().expose().clone()),
        (CA, identity.ca_pem.clone()),
        (HUB, identity.origin.hub.clone()),
        (BOOTSTRAP, identity.origin.bootstrap.clone()),
    ])
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
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use portolan_runtime::pki::CertificateAuthority;

    pub(crate) fn identity(common_name: &str, group: &str) -> Result<AgentIdentity, IdentityError> {
        let ca = CertificateAuthority::generate("test").unwrap();
        let issued = ca
            .issue_client(common_name, Some(group), Duration::from_hours(1))
            .unwrap();
        AgentIdentity::new(
            tls::Identity::from_pem(&issued.cert_pem, &issued.key_pem)?,
            ca.pem(),
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
        assert_eq!(identity.link().unwrap().address(), "hub:7443");
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
