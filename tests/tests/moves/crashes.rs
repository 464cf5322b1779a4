//! What dies while namespaces move: routers, agents, members, and the hub. Each by SIGKILL, each comes back after a moment; one after
//! the other, beside those of the other lane. In the short form what would make moves wait a minute only stands still: the
//! hub, which waits for routers when it starts, and the routers, of whose lost writes nobody can say that they are over. Writes
//! are held up on their way, too.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use portolan_testbed::Fault;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::sleep;

use crate::ground::{Ground, MEMBERS};

/// For how long something is away, in milliseconds.
const AWAY: std::ops::Range<u64> = 200..3_000;
/// Until the next crash.
const PAUSE: std::ops::Range<u64> = 200..2_000;

/// A hub that dies again within the minute for which it waits would never move anything.
const HUB_LIVES: Duration = Duration::from_mins(3);
/// For how long a write is held up at most: what is under way arrives when the way is good again.
pub(crate) const HELD_UP_MOST: Duration = Duration::from_millis(AWAY.end);

#[derive(Clone, Copy, Debug)]
enum Crash {
    Router(usize),
    Agent(&'static str),
    Member(&'static str),
    Hub,
    /// Nothing dies, but what routers send to a member arrives late.
    Late(&'static str),
}

/// What has died so far.
#[derive(Default)]
pub(crate) struct Crashes {
    pub(crate) counts: BTreeMap<&'static str, usize>,
    /// When anything was away.
    pub(crate) times: Vec<(Instant, Instant)>,
}

impl Crash {
    /// Of members and the ways to them, or of ours: two lanes, so that one of each may be away at a time.
    fn lanes(ground: &Ground) -> [Vec<Self>; 2] {
        let late = ground.ways.keys().map(|member| Self::Late(member));
        let ours = [Self::Router(0), Self::Hub, Self::Router(1)];
        [
            MEMBERS.into_iter().map(Self::Member).chain(late).collect(),
            MEMBERS.into_iter().map(Self::Agent).chain(ours).collect(),
        ]
    }

    fn name(self) -> &'static str {
        match self {
            Self::Router(_) => "router",
            Self::Agent(_) => "agent",
            Self::Member(_) => "member",
            Self::Hub => "hub",
            Self::Late(_) => "writes held up",
        }
    }

    /// Returns when all is as it was.
    async fn run(self, ground: &Ground, away: Duration) {
        match self {
            Self::Router(number) => {
                let mut router = ground.routers[number].lock().await;
                if ground.hub.is_none() {
                    let pid = router.pid().unwrap();
                    stand_still(pid, away).await;
                    return;
                }
                router.kill().await.unwrap();
                sleep(away).await;
                router.start_again().await.unwrap();
                router.ready().await;
            }
            Self::Agent(member) => {
                let mut agent = ground.agents[member].lock().await;
                agent.kill().await.unwrap();
                sleep(away).await;
                agent.start_again().await.unwrap();
            }
            Self::Member(member) => {
                let member = ground.world.cluster(member);
                member.kill().await.unwrap();
                sleep(away).await;
                member.restart().await.unwrap();
            }
            Self::Hub => hub(ground, away).await,
            Self::Late(member) => {
                ground.ways[member].set(Fault::Delay(HELD_UP_MOST));
                sleep(away).await;
                ground.ways[member].set(Fault::None);
            }
        }
    }
}

async fn hub(ground: &Ground, away: Duration) {
    let Some(hub) = &ground.hub else {
        let pid = ground.world.fleet.process("hub").unwrap().pid;
        return stand_still(pid, away).await;
    };
    let mut hub = hub.lock().await;
    hub.kill().await.unwrap();
    sleep(away).await;
    hub.start_again().await.unwrap();
    hub.ready().await;
}

async fn stand_still(pid: i32, lasts: Duration) {
    kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
    sleep(lasts).await;
    kill(Pid::from_raw(pid), Signal::SIGCONT).unwrap();
}

impl Crashes {
    /// In each lane one after the other, each once before any comes again, until it is told to stop; then until all is back.
    pub(crate) async fn run(ground: &Ground, seed: u64, stop: &AtomicBool) -> Self {
        let lanes = Crash::lanes(ground).map(|lane| Self::of(ground, lane, seed, stop));
        let mut crashes = Self::default();
        for lane in futures::future::join_all(lanes).await {
            crashes.counts.extend(lane.counts);
            crashes.times.extend(lane.times);
        }
        for router in &ground.routers {
            router.lock().await.ready().await;
        }
        crashes
    }

    async fn of(ground: &Ground, lane: Vec<Crash>, seed: u64, stop: &AtomicBool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut crashes = Self::default();
        let mut deck = Vec::new();
        let mut hub_died: Option<Instant> = None;
        while !stop.load(Ordering::Relaxed) {
            if deck.is_empty() {
                deck.clone_from(&lane);
                deck.shuffle(&mut rng);
            }
            let (crash, begun) = (deck.remove(0), Instant::now());
            let away = Duration::from_millis(rng.random_range(AWAY));
            if let (Crash::Hub, Some(_)) = (crash, &ground.hub) {
                if hub_died.is_some_and(|died| died.elapsed() < HUB_LIVES) {
                    continue;
                }
                hub_died = Some(begun);
            }
            crash.run(ground, away).await;
            *crashes.counts.entry(crash.name()).or_default() += 1;
            crashes.times.push((begun, Instant::now()));
            sleep(Duration::from_millis(rng.random_range(PAUSE))).await;
        }
        crashes
    }
}
