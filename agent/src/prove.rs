//! Shows the hub by which key this member signs the tokens of its ServiceAccounts: a token over the hub's nonce, of an
//! account that has no right.
//!
//! Routers know a caller once the key that signed its token is proven, so a new key is shown within seconds of its first
//! use. Keys that the member publishes and does not sign by, before a rotation or after, cannot be shown and are asked for
//! again and again: that is one TokenRequest each time, which an API server signs from memory. Caller: `stream`.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};
use portolan_crds::labels::{SERVICE_ACCOUNT_PROOF, proof_audience};
use portolan_runtime::Chain;
use portolan_wire::v1::SigningKeys;
use portolan_wire::v1::agent_message::Kind as Said;
use serde_json::Value;
use tokio::sync::watch;

use crate::member::{self, CallError, bounded};
use crate::report::{Ended, Outbox, say};

/// How often it is looked whether the member signs by another key: callers' new tokens are unknown for so long.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// After so many looks, ten minutes, all are shown again.
const SHOW_AGAIN: u32 = 120;
/// The shortest life that TokenRequests give.
const PROOF_SECONDS: i64 = 600;

/// Shows keys by one member.
pub(crate) struct Prover {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Prover {
    /// Shows each key once it signs, from the nonce on, until the stream ends.
    pub(crate) async fn run(
        &self,
        mut nonce: watch::Receiver<Option<String>>,
        outbox: &Outbox,
    ) -> Result<Infallible, Ended> {
        let nonce = match nonce.wait_for(Option::is_some).await {
            Ok(nonce) => nonce.clone().unwrap_or_default(),
            Err(_) => return Err(Ended),
        };
        let mut shown = BTreeSet::new();
        let (mut failed, mut looks) = (false, 0);
        loop {
            // The hub may have refused it for a reason that is gone.
            if looks == SHOW_AGAIN {
                (looks, shown) = (0, BTreeSet::new());
            }
            looks += 1;
            match self.look(&nonce, &mut shown).await {
                Ok(Some(keys)) => say(outbox, Said::SigningKeys(keys)).await?,
                Err(error) if !failed => {
                    failed = true;
                    tracing::warn!(error = %Chain(&error), "cannot show the hub by which key this member signs tokens");
                }
                Ok(None) | Err(_) => {}
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// What is to be shown now, if a key that has not been shown signs.
    async fn look(&self, nonce: &str, shown: &mut BTreeSet<String>) -> Result<Option<SigningKeys>, CallError> {
        let jwks = member::jwks(&self.client).await?;
        if key_ids(&jwks).is_subset(shown) {
            return Ok(None);
        }
        let proof = self.sign(nonce).await?;
        // Of several API servers one may sign by what another does not publish yet.
        let signer = signer_of(&proof).filter(|key| !shown.contains(key) && key_ids(&jwks).contains(key));
        let Some(key) = signer else {
            return Ok(None);
        };
        tracing::info!(key, "showing the hub the key that this member signs tokens by");
        shown.insert(key);
        Ok(Some(SigningKeys { jwks, proof }))
    }

    async fn sign(&self, nonce: &str) -> Result<String, CallError> {
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), &self.namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(vec![proof_audience(nonce)]),
                expiration_seconds: Some(PROOF_SECONDS),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let params = PostParams::default();
        let signed = accounts.create_token_request(SERVICE_ACCOUNT_PROOF, &params, &request);
        let status = bounded(signed).await?.status;
        Ok(status.and_then(|status| status.token).unwrap_or_default())
    }
}

/// The ids of the keys of a JWKS document.
fn key_ids(jwks: &str) -> BTreeSet<String> {
    let document: Value = serde_json::from_str(jwks).unwrap_or_default();
    let keys = document["keys"].as_array().into_iter().flatten();
    keys.filter_map(|key| key["kid"].as_str().map(ToOwned::to_owned))
        .collect()
}

/// The id of the key that signed a token, by the token's own word.
fn signer_of(token: &str) -> Option<String> {
    let header = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').next()?).ok()?;
    let header: Value = serde_json::from_slice(&header).ok()?;
    header["kid"].as_str().map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::json;
    use tokio::sync::mpsc;

    use super::*;

    fn token(key: &str) -> String {
        let header = BASE64_URL_SAFE_NO_PAD.encode(json!({"alg": "RS256", "kid": key}).to_string());
        format!("{header}.claims.signature")
    }

    /// A member that publishes keys and signs by one of them.
    type Member = Arc<Mutex<(Vec<&'static str>, &'static str)>>;

    fn prover(member: &Member) -> Prover {
        let member = member.clone();
        let client = crate::testing::answering(move |method, path| {
            let (published, signs) = member.lock().clone();
            if method == http::Method::GET {
                assert_eq!(path, "/openid/v1/jwks");
                let keys: Vec<_> = published.iter().map(|kid| json!({"kid": kid})).collect();
                return Ok(json!({ "keys": keys }));
            }
            assert_eq!(path, "/api/v1/namespaces/system/serviceaccounts/portolan-proof/token");
            let status = json!({"token": token(signs), "expirationTimestamp": "2026-11-23T06:00:00Z"});
            Ok(json!({"metadata": {}, "spec": {"audiences": []}, "status": status}))
        });
        Prover {
            client,
            namespace: "system".to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_shown_when_it_signs_and_not_when_it_is_published() {
        let member: Member = Arc::new(Mutex::new((vec!["old"], "old")));
        let (outbox, mut inbox) = mpsc::channel(4);
        let nonce = watch::Sender::new(None);
        let prover = prover(&member);
        let script = async {
            assert!(
                tokio::time::timeout(LOOK_EVERY * 3, inbox.recv()).await.is_err(),
                "no nonce yet"
            );
            nonce.send_replace(Some("n".to_owned()));
            assert_eq!(next(&mut inbox).await, token("old"));
            *member.lock() = (vec!["old", "new"], "old");
            assert!(
                tokio::time::timeout(LOOK_EVERY * 3, inbox.recv()).await.is_err(),
                "published"
            );
            *member.lock() = (vec!["old", "new"], "new");
            assert_eq!(next(&mut inbox).await, token("new"));
            assert!(
                tokio::time::timeout(LOOK_EVERY * 3, inbox.recv()).await.is_err(),
                "told twice"
            );
        };
        tokio::select! {
            _ = prover.run(nonce.subscribe(), &outbox) => panic!("ended"),
            () = script => {}
        }
    }

    async fn next(inbox: &mut mpsc::Receiver<portolan_wire::v1::AgentMessage>) -> String {
        let message = tokio::time::timeout(LOOK_EVERY * 2, inbox.recv()).await.unwrap();
        match message.unwrap().kind {
            Some(Said::SigningKeys(keys)) => keys.proof,
            other => panic!("{other:?}"),
        }
    }
}
