//! Merged against direct: one collection over several members, at our own fast backends or (`real_federated`) at API
//! servers.
//!
//! A list through the router against the same lists direct, one after the other and all at once; the memory of watches
//! that are idle; events as fast as they are taken, and paced for their latency, against the explicit view.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::stream::{FuturesUnordered, StreamExt as _};
use h2::RecvStream;

use crate::backend::PODS;
use crate::lists::{self, Form, Ways};
use crate::load::{Client, Route};
use crate::pods;
use crate::report::{EventRow, FederatedSection, LegRow};
use crate::scripted::Scripted;
use crate::usage::{self, count};
use crate::writers::Writers;

/// A burst may take this long.
const PATIENCE: Duration = Duration::from_mins(3);
/// For memory to come to rest.
const SETTLE: Duration = Duration::from_secs(2);

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount {
    pub(crate) members: usize,
    pub(crate) pods: usize,
    pub(crate) rounds: usize,
    pub(crate) watches: usize,
    pub(crate) watches_per_connection: usize,
    /// Events of each member in a burst.
    pub(crate) events: u64,
    /// Events a second over all members, of the paced burst.
    pub(crate) rate: u64,
}

pub(crate) async fn run(router_flags: &[String], amount: Amount, step: fn(&str)) -> anyhow::Result<FederatedSection> {
    step(&format!(
        "federated: starting {} members of {} pods",
        amount.members, amount.pods
    ));
    let mut place = Scripted::federated(router_flags, amount.members, amount.pods).await?;
    place.router.ready().await?;
    let views = Views::of(&mut place).await?;
    step("federated: lists");
    let lists = lists::run(views.ways(), Form::WHOLE_JSON, amount.rounds).await?;
    step("federated: events as fast as they are taken");
    let mut events = bursts(&views, amount, 0).await?;
    step(&format!("federated: {} events a second", amount.rate));
    events.extend(bursts(&views, amount, amount.rate).await?);
    step(&format!("federated: {} idle merged watches", amount.watches));
    place.restart_router(true).await?;
    let legs = legs(&Views::of(&mut place).await?, amount).await?;
    Ok(FederatedSection {
        of: format!("{} pods of 3 KB in each of {} members", amount.pods, amount.members),
        lists: vec![lists],
        events,
        legs,
    })
}

/// The ways to the objects: by member direct and explicit, one merged.
pub(crate) struct Views {
    pub(crate) direct: Vec<Route>,
    pub(crate) explicit: Vec<Route>,
    pub(crate) merged: Route,
    /// A plain proxy before the first member: what no router can do without.
    pub(crate) forwarder: Option<Route>,
    pub(crate) router: i32,
    pub(crate) servers: Vec<i32>,
    /// Path of the collection.
    pub(crate) collection: &'static str,
    pub(crate) events: Events,
}

/// Who makes events.
pub(crate) enum Events {
    /// Fast backends, told so.
    Backends,
    /// This program changes objects of API servers.
    Writers(Writers),
}

impl Views {
    async fn of(place: &mut Scripted) -> anyhow::Result<Self> {
        let mut subjects = place.subjects().await?;
        let merged = subjects.pop().context("the merged view")?.route;
        let (direct, explicit) = place.member_routes().await?;
        Ok(Self {
            direct,
            explicit,
            merged,
            forwarder: Some(subjects.swap_remove(1).route),
            router: place.router.pid(),
            servers: place.member_pids(),
            collection: PODS,
            events: Events::Backends,
        })
    }

    pub(crate) fn ways(&self) -> Ways<'_> {
        Ways {
            direct: &self.direct,
            explicit: &self.explicit,
            merged: &self.merged,
            forwarder: self.forwarder.as_ref(),
            router: self.router,
            collection: self.collection,
        }
    }

    /// So many events of each member, `rate` a second over all, 0 as fast as they are taken. Returns when they are
    /// ordered, or made.
    async fn emit(&self, events: u64, rate: u64) -> anyhow::Result<()> {
        let rate = rate / self.direct.len() as u64;
        match &self.events {
            Events::Backends => {
                for route in &self.direct {
                    let asked = format!("/bench/burst?events={events}&rate={rate}");
                    Client::connected(route.clone(), 1).await?.get(&asked).await?;
                }
                Ok(())
            }
            Events::Writers(writers) => writers.write(events, rate).await,
        }
    }
}

/// A watch of a collection from now: the list says where now is. Members tell it before the items, the merged view behind them,
/// and its cursors are longer than any version of an object.
pub(crate) async fn watch_from_now(route: &Route, path: &str) -> anyhow::Result<String> {
    const KEY: &str = "\"resourceVersion\":\"";
    const SHORTEST_CURSOR: usize = 24;
    let list = Client::connected(route.clone(), 1).await?.get(path).await?;
    let list = String::from_utf8(list)?;
    let version = |found: Option<(&str, &str)>| Some(found?.1.split('"').next()?.to_owned());
    let cursor = version(list.rsplit_once(KEY)).filter(|version| version.len() >= SHORTEST_CURSOR);
    let version = cursor.or_else(|| version(list.split_once(KEY)));
    let version = version.context("a list has no resourceVersion")?;
    Ok(format!(
        "{path}?watch=true&resourceVersion={version}&allowWatchBookmarks=true"
    ))
}

/// Events of one burst as one reader saw them.
#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) events: u64,
    /// Nanoseconds from when each was made.
    delays: Vec<u64>,
}

