//! A namespace is handed over to another shard: what informers of each family hold of it, its old owner's and its new one's.

use std::path::Path;
use std::time::{Duration, Instant};

use kube::Api;
use kube::runtime::watcher;
use portolan_testbed::patience;
use portolan_tests::door::Door;
use portolan_tests::go_client::GoClient;
use portolan_tests::watch::Held;
use portolan_tests::watcher::{Objects, Watcher};
use serde_json::{Value, json};

use crate::formats::{Events, FORMATS};
use crate::{CALM, Place, door, listed, make, map, maps, own, truth, world};

/// Streams end and are begun again after so many seconds: clients ask for minutes.
const SECONDS: u32 = 2;
const GIVERS: Place = ("east", "fh-e");
const GIVEN: Place = ("east", "fh");
const TAKERS: Place = ("east", "fh-t");
/// For how long those who are refused are looked at, and how many requests of one are no hot loop then.
const WINDOW: Duration = Duration::from_secs(4);
const FEW: usize = 12;

/// An informer of ConfigMaps.
struct Informer {
    name: String,
    of: Family,
}

enum Family {
    Go(Box<GoClient>),
    Rust(Watcher),
}

impl Informer {
    /// One of each family and way to begin, of one namespace or of all.
    async fn all(shard: &str, namespace: &str) -> Vec<Self> {
        let kubeconfig = world().await.fleet.merged_kubeconfig(shard);
        let mut all = Vec::new();
        for streaming in [true, false] {
            for family in ["typed", "runtime-typed"] {
                let what = format!("{family}:v1/configmaps:{namespace}");
                all.push(Self::go(&kubeconfig, what.trim_end_matches(':'), streaming));
            }
            let client = world().await.client(kubeconfig.clone(), None).await.unwrap();
            let api = match namespace {
                "" => Api::all(client),
                one => Api::namespaced(client, one),
            };
            let config = watcher::Config::default().timeout(SECONDS);
            let config = if streaming { config.streaming_lists() } else { config };
            all.push(Self {
                name: format!("kube-rs, streaming {streaming}"),
                of: Family::Rust(Watcher::start(api, config)),
            });
        }
        all
    }

    fn go(kubeconfig: &Path, what: &str, streaming: bool) -> Self {
        let arguments = [
            "soak".to_owned(),
            format!("--watch-list={streaming}"),
            format!("--watch-seconds={SECONDS}"),
            what.to_owned(),
        ];
        let name = arguments.join(" ");
        let arguments = arguments.each_ref().map(String::as_str);
        let client = GoClient::start(kubeconfig, &arguments).unwrap();
        let of = Family::Go(Box::new(client));
        Self { name, of }
    }

    async fn held(&mut self) -> Objects {
        let client = match &mut self.of {
            Family::Rust(watcher) => return watcher.seen().held.clone(),
            Family::Go(client) => client,
        };
        client.tell("report").await.unwrap();
        let report = client.wait_type("report").await.unwrap();
        let items = report["clients"][0]["items"].as_array().unwrap().iter();
        let text = |item: &Value, key: &str| item[key].as_str().unwrap().to_owned();
        items.map(|item| (text(item, "key"), text(item, "rv"))).collect()
    }

