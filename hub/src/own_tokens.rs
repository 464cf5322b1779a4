//! Reviews tokens of routers that run in the hub's own cluster: no agent has to be there. The token is never logged. Caller: `enroll`.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::api::{Api, PostParams};
use kube::{Client, Error as KubeError};
use portolan_crds::names::bound_pod;
use portolan_runtime::Secret;
use portolan_wire::v1;

/// How long the API server is waited for.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the hub's own API server.
#[derive(Clone)]
pub(crate) struct OwnTokens {
    api: Api<TokenReview>,
}

impl OwnTokens {
    pub(crate) fn new(client: Client) -> Self {
        Self { api: Api::all(client) }
    }

    /// Reviews a token, and says of it what an agent would of its member's. `Err`: the API server said nothing.
    pub(crate) async fn review(&self, token: &Secret, audience: String) -> Result<v1::TokenReviewed, String> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.expose().to_owned(),
                audiences: Some(vec![audience]),
            },
            ..TokenReview::default()
        };
        let asked = tokio::time::timeout(TIMEOUT, self.api.create(&PostParams::default(), &review)).await;
        let status = match asked {
            Ok(Ok(answer)) => answer.status.unwrap_or_default(),
            Ok(Err(error)) => {
                // An error's text could quote the token.
                let code = match &error {
                    KubeError::Api(status) => status.code.to_string(),
                    _ => "no answer".to_owned(),
                };
                tracing::warn!(code, "the hub's API server gave no token review");
                return Err(format!("the hub's API server gave no token review: {code}"));
            }
            Err(_) => return Err("the hub's API server gave no token review in time".to_owned()),
        };
        if status.authenticated != Some(true) {
            return Ok(v1::TokenReviewed {
                error: status.error.unwrap_or_default(),
                ..v1::TokenReviewed::default()
            });
        }
        let user = status.user.unwrap_or_default();
        let (pod, pod_uid) = bound_pod(user.extra.as_ref());
        Ok(v1::TokenReviewed {
            authenticated: true,
            username: user.username.unwrap_or_default(),
            pod,
            pod_uid,
            ..v1::TokenReviewed::default()
        })
    }
}
