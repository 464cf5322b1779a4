//! Operators of others and one of ours work together: Argo Rollouts, prometheus-operator and the greeting operator, unmodified, in the
//! same namespaces of two members, each sharded in two by a root with `spec.operator`. Namespaces of each move at random between its two
//! shards while the others write, and routers and hub are killed meanwhile.
//!
//! Each operator's work is complete in the end, and done by whoever had the namespace; no write is refused for another operator's
//! epoch; no lock has two leaders. What says so: the ledger and the Leases as they lie in etcd, the audit logs of members and the
//! access lines of routers.
//!
//! `make operators` builds the programs, which takes minutes, so `make test` leaves this out. `MOVES` is how many moves there are,
//! `PORTOLAN_SEED` draws the same.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "also in functions that only tests call; what was measured is told"
)]

mod audit;
mod crashes;
mod ground;
mod judge;
mod ledger;
mod mover;
mod operators;
mod places;
mod replicas;
mod work;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use portolan_testbed::Bundle;

use crate::audit::{Locks, Mark};
use crate::ground::Ground;
use crate::judge::{Held, Refusal, Write, judge, refused_to_owner, twice};
use crate::ledger::Ledger;
use crate::mover::Mover;
use crate::operators::{OPERATORS, Operator};
use crate::places::NAMESPACES;
use crate::replicas::Replicas;
use crate::work::Work;

/// How many moves there are, if nobody says.
const MOVES: usize = 60;
/// Of all moves, one in so many is made in calm: of one operator at a time, with nothing killed.
const CALM: usize = 4;

/// Number of the last change of each object: users get nowhere near, and a Prometheus takes no more days.
const LAST: u64 = 100_000;

/// What is chosen from outside.
struct Options {
    seed: u64,
    moves: usize,
}

