//! The router beside its peers in one table: HAProxy, Envoy and a plain hyper forwarder, each alone on one core, the client and
//! the backend on the others; TLS and HTTP/2 on both sides, a Pod of 4 KiB, a token of 1 KB.
//!
//! What the rows mean: `tests/BENCHMARKS.md`. Callers' view of the router is the merged one; rows of the explicit view have their
//! own names.

pub(crate) mod events;
pub(crate) mod foreign;
mod golang;
pub(crate) mod lanes;
mod rows;
mod storm;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::ValueEnum as _;

use self::golang::Asking;
use self::lanes::{Lane, Lanes, View};
use self::rows::Rows;
use crate::args::{PeerRows, RunArgs};
use crate::backend::{POD, PODS};
use crate::cores::Cores;
use crate::counter::NEVER_SHED;
use crate::load::Client;
use crate::place::{self, Subject};
use crate::report::PeersSection;
use crate::usage;

const WATCH: &str = "/api/v1/namespaces/bench/configmaps?watch=true&resourceVersion=4711";
/// Of a GET in an open loop.
const RATE: u32 = 4_000;
/// Legs of the merged watches.
const LEGS: usize = 5;
/// Until a program that was started answers.
const PATIENCE: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(1);

/// How much to measure.
#[derive(Debug, Clone, Copy)]
struct Amount {
    place: place::Amount,
    events: events::Amount,
    clients: usize,
    /// In the list, 3,080 bytes each.
    pods: usize,
    starts: usize,
}

impl Amount {
    fn of(args: &RunArgs) -> Self {
        let few = |full: usize, few: usize| if args.quick { full.min(few) } else { full };
        Self {
            place: place::Amount {
                rounds: few(args.rounds.max(1), 1),
                requests: few(args.requests, 200),
                rate: if args.quick { RATE / 20 } else { RATE },
                paced: few(RATE as usize * args.latency_seconds as usize, 200),
                watches: few(args.watches, 50),
                watches_per_connection: args.watches_per_connection.max(1),
            },
            events: events::Amount {
                watches: few(1_000, 10),
                watches_per_connection: args.watches_per_connection.max(1),
                rate: if args.quick { 100 } else { 10_000 },
                seconds: u64::from(if args.quick { 2 } else { args.latency_seconds.max(1) }),
            },
            clients: few(5_000, 20),
            pods: few(50_000, 500),
            starts: few(5, 1),
        }
    }
}

/// All rows.
pub(crate) async fn run(args: &RunArgs, step: fn(&str)) -> anyhow::Result<PeersSection> {
    let amount = Amount::of(args);
    let cores = Cores::split();
    cores.keep_this_to_others()?;
    step("peers: starting");
    let mut flags = args.router_flag.clone();
    if args.quick {
        // Whether it works is to be seen on a machine that is too busy to measure on, too.
        flags.push(NEVER_SHED.to_owned());
    }
    let wanted = |rows| args.rows.is_empty() || args.rows.contains(&rows);
    let mut rows = Rows::default();
    if PeerRows::value_variants()
        .iter()
        .any(|rows| *rows != PeerRows::Merged && wanted(*rows))
    {
        let mut lanes = Lanes::start(&cores, &flags, 1, amount.pods).await?;
        of_one_member(&mut lanes, amount, &mut rows, (wanted, step)).await?;
    }
    if wanted(PeerRows::Merged) {
        step("peers: events over several members");
        let mut several = Lanes::start(&cores, &flags, LEGS, 1).await?;
        rows.columns(several.columns());
        events_merged(&mut several, amount, &mut rows).await?;
    }
    Ok(rows.section())
}

async fn of_one_member(
    lanes: &mut Lanes,
    amount: Amount,
    rows: &mut Rows,
    (wanted, step): (impl Fn(PeerRows) -> bool, fn(&str)),
) -> anyhow::Result<()> {
    rows.columns(lanes.columns());
    for lane in [Lane::Router, Lane::Quiet] {
        lanes.child(lane)?.ready().await?;
    }
    if wanted(PeerRows::Gets) {
        gets(lanes, amount.place, rows, step).await?;
    }
    if wanted(PeerRows::Go) {
        step("peers: GETs by a Go client");
        by_go(lanes, amount.place, rows).await?;
    }
    if wanted(PeerRows::Events) {
        step("peers: events");
        events(lanes, amount, rows).await?;
    }
    if wanted(PeerRows::Lists) {
        step("peers: lists");
        lists(lanes, amount, rows).await?;
    }
    if wanted(PeerRows::Watches) {
        step("peers: idle watches");
        watches(lanes, amount.place, rows).await?;
    }
    if wanted(PeerRows::Reconnects) {
        step("peers: reconnects");
        reconnects(lanes, amount.clients, rows).await?;
    }
    if wanted(PeerRows::Starts) {
        step("peers: starts");
        starts(lanes, amount.starts, rows).await?;
    }
    Ok(())
}

/// Every lane that is there, routers by both views.
async fn subjects(lanes: &mut Lanes) -> anyhow::Result<Vec<(Lane, View, Subject)>> {
    let mut all = Vec::new();
    for view in [View::Merged, View::Explicit] {
        for lane in lanes.present() {
            if view == View::Merged || lane.is_router() {
                all.push((lane, view, lanes.subject(lane, view).await?));
            }
        }
    }
    Ok(all)
}

