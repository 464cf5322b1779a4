//! Routers' tokens of the member: one for each router that the hub names, by which it acts here and nobody else does.
//!
//! Each is bound to a Secret of its own (`secret`), so that one router's is taken back by deleting that. Asked for 24 h, given
//! the member's maximum if that is less, renewed at half-life: a router outlives an outage of hub or agent by half a life at
//! least. Nothing is minted before the hub has told who the routers are, and nothing deleted but by a list that it told
//! whole: while it is away, all stays. Callers: `app` runs it, `report` sends, `uninstall` takes all back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};
use portolan_crds::labels::{ROUTERS_NAMESPACE, SERVICE_ACCOUNT_ROUTER};
use portolan_runtime::backoff::jittered;
use portolan_runtime::{Backoff, Chain, Secret, Tasks};
use portolan_wire::protocol::TOKEN_LIFE;
use thiserror::Error;
use tokio::sync::{Semaphore, watch};

use crate::member::{CallError, bounded};
use crate::metrics::Metrics;
use crate::settings::RouterId;

pub(crate) mod secret;

use secret::RouterSecrets;

/// Renewed no sooner, whatever life the member gives (TokenRequest's own minimum is ten minutes).
const RENEW_MIN: Duration = Duration::from_secs(30);
/// A token is renewed long before it ends: time for some tries.
const RETRY_MAX: Duration = Duration::from_mins(1);
/// Until it is looked again whether the Secrets are as they should be: somebody may delete one to take a token back.
const LOOK_AGAIN: Duration = Duration::from_mins(1);
/// Tokens that are asked for at once: a hub that names hundreds of routers floods no API server.
const AT_ONCE: usize = 8;

/// The routers that the hub names; `None` until it has told.
pub(crate) type Wanted = Option<Arc<BTreeSet<RouterId>>>;
/// The newest token of each router.
pub(crate) type Tokens = BTreeMap<RouterId, Minted>;

/// A minted token and when it expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Minted {
    pub(crate) token: Secret,
    pub(crate) expires_unix_seconds: i64,
    /// Uid of the Secret that it is bound to.
    secret_uid: String,
}

#[derive(Debug, Error)]
enum MintError {
    #[error("no token for ServiceAccount {ROUTERS_NAMESPACE}/{SERVICE_ACCOUNT_ROUTER}")]
    Member(#[from] CallError),
    #[error("the member answered the token request without a token")]
    Empty,
}

/// Mints for all routers. Clones share everything.
#[derive(Clone)]
pub(crate) struct Mint {
    accounts: Api<ServiceAccount>,
    secrets: RouterSecrets,
    tokens: watch::Sender<Tokens>,
    metrics: Metrics,
    // A semaphore: its places go round among the routers.
    places: Arc<Semaphore>,
}

impl Mint {
    pub(crate) fn new(client: Client, tokens: watch::Sender<Tokens>, metrics: Metrics) -> Self {
        Self {
            accounts: Api::namespaced(client.clone(), ROUTERS_NAMESPACE),
            secrets: RouterSecrets::new(client),
            tokens,
            metrics,
            places: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Follows the hub's list until cancelled.
    pub(crate) async fn run(self, tasks: Tasks, mut wanted: watch::Receiver<Wanted>) {
        let mut keepers = BTreeMap::<RouterId, Tasks>::new();
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));
        loop {
            let routers = wanted.borrow_and_update().clone();
            let mut is_tidy = true;
            if let Some(routers) = routers {
                self.turn_to(&routers, &mut keepers, &tasks);
                match self.tidy(&routers, &mut keepers).await {
                    Ok(()) => backoff.reset(),
                    Err(error) => {
                        tracing::warn!(error = %Chain(&error), "cannot look after the Secrets of routers' tokens");
                        is_tidy = false;
                    }
                }
                // Those whose Secrets were not as they should be begin anew.
                self.turn_to(&routers, &mut keepers, &tasks);
            }
            let pause = async {
                if is_tidy {
                    tokio::time::sleep(jittered(LOOK_AGAIN)).await;
                } else {
                    backoff.sleep().await;
                }
            };
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                () = pause => {}
            }
        }
    }

