//! Events of many watches at a fixed pace, and what the proxy between needs for each.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::stream::{FuturesUnordered, StreamExt as _};

use crate::backend::PODS;
use crate::federated::{hear, watch_from_now};
use crate::load::{Client, Route};
use crate::place::Subject;
use crate::usage;
use crate::usage::count;

/// Beyond the time that the events take by their pace.
const PATIENCE: Duration = Duration::from_mins(1);
/// For the legs of merged watches to begin, and memory to rest.
const SETTLE: Duration = Duration::from_secs(2);

/// How many.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount {
    pub(crate) watches: usize,
    pub(crate) watches_per_connection: usize,
    /// A second, over all watches.
    pub(crate) rate: u64,
    pub(crate) seconds: u64,
}

/// CPU seconds of the proxy for 100,000 events; `members` are the backends that make them.
pub(crate) async fn cpu(subject: &Subject, members: &[Route], amount: Amount) -> anyhow::Result<f64> {
    let proxy = subject.proxy.context("nothing stands between client and server")?;
    let path = watch_from_now(&subject.route, PODS).await?;
    let mut client = Client::new(subject.route.clone());
    let mut streams = client
        .watch(&path, amount.watches, amount.watches_per_connection)
        .await
        .context("opening watches")?;
    tokio::time::sleep(SETTLE).await;
    // Each backend tells each watch.
    let rate = (amount.rate / (amount.watches * members.len()) as u64).max(1);
    let each = rate * amount.seconds;
    let of_watch = each * members.len() as u64;
    let before = usage::cpu_seconds(proxy)?;
    for member in members {
        let burst = format!("/bench/burst?events={each}&rate={rate}");
        Client::connected(member.clone(), 1).await?.get(&burst).await?;
    }
    let mut hearing: FuturesUnordered<_> = streams.iter_mut().map(|stream| hear(stream, of_watch)).collect();
    let hear_all = async {
        let mut events = 0;
        while let Some(heard) = hearing.next().await {
            events += heard?.events;
        }
        anyhow::Ok(events)
    };
    let patience = PATIENCE + Duration::from_secs(amount.seconds);
    let events = tokio::time::timeout(patience, hear_all)
        .await
        .context("events got lost")??;
    ensure!(events == of_watch * amount.watches as u64, "only {events} events came");
    let used = usage::cpu_seconds(proxy)? - before;
    Ok(used * 100_000.0 / count(usize::try_from(events)?))
}
