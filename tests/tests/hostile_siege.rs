//! Mixed attack by one tenant, one member and somebody on the network, while two other tenants go on with their work: the
//! example operator of one, probes of both. Not one request of theirs may fail. What they waited, and what the router took of
//! memory and processor meanwhile, is printed beside a plain proxy under the same attack.
//!
//! `make hostile` runs it for `SIEGE` seconds, `make test` for a short while. The attacks one by one, each with what it must not
//! do, are in `hostile`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "also in functions that only tests call; what was measured is told"
)]

#[path = "hostile_siege/floods.rs"]
mod floods;
#[path = "hostile/front.rs"]
mod front;
#[path = "hostile_siege/peer.rs"]
mod peer;
#[path = "hostile_siege/probe.rs"]
mod probe;
#[path = "hostile_siege/tenant.rs"]
mod tenant;
#[path = "hostile_siege/unread.rs"]
mod unread;
#[path = "hostile_siege/usage.rs"]
mod usage;

use std::fs::File;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::api::{Api, Patch, PatchParams};
use portolan_crds::MemberCluster;
use portolan_testbed::eventually;
use portolan_tests::door::Door;
use portolan_tests::programs::program;
use portolan_tests::shard::federated;
use portolan_tests::world::{HUB, Plan, World};
use serde_json::json;
use tokio::process::Command;
use tokio::task::JoinSet;

use self::front::{Front, Told};
use self::peer::Peer;
use self::probe::Probe;
use self::usage::Usage;

/// Of the short form, in `make test`; its peer a third of that.
const SHORT: Duration = Duration::from_secs(12);
const CRD: &str = include_str!("../../examples/greeting-crd.yaml");
/// That each tenant lists, writes and reads under siege, at the least.
const ROUNDS: usize = 4;
/// Not a busy loop, should it not start at all.
const RESTARTED_AFTER: Duration = Duration::from_millis(50);
/// Of one that loses its Lease by a busy machine. Who loses it all the time is kept from it.
const MOST_RESTARTS: u32 = 3;
/// What the two tenants ask for.
const ONE: &str = "/api/v1/namespaces/s-one/configmaps";
const TWO: &str = "/api/v1/namespaces/s-two/configmaps";

#[expect(clippy::disallowed_methods, reason = "a setting of this test alone")]
fn lasts() -> Duration {
    let said = std::env::var("PORTOLAN_SIEGE_SECONDS").ok();
    said.map_or(SHORT, |seconds| Duration::from_secs(seconds.parse().unwrap()))
}

/// East is everybody's; mad is the attacker's own, and routers know a front of it that lies.
async fn world() -> (World, &'static Front) {
    let manifests = federated("one", "east", &[("east", &["s-one"])])
        + &federated("two", "east", &[("east", &["s-two"])])
        + &federated("bad", "east", &[("east", &["s-bad"]), ("mad", &["s-mad"])]);
    let plan = Plan {
        members: &["east", "mad"],
        namespaces: &["east/s-one", "east/s-two", "east/s-bad", "mad/s-mad"],
        manifests: &manifests,
        ..Plan::default()
    };
    let world = World::start(plan).await.unwrap();
    let cluster = world.cluster("mad");
    let front = Front::start(&cluster.direct_url(), cluster.ca_pem()).unwrap();
    let members = Api::<MemberCluster>::all(world.cluster(HUB).client().await.unwrap());
    let spec = json!({"endpoints": [{"url": front.url}], "caBundle": front.ca_bundle});
    let patch = Patch::Merge(json!({"spec": spec}));
    members.patch("mad", &PatchParams::default(), &patch).await.unwrap();
    let door = world.explicit_door("mad").await.unwrap();
    eventually("the router asks the front", || async {
        front.forget();
        let _ = door.get("/version", &[]).await;
        front.was_asked("/version").then_some(())
    })
    .await;
    // Its runtime must not end in another's.
    (world, Box::leak(Box::new(front)))
}

/// The member answers in every way but the right one.
fn lies(front: &Front) {
    front.lies_about("/secrets", |_| Some(Told::Head(http::Response::builder().status(500))));
    front.lies_about("/services", |_| {
        Some(Told::Head(
            http::Response::builder()
                .status(307)
                .header("location", "//elsewhere.example/"),
        ))
    });
    front.lies_about("/configmaps", |_| Some(Told::Of("/api/v1/configmaps".to_owned())));
    front.lies_about("/pods", |_| {
        Some(Told::With(&[("set-cookie", "a=b"), ("retry-after", "0")]))
    });
}

/// The example operator of tenant one, killed when dropped. What it and the router logged is told if the test fails.
struct Operator<'a> {
    world: &'a World,
    log: tempfile::NamedTempFile,
    _runs: JoinSet<()>,
}

impl<'a> Operator<'a> {
    /// Started again whenever it ends, as a kubelet does: it ends when it loses its Lease, which a machine that is busy enough
    /// brings about.
    fn start(world: &'a World) -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        let (kubeconfig, path) = (world.fleet.merged_kubeconfig("one"), log.path().to_owned());
        let mut runs = JoinSet::new();
        runs.spawn(async move {
            for _ in 0..=MOST_RESTARTS {
                let log = File::options().append(true).open(&path).unwrap();
                let mut child = Command::new(program("greeting-operator").unwrap())
                    .env("KUBECONFIG", &kubeconfig)
                    .stdout(Stdio::null())
                    .stderr(log)
                    .kill_on_drop(true)
                    .spawn()
                    .unwrap();
                let ended = child.wait().await.unwrap();
                println!("the operator ended ({ended}), and is started again");
                tokio::time::sleep(RESTARTED_AFTER).await;
            }
            println!("the operator ended too often, and is started no more");
        });
        Self {
            world,
            log,
            _runs: runs,
        }
    }
}

