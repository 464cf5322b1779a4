//! Tokens of the member's `portolan-router` ServiceAccount, by which a gateway router acts there.
//!
//! Asked for 24 h, given the member's maximum if that is less, renewed at half-life: a router outlives an outage of hub
//! or agent by half a life at least. Callers: `app` runs it, `report` sends.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};
use portolan_crds::labels::SERVICE_ACCOUNT_ROUTER;
use portolan_runtime::backoff::jittered;
use portolan_runtime::{Backoff, Chain, Secret};
use thiserror::Error;
use tokio::sync::watch;

use crate::member::{CallError, bounded};
use crate::metrics::Metrics;

/// Lifetime that tokens are asked for with.
const TOKEN_LIFE: Duration = Duration::from_hours(24);
/// Renewed no sooner, whatever life the member gives (TokenRequest's own minimum is ten minutes).
const RENEW_MIN: Duration = Duration::from_secs(30);
/// A token is renewed long before it ends: time for some tries.
const RETRY_MAX: Duration = Duration::from_mins(1);

/// A minted token and when it expires.
#[derive(Debug, Clone)]
pub(crate) struct Minted {
    pub(crate) token: Secret,
    pub(crate) expires_unix_seconds: i64,
}

#[derive(Debug, Error)]
enum MintError {
    #[error("no token for ServiceAccount {SERVICE_ACCOUNT_ROUTER}")]
    Member(#[from] CallError),
    #[error("the member answered the token request without a token")]
    Empty,
}

/// Mints for ever; `tokens` holds the newest.
pub(crate) async fn run(client: Client, namespace: String, tokens: watch::Sender<Option<Minted>>, metrics: Metrics) {
    let accounts = Api::<ServiceAccount>::namespaced(client, &namespace);
    let mut backoff = Backoff::new(Duration::from_secs(1), RETRY_MAX);
    loop {
        match mint(&accounts).await {
            Ok(minted) => {
                let wait = renew_after(&minted, SystemTime::now());
                tracing::info!(expires = minted.expires_unix_seconds, renew_in = ?wait, "minted a token for routers");
                metrics.minted(minted.expires_unix_seconds);
                tokens.send_replace(Some(minted));
                backoff.reset();
                tokio::time::sleep(jittered(wait)).await;
            }
            Err(error) => {
                metrics.mint_failed();
                tracing::warn!(error = %Chain(&error), "cannot mint a token for routers");
                backoff.sleep().await;
            }
        }
    }
}

async fn mint(accounts: &Api<ServiceAccount>) -> Result<Minted, MintError> {
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            expiration_seconds: Some(i64::try_from(TOKEN_LIFE.as_secs()).expect("a day fits")),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let params = PostParams::default();
    let asked = accounts.create_token_request(SERVICE_ACCOUNT_ROUTER, &params, &request);
    let status = bounded(asked).await?.status.ok_or(MintError::Empty)?;
    let (token, expires) = status.token.zip(status.expiration_timestamp).ok_or(MintError::Empty)?;
    Ok(Minted {
        token: Secret::new(token),
        expires_unix_seconds: expires.0.as_second(),
    })
}

/// Half of what is left of its life.
fn renew_after(minted: &Minted, now: SystemTime) -> Duration {
    let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(minted.expires_unix_seconds).unwrap_or(0));
    let left = expires.duration_since(now).unwrap_or_default();
    (left / 2).max(RENEW_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewed_at_half_life_and_never_in_a_tight_loop() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let after = |expires| {
            let minted = Minted {
                token: "canary".into(),
                expires_unix_seconds: expires,
            };
            assert!(!format!("{minted:?}").contains("canary"));
            renew_after(&minted, now)
        };
        assert_eq!(after(1_000 + 3600), Duration::from_mins(30));
        assert_eq!(after(1_010), RENEW_MIN);
        assert_eq!(after(10), RENEW_MIN);
    }
}
