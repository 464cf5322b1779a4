//! One limit of two routers: the hub divides it among them by what they are asked for, and without the hub they pass no more
//! than it says together. `make policies` looks for a minute (`PORTOLAN_SHARED_SECONDS`).
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "also in functions that only tests call; what was let through is told"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use http::Method;
use kube::Api;
use kube::api::PostParams;
use portolan_crds::CircuitBreaker;
use portolan_testbed::eventually;
use portolan_tests::daemon::Daemon;
use portolan_tests::door::{Door, Line, request};
use portolan_tests::programs::admin_get;
use portolan_tests::routers;
use portolan_tests::shard::federated;
use portolan_tests::world::{HUB, Plan, World};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

const MAP: &str = "/api/v1/namespaces/together-e/configmaps/kube-root-ca.crt";
const LIST: &str = "/api/v1/namespaces/together-e/configmaps";
/// Tokens in a second, and those that are kept: as many as come while a busy machine has other things to do.
const LIMIT: u32 = 100;
const BURST: u32 = 50;
/// Requests in a second at the router that has more of them, and at the other: as fast as the limit, an even division would
/// leave a part of it to nobody.
const MORE: f64 = 160.0;
const LESS: f64 = 20.0;
/// Before anything is counted.
const WARM: Duration = Duration::from_secs(4);
/// While the hub is away.
const AWAY: Duration = Duration::from_secs(5);
/// Between two looks at what is due.
const TICK: Duration = Duration::from_millis(10);

/// A window in which the seconds of one move do not count for much.
const LONG: Duration = Duration::from_mins(1);

/// How long is counted.
fn window() -> Duration {
    #[expect(clippy::disallowed_methods, reason = "a setting of this test alone")]
    let configured = std::env::var("PORTOLAN_SHARED_SECONDS").ok();
    let seconds = configured.and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(15))
}

/// One request that was let through: when it was sent, and when answered. It took its token in between.
type Passed = (Instant, Instant);

/// What was asked, and what of it was let through.
#[derive(Default)]
struct Told {
    asked: Vec<Instant>,
    passed: Vec<Passed>,
}

impl Told {
    /// Second by second since then, for people: let through of what was asked.
    fn seconds(&self, begun: Instant) -> String {
        let count = |times: &mut dyn Iterator<Item = Instant>| {
            let mut counts = BTreeMap::<u64, usize>::new();
            times.for_each(|at| *counts.entry((at - begun).as_secs()).or_default() += 1);
            counts
        };
        let passed = count(&mut self.passed.iter().map(|(sent, _)| *sent));
        let asked = count(&mut self.asked.iter().copied());
        let each = asked.iter().map(|(second, asked)| {
            let passed = passed.get(second).copied().unwrap_or_default();
            format!("{passed}/{asked}")
        });
        each.collect::<Vec<_>>().join(" ")
    }
}

/// Asks one router as often as `rate` says, in a second, of the time since it began.
async fn ask(line: Line, lasts: Duration, rate: impl Fn(Duration) -> f64) -> Told {
    let (line, begun) = (std::sync::Arc::new(line), Instant::now());
    let (mut told, mut due, mut last) = (Told::default(), 0.0, Duration::ZERO);
    let mut answers = JoinSet::new();
    while begun.elapsed() < lasts {
        let now = begun.elapsed();
        due += rate(now) * now.saturating_sub(last).as_secs_f64();
        last = now;
        while due >= 1.0 {
            due -= 1.0;
            told.asked.push(Instant::now());
            let line = line.clone();
            answers.spawn(async move {
                let sent = Instant::now();
                let answer = line.ask(request(Method::GET, MAP, &[], &[]).unwrap()).await.unwrap();
                assert!(
                    matches!(answer.status, 200 | 429),
                    "{} {}",
                    answer.status,
                    answer.message()
                );
                (answer.status == 200).then(|| (sent, Instant::now()))
            });
        }
        sleep_until(begun + now + TICK).await;
    }
    told.passed = answers.join_all().await.into_iter().flatten().collect();
    told
}