impl Drop for Operator<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let operator = std::fs::read_to_string(self.log.path()).map_err(anyhow::Error::from);
            for (who, log) in [("operator", operator), ("router", self.world.fleet.log("router"))] {
                println!("log of the {who}:\n{}", log.unwrap_or_else(|error| error.to_string()));
            }
        }
    }
}

/// Makes Greetings one after the other, each when the one before is applied: what the operator does goes on.
async fn greetings(door: Door, stop: Arc<AtomicBool>) -> usize {
    let path = "/apis/example.com/v1/namespaces/s-one/greetings";
    let mut applied = 0;
    while !stop.load(Ordering::Relaxed) {
        let name = format!("g-{applied}");
        let greeting = json!({
            "apiVersion": "example.com/v1",
            "kind": "Greeting",
            "metadata": {"name": name},
            "spec": {"message": "hello", "replicas": 0},
        });
        let made = door.post(path, &greeting).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.message());
        eventually(&format!("{name} is applied"), || async {
            let one = door.get(&format!("{path}/{name}"), &[]).await.unwrap().json();
            let all = one["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let mut found = all.iter().filter(|condition| condition["type"] == "Applied");
            found.any(|condition| condition["status"] == "True").then_some(())
        })
        .await;
        applied += 1;
    }
    applied
}

/// All attacks at once, until they are told to stop. `door`: of the tenant.
fn attack(door: &Door, nobody: &Door, stop: &Arc<AtomicBool>) -> JoinSet<(&'static str, usize)> {
    let mut attacks = tenant::attacks(door, stop);
    floods::attacks(&mut attacks, nobody, stop);
    attacks
}

async fn ended(mut attacks: JoinSet<(&'static str, usize)>) {
    while let Some(attack) = attacks.join_next().await {
        let (what, times) = attack.unwrap();
        println!("  {what}: {times}");
        assert!(times > 0, "{what} was never tried");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tenants_notice_nothing_of_a_siege() {
    let (world, front) = world().await;
    world.direct("east").ok_with(&["apply", "-f", "-"], CRD).await.unwrap();
    let (one, two) = (
        world.listed_door("one", ONE).await.unwrap(),
        world.listed_door("two", TWO).await.unwrap(),
    );
    let bad = world.listed_door("bad", "/api/v1/configmaps").await.unwrap();
    let nobody = world.token_door(None).await.unwrap();
    let router = world.fleet.process("router").unwrap();
    println!("one by one on the router:");
    floods::one_by_one(&nobody, router.pid).await;
    unread::held(&bad, router.pid).await;
    let _operator = Operator::start(&world);
    lies(front);
    let quiet = Arc::new(AtomicBool::new(false));
    let mut work = JoinSet::new();
    work.spawn(greetings(one.clone(), quiet.clone()));
    let before = Usage::of(router.pid).unwrap();
    let probes = [Probe::start(one, ONE), Probe::start(two, TWO)];

    let stop = Arc::new(AtomicBool::new(false));
    println!("attacks on the router, {} s:", lasts().as_secs());
    let attacks = attack(&bad, &nobody, &stop);
    tokio::time::sleep(lasts()).await;
    // A busy machine is no failure: the siege goes on until both have seen enough of it.
    eventually("both tenants go on", || async {
        probes.iter().all(|probe| probe.rounds() >= ROUNDS)
    })
    .await;
    let used = Usage::of(router.pid).unwrap();
    stop.store(true, Ordering::Relaxed);
    ended(attacks).await;
    quiet.store(true, Ordering::Relaxed);
    let applied = work.join_next().await.unwrap().unwrap();
    println!("router: {}; {applied} Greetings applied", used.since(&before));
    for (tenant, probe) in ["one", "two"].into_iter().zip(probes) {
        let seen = probe.end().await;
        println!("tenant {tenant}: {seen}");
        assert_eq!(seen.failures, Vec::<String>::new(), "tenant {tenant}");
    }
    assert!(applied > 0, "the operator did nothing");
    beside(&world).await;
}

/// The same before a plain proxy in front of the same API server, whose tenants have tokens of their own there.
async fn beside(world: &World) {
    let peer = Peer::start(world, None).await.unwrap();
    let (one, bad) = (peer.door("s-one").await.unwrap(), peer.door("s-bad").await.unwrap());
    let nobody = bad.clone().with_token(&peer.ca_pem, None).unwrap();
    let before = Usage::of(peer.pid()).unwrap();
    let probe = Probe::start(one, ONE);
    let stop = Arc::new(AtomicBool::new(false));
    let lasts = lasts() / 3;
    println!("attacks on a plain proxy, {} s:", lasts.as_secs());
    let attacks = attack(&bad, &nobody, &stop);
    tokio::time::sleep(lasts).await;
    let used = Usage::of(peer.pid()).map(|used| used.since(&before).to_string());
    stop.store(true, Ordering::Relaxed);
    ended(attacks).await;
    println!("plain proxy: {}", used.unwrap_or_else(|gone| gone.to_string()));
    let seen = probe.end().await;
    println!("tenant one there: {seen}, {} failed", seen.failures.len());
}