/// A burst by each of the three ways.
pub(crate) async fn bursts(views: &Views, amount: Amount, rate: u64) -> anyhow::Result<Vec<EventRow>> {
    let ways = [
        ("direct", views.direct.as_slice()),
        ("router, explicit", views.explicit.as_slice()),
        ("router, merged", std::slice::from_ref(&views.merged)),
    ];
    let mut rows = Vec::with_capacity(ways.len());
    for (name, routes) in ways {
        let mut watches = Vec::new();
        for route in routes {
            let path = watch_from_now(route, views.collection).await?;
            let mut client = Client::new(route.clone());
            let opened = client
                .watch(&path, 1, 1)
                .await
                .with_context(|| format!("{name}: a watch"))?;
            watches.push((client, opened));
        }
        // Legs start on their own after the head of a merged watch.
        tokio::time::sleep(SETTLE).await;
        let streams: Vec<_> = watches.iter_mut().flat_map(|(_, streams)| streams).collect();
        let row = burst(views, streams, amount.events, rate).await;
        rows.push(EventRow {
            name,
            ..row.with_context(|| name)?
        });
    }
    Ok(rows)
}

async fn burst(views: &Views, streams: Vec<&mut RecvStream>, events: u64, rate: u64) -> anyhow::Result<EventRow> {
    let members = views.direct.len() as u64;
    let each = events * members / streams.len() as u64;
    let (router, servers) = (usage::cpu_seconds(views.router)?, cpu_of(&views.servers)?);
    let begun = Instant::now();
    let mut hearing: FuturesUnordered<_> = streams.into_iter().map(|stream| hear(stream, each)).collect();
    let hear_all = async {
        let mut all = Heard::default();
        while let Some(heard) = tokio::time::timeout(PATIENCE, hearing.next())
            .await
            .context("events got lost")?
        {
            let heard = heard?;
            all.events += heard.events;
            all.delays.extend(heard.delays);
        }
        anyhow::Ok(all)
    };
    let (mut all, ()) = tokio::try_join!(hear_all, views.emit(events, rate))?;
    let elapsed = begun.elapsed().as_secs_f64();
    all.delays.sort_unstable();
    let total = count(usize::try_from(all.events)?);
    let per_event = |seconds: f64| seconds * 1e6 / total;
    Ok(EventRow {
        name: "",
        rate,
        events: all.events,
        per_second: total / elapsed,
        router_cpu: per_event(usage::cpu_seconds(views.router)? - router),
        server_cpu: per_event(cpu_of(&views.servers)? - servers),
        p50: quantile(&all.delays, 500),
        p99: quantile(&all.delays, 990),
    })
}

fn cpu_of(processes: &[i32]) -> anyhow::Result<f64> {
    processes.iter().map(|pid| usage::cpu_seconds(*pid)).sum()
}

/// Milliseconds.
fn quantile(nanoseconds: &[u64], thousandths: usize) -> f64 {
    let last = nanoseconds.len().saturating_sub(1);
    let value = nanoseconds.get(last * thousandths / 1000).copied().unwrap_or_default();
    Duration::from_nanos(value).as_secs_f64() * 1000.0
}

/// Reads until so many events have come. Bookmarks carry no time and do not count.
pub(crate) async fn hear(stream: &mut RecvStream, events: u64) -> anyhow::Result<Heard> {
    let mut heard = Heard::default();
    let finder = memchr::memmem::Finder::new(pods::MADE_AT);
    let mut kept: Vec<u8> = Vec::new();
    while heard.events < events {
        let chunk = stream.data().await.context("a watch ended")?.context("a watch broke")?;
        stream.flow_control().release_capacity(chunk.len())?;
        let now = u64::try_from(pods::now())?;
        // What is left of the chunk before may hold the beginning of the word.
        kept.extend_from_slice(&chunk);
        let mut at = 0;
        while let Some(found) = finder.find(&kept[at..]) {
            let begin = at + found + pods::MADE_AT.len();
            let Some(end) = kept[begin..].iter().position(|byte| *byte == b'"') else {
                break;
            };
            let made: u64 = std::str::from_utf8(&kept[begin..begin + end])?.parse()?;
            heard.events += 1;
            heard.delays.push(now.saturating_sub(made));
            at = begin + end;
        }
        let keep = kept.len().saturating_sub(64).max(at);
        kept.drain(..keep);
    }
    Ok(heard)
}

/// Memory per leg of idle merged watches; each then tells of an event of every member.
pub(crate) async fn legs(views: &Views, amount: Amount) -> anyhow::Result<LegRow> {
    let path = watch_from_now(&views.merged, views.collection).await?;
    tokio::time::sleep(SETTLE).await;
    let before = usage::resident_kib(views.router)?;
    let mut client = Client::new(views.merged.clone());
    let begun = Instant::now();
    let mut streams = client
        .watch(&path, amount.watches, amount.watches_per_connection)
        .await?;
    let opening = begun.elapsed().as_secs_f64();
    tokio::time::sleep(SETTLE).await;
    let after = usage::resident_kib(views.router)?;
    let begun = Instant::now();
    views.emit(1, 0).await?;
    let members = views.direct.len() as u64;
    let mut hearing: FuturesUnordered<_> = streams.iter_mut().map(|stream| hear(stream, members)).collect();
    while let Some(heard) = tokio::time::timeout(PATIENCE, hearing.next())
        .await
        .context("a watch is deaf")?
    {
        heard?;
    }
    let legs = amount.watches * views.direct.len();
    Ok(LegRow {
        watches: amount.watches,
        legs,
        kib_per_leg: (after - before) / count(legs),
        opening,
        told: begun.elapsed().as_secs_f64(),
    })
}
