//! Clients of every family, their watches ended and resumed every few seconds, on the merged view of three real members behind
//! two routers, while everything that can happen does, in an order drawn from a seed. Whenever all is at rest, every cache
//! must equal what the members hold; nobody may ever be told that something is gone which is not; and each 410 must be of a
//! cause that `docs/semantics.md` names.
//!
//! Before that, namespaces come and go one by one ([`previews`]), and all the time while a member is away for long ([`outage`]), which
//! may cost nobody a list.
//!
//! `make soak-clients` runs it for `SOAK` seconds, `make soak-previews` the namespaces alone, `make test` both for a short
//! while. `PORTOLAN_SEED` chooses the same actions again; when they meet which event is up to the machine.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "also in functions that only tests call; what was measured is told"
)]

mod actions;
mod causes;
mod clients;
mod ground;
mod judge;
mod ledger;
mod lines;
mod meter;
mod outage;
mod previews;
mod share;
mod summary;
mod truth;
mod writer;

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::actions::Action;
use crate::clients::Clients;
use crate::ground::Ground;
use crate::judge::Judge;
use crate::outage::Outage;
use crate::previews::Previews;
use crate::summary::Summary;
use crate::writer::Writer;

/// Of the short form, in `make test`.
const SHORT: Duration = Duration::from_secs(24);
/// A member's, before all else happens.
const LONGEST_OUTAGE: Duration = Duration::from_mins(20);
/// Until all caches must be right after the last action ended. A hub that was away moves nothing for a minute.
const REST: Duration = Duration::from_secs(150);
/// Then it is told what is still missing, again and again.
const TELL: Duration = Duration::from_secs(10);
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// What is chosen from outside.
struct Options {
    seed: u64,
    lasts: Duration,
    /// Zero for the short form.
    previews: Duration,
}

impl Options {
    #[expect(clippy::disallowed_methods, reason = "settings of this test alone")]
    fn read() -> Self {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
        Self {
            seed: number("PORTOLAN_SEED").unwrap_or_else(rand::random),
            lasts: number("PORTOLAN_SOAK_SECONDS").map_or(SHORT, Duration::from_secs),
            previews: number("PORTOLAN_SOAK_PREVIEWS_SECONDS").map_or(Duration::ZERO, Duration::from_secs),
        }
    }

    /// Whether it is more than the short form of either part.
    fn long(&self) -> bool {
        self.lasts > SHORT || !self.previews.is_zero()
    }
}

/// For how long a member is away at first: a part of the run, no more than twenty minutes; of the short form one look.
fn outage_of(options: &Options) -> Duration {
    if !options.long() {
        return Duration::ZERO;
    }
    (options.lasts.max(options.previews) / 3).min(LONGEST_OUTAGE)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caches_equal_the_members_whenever_all_is_at_rest() {
    let options = Options::read();
    let Options { seed, lasts, previews } = options;
    println!("PORTOLAN_SEED={seed}, for {lasts:?}, after previews for {previews:?}");
    let ground = Ground::start().await.unwrap();
    let mut clients = Clients::start(&ground, options.long()).await.unwrap();
    let mut judge = Judge::default();
    let mut summary = Summary::new(seed);
    rest(&ground, &mut clients, &mut judge).await.unwrap();
    Previews {
        ground: &ground,
        clients: &mut clients,
        judge: &mut judge,
        lasts: previews,
        lists_wait: false,
    }
    .run()
    .await
    .unwrap();
    let mut outage = Outage {
        ground: &ground,
        clients: &mut clients,
        judge: &mut judge,
        lasts: outage_of(&options),
        judged: options.long(),
    };
    Box::pin(outage.run()).await.unwrap();
    let mut rng = StdRng::seed_from_u64(seed);
    let begun = Instant::now();
    while begun.elapsed() < lasts {
        let actions = Action::draw(&mut rng, lasts > SHORT);
        summary.round(&actions);
        disturb(&ground, actions, rng.random()).await;
        let over = Instant::now();
        let rested = rest(&ground, &mut clients, &mut judge).await;
        summary.rested(over.elapsed());
        if let Err(error) = rested {
            summary.failures.push(format!("{error:#}"));
            break;
        }
    }
    summary.print(begun.elapsed(), &ground, &judge);
    summary.failures.extend(judge.failures());
    assert!(
        summary.failures.is_empty(),
        "PORTOLAN_SEED={seed}\n{}",
        summary.failures.join("\n")
    );
}

/// Does all of this at once, each for a while, under writes.
async fn disturb(ground: &Ground, actions: Vec<Action>, seed: u64) {
    let mut writer = Writer::new(seed);
    let done = futures::future::join_all(actions.into_iter().map(|action| action.run(ground)));
    tokio::select! {
        _ = done => {}
        () = writer.run(ground) => {}
    }
}

/// Waits until every cache equals the truth.
async fn rest(ground: &Ground, clients: &mut Clients, judge: &mut Judge) -> anyhow::Result<()> {
    let deadline = Instant::now() + REST;
    let mut tell = Instant::now() + TELL;
    loop {
        clients.revive()?;
        let truth = ground.truth().await?;
        let reports = clients.report().await?;
        judge.hear(&reports, &ground.ledger);
        let odd = truth.differences(&reports);
        if odd.is_empty() {
            return Ok(());
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "not at rest after {REST:?}:\n{}",
            odd.join("\n")
        );
        if tell < Instant::now() {
            tell += TELL;
            println!("  not yet: {} of {}, such as {:.800}", odd.len(), reports.len(), odd[0]);
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}
