//! Names with several addresses: connections are spread over them, and follow them when they change.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use super::super::addresses::Ages;
use super::super::scripted::Certified;
use super::endpoints::{bound, settings};
use super::*;

/// So short that tests need not wait.
const SHORT: Ages = Ages {
    fresh: Duration::ZERO,
    asked_again: Duration::from_millis(20),
    gone: Duration::from_millis(60),
};

/// A member by one name that means what `means` holds.
struct World {
    means: Arc<Mutex<Vec<SocketAddr>>>,
    certified: Certified,
    all: Upstreams,
    _connector: Connector,
}

impl World {
    fn new() -> Self {
        let means = Arc::new(Mutex::new(Vec::new()));
        let mut settings = settings();
        settings.ages = SHORT;
        settings.watch.ping_every = Duration::from_millis(10);
        settings.connect_timeout = Duration::from_secs(5);
        let mut connector = Connector::with(&settings, Tasks::new());
        let answers = means.clone();
        connector.resolver = Resolver::scripted(move |_, _| answers.lock().clone());
        let certified = Certified::new();
        let mut east = target("east", &["127.0.0.1:1".parse().unwrap()], &certified.ca_pem());
        east.endpoints[0].url = "https://east.test:6443".parse().unwrap();
        Self {
            all: first(&connector, [east]),
            means,
            certified,
            _connector: connector,
        }
    }

    /// One stream to a connection.
    async fn backend(&self) -> Backend {
        let (listener, _) = bound().await;
        Backend::start_on(listener, self.certified.clone(), 1, plain())
    }

    async fn watch(&self) -> http::Response<Body> {
        let mut watch = self
            .all
            .get("east")
            .unwrap()
            .send(true, false, get("/watch"))
            .await
            .unwrap();
        first_frame(watch.body_mut()).await;
        watch
    }
}

#[tokio::test]
async fn connections_are_spread_over_all_addresses() {
    let world = World::new();
    let backends = [world.backend().await, world.backend().await, world.backend().await];
    *world.means.lock() = backends.iter().map(|backend| backend.address).collect();
    let mut watches = Vec::new();
    for _ in 0..6 {
        watches.push(world.watch().await);
    }
    assert!(backends.iter().all(|backend| backend.seen.requests() == 2));
    let together = join_all((0..3).map(|_| world.watch())).await;
    let asked: Vec<_> = backends.iter().map(|backend| backend.seen.requests()).collect();
    assert_eq!(asked, [3, 3, 3], "dials that begin together know of each other");
    let told = world.all.endpoints().remove(0).addresses;
    assert!(told.len() == 3 && told.iter().all(|(_, open)| *open == 3), "{told:?}");
    drop((watches, together));
}

#[tokio::test]
async fn an_address_that_does_not_answer_costs_half_a_second_and_no_endpoint() {
    let world = World::new();
    let (silent, address) = bound().await;
    let backend = world.backend().await;
    *world.means.lock() = vec![closed_port().await, address, backend.address];
    let began = std::time::Instant::now();
    let held = world.watch().await;
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(world.all.endpoints()[0].health.ejections.len(), 0);
    drop((silent, held));
}

#[tokio::test]
async fn names_are_asked_again_and_what_left_them_is_drained() {
    let world = World::new();
    let (old, new) = (world.backend().await, world.backend().await);
    *world.means.lock() = vec![old.address];
    let mut watch = world.watch().await;
    let idle = world.watch().await;
    assert_eq!(old.seen.requests(), 2);
    *world.means.lock() = vec![new.address];
    drop(idle);
    let (_, _, pool) = world.all.pools().remove(0);
    assert_eq!(pool.connections, 2);
    eventually("the idle connection is closed", || {
        world.all.pools()[0].2.connections == 1
    })
    .await;
    let silent = tokio::time::timeout(Duration::from_millis(20), watch.body_mut().frame()).await;
    assert!(silent.is_err(), "a stream that is open runs on: {silent:?}");
    let _next = world.watch().await;
    assert_eq!((old.seen.requests(), new.seen.requests()), (2, 1));
    // A name that means nothing for a while takes nothing away.
    world.means.lock().clear();
    let _another = world.watch().await;
    assert_eq!(new.seen.requests(), 2);
    let known: BTreeSet<_> = world.all.endpoints()[0]
        .addresses
        .iter()
        .map(|(address, _)| *address)
        .collect();
    assert_eq!(known, BTreeSet::from([old.address, new.address]));
}

#[tokio::test]
async fn a_name_without_address_says_so() {
    let world = World::new();
    let error = world.all.get("east").unwrap().send(false, false, get("/version")).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("east.test") && error.contains("no address"), "{error}");
}