    /// Each router that is wanted has a task, and no other.
    fn turn_to(&self, wanted: &BTreeSet<RouterId>, keepers: &mut BTreeMap<RouterId, Tasks>, tasks: &Tasks) {
        keepers.retain(|router, keeper| {
            let keep = wanted.contains(router);
            if !keep {
                tracing::info!(router = router.name, uid = router.uid, "the hub has forgotten a router");
                keeper.cancel();
            }
            keep
        });
        for router in wanted {
            keepers.entry(router.clone()).or_insert_with(|| {
                let keeper = tasks.child();
                let (this, router, token) = (self.clone(), router.clone(), keeper.token());
                keeper.spawn("mint-router", async move {
                    let _ = token.run_until_cancelled(this.keep(router)).await;
                });
                keeper
            });
        }
        self.tokens.send_if_modified(|tokens| {
            let before = tokens.len();
            tokens.retain(|router, _| wanted.contains(router));
            tokens.len() < before
        });
    }

    /// Deletes the Secrets of routers that are not wanted, and ends the tasks whose Secret is not there any more.
    async fn tidy(
        &self,
        wanted: &BTreeSet<RouterId>,
        keepers: &mut BTreeMap<RouterId, Tasks>,
    ) -> Result<(), CallError> {
        let before: Vec<_> = self
            .tokens
            .borrow()
            .iter()
            .map(|(router, minted)| (router.clone(), minted.secret_uid.clone()))
            .collect();
        let there = self.secrets.list().await?;
        let uids: BTreeSet<_> = wanted.iter().map(|router| router.uid.as_str()).collect();
        for secret in there.iter().filter(|secret| !uids.contains(secret.router_uid.as_str())) {
            self.secrets.delete(&secret.name).await?;
            tracing::info!(router = secret.router, "the token of a router is taken back");
        }
        for (router, secret_uid) in before {
            if !there.iter().any(|secret| secret.uid == secret_uid)
                && let Some(keeper) = keepers.remove(&router)
            {
                tracing::warn!(
                    router = router.name,
                    "the Secret of a router's token was deleted: it gets another"
                );
                keeper.cancel();
            }
        }
        Ok(())
    }

    /// Mints for one router, for ever.
    async fn keep(self, router: RouterId) {
        let mut backoff = Backoff::new(Duration::from_millis(500), RETRY_MAX);
        loop {
            match self.mint(&router).await {
                Ok(minted) => {
                    let wait = renew_after(&minted, SystemTime::now());
                    let (name, expires) = (&router.name, minted.expires_unix_seconds);
                    tracing::info!(router = name, expires, renew_in = ?wait, "minted a token for a router");
                    self.publish(&router, minted);
                    backoff.reset();
                    tokio::time::sleep(jittered(wait)).await;
                }
                Err(error) => {
                    self.metrics.mint_failed();
                    tracing::warn!(router = router.name, error = %Chain(&error), "cannot mint a token for a router");
                    backoff.sleep().await;
                }
            }
        }
    }

    fn publish(&self, router: &RouterId, minted: Minted) {
        self.tokens.send_modify(|tokens| {
            tokens.insert(router.clone(), minted);
            let first_end = tokens.values().map(|minted| minted.expires_unix_seconds).min();
            self.metrics.minted(first_end.unwrap_or_default());
        });
    }

    async fn mint(&self, router: &RouterId) -> Result<Minted, MintError> {
        let _place = self.places.acquire().await.expect("never closed");
        let secret = self.secrets.ensure(router).await?;
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(i64::try_from(TOKEN_LIFE.as_secs()).expect("a day fits")),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Secret".to_owned()),
                    name: Some(secret.name),
                    uid: Some(secret.uid.clone()),
                }),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let params = PostParams::default();
        let asked = self
            .accounts
            .create_token_request(SERVICE_ACCOUNT_ROUTER, &params, &request);
        let status = bounded(asked).await?.status.ok_or(MintError::Empty)?;
        let (token, expires) = status.token.zip(status.expiration_timestamp).ok_or(MintError::Empty)?;
        Ok(Minted {
            token: Secret::new(token),
            expires_unix_seconds: expires.0.as_second(),
            secret_uid: secret.uid,
        })
    }
}

/// Half of what is left of its life.
fn renew_after(minted: &Minted, now: SystemTime) -> Duration {
    let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(minted.expires_unix_seconds).unwrap_or(0));
    let left = expires.duration_since(now).unwrap_or_default();
    (left / 2).max(RENEW_MIN)
}

#[cfg(test)]
mod tests;
