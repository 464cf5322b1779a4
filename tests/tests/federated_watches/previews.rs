//! Clients end and resume each of their watches every few minutes: what a namespace brings and takes with it is told to a
//! watch that resumed as to one that began, also while another member is away.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use portolan_testbed::eventually;
use portolan_tests::door::Door;
use portolan_tests::programs::argument;
use serde_json::{Value, json};

use crate::plans::own;
use crate::stream::Watch;
use crate::{MAPS, MEMBERS, door, make, make_in, mend_west, position, until_west_is, world};

/// Clients ask for minutes.
const SECONDS: u32 = 3;
/// Namespaces that come and go, and those that do so once the labels of a member that is away do not count any more.
const PREVIEWS: RangeInclusive<u32> = 1..=4;
const LATER: RangeInclusive<u32> = 5..=6;
/// From a write in a member that is there to its event; machines of tests are slow.
const SOON: Duration = Duration::from_secs(2);

/// An informer that listed long ago.
struct Informer {
    door: Door,
    watch: Watch,
    /// Of its last bookmark.
    cursor: String,
    resumed: u32,
    held: BTreeSet<String>,
    /// What was told since the bookmark, and so may be told again to a watch that resumes there.
    since: BTreeSet<String>,
    again: BTreeSet<String>,
}

impl Informer {
    async fn resuming(door: Door) -> Self {
        let cursor = position(&door).await;
        let watch = Self::resume(&door, &cursor).await;
        Self {
            door,
            watch,
            cursor,
            resumed: 0,
            held: BTreeSet::new(),
            since: BTreeSet::new(),
            again: BTreeSet::new(),
        }
    }

    async fn resume(door: &Door, cursor: &str) -> Watch {
        Watch::json(door, &format!("resourceVersion={cursor}&timeoutSeconds={SECONDS}")).await
    }

    /// One event, unless it is nobody's, or the end of a stream, after which it resumes.
    async fn step(&mut self) -> Option<(String, String)> {
        let Some(event) = self.watch.next().await else {
            self.watch = Self::resume(&self.door, &self.cursor).await;
            self.resumed += 1;
            self.again.clone_from(&self.since);
            return None;
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (kind, meta) = (text(&event["type"]), &event["object"]["metadata"]);
        assert_ne!(kind, "ERROR", "after {} resumes: {event}", self.resumed);
        let name = text(&meta["name"]);
        if kind == "ADDED" && self.again.remove(&name) && self.held.contains(&name) {
            return None;
        }
        self.since.insert(name.clone());
        match kind.as_str() {
            "BOOKMARK" => {
                self.cursor = text(&meta["resourceVersion"]);
                self.since.clear();
            }
            // The member's own controllers publish it.
            _ if name == "kube-root-ca.crt" => {}
            "DELETED" => assert!(self.held.remove(&name), "DELETED of what it does not hold: {event}"),
            _ => drop(self.held.insert(name.clone())),
        }
        let told = kind != "BOOKMARK" && name != "kube-root-ca.crt";
        told.then_some((kind, name))
    }

    async fn next(&mut self) -> (String, String) {
        loop {
            if let Some(event) = self.step().await {
                return event;
            }
        }
    }

    async fn sees(&mut self, wanted: &str) -> String {
        loop {
            let (kind, name) = self.next().await;
            if name == wanted {
                return kind;
            }
        }
    }

    /// Until it has resumed once more.
    async fn resumes(&mut self) {
        let before = self.resumed;
        while self.resumed == before {
            self.step().await;
        }
    }
}

/// Previews of `shard` come to east and go, under a watch that resumes all the time.
async fn come_and_go(shard: &str, informer: &mut Informer, rounds: RangeInclusive<u32>) {
    let (own_namespace, west) = (format!("{shard}-e"), format!("{shard}-w"));
    let owns = async |namespaces: &[&str]| {
        let clusters = json!([{"name": "east", "namespaces": namespaces}, {"name": "west", "namespaces": [&west]}]);
        own(shard, clusters).await;
    };
    for round in rounds.clone() {
        informer.resumes().await;
        let preview = format!("{shard}-p{round}");
        let name = |what: &str| format!("{what}-{round}");
        world().await.namespace("east", &preview).await.unwrap();
        make_in("east", &preview, &name("in")).await;
        owns(&[&own_namespace, &preview]).await;
        assert_eq!(informer.sees(&name("in")).await, "ADDED");
        make_in("east", &preview, &name("more")).await;
        assert_eq!(informer.sees(&name("more")).await, "ADDED");
        let began = Instant::now();
        make(shard, "east", &name("beside")).await;
        assert_eq!(informer.sees(&name("beside")).await, "ADDED");
        assert!(
            began.elapsed() < SOON,
            "the others' events came {:?} late",
            began.elapsed()
        );

        owns(&[&own_namespace]).await;
        // In any order.
        let gone = BTreeSet::from([informer.next().await, informer.next().await]);
        let both = ["in", "more"].map(|what| ("DELETED".to_owned(), name(what)));
        assert_eq!(gone, BTreeSet::from(both));
        make_in("east", &preview, &name("after")).await;
        make(shard, "east", &name("last")).await;
        assert_eq!(informer.next().await, ("ADDED".to_owned(), name("last")));
    }
    let kept = |what: &'static str| (1..=*rounds.end()).map(move |round| format!("{what}-{round}"));
    let held: BTreeSet<String> = kept("beside").chain(kept("last")).collect();
    assert_eq!(informer.held, held);
    assert!(informer.resumed >= *rounds.end(), "{}", informer.resumed);
}

#[tokio::test]
async fn namespaces_come_and_go_under_a_watch_that_resumed() {
    let _calm = MEMBERS.read().await;
    let mut informer = Informer::resuming(door("previews").await).await;
    come_and_go("previews", &mut informer, PREVIEWS).await;
}

#[tokio::test]
async fn namespaces_come_and_go_while_another_member_is_away() {
    let _mine = MEMBERS.write().await;
    mend_west().await;
    let mut informer = Informer::resuming(door("partly").await).await;
    until_the_router_chooses_in(0).await;
    world().await.cluster("west").kill().await.unwrap();
    until_west_is("partly", "held").await;
    come_and_go("partly", &mut informer, PREVIEWS).await;
    // Its agent does not vouch for its labels any more: it is to be asked in another way, and nobody may wait for that.
    let stops = until_the_router_chooses_in(1);
    let resumes = async {
        loop {
            informer.step().await;
        }
    };
    tokio::select! {
        () = stops => {}
        () = resumes => {}
    }
    let before = informer.resumed;
    come_and_go("partly", &mut informer, LATER).await;
    assert!(informer.resumed > before, "and who comes back goes on where it was");
    mend_west().await;
    make("partly", "west", "back").await;
    assert_eq!(informer.sees("back").await, "ADDED");
    until_the_router_chooses_in(0).await;
    make("partly", "west", "labelled").await;
    assert_eq!(informer.sees("labelled").await, "ADDED");
}

/// Waits until the labels of so many members do not count, so that the router chooses for the shard `partly`.
async fn until_the_router_chooses_in(members: usize) {
    let fleet = &world().await.fleet;
    let dir = argument(fleet.dir());
    let caller = "east/operators/portolan-dev-partly";
    let arguments = ["explain", "watch", MAPS, "--as", caller, "--dir", &dir].map(ToOwned::to_owned);
    eventually(&format!("the router chooses in {members} members"), || async {
        let told = fleet.run(&arguments).await?;
        let chooses = told.matches("- the router keeps ").count();
        anyhow::ensure!(chooses == members, "{told}");
        anyhow::Ok(())
    })
    .await;
}
