//! The order of a run: per place first the watches, on fresh processes whose memory no burst has stretched, then GETs,
//! then latencies.

use anyhow::Context as _;

use crate::args::{Place, RunArgs};
use crate::control;
use crate::federated;
use crate::fleet;
use crate::growth;
use crate::instructions;
use crate::peers;
use crate::place::{self, Amount};
use crate::policies;
use crate::real::Real;
use crate::real_federated;
use crate::report::{Machine, Report, Section, StartRow, load};
use crate::scripted::Scripted;

const GET: &str = "/api/v1/namespaces/bench/configmaps/settings";
const WATCH: &str = "/api/v1/namespaces/bench/configmaps?watch=true&resourceVersion=4711";
/// Starts of the router, for the median.
const STARTS: usize = 5;
/// A tenth of the requests: an API server answers some thousand a second.
const APISERVER_SHARE: usize = 10;

pub(crate) async fn run(args: &RunArgs) -> anyhow::Result<()> {
    let mut report = Report {
        machine: Machine::look(),
        ..Report::default()
    };
    let wanted = |place| args.only.is_none_or(|only| only == place);
    if wanted(Place::Backend) {
        report.backend = Some(backend(args).await.context("at the fast backend")?);
    }
    if wanted(Place::Federated) {
        let federated = federated::run(&args.router_flag, federated_amount(args), step).await;
        report.federated = Some(federated.context("over several members")?);
    }
    if wanted(Place::Apiserver) {
        report.apiserver = Some(apiserver(args).await.context("at the real API server")?);
    }
    if wanted(Place::Apiservers) {
        let several = real_federated::run(apiservers_amount(args), step).await;
        report.apiservers = Some(several.context("over several real API servers")?);
    }
    if wanted(Place::Control) {
        let control = control::run(control_amount(args), step).await;
        report.control = Some(control.context("at the control plane")?);
    }
    // A quarter of an hour, and most of the machine's memory.
    if args.only == Some(Place::Fleet) {
        let fleet = fleet::run(fleet_amount(args), step).await;
        report.fleet = Some(fleet.context("with a large fleet")?);
    }
    if args.only == Some(Place::Operators) {
        let operators = fleet::operators::run(operators_amount(args), step).await;
        report.operators = Some(operators.context("with many operators")?);
    }
    // It keeps this program to some of the cores, so it comes last.
    if wanted(Place::Peers) {
        report.peers = Some(peers::run(args, step).await.context("beside its peers")?);
    }
    counted(args, &mut report).await?;
    report.machine.load_after = load();
    println!("{}", report.table());
    if let Some(file) = &args.json {
        let json = serde_json::to_vec_pretty(&report)?;
        std::fs::write(file, json).with_context(|| format!("cannot write {}", file.display()))?;
    }
    match (&report.instructions, args.max_ratio) {
        (Some(instructions), Some(most)) => instructions.check(most),
        _ => Ok(()),
    }
}

/// The places that count instructions: it takes perf or valgrind, which nothing else needs.
async fn counted(args: &RunArgs, report: &mut Report) -> anyhow::Result<()> {
    let requests = if args.quick { 20 } else { args.counted_requests.max(1) };
    match args.only {
        Some(Place::Policies) => {
            report.policies = Some(policies::run(requests, step).await.context("under many limits")?);
        }
        Some(Place::Instructions) => {
            let counted = instructions::run(&args.router_flag, requests, step).await;
            report.instructions = Some(counted.context("instructions of a GET")?);
        }
        Some(Place::Growth) => {
            report.growth = Some(
                growth::run(growth_amount(args, requests), step)
                    .await
                    .context("growth")?,
            );
        }
        _ => {}
    }
    Ok(())
}

fn growth_amount(args: &RunArgs, requests: usize) -> growth::Amount {
    if args.quick {
        return growth::Amount {
            requests,
            members: &[1, 20],
            callers: &[1, 50],
            rules: &[1, 300],
        };
    }
    growth::Amount {
        requests,
        members: &[1, 10, 100, 1_000],
        callers: &[1, 100, 1_000, 5_000],
        rules: &[1, 100, 1_000, 10_000],
    }
}

fn amount(args: &RunArgs) -> Amount {
    let paced = usize::try_from(args.rate.saturating_mul(args.latency_seconds)).unwrap_or(usize::MAX);
    let full = Amount {
        rounds: args.rounds.max(1),
        requests: args.requests,
        rate: args.rate,
        paced,
        watches: args.watches,
        watches_per_connection: args.watches_per_connection.max(1),
    };
    if !args.quick {
        return full;
    }
    Amount {
        rounds: 1,
        requests: full.requests.min(2_000),
        paced: paced.min(1_000),
        watches: full.watches.min(300),
        ..full
    }
}

fn federated_amount(args: &RunArgs) -> federated::Amount {
    let full = federated::Amount {
        members: args.members.max(1),
        pods: args.pods,
        rounds: args.rounds.max(1),
        watches: args.merged_watches,
        watches_per_connection: args.watches_per_connection.max(1),
        events: args.events,
        rate: args.event_rate,
    };
    if !args.quick {
        return full;
    }
    federated::Amount {
        pods: full.pods.min(500),
        rounds: 1,
        watches: full.watches.min(50),
        events: full.events.min(500),
        rate: full.rate.min(1_000),
        ..full
    }
}

