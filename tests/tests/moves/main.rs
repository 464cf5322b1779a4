//! Namespaces that move, for real: three shards of an operator that counts by patches without any condition, random moves of many
//! namespaces at once, and crashes of routers, agents, members and the hub meanwhile. No increment is lost, none is foreign: what a
//! member's etcd has, write by write, is held against whose the namespace was by the ledger and against what writers were answered.
//!
//! `make moves` moves a thousand times (`PORTOLAN_MOVES`), `make test` fifty times; `PORTOLAN_SEED` draws the same moves and crashes,
//! `PORTOLAN_MOVES_LOG` names a file for the log of who wrote when.
//!
//! So that whoever grants too early is found out soon, each part of a handover has something that is late: one router hears the hub late
//! (`ground`), members write some objects long after they admitted them (`slow`), and after each grant a write of the former owner arrives
//! (`late`).
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "also in functions that only tests call; what was measured is told"
)]

mod crashes;
mod ground;
mod history;
mod judge;
mod late;
mod mover;
mod operator;
mod slow;
mod told;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use portolan_testbed::eventually;

use crate::crashes::Crashes;
use crate::ground::{Ground, NAMESPACES, SHARDS, first_owner};
use crate::history::History;
use crate::judge::{Answer, Ask, Attempt, Author, Write, judge};
use crate::late::LateWrites;
use crate::mover::{Asked, Mover};
use crate::operator::{Line, Operator};
use crate::told::{Log, Times};

/// Of the short form, in `make test`.
const SHORT: usize = 50;
/// Of all moves, one in so many is made before anything crashes: for the time that a move takes by itself.
const CALM: usize = 3;
/// Most moves that are made before anything crashes.
const CALM_MOST: usize = 100;

/// What is chosen from outside.
struct Options {
    seed: u64,
    moves: usize,
    log: Option<String>,
}

impl Options {
    #[expect(clippy::disallowed_methods, reason = "settings of this test alone")]
    fn read() -> Self {
        let setting = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        Self {
            seed: setting("PORTOLAN_SEED").map_or_else(rand::random, |text| text.parse().unwrap()),
            moves: setting("PORTOLAN_MOVES").map_or(SHORT, |text| text.parse().unwrap()),
            log: setting("PORTOLAN_MOVES_LOG"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_increment_is_lost_or_foreign_while_namespaces_move() {
    let options = Options::read();
    println!("PORTOLAN_SEED={}, {} moves", options.seed, options.moves);
    let ground: &'static Ground = Box::leak(Box::new(Ground::start(options.moves > SHORT).await.unwrap()));
    let (formers, told) = late::channel();
    let late = LateWrites::start(&ground.world, told);
    let history = History::follow(ground, formers).await.unwrap();
    let owned = |name: &&str| history.is_settled(name, first_owner(name));
    eventually("all have an owner", || async { NAMESPACES.iter().all(owned) }).await;
    let mut operators = Vec::new();
    for shard in SHARDS {
        let operator = Operator::start(shard, ground).await;
        operators.push(operator.unwrap());
    }
    in_use(&history).await;

    let begun = Instant::now();
    let (asks, crashes) = play(ground, &history, &options).await;
    println!("all moved after        {:.1?}", begun.elapsed());
    in_use(&history).await;
    let mut lines = Vec::new();
    for (shard, operator) in SHARDS.into_iter().zip(operators) {
        println!("writes of {shard:12} {:?}", operator.counts());
        lines.extend(operator.end().await);
    }
    let late = late.end().await;
    let refused = late.iter().filter(|line| line.attempt.answer == Answer::Refused);
    println!("late writes            {} refused of {}", refused.count(), late.len());
    lines.extend(late);
    eventually("all is read", || history.is_whole(&ground.world)).await;
    println!("crashes                {:?}", crashes.counts);
    let (wrong, log) = sentence(&history, &asks, &lines, begun);
    let stories = NAMESPACES.map(|name| (history.of(name), asks.get(name).cloned().unwrap_or_default()));
    Times::of(&stories, &crashes).print();
    if let Some(file) = &options.log {
        std::fs::write(file, log).unwrap();
    }
    assert!(wrong.is_empty(), "PORTOLAN_SEED={}\n{}", options.seed, wrong.join("\n"));
}

/// Moves, first in calm; returns when all are over and everything is back.
async fn play(ground: &Ground, history: &History, options: &Options) -> (BTreeMap<&'static str, Vec<Asked>>, Crashes) {
    let mut mover = Mover::new(ground, history, options.seed).await.unwrap();
    mover.by_hand().await;
    mover.run((options.moves / CALM).min(CALM_MOST)).await;
    mover.settle().await;
    let stop = AtomicBool::new(false);
    let moves = async {
        mover.run(options.moves).await;
        stop.store(true, Ordering::Relaxed);
    };
    let (crashes, ()) = tokio::join!(Crashes::run(ground, options.seed, &stop), moves);
    mover.settle().await;
    (mover.asks, crashes)
}

/// Whoever has a namespace writes to it.
async fn in_use(history: &History) {
    for namespace in NAMESPACES {
        let what = format!("the owner of {namespace} writes");
        eventually(&what, || async { history.is_in_use(namespace) }).await;
    }
}

/// All that is wrong, and the log of who wrote when.
fn sentence(
    history: &History,
    asks: &BTreeMap<&'static str, Vec<Asked>>,
    lines: &[Line],
    begun: Instant,
) -> (Vec<String>, String) {
    let (mut wrong, mut log, mut written) = (Vec::new(), String::new(), 0);
    for name in NAMESPACES {
        let (story, asks) = (history.of(name), asks.get(name).map_or(&[][..], Vec::as_slice));
        let mine = lines.iter().filter(|line| line.namespace == name);
        let attempts: BTreeMap<Author, Attempt> = mine.map(|line| (line.author.clone(), line.attempt)).collect();
        let asked: Vec<Ask> = asks.iter().map(|asked| asked.ask.clone()).collect();
        let writes: Vec<Write> = story.writes.iter().map(|(_, write)| write.clone()).collect();
        let told = Log::of(&story, asks, lines, begun);
        let found = judge(&asked, &story.grants, &writes, &attempts);
        wrong.extend(
            found
                .iter()
                .map(|(revision, what)| format!("{name}: {what}\n{}", told.around(*revision))),
        );
        log += &told.lines(name);
        written += writes.len();
    }
    println!("writes in members      {written}");
    (wrong, log)
}