async fn gets(lanes: &mut Lanes, amount: place::Amount, rows: &mut Rows, step: fn(&str)) -> anyhow::Result<()> {
    step("peers: GETs as fast as they are answered");
    let mut ways = Vec::new();
    let mut all = vec![lanes.direct().await?];
    for (lane, view, subject) in subjects(lanes).await? {
        ways.push((lane, view));
        all.push(subject);
    }
    let measured = place::gets(&all, lanes.server(), POD, amount).await?;
    rows.backend_of_its_own(measured.first().map_or(0.0, |row| row.server_cpu));
    for ((lane, view), row) in ways.iter().zip(&measured[1..]) {
        rows.got(*lane, *view, row);
    }
    step(&format!("peers: GETs, {} a second", amount.rate));
    let measured = place::latencies(&all, POD, amount).await?;
    let direct = measured.first().map_or(f64::NAN, |row| row.p99);
    rows.direct(amount.rate, direct);
    for ((lane, view), row) in ways.iter().zip(&measured[1..]) {
        rows.paced(*lane, *view, row.p99 / direct);
    }
    Ok(())
}

/// Taking turns, as the other clients do.
async fn by_go(lanes: &mut Lanes, amount: place::Amount, rows: &mut Rows) -> anyhow::Result<()> {
    let dir = tempfile::tempdir().context("no temporary folder")?;
    if let Err(missing) = portolan_tests::programs::program("portolan-go-client") {
        rows.note(format!("no GETs by a Go client: {missing}"));
        return Ok(());
    }
    let mut all = Vec::new();
    for lane in lanes.present() {
        all.push((lane, Asking::start(lanes, lane, dir.path()).await?));
    }
    for _ in 0..amount.rounds {
        for (_, asking) in &mut all {
            asking.get(amount.requests).await?;
        }
    }
    for (lane, asking) in all {
        rows.got_by_go(lane, asking.cpu(), asking.rate());
    }
    Ok(())
}

/// Taking turns.
async fn events(lanes: &mut Lanes, amount: Amount, rows: &mut Rows) -> anyhow::Result<()> {
    let members = lanes.members().await?;
    let subjects = subjects(lanes).await?;
    let all: Vec<_> = subjects.iter().map(|(_, _, subject)| subject).collect();
    let cpu = events::cpu(&all, &members, amount.events, amount.place.rounds).await?;
    for ((lane, view, _), cpu) in subjects.iter().zip(cpu) {
        rows.heard(*lane, *view, amount.events, cpu);
    }
    Ok(())
}

/// As [`events`], of routers that have several members.
async fn events_merged(lanes: &mut Lanes, amount: Amount, rows: &mut Rows) -> anyhow::Result<()> {
    let members = lanes.members().await?;
    let mut subjects = Vec::new();
    let routers = [Lane::Router, Lane::Quiet];
    for lane in routers {
        lanes.child(lane)?.ready().await?;
        subjects.push(lanes.subject(lane, View::Merged).await?);
    }
    let all: Vec<_> = subjects.iter().collect();
    let cpu = events::cpu(&all, &members, amount.events, amount.place.rounds).await?;
    for (lane, cpu) in routers.into_iter().zip(cpu) {
        rows.heard_merged(lane, LEGS, cpu);
    }
    Ok(())
}

async fn lists(lanes: &mut Lanes, amount: Amount, rows: &mut Rows) -> anyhow::Result<()> {
    let all = subjects(lanes).await?;
    let mut sums = vec![(0.0, 0_usize); all.len()];
    for _ in 0..amount.place.rounds {
        for ((_, _, subject), (used, bytes)) in all.iter().zip(&mut sums) {
            let proxy = subject.proxy.context("nothing stands between client and server")?;
            let client = Client::connected(subject.route.clone(), 1).await?;
            let before = usage::cpu_seconds(proxy)?;
            let read = client.read(PODS, |chunk| *bytes += chunk.len()).await;
            read.with_context(|| subject.name)?;
            *used += usage::cpu_seconds(proxy)? - before;
        }
    }
    for ((lane, view, _), (used, bytes)) in all.iter().zip(sums) {
        rows.listed(*lane, *view, used * 1e9 / usage::count(bytes));
        rows.list_bytes(bytes / amount.place.rounds);
    }
    Ok(())
}

async fn watches(lanes: &mut Lanes, amount: place::Amount, rows: &mut Rows) -> anyhow::Result<()> {
    for view in [View::Merged, View::Explicit] {
        for lane in lanes.present() {
            if view == View::Explicit && !lane.is_router() {
                continue;
            }
            lanes.restart(lane).await?;
            let subject = lanes.subject(lane, view).await?;
            let row = place::watches(&subject, (POD, WATCH), amount, || lanes.emit()).await;
            rows.watched(lane, view, &row.with_context(|| subject.name)?);
        }
    }
    Ok(())
}

async fn reconnects(lanes: &mut Lanes, clients: usize, rows: &mut Rows) -> anyhow::Result<()> {
    for lane in lanes.present() {
        lanes.restart(lane).await?;
        let subject = lanes.subject(lane, View::Merged).await?;
        let stormed = storm::reconnect(&subject.route, POD, clients).await;
        rows.stormed(lane, clients, &stormed);
    }
    Ok(())
}

/// From the start of a process until it has answered one request, milliseconds; the median.
async fn starts(lanes: &mut Lanes, times: usize, rows: &mut Rows) -> anyhow::Result<()> {
    for lane in lanes.present() {
        let mut all = Vec::with_capacity(times);
        for _ in 0..times {
            lanes.restart_alone(lane).await?;
            let subject = lanes.subject(lane, View::Merged).await?;
            answers(&subject).await?;
            all.push(lanes.child(lane)?.started.elapsed());
        }
        all.sort_unstable();
        rows.started(lane, all[times / 2].as_secs_f64() * 1_000.0);
    }
    Ok(())
}

async fn answers(subject: &Subject) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let asked = async { Client::connected(subject.route.clone(), 1).await?.get(POD).await };
        match asked.await {
            Ok(_) => return Ok(()),
            Err(error) if begun.elapsed() > PATIENCE => return Err(error.context(subject.name)),
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
}