/// Both routers at once, and what was let through together.
async fn both(doors: [&Door; 2], lasts: Duration, rates: [impl Fn(Duration) -> f64; 2]) -> Told {
    let [one, other] = [doors[0].open().await.unwrap(), doors[1].open().await.unwrap()];
    let ([rate, other_rate], begun) = (rates, Instant::now());
    let (mut one, other) = tokio::join!(ask(one, lasts, rate), ask(other, lasts, other_rate));
    for told in [&one, &other] {
        println!("  {}", told.seconds(begun));
    }
    one.asked.extend(other.asked);
    one.passed.extend(other.passed);
    one.passed.sort_unstable();
    one
}

/// How many in a second.
fn rate(count: usize, lasts: Duration) -> f64 {
    f64::from(u32::try_from(count).unwrap()) / lasts.as_secs_f64()
}

/// Of all windows of time the one in which most took their tokens, for certain, beyond those that came meanwhile: no more
/// than one bucket keeps, however long the window is and however many routers there are.
fn most_beyond_the_limit(passed: &[Passed]) -> f64 {
    let mut answered = passed.to_vec();
    answered.sort_unstable_by_key(|(_, answered)| *answered);
    let within = |from: Instant| {
        let after = answered.iter().filter(|(sent, _)| *sent >= from);
        let beyond = after
            .zip(1_u32..)
            .map(|((_, end), count)| f64::from(count) - f64::from(LIMIT) * end.duration_since(from).as_secs_f64());
        beyond.fold(0.0, f64::max)
    };
    passed.iter().map(|(sent, _)| within(*sent)).fold(0.0, f64::max)
}

fn assert_one_bucket(when: &str, passed: &[Passed]) {
    let most = most_beyond_the_limit(passed);
    println!("{when}: {most:.1} at once at most, beside {LIMIT} a second");
    assert!(most <= f64::from(BURST), "{when}: {most}");
}

/// Shard `together`, whose caller is in east.
async fn start() -> World {
    let plan = Plan {
        members: &["east"],
        namespaces: &["east/together-e"],
        manifests: &federated("together", "east", &[("east", &["together-e"])]),
        ..Plan::default()
    };
    World::start(plan).await.unwrap()
}

async fn limit(world: &World) -> CircuitBreaker {
    let policy = json!({"metadata": {"name": "together"}, "spec": {
        "selector": {"matchLabels": {"shard": "together"}},
        "rateLimitings": [{
            "name": "reads", "triggerPolicy": "LimiterOnly", "scope": "Shared",
            "bucket": {"burst": BURST, "interval": "1s", "limit": LIMIT},
            "resourceRules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "namespaces": ["together-e"]}],
        }],
    }});
    let policies = Api::<CircuitBreaker>::namespaced(world.cluster(HUB).client().await.unwrap(), "operators");
    let policy = serde_json::from_value(policy).unwrap();
    policies.create(&PostParams::default(), &policy).await.unwrap()
}

async fn until_held(router: &str, policy: &CircuitBreaker) {
    eventually("the router has the limit", || async {
        let page = admin_get(router, "/policies")
            .await
            .map_err(|error| error.to_string())?;
        let told: Value = serde_json::from_str(&page).unwrap();
        let mut all = told["policies"].as_array().unwrap().iter();
        let held = all.any(|one| one["uid"] == json!(policy.metadata.uid) && one["callers"].as_u64() > Some(0));
        held.then_some(()).ok_or(page)
    })
    .await;
}

async fn second_router(world: &World) -> Daemon {
    let hub = routers::hub_of(world).unwrap();
    let router = routers::start(world, "second", &hub, &[]).await.unwrap();
    router.ready().await;
    router
}

