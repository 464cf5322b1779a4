//! Events of many watches at a fixed pace, and what the proxy between needs for each.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::stream::{FuturesUnordered, StreamExt as _};
use h2::RecvStream;

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

/// CPU seconds of the proxy for 100,000 events, of each of the subjects, which take turns; `members` are the backends that make
/// them.
pub(crate) async fn cpu(
    subjects: &[&Subject],
    members: &[Route],
    amount: Amount,
    rounds: usize,
) -> anyhow::Result<Vec<f64>> {
    let mut sums = vec![(0.0, 0_usize); subjects.len()];
    for _ in 0..rounds {
        for (subject, (used, events)) in subjects.iter().zip(&mut sums) {
            let (cpu, heard) = round(subject, members, amount).await.context(subject.name)?;
            *used += cpu;
            *events += heard;
        }
    }
    Ok(sums
        .into_iter()
        .map(|(used, events)| used * 100_000.0 / count(events))
        .collect())
}

/// CPU seconds of one proxy, and events that its clients heard.
async fn round(subject: &Subject, members: &[Route], amount: Amount) -> anyhow::Result<(f64, usize)> {
    let proxy = subject.proxy.context("nothing stands between client and server")?;
    let mut watching = Watching::begin(&subject.route, members, amount).await?;
    let before = usage::cpu_seconds(proxy)?;
    let events = watching.hear_all().await?;
    Ok((usage::cpu_seconds(proxy)? - before, events))
}

/// Watches that have begun and are told nothing yet.
pub(crate) struct Watching<'a> {
    streams: Vec<RecvStream>,
    members: &'a [Route],
    amount: Amount,
    /// Its connections are those of the streams.
    _client: Client,
}

impl<'a> Watching<'a> {
    pub(crate) async fn begin(route: &Route, members: &'a [Route], amount: Amount) -> anyhow::Result<Self> {
        let path = watch_from_now(route, PODS).await?;
        let mut client = Client::new(route.clone());
        let streams = client
            .watch(&path, amount.watches, amount.watches_per_connection)
            .await
            .context("opening watches")?;
        tokio::time::sleep(SETTLE).await;
        Ok(Self {
            streams,
            members,
            amount,
            _client: client,
        })
    }

    /// Has events made at their pace, and waits until each watch was told all of them. How many those were. The watches go on.
    pub(crate) async fn hear_all(&mut self) -> anyhow::Result<usize> {
        let Amount { watches, seconds, .. } = self.amount;
        // Each backend tells each watch.
        let rate = (self.amount.rate / (watches * self.members.len()) as u64).max(1);
        let each = rate * seconds;
        let of_watch = each * self.members.len() as u64;
        for member in self.members {
            let burst = format!("/bench/burst?events={each}&rate={rate}");
            Client::connected(member.clone(), 1).await?.get(&burst).await?;
        }
        let mut hearing: FuturesUnordered<_> = self.streams.iter_mut().map(|stream| hear(stream, of_watch)).collect();
        let hear_all = async {
            let mut events = 0;
            while let Some(heard) = hearing.next().await {
                events += heard?.events;
            }
            anyhow::Ok(events)
        };
        let events = tokio::time::timeout(PATIENCE + Duration::from_secs(seconds), hear_all)
            .await
            .context("events got lost")??;
        ensure!(events == of_watch * watches as u64, "only {events} events came");
        Ok(usize::try_from(events)?)
    }
}
