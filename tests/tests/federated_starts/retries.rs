//! client-go's `RetryWatcher`, `Until` and `UntilWithSync`, from a list's version and from a created object's, while their
//! streams end and the router is restarted under them: no event is lost, and none comes twice.

use std::path::Path;
use std::time::Duration;

use portolan_tests::daemon::Daemon;
use portolan_tests::go_client::GoClient;
use portolan_tests::watch::Held;
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::{CALM, Place, change, door, listed, make, map, maps, remove, version_of, world};

const PLACES: [Place; 2] = [("east", "fr-a"), ("west", "fr-w")];
/// Streams end after so many seconds, by the server.
const SECONDS: &str = "--watch-seconds=2";
/// Between writes: a stream ends within some of them.
const PAUSE: Duration = Duration::from_millis(300);
/// Writes while streams end, and after each restart.
const ROUNDS: usize = 8;

/// Takes an `event` line in.
pub(crate) fn take(held: &mut Held, line: &Value) {
    let text = |key: &str| line[key].as_str().unwrap().to_owned();
    if line["event"] == "DELETED" {
        held.remove(&text("key"));
    } else {
        held.insert(text("key"), (text("uid"), text("rv")));
    }
}

/// What is written, and what clients are told by it: `TYPE key`, with the version where a write tells it.
#[derive(Default)]
struct Log {
    written: usize,
    events: Vec<String>,
}

impl Log {
    /// One object made, changed, and, of three, one deleted, in each place.
    async fn round(&mut self) {
        self.written += 1;
        for place @ (_, namespace) in PLACES {
            let name = format!("o-{}", self.written);
            let mut told = |kind: &str, version: &str| self.events.push(format!("{kind} {namespace}/{name} {version}"));
            told("ADDED", &make(place, &name).await);
            told("MODIFIED", &change(place, &name).await);
            if self.written.is_multiple_of(3) {
                remove(place, &name).await;
                told("DELETED", "");
            }
        }
        tokio::time::sleep(PAUSE).await;
    }

    async fn rounds(&mut self, many: usize) {
        for _ in 0..many {
            self.round().await;
        }
    }

    async fn end(&mut self) {
        for place @ (_, namespace) in PLACES {
            let version = make(place, "o-end").await;
            self.events.push(format!("ADDED {namespace}/o-end {version}"));
        }
    }

    fn of(&self, namespace: &str) -> Vec<&str> {
        in_namespace(&self.events, namespace)
    }
}

fn in_namespace<'a>(events: &'a [String], namespace: &str) -> Vec<&'a str> {
    let prefix = format!(" {namespace}/o-");
    let own = events.iter().filter(|event| event.contains(&prefix));
    own.map(String::as_str).collect()
}

/// A `RetryWatcher` and the namespaces of [`PLACES`] that it is told of.
struct Follower {
    name: String,
    client: GoClient,
    namespaces: &'static [&'static str],
}

impl Follower {
    fn start(kubeconfig: &Path, arguments: &[&str], namespaces: &'static [&'static str]) -> Self {
        let arguments = [&["retry", SECONDS], arguments].concat();
        Self {
            name: arguments.join(" "),
            client: GoClient::start(kubeconfig, &arguments).unwrap(),
            namespaces,
        }
    }

    /// It has been told exactly this.
    async fn was_told(&mut self, log: &Log) {
        for namespace in self.namespaces {
            let end = format!("{namespace}/o-end");
            if !self.client.seen().iter().any(|line| line["key"] == *end) {
                let told = self.client.wait(&end, |line| line["key"] == *end).await;
                told.unwrap_or_else(|error| panic!("{}: {error}", self.name));
            }
        }
        let events: Vec<String> = self.client.seen().iter().filter_map(said).collect();
        for namespace in self.namespaces {
            assert_eq!(in_namespace(&events, namespace), log.of(namespace), "{}", self.name);
        }
        let over = |line: &&Value| line["type"] == "error" || line["type"] == "done";
        assert_eq!(self.client.seen().iter().find(over), None, "{}", self.name);
        let watches = self.client.seen().iter().filter(|line| line["verb"] == "watch").count();
        assert!(watches > 4, "{} was not cut: {watches}", self.name);
    }
}

