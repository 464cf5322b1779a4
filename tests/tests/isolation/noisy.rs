//! A tenant that fills a member with lists that do not end.

use std::time::{Duration, Instant};

use http::Method;
use portolan_testbed::eventually;
use portolan_tests::door::{Door, Line, request};
use portolan_tests::programs::admin_get;
use tokio::task::JoinSet;

use crate::front::Told;
use crate::{ONE, TWO, caller, lease, renewal, world};

/// What the front never answers.
const ENDLESS: &str = "isolation-endless";
/// Callers of the noisy tenant, and lists of each: together more than the member's 1,024 seats.
const CALLERS: usize = 3;
const LISTS: usize = 400;
/// Lists of one tenant come to a member so many at a time, and as many more after some seconds.
const AT_A_TIME: usize = 8;
/// Of one request: the noise lasts a minute. Longer than a list of the same tenant's noise keeps a place. Other suites have the
/// machine as well.
const PATIENCE: Duration = Duration::from_secs(8);
const ROUNDS: usize = 50;

/// Waits of one kind of request.
#[derive(Default)]
struct Waits(Vec<Duration>);

impl Waits {
    async fn ask(&mut self, line: &Line, what: http::Request<Vec<u8>>) -> serde_json::Value {
        let asked = Instant::now();
        let answer = tokio::time::timeout(PATIENCE, line.ask(what)).await;
        let answer = answer.expect("it waits behind another caller's lists").unwrap();
        assert_eq!(answer.status, 200, "{}", answer.message());
        self.0.push(asked.elapsed());
        answer.json()
    }

    fn told(mut self, what: &str) -> String {
        self.0.sort_unstable();
        let at = |percent: usize| self.0[(self.0.len() * percent / 100).min(self.0.len() - 1)];
        format!("  {what}: p50 {:?}, p99 {:?}, longest {:?}", at(50), at(99), at(100))
    }
}

/// Reads and writes of the election's Lease in turn, and a list after every so many.
async fn round(door: &Door, path: &str, list_every: usize) -> Vec<String> {
    let mut lease = lease(door).await;
    let line = door.open().await.unwrap();
    let get = |path: &str| request(Method::GET, path, &[], &[]).unwrap();
    let [mut singles, mut renewals, mut listed] = [Waits::default(), Waits::default(), Waits::default()];
    for number in 0..ROUNDS {
        singles.ask(&line, get(&format!("{path}/kube-root-ca.crt"))).await;
        lease["spec"]["leaseTransitions"] = number.into();
        lease = renewals.ask(&line, renewal(&lease)).await;
        if number % list_every == 0 {
            listed.ask(&line, get(path)).await;
        }
    }
    vec![
        singles.told("single requests"),
        renewals.told("Lease renewals"),
        listed.told("lists"),
    ]
}

/// Opens the lists; what came of those that ended is counted by status.
async fn noise(doors: &[Door]) -> JoinSet<u16> {
    let mut all = JoinSet::new();
    for door in doors {
        for _ in 0..LISTS / 100 {
            let line = std::sync::Arc::new(door.open().await.unwrap());
            for _ in 0..100 {
                let line = line.clone();
                all.spawn(async move {
                    let path = format!("{ONE}?labelSelector={ENDLESS}");
                    let answer = line.ask(request(Method::GET, &path, &[], &[]).unwrap()).await;
                    answer.map_or(0, |answer| answer.status)
                });
            }
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_one_tenant_that_do_not_end_delay_nobody_else() {
    let (world, front) = world().await;
    front.lies_about(ENDLESS, |_| Some(Told::Never));
    let mut doors = Vec::new();
    for number in 0..CALLERS {
        doors.push(caller(world, "one", &format!("noisy-{number}"), ONE).await);
    }
    let (one, two) = (
        world.listed_door("one", ONE).await.unwrap(),
        world.listed_door("two", TWO).await.unwrap(),
    );
    println!("alone:\n{}", round(&two, TWO, 1).await.join("\n"));
    front.forget();
    let mut noise = noise(&doors).await;
    eventually("the member has some of the lists", || async {
        (front.times(ENDLESS) >= AT_A_TIME).then_some(())
    })
    .await;
    let seated = front.times(ENDLESS);
    println!(
        "{CALLERS} callers of another tenant ask for {} lists, of which the member has {seated}:",
        CALLERS * LISTS
    );
    println!("{}", round(&two, TWO, 1).await.join("\n"));
    // Each of its lists comes before all others of its tenant that wait, but for a place.
    println!(
        "of another caller of that tenant:\n{}",
        round(&one, ONE, ROUNDS / 5).await.join("\n")
    );
    let seated = front.times(ENDLESS);
    assert!(
        seated < CALLERS * LISTS / 4,
        "{seated} of a tenant's lists have come to the member"
    );
    while let Some(ended) = noise.try_join_next() {
        assert!(matches!(ended.unwrap(), 429 | 504), "not served, and not for long");
    }
    let metrics = admin_get(&world.fleet.process("router").unwrap().admin, "/metrics")
        .await
        .unwrap();
    let seats = r#"portolan_router_queue_seated{cluster="east",class="list"} "#;
    assert!(metrics.contains(seats), "{metrics}");
    assert!(
        metrics.contains(r#"portolan_router_queue_duration_seconds_count{queue="member",class="lease"}"#),
        "{metrics}"
    );
}
