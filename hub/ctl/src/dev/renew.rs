//! `portolanctl dev renew`: runs beside a fleet and mints its tokens anew at half their life. Started by `up`.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;

use crate::cli::DevDirArgs;
use crate::connect::connect;
use crate::dev::fleet::Fleet;
use crate::dev::token::TokenSource;

const RETRY: Duration = Duration::from_secs(15);
/// The shortest life an API server gives is ten minutes.
const SOONEST: Duration = Duration::from_mins(1);

pub(crate) async fn run(args: &DevDirArgs) -> anyhow::Result<()> {
    let mut clients = HashMap::new();
    loop {
        let pause = match renew(&args.dir, &mut clients).await {
            Ok(pause) => pause,
            Err(error) => {
                eprintln!("tokens are not renewed, next try in {} s: {error:#}", RETRY.as_secs());
                RETRY
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = portolan_runtime::tasks::wait_for_signal() => return Ok(()),
        }
    }
}

/// Mints every token and says when to do so again. The record is read each time: it may have grown.
async fn renew(dir: &Path, clients: &mut HashMap<std::path::PathBuf, Client>) -> anyhow::Result<Duration> {
    let fleet = Fleet::read(dir)?;
    let mut first_expiry = i64::MAX;
    for token in &fleet.tokens {
        let client = client_for(token, clients).await?;
        first_expiry = first_expiry.min(token.mint(&client).await?);
    }
    let left = first_expiry
        .saturating_sub(Timestamp::now().as_second())
        .clamp(0, 86_400);
    Ok(Duration::from_secs(left.unsigned_abs() / 2).max(SOONEST))
}

async fn client_for(token: &TokenSource, clients: &mut HashMap<std::path::PathBuf, Client>) -> anyhow::Result<Client> {
    if let Some(client) = clients.get(&token.kubeconfig) {
        return Ok(client.clone());
    }
    let client = connect("the cluster that mints tokens", Some(&token.kubeconfig))
        .await?
        .client;
    clients.insert(token.kubeconfig.clone(), client.clone());
    Ok(client)
}
