//! A router that starts again, and all clients of its operators with it: each comes on a connection of its own, at once, with
//! one request. All are answered, and a member reviews each token once.
//!
//! The short form, in `make test`, has a tenth of the clients and of the bounds. `PORTOLAN_RECONNECTS=5000` has as many
//! clients as that, and the bounds that routers have by default; `make reconnects` builds the programs for use.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "also in functions that only tests call; what was measured is told"
)]

#[path = "reconnects/operators.rs"]
mod operators;
#[path = "reconnects/storm.rs"]
mod storm;

use std::time::Duration;

use portolan_testbed::{eventually, patience};
use portolan_tests::daemon::Daemon;
use portolan_tests::programs::admin_get;
use portolan_tests::routers;
use portolan_tests::shard::federated;
use portolan_tests::world::{Plan, World};
use tokio::sync::{Mutex, OnceCell};

use self::operators::Operators;
use self::storm::{Storm, counter};

/// Clients of the short form, and requests that its router serves at a time: as the default's are to 5,000.
const CLIENTS: usize = 500;
const MAX_REQUESTS: usize = 400;

/// The world, its router that starts again, and callers. One test at a time has them.
static GROUND: OnceCell<Mutex<Ground>> = OnceCell::const_new();

struct Ground {
    world: World,
    router: Daemon,
}

#[expect(clippy::disallowed_methods, reason = "a setting of this suite alone")]
fn long() -> Option<usize> {
    let said = std::env::var("PORTOLAN_RECONNECTS").ok()?;
    Some(said.parse().unwrap())
}

fn clients() -> usize {
    long().unwrap_or(CLIENTS)
}

/// How long a client waits for its connection: ten seconds, as libraries do, of a router that is built for use.
fn connects_within() -> Duration {
    if long().is_some() {
        Duration::from_secs(10)
    } else {
        patience()
    }
}

async fn ground() -> &'static Mutex<Ground> {
    let start = || async { Mutex::new(start().await.unwrap()) };
    GROUND.get_or_init(start).await
}

async fn start() -> anyhow::Result<Ground> {
    let manifests = federated("one", "east", &[("east", &["r-one"])]);
    let plan = Plan {
        members: &["east"],
        namespaces: &["east/r-one"],
        manifests: &manifests,
        ..Plan::default()
    };
    let world = World::start(plan).await?;
    let most = MAX_REQUESTS.to_string();
    let short = [("PORTOLAN_MAX_REQUESTS", most.as_str())];
    let env = if long().is_none() { &short[..] } else { &[] };
    let router = routers::start(&world, "restarted", &routers::hub_of(&world)?, env).await?;
    router.ready().await;
    Ok(Ground { world, router })
}

impl Ground {
    /// Kills the router and starts it again; it has no connection to a member then, and knows no token.
    async fn restart(&mut self) {
        self.router.kill().await.unwrap();
        self.router.start_again().await.unwrap();
        self.router.ready().await;
        self.knows_all().await;
    }

    /// Waits until the router has heard of all callers.
    async fn knows_all(&self) {
        let member = self.world.direct_door("east").await.unwrap();
        let pods = member
            .get("/api/v1/namespaces/operators/pods", &[])
            .await
            .unwrap()
            .json();
        let all = pods["items"].as_array().unwrap().len() as u64;
        eventually("the router knows all callers", || async {
            let metrics = admin_get(self.router.admin(), "/metrics").await;
            let metrics = metrics.map_err(|error| format!("{error:#}"))?;
            let known = counter(&metrics, "portolan_router_snapshot_callers");
            if known >= all {
                Ok(())
            } else {
                Err(format!("{known} of {all}"))
            }
        })
        .await;
    }

    /// All clients of these operators come back after a restart.
    async fn all_come_back(&mut self, what: &str, operators: &Operators) {
        self.served(operators).await;
        self.restart().await;
        let before = self.reviews().await;
        let storm = Storm::run(&operators.doors(self.router.bind()), clients()).await;
        let metrics = admin_get(self.router.admin(), "/metrics").await.unwrap();
        println!("{what}: {storm}; {}", storm::of_router(&metrics));
        assert_eq!(storm.failures(), Vec::<String>::new(), "{what}");
        // A review counts ten seconds.
        let times = 1 + storm.took().as_secs() / 10;
        let (tokens, made) = (operators.callers() as u64, self.reviews().await - before);
        assert!(
            made >= tokens && made <= tokens * times,
            "{made} reviews of {tokens} tokens"
        );
        let asked = counter(&metrics, r#"portolan_router_identify_reviews_total{source="asked"}"#);
        assert_eq!(asked, made, "the member counts what the router does");
    }

    /// Waits until each operator is served: the next run of the router finds all it needs in its state file.
    async fn served(&self, operators: &Operators) {
        self.knows_all().await;
        for door in operators.one_of_each(self.router.bind()) {
            eventually("an operator is served", || async {
                let answer = door.get().await.map_err(|error| format!("{error:#}"))?;
                if answer.status == 200 {
                    Ok(())
                } else {
                    Err(answer.message())
                }
            })
            .await;
        }
    }

    /// TokenReviews that the member has made.
    async fn reviews(&self) -> u64 {
        let member = self.world.direct_door("east").await.unwrap();
        let metrics = member.get("/metrics", &[]).await.unwrap();
        let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
        let lines = metrics
            .lines()
            .filter(|line| line.starts_with("apiserver_request_total{") && line.contains(r#"resource="tokenreviews""#));
        lines
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok())
            .sum()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_clients_of_one_operator_come_back() {
    let mut ground = ground().await.lock().await;
    let operators = Operators::of_one(&ground.world, 1).await.unwrap();
    ground.all_come_back("one operator, one token", &operators).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_replicas_of_one_operator_come_back() {
    let mut ground = ground().await.lock().await;
    // An agent tells of 500 Pods of a selector at most.
    let operators = Operators::of_one(&ground.world, CLIENTS / 2).await.unwrap();
    ground.all_come_back("one operator, many tokens", &operators).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_clients_of_many_operators_come_back() {
    let mut ground = ground().await.lock().await;
    let operators = Operators::of_many(&ground.world, clients() / 10).await.unwrap();
    ground.all_come_back("many operators", &operators).await;
}
