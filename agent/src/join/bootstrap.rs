//! What a join begins with: hub address, hub CA and bootstrap token, from flags or from the Secret that `portolanctl
//! join` leaves in the member. Caller: `join`.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::Secret as KubeSecret;
use kube::{Api, Client};
use portolan_crds::labels::SECRET_AGENT_BOOTSTRAP;
use portolan_runtime::tls::TrustStore;
use portolan_runtime::{Secret, files, hex};
use sha2::{Digest, Sha256};

use super::JoinError;
use super::identity::{Origin, text_of};
use crate::member::bounded;

/// Where to find hub, CA and token: each by a flag, else in the bootstrap Secret.
#[derive(Debug, Clone, Default)]
pub(crate) struct BootstrapSource {
    pub(crate) hub: Option<String>,
    pub(crate) hub_ca: Option<PathBuf>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) namespace: String,
}

/// What was found there.
#[derive(Debug)]
pub(super) struct Bootstrap {
    pub(super) hub: String,
    pub(super) ca_pem: String,
    pub(super) token: Secret,
}

impl BootstrapSource {
    /// Read anew for each attempt, so that a second `portolanctl join` needs no restart here.
    pub(super) async fn read(&self, client: &Client) -> Result<Bootstrap, JoinError> {
        let secrets = Api::<KubeSecret>::namespaced(client.clone(), &self.namespace);
        let by_flags = self.hub.is_some() && self.hub_ca.is_some() && self.token_file.is_some();
        let secret = if by_flags {
            None
        } else {
            bounded(secrets.get_opt(SECRET_AGENT_BOOTSTRAP)).await?
        };
        let secret = secret.unwrap_or_default();
        let missing = |what, flag| JoinError::Missing {
            what,
            flag,
            namespace: self.namespace.clone(),
        };
        let pick = |given: Option<String>, key| given.or_else(|| text_of(&secret, key));
        Ok(Bootstrap {
            hub: pick(self.hub.clone(), "hub").ok_or_else(|| missing("hub address", "--hub"))?,
            ca_pem: pick(read_text(self.hub_ca.as_ref())?, "ca.crt").ok_or_else(|| missing("hub CA", "--hub-ca"))?,
            token: pick(read_text(self.token_file.as_ref())?, "token")
                .map(Secret::new)
                .ok_or_else(|| missing("bootstrap token", "--bootstrap-token-file"))?,
        })
    }
}

impl Bootstrap {
    pub(super) fn origin(&self) -> Origin {
        Origin {
            hub: self.hub.clone(),
            bootstrap: self.hash(),
        }
    }

    /// Tells one join from another without keeping the token.
    pub(super) fn hash(&self) -> String {
        hex(Sha256::digest(self.token.expose()))
    }

    /// Whether it is for a hub that has a CA of these.
    pub(super) fn is_of_ca(&self, ca_pem: &str) -> bool {
        let read = |pem: &str| TrustStore::from_pem(pem).ok();
        let ours = read(&self.ca_pem);
        ours.zip(read(ca_pem))
            .is_some_and(|(ours, theirs)| ours.shares(&theirs))
    }
}

/// The text of a file without the newline at its end; an empty one counts as absent.
fn read_text(path: Option<&PathBuf>) -> Result<Option<String>, JoinError> {
    let Some(path) = path else { return Ok(None) };
    let text = String::from_utf8_lossy(&files::read(path)?).trim_end().to_owned();
    Ok((!text.is_empty()).then_some(text))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::join) fn bootstrap(ca_pem: &str, token: &str) -> Bootstrap {
        Bootstrap {
            hub: "hub:7443".to_owned(),
            ca_pem: ca_pem.to_owned(),
            token: token.into(),
        }
    }

    #[test]
    fn the_hash_is_no_token() {
        let bootstrap = bootstrap("ca", "abc123.canary");
        assert_eq!(bootstrap.hash().len(), 64);
        assert!(!format!("{bootstrap:?} {:?}", bootstrap.origin()).contains("canary"));
    }
}