fn apiservers_amount(args: &RunArgs) -> federated::Amount {
    let full = federated_amount(args);
    let few = |full: usize| if args.quick { full.min(100) } else { full };
    federated::Amount {
        pods: few(args.apiserver_objects),
        watches: few(args.apiserver_merged_watches),
        events: if args.quick { 50 } else { args.apiserver_events },
        rate: args.apiserver_event_rate,
        ..full
    }
}

fn control_amount(args: &RunArgs) -> control::Amount {
    let few = |full: usize, few: usize| if args.quick { full.min(few) } else { full };
    control::Amount {
        namespaces: few(args.namespaces, 500),
        callers: few(args.callers, 200),
        routers: args.routers,
        changes: few(args.changes, 5).max(1),
    }
}

fn fleet_amount(args: &RunArgs) -> fleet::Amount {
    let few = |full: usize, few: usize| if args.quick { full.min(few) } else { full };
    fleet::Amount {
        members: few(args.fleet_members, 10),
        namespaces: few(args.fleet_namespaces, 500),
        shards: few(args.fleet_shards, 10),
        routers: few(args.fleet_routers, 5),
        root_size: few(args.fleet_root_size, 8),
        changes: few(args.changes, 5).max(1),
        moves: few(args.fleet_moves, 2).max(1),
        kills: few(args.fleet_kills, 2),
        token_bytes: args.fleet_token_bytes,
    }
}

fn operators_amount(args: &RunArgs) -> fleet::operators::Amount {
    let few = |full: usize, few: usize| if args.quick { full.min(few) } else { full };
    fleet::operators::Amount {
        namespaces: few(args.operator_namespaces, 40),
        operators: few(args.operators, 10),
        members: 1,
        changes: few(args.changes, 5).clamp(1, 10),
    }
}

fn step(text: &str) {
    eprintln!("- {text}");
}

async fn backend(args: &RunArgs) -> anyhow::Result<Section> {
    let amount = amount(args);
    step("backend: starting");
    let mut scripted = Scripted::start(&args.router_flag).await?;
    let starts = starts(&mut scripted, if args.quick { 1 } else { STARTS }).await?;
    let mut watches = Vec::new();
    for name in ["forwarder", "router, explicit", "router, merged"] {
        step(&format!("backend: {} idle watches, {name}", amount.watches));
        scripted.restart_forwarder().await?;
        scripted.restart_router(true).await?;
        let subjects = scripted.subjects().await?;
        let subject = subjects
            .iter()
            .find(|subject| subject.name == name)
            .context("a subject")?;
        watches.push(place::watches(subject, (GET, WATCH), amount, || scripted.emit()).await?);
    }
    let subjects = scripted.subjects().await?;
    let server = scripted.backend.pid();
    step("backend: GETs as fast as they are answered");
    let gets = place::gets(&subjects, server, GET, amount).await?;
    step(&format!("backend: GETs, {} a second", amount.rate));
    let latencies = place::latencies(&subjects, GET, amount).await?;
    Ok(Section {
        gets,
        latencies,
        watches,
        starts,
    })
}

/// Medians of the time until the router is ready: unknown to the hub, and with its state kept.
async fn starts(scripted: &mut Scripted, times: usize) -> anyhow::Result<Vec<StartRow>> {
    step("backend: starts of the router");
    scripted.router.ready().await?;
    let mut rows = Vec::new();
    for (name, known) in [("new, enrols first", false), ("again, from its state folder", true)] {
        let mut all = Vec::with_capacity(times);
        for _ in 0..times {
            scripted.restart_router(known).await?;
            all.push(scripted.router.started.elapsed());
        }
        all.sort_unstable();
        let ready = all[times / 2].as_secs_f64() * 1000.0;
        rows.push(StartRow { name, ready });
    }
    Ok(rows)
}

async fn apiserver(args: &RunArgs) -> anyhow::Result<Section> {
    let mut amount = amount(args);
    amount.requests = amount.requests.div_ceil(APISERVER_SHARE);
    amount.watches = args.apiserver_watches;
    if args.quick {
        amount.watches = amount.watches.min(200);
    }
    step("API server: starting control planes, hub, agent and router");
    let real = Real::start().await?;
    let subjects = real.subjects().await?;
    let server = real.server()?;
    let watch = real.watch_path().await?;
    let mut watches = Vec::new();
    step(&format!("API server: {} idle watches", amount.watches));
    if let Some(subject) = subjects.iter().find(|subject| subject.name == "router, merged") {
        watches.push(place::watches(subject, (GET, &watch), amount, || real.emit()).await?);
    }
    step("API server: GETs as fast as they are answered");
    let gets = place::gets(&subjects, server, GET, amount).await?;
    step(&format!("API server: GETs, {} a second", amount.rate));
    let latencies = place::latencies(&subjects, GET, amount).await?;
    Ok(Section {
        gets,
        latencies,
        watches,
        starts: Vec::new(),
    })
}