    /// Once it holds this, whatever it held before; that is asked again and again, of one who has it for itself.
    async fn holds(&mut self, wanted: &Objects) {
        let started = Instant::now();
        loop {
            let held = self.held().await;
            if held == *wanted {
                return;
            }
            assert!(
                started.elapsed() < patience(),
                "{}: {held:?} is not {wanted:?}",
                self.name
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// How often it has asked, and how often it was refused, as far as it is known since [`Informer::held`].
    fn asked(&self) -> (usize, usize) {
        match &self.of {
            Family::Rust(watcher) => {
                let seen = watcher.seen();
                // The refusal says whose the namespace is.
                let refused = seen.errors.iter().filter(|error| error.contains("operators/taker"));
                (seen.errors.len(), refused.count())
            }
            Family::Go(client) => {
                let asked = client.seen().iter().filter(|line| line["type"] == "request");
                let refused = asked.clone().filter(|line| line["status"] == 403);
                (asked.count(), refused.count())
            }
        }
    }

    /// Once it has been refused, holding nothing.
    async fn is_refused(&mut self) {
        let started = Instant::now();
        while self.asked().1 == 0 {
            assert!(started.elapsed() < patience(), "{} was never refused", self.name);
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(self.held().await, Objects::new(), "{}", self.name);
        }
    }
}

fn objects(held: &Held) -> Objects {
    let objects = held.iter();
    objects
        .map(|(key, (_, version))| (key.clone(), version.clone()))
        .collect()
}

#[tokio::test]
async fn a_namespace_that_left_is_emptied_at_its_old_owners_and_whole_at_its_new_ones() {
    let _calm = CALM.read().await;
    for (place, name) in [(GIVERS, "kept"), (GIVEN, "one"), (GIVEN, "two"), (TAKERS, "own")] {
        make(place, name).await;
    }
    let (giver, taker) = (door("giver").await, door("taker").await);
    let path = maps(Some(GIVEN.1));
    let before = listed(&giver, &path).await;
    let mut old = Informer::all("giver", GIVEN.1).await;
    let mut others = Informer::all("giver", "").await;
    let mut new = Informer::all("taker", "").await;
    for (informers, places) in [
        (&mut old, &[GIVEN][..]),
        (&mut others, &[GIVERS, GIVEN]),
        (&mut new, &[TAKERS]),
    ] {
        let truth = objects(&truth(places).await);
        for informer in informers {
            informer.holds(&truth).await;
        }
    }

    let clusters = json!([{"name": "east", "namespaces": [GIVERS.1]}]);
    world().await.own("giver", clusters).await.unwrap();
    let clusters = json!([{"name": "east", "namespaces": [TAKERS.1, GIVEN.1]}]);
    own("taker", clusters, &[TAKERS, GIVEN]).await;
    let written = taker.post(&path, &map("by-its-new-owner")).await.unwrap();
    assert_eq!(written.status, 201, "{}", written.message());
    for (informers, places) in [
        (&mut old, &[][..]),
        (&mut others, &[GIVERS]),
        (&mut new, &[TAKERS, GIVEN]),
    ] {
        let truth = objects(&truth(places).await);
        for informer in informers {
            informer.holds(&truth).await;
        }
    }
    whoever_comes_is_told_once(&giver, &path, before).await;
    nobody_asks_in_a_hot_loop(&mut old).await;
}

/// Who was not there then: first it is empty, then it is another's.
async fn whoever_comes_is_told_once(giver: &Door, path: &str, (held, position): (Held, String)) {
    for format in FORMATS {
        let mut late = Events::open(giver, format, path, &position).await;
        late.held.clone_from(&held);
        late.holds(&Held::new()).await;
    }
    let (left, told) = listed(giver, &format!("{path}?resourceVersion={position}")).await;
    assert_eq!(left, Held::new());
    for query in ["", "&watch=true"] {
        let refused = giver.get(&format!("{path}?resourceVersion={told}{query}"), &[]).await;
        refused.unwrap().expect_status(403, &["fh", "operators/taker"]).unwrap();
    }
    let one = giver.get(&format!("{path}/one"), &[]).await.unwrap();
    one.expect_status(403, &["fh"]).unwrap();
    let write = giver.post(path, &map("by-its-old-owner")).await.unwrap();
    write.expect_status(403, &["fh"]).unwrap();
}

async fn nobody_asks_in_a_hot_loop(informers: &mut [Informer]) {
    let mut asked = Vec::new();
    for informer in &mut *informers {
        informer.is_refused().await;
    }
    for informer in &mut *informers {
        informer.held().await;
        asked.push(informer.asked().0);
    }
    tokio::time::sleep(WINDOW).await;
    for (informer, before) in informers.iter_mut().zip(asked) {
        assert_eq!(informer.held().await, Objects::new(), "{}", informer.name);
        let more = informer.asked().0 - before;
        assert!(more <= FEW, "{} asked {more} times in {WINDOW:?}", informer.name);
    }
}
