//! All clients connect at once and ask one thing each, as after a restart: how many of them are answered.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::stream::{FuturesUnordered, StreamExt as _};

use crate::load::{Client, Route};

/// A client that has waited so long has gone elsewhere.
const PATIENCE: Duration = Duration::from_secs(30);
/// Of an error's text, to tell kinds of errors apart.
const MOST_TEXT: usize = 60;

/// What became of them.
#[derive(Debug, Default)]
pub(crate) struct Stormed {
    pub(crate) answered: usize,
    /// Until the last of them had its answer, or none.
    pub(crate) elapsed: Duration,
    /// Those that were not, by why.
    pub(crate) refused: BTreeMap<String, usize>,
}

/// `clients` connections, each kept until all have asked.
pub(crate) async fn reconnect(route: &Route, path: &str, clients: usize) -> Stormed {
    let begun = Instant::now();
    let mut running: FuturesUnordered<_> = (0..clients).map(|_| one(route, path)).collect();
    let (mut stormed, mut open) = (Stormed::default(), Vec::with_capacity(clients));
    while let Some(client) = running.next().await {
        match client {
            Ok(client) => {
                stormed.answered += 1;
                open.push(client);
            }
            Err(error) => *stormed.refused.entry(kind_of(&error)).or_default() += 1,
        }
    }
    stormed.elapsed = begun.elapsed();
    stormed
}

async fn one(route: &Route, path: &str) -> anyhow::Result<Client> {
    let asked = async {
        let client = Client::connected(route.clone(), 1).await?;
        client.get(path).await?;
        Ok(client)
    };
    tokio::time::timeout(PATIENCE, asked)
        .await
        .unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {PATIENCE:?}")))
}

/// The innermost error without what differs from one client to the next.
fn kind_of(error: &anyhow::Error) -> String {
    let text = error.root_cause().to_string();
    let text: String = text.chars().filter(|c| !c.is_control()).take(MOST_TEXT).collect();
    text
}