/// The caller's way in by the other router.
async fn door_of(router: &Daemon, door: &Door) -> Door {
    let mut door = door.clone();
    router.bind().clone_into(&mut door.address);
    eventually("the second router has a way to the member", || async {
        // No read of the kind that is counted.
        let answer = door.get(LIST, &[]).await.map_err(|error| error.to_string())?;
        (answer.status == 200).then_some(()).ok_or(answer.message())
    })
    .await;
    door
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_routers_share_a_limit_as_they_are_asked() {
    let world = start().await;
    let first = world.listed_door("together", LIST).await.unwrap();
    let mut second = second_router(&world).await;
    let other = door_of(&second, &first).await;
    let policy = limit(&world).await;
    until_held(&world.fleet.process("router").unwrap().admin, &policy).await;
    until_held(second.admin(), &policy).await;

    both([&first, &other], WARM, [|_| MORE, |_| LESS]).await;
    let window = window();
    // The middle third moves from the one to the other.
    let moved = move |now: Duration| (now.as_secs_f64() / window.as_secs_f64() * 3.0 - 1.0).clamp(0.0, 1.0);
    let rates = [false, true].map(|to| {
        move |now: Duration| {
            let here = if to { moved(now) } else { 1.0 - moved(now) };
            LESS + (MORE - LESS) * here
        }
    });
    let told = both([&first, &other], window, rates).await;
    let (asked, passed) = (rate(told.asked.len(), window), rate(told.passed.len(), window));
    println!("of {asked:.1} in a second {passed:.1} pass, over {window:?}");
    assert!(passed <= f64::from(LIMIT) * 1.05, "{passed} in a second");
    // A machine that cannot ask so often says nothing about what is let through.
    if asked >= 0.95 * (MORE + LESS) {
        // A share follows within some seconds, of which a short window has as many as a long one.
        let least = if window < LONG { 0.85 } else { 0.95 };
        assert!(passed >= f64::from(LIMIT) * least, "{passed} in a second");
    }
    assert_one_bucket("while demand moves", &told.passed);
    one_ends_and_comes_back(&world, &mut second, &policy).await;
    let other = door_of(&second, &first).await;
    both([&first, &other], WARM, [|_| MORE, |_| LESS]).await;
    without_the_hub(&world, [&first, &other]).await;
}

/// What each router may be using of the limit, as the hub has it.
async fn shares(world: &World) -> Value {
    let page = admin_get(&world.fleet.process("hub").unwrap().admin, "/configz")
        .await
        .unwrap();
    let page: Value = serde_json::from_str(&page).unwrap();
    page["shares"]["CircuitBreaker/operators/together/reads"].clone()
}

/// At once, and not when nobody can have anything of it any more, a day later.
async fn one_ends_and_comes_back(world: &World, second: &mut Daemon, policy: &CircuitBreaker) {
    let before = shares(world).await;
    assert_eq!(before.as_object().map(serde_json::Map::len), Some(2), "{before}");
    let ended = Instant::now();
    assert_eq!(second.stop().await.unwrap(), 0);
    eventually("the other has all of it", || async {
        let now = shares(world).await;
        let routers = now.as_object().cloned().unwrap_or_default();
        let whole = routers.len() == 1 && routers.values().all(|share| share.as_u64() == Some(1_000_000));
        whole.then_some(()).ok_or(now.to_string())
    })
    .await;
    println!("after an end the other has all of it within {:?}", ended.elapsed());
    second.start_again().await.unwrap();
    second.ready().await;
    until_held(second.admin(), policy).await;
}

/// Each router goes on with the share that it had.
async fn without_the_hub(world: &World, doors: [&Door; 2]) {
    let mut hub = world.fleet.take_over("hub").await.unwrap();
    hub.kill().await.unwrap();
    let mut all = Vec::new();
    for rates in [[MORE, LESS], [LESS, MORE]] {
        let told = both(doors, AWAY, rates.map(|rate| move |_| rate)).await;
        all.extend(told.passed);
    }
    println!("without the hub {:.1} in a second pass", rate(all.len(), 2 * AWAY));
    assert!(!all.is_empty(), "a router goes on with its last share");
    assert_one_bucket("without the hub", &all);
}