/// An `event` line in the words of a [`Log`].
fn said(line: &Value) -> Option<String> {
    let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
    let kind = text("event");
    let version = if kind == "DELETED" { String::new() } else { text("rv") };
    (line["type"] == "event").then(|| format!("{kind} {} {version}", text("key")))
}

/// The router, this process's own from now on.
async fn router() -> Daemon {
    let router = world().await.fleet.take_over("router").await.unwrap();
    router.ready().await;
    router
}

/// `--resource-version` of a list of all namespaces, of a list of one, and of an object.
struct Starts {
    all: String,
    one: String,
    created: String,
}

impl Starts {
    async fn now() -> Self {
        let door = door("retries").await;
        let created = door.post(&maps(Some("fr-a")), &map("created")).await.unwrap();
        let from = |version: String| format!("--resource-version={version}");
        Self {
            created: from(version_of(&created)),
            all: from(listed(&door, &maps(None)).await.1),
            one: from(listed(&door, &maps(Some("fr-a"))).await.1),
        }
    }

    fn followers(&self, retries: &Path, whole: &Path) -> Vec<Follower> {
        let Self { all, one, created } = self;
        let mut followers = Vec::new();
        for format in ["--client=typed", "--client=json"] {
            followers.push(Follower::start(retries, &[format, all], &["fr-a", "fr-w"]));
            for from in [one, created, all] {
                let arguments = [format, "--namespace=fr-a", from];
                followers.push(Follower::start(retries, &arguments, &["fr-a"]));
            }
            followers.push(Follower::start(whole, &[format, created], &["fr-a"]));
        }
        followers
    }

    /// `Until`, and without a version `UntilWithSync`.
    fn waiting(&self, retries: &Path, whole: &Path) -> Vec<GoClient> {
        let Self { all, one, created } = self;
        let until = |kubeconfig, arguments: &[&str]| {
            GoClient::start(kubeconfig, &[&["until", SECONDS], arguments].concat()).unwrap()
        };
        vec![
            until(retries, &[all, "fr-w/o-2", "fr-w/o-end"]),
            until(retries, &["--namespace=fr-a", one, "fr-a/o-2", "fr-a/o-end"]),
            until(retries, &["--namespace=fr-a", created, "fr-a/o-2", "fr-a/o-end"]),
            until(whole, &[created, "fr-a/o-2", "fr-a/o-end"]),
            until(retries, &["fr-w/o-end"]),
            until(retries, &["--watch-list=false", "--namespace=fr-a", "fr-a/o-end"]),
        ]
    }
}

#[tokio::test]
async fn client_gos_watch_tools_lose_nothing_and_are_told_nothing_twice() {
    let _alone = CALM.write().await;
    let fleet = &world().await.fleet;
    let mut router = router().await;
    let [retries, whole] = ["retries", "whole"].map(|shard| fleet.merged_kubeconfig(shard));
    let starts = Starts::now().await;
    let mut followers = starts.followers(&retries, &whole);
    let mut waiting = starts.waiting(&retries, &whole);
    is_over(&retries, &starts.created).await;

    let mut log = Log::default();
    log.rounds(ROUNDS).await;
    // Under writes: what comes while nobody listens is told afterwards.
    let rolled = async {
        assert_eq!(router.stop().await.unwrap(), 0);
        router.start_again().await.unwrap();
        router.ready().await;
    };
    tokio::join!(log.rounds(ROUNDS), rolled);
    router.kill().await.unwrap();
    log.rounds(2).await;
    router.start_again().await.unwrap();
    router.ready().await;
    log.rounds(ROUNDS).await;
    log.end().await;
    for follower in &mut followers {
        follower.was_told(&log).await;
    }
    for client in &mut waiting {
        client.wait_type("done").await.unwrap();
    }
    keep(router);
}

/// Over all namespaces of two members the version of an object is nobody's, and a `RetryWatcher` never lists.
async fn is_over(kubeconfig: &Path, created: &str) {
    let mut client = GoClient::start(kubeconfig, &["retry", created]).unwrap();
    let told = client.wait_type("error").await.unwrap();
    let message = told["message"].as_str().unwrap();
    assert!(message.contains("of one member only"), "{message}");
    client.wait_type("done").await.unwrap();
}

/// Who comes after this test needs it.
fn keep(router: Daemon) {
    static KEPT: OnceCell<Daemon> = OnceCell::const_new();
    assert!(KEPT.set(router).is_ok());
}
