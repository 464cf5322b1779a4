//! Tokens of the fleet: minted by TokenRequest, kept in files that clients read again, renewed by `dev renew`.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Client;
use kube::api::{Api, PostParams};
use portolan_runtime::files;
use serde::{Deserialize, Serialize};

/// Life asked for; the API server may give less.
const LIFE_SECONDS: i64 = 3600;

/// How one token file is made.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TokenSource {
    pub(crate) file: PathBuf,
    /// Kubeconfig of the cluster that mints it.
    pub(crate) kubeconfig: PathBuf,
    pub(crate) namespace: String,
    pub(crate) service_account: String,
    /// Empty: the API server's own audience.
    pub(crate) audiences: Vec<String>,
    /// Name and uid of the Pod it is bound to.
    pub(crate) pod: Option<(String, String)>,
}

impl TokenSource {
    /// Mints the token and replaces its file. Returns when it expires, in Unix seconds.
    pub(crate) async fn mint(&self, client: &Client) -> anyhow::Result<i64> {
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(self.audiences.clone()),
                expiration_seconds: Some(LIFE_SECONDS),
                bound_object_ref: self.pod.as_ref().map(|(name, uid)| BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: Some(name.clone()),
                    uid: Some(uid.clone()),
                }),
            }),
            ..Default::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &self.namespace);
        let answer = accounts
            .create_token_request(&self.service_account, &PostParams::default(), &request)
            .await
            .with_context(|| {
                format!(
                    "cannot mint a token of ServiceAccount {}/{}",
                    self.namespace, self.service_account
                )
            })?;
        let status = answer
            .status
            .context("the API server answered a TokenRequest without a token")?;
        let (Some(token), Some(expires)) = (status.token, status.expiration_timestamp) else {
            bail!("the API server answered a TokenRequest without a token");
        };
        files::write_private(&self.file, token).context("cannot write a token")?;
        Ok(expires.0.as_second())
    }
}
