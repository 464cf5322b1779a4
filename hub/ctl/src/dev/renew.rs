//! Mints a fleet's tokens anew at half their life. Called by the supervisor.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;

use crate::connect::Clients;
use crate::dev::fleet::Fleet;
use crate::dev::token::TokenSource;

const RETRY: Duration = Duration::from_secs(15);
/// The shortest life an API server gives is ten minutes.
const SOONEST: Duration = Duration::from_mins(1);

/// For ever.
pub(crate) async fn run(dir: &Path) {
    let mut clients = Clients::default();
    loop {
        let pause = match renew(dir, &mut clients).await {
            Ok(pause) => pause,
            Err(error) => {
                eprintln!("tokens are not renewed, next try in {} s: {error:#}", RETRY.as_secs());
                RETRY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Mints every token and says when to do so again. A cluster that is away keeps no other's tokens from being renewed.
async fn renew(dir: &Path, clients: &mut Clients) -> anyhow::Result<Duration> {
    let fleet = Fleet::read(dir)?;
    let mut first_expiry = i64::MAX;
    let mut soonest_failed = Duration::MAX;
    for token in &fleet.tokens {
        match mint(token, clients).await {
            Ok(expiry) => first_expiry = first_expiry.min(expiry),
            Err(error) => {
                let file = token.file.display();
                eprintln!("{file} is not renewed, next try in {} s: {error:#}", RETRY.as_secs());
                soonest_failed = RETRY;
            }
        }
    }
    let left = first_expiry
        .saturating_sub(Timestamp::now().as_second())
        .clamp(0, 86_400);
    let pause = Duration::from_secs(left.unsigned_abs() / 2).max(SOONEST);
    Ok(pause.min(soonest_failed))
}

async fn mint(token: &TokenSource, clients: &mut Clients) -> anyhow::Result<i64> {
    let client = clients.of("the cluster that mints tokens", &token.kubeconfig).await?;
    token.mint(&client).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_cluster_that_is_away_keeps_no_other_from_new_tokens() {
        let dir = tempfile::tempdir().unwrap();
        let source = |name: &str| TokenSource {
            file: dir.path().join(format!("{name}.token")),
            kubeconfig: dir.path().join(format!("{name}.kubeconfig")),
            namespace: "ops".to_owned(),
            service_account: "op".to_owned(),
            audiences: Vec::new(),
            pod: None,
        };
        let fleet = Fleet {
            dir: dir.path().to_path_buf(),
            tokens: vec![source("away"), source("here")],
            ..Fleet::default()
        };
        fleet.write().unwrap();
        let expires = Timestamp::now() + jiff::SignedDuration::from_hours(1);
        let minting = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            let status = json!({"token": "new", "expirationTimestamp": expires.to_string()});
            let answer = json!({"metadata": {}, "spec": {"audiences": []}, "status": status});
            let body = kube::client::Body::from(answer.to_string().into_bytes());
            std::future::ready(Ok::<_, std::convert::Infallible>(http::Response::new(body)))
        });
        let here = kube::Client::new(minting, "default");
        let mut clients = Clients([(source("here").kubeconfig, here)].into());
        let pause = renew(dir.path(), &mut clients).await.unwrap();
        assert_eq!(std::fs::read_to_string(source("here").file).unwrap(), "new");
        assert_eq!(pause, RETRY);
    }
}