impl Options {
    #[expect(clippy::disallowed_methods, reason = "settings of this test alone")]
    fn read() -> Self {
        let setting = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        Self {
            seed: setting("PORTOLAN_SEED").map_or_else(rand::random, |text| text.parse().unwrap()),
            moves: setting("PORTOLAN_MOVES").map_or(MOVES, |text| text.parse().unwrap()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs operators of others: make operators"]
async fn each_operator_does_its_own_work_while_namespaces_of_each_move() {
    for bundle in Bundle::OPERATORS {
        let built = bundle.built().unwrap();
        assert!(built.is_some(), "run make operators, which builds them");
    }
    let Options { seed, moves } = Options::read();
    println!("PORTOLAN_SEED={seed}, {moves} moves");
    let ground: &'static Ground = Box::leak(Box::new(Ground::start().await.unwrap()));
    let ledger = Ledger::follow(&ground.world).await.unwrap();
    let locks = Locks::follow(&ground.world).await.unwrap();
    let mark = Mark::now(ground).await.unwrap();
    let work = Work::start(ground, &OPERATORS).await.unwrap();
    let replicas = Replicas::start(ground, &OPERATORS).await.unwrap();
    work.all_is_done(&OPERATORS, 1).await;

    let mut mover = Mover::new(ground, &ledger, seed).await.unwrap();
    let mut wrong = calm(ground, &work, &mut mover, (seed, moves / CALM)).await;
    let crashes = storm(ground, &work, &mut mover, (seed, moves)).await;
    work.all_is_done(&OPERATORS, LAST).await;
    println!("crashes                {crashes:?}");
    println!("replicas started again {}", replicas.restarts.load(Ordering::Relaxed));
    drop(replicas);

    let locks = locks.all();
    wrong.extend(unled(&locks).chain(twice(&locks)));
    let (writes, refusals) = (audit::writes(ground).unwrap(), mark.refused().unwrap());
    println!("refused by routers     {}", refusals.len());
    wrong.extend(sentence(&ledger, &writes, &refusals));
    assert!(wrong.is_empty(), "PORTOLAN_SEED={seed}\n{}", wrong.join("\n"));
}

/// Shards of operators with a lock that nobody has ever held.
fn unled(locks: &BTreeMap<String, Vec<Held>>) -> impl Iterator<Item = String> {
    let with_lock = OPERATORS.iter().filter_map(|operator| Some((operator, operator.lock?)));
    let names = with_lock.flat_map(|(operator, lock)| operator.shards().map(|shard| format!("{lock}---{shard}")));
    names
        .filter(|name| !locks.contains_key(name))
        .map(|name| format!("nobody leads by {name}"))
}

/// Moves of one operator at a time while users change objects of all: no write of another one is refused. What is wrong.
async fn calm(ground: &Ground, work: &Work, mover: &mut Mover<'_>, (seed, moves): (u64, usize)) -> Vec<String> {
    let mut wrong = Vec::new();
    for (at, operator) in OPERATORS.iter().enumerate() {
        let (begun, mark) = (Instant::now(), Mark::now(ground).await.unwrap());
        let stop = AtomicBool::new(false);
        let until = moves * (at + 1) / OPERATORS.len();
        let moved = async {
            mover.run(std::slice::from_ref(operator), until).await;
            mover.settle().await;
            stop.store(true, Ordering::Relaxed);
        };
        tokio::join!(work.users(&OPERATORS, seed, &stop), moved);
        // Of those that have the namespace all the while; others' last words in what they have handed over before come late.
        let is_owners = |refusal: &Refusal| {
            let others = OPERATORS.iter().filter(|other| other.name != operator.name);
            let mut others = others.filter(|other| other.shards().contains(&refusal.shard));
            others.any(|other| mover.ledger.has(other.name, &refusal.namespace, &refusal.shard))
        };
        let others = mark.refused().unwrap().into_iter().filter(is_owners);
        wrong.extend(others.map(|refusal| format!("refused while {} alone moved: {}", operator.name, refusal.line)));
        println!("{} moved alone after {:.1?}", operator.name, begun.elapsed());
    }
    wrong
}

/// Moves of all, with crashes; what has died.
async fn storm(
    ground: &Ground,
    work: &Work,
    mover: &mut Mover<'_>,
    (seed, moves): (u64, usize),
) -> BTreeMap<&'static str, usize> {
    let stop = AtomicBool::new(false);
    let moved = async {
        mover.run(&OPERATORS, moves).await;
        stop.store(true, Ordering::Relaxed);
    };
    let users = work.users(&OPERATORS, seed, &stop);
    let (crashes, changes, ()) = tokio::join!(crashes::run(ground, seed, &stop), users, moved);
    println!("changes of users       {changes}");
    mover.settle().await;
    crashes
}

/// All that is wrong with what operators wrote, and with what they were refused.
fn sentence(ledger: &Ledger, writes: &[Write], refusals: &[Refusal]) -> Vec<String> {
    let stories = ledger.all();
    let mut wrong = Vec::new();
    for operator in &OPERATORS {
        let mut moves = 0;
        let own: Vec<_> = writes.iter().filter(|write| operator.wrote(write)).collect();
        for shard in operator.shards() {
            let of_it = || own.iter().filter(|write| write.shard.as_ref() == Some(&shard));
            let refused = of_it().filter(|write| write.is_fenced_off()).count();
            println!("writes of {shard:20} {}, {refused} late and refused", of_it().count());
            if of_it().next().is_none() {
                wrong.push(format!("{shard} has written nothing"));
            }
        }
        for namespace in NAMESPACES {
            let story = stories.get(&(operator.name.to_owned(), namespace));
            let epochs = story.map_or(&[][..], |story| &story.epochs);
            moves += epochs.len().saturating_sub(1);
            let refused = refusals.iter().filter(|refusal| refusal.namespace == namespace);
            let refused: Vec<_> = refused.cloned().collect();
            wrong.extend(refused_to_owner(epochs, &refused));
            let here: Vec<_> = own
                .iter()
                .filter(|write| write.namespace == namespace)
                .copied()
                .cloned()
                .collect();
            wrong.extend(judge(operator, epochs, &here));
        }
        println!("grants to another of   {:10} {moves}", operator.name);
    }
    let known = |write: &&Write| OPERATORS.iter().any(|operator: &Operator| operator.wrote(write));
    let unknown = writes.iter().filter(|write| !known(write));
    wrong.extend(unknown.map(|write| format!("of nobody: {write:?}")));
    wrong
}
