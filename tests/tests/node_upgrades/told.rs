//! What operators are told all the while: the watches of a reflector of kube-rs, of an informer of client-go, and one that goes on
//! event by event, from the last version that it was told, whatever router it comes to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use kube::Api;
use kube::runtime::watcher;
use parking_lot::Mutex;
use portolan_testbed::eventually;
use portolan_tests::door::Door;
use portolan_tests::go_client::{Dump, GoClient};
use portolan_tests::watch::{Held, Watch, held, key, version};
use portolan_tests::watcher::Watcher;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::ground::Ground;
use crate::load::Deleted;

/// Between two looks at the informer, and how many there are.
const ASK_AGAIN: Duration = Duration::from_millis(200);
const TRIES: usize = 100;
const ALL: &str = "/api/v1/configmaps";

/// All of them.
pub(crate) struct Watchers {
    deleted: Deleted,
    of_kube: Watcher,
    resumed: Arc<Mutex<Resumed>>,
    enough: Arc<Notify>,
    informer: JoinSet<anyhow::Result<GoClient>>,
    _resumer: JoinSet<()>,
}

/// What the one that goes on has.
#[derive(Debug, Default)]
struct Resumed {
    held: Held,
    /// Where it goes on.
    at: String,
    /// Watches, one after the other.
    watches: usize,
    /// What cannot be, or was refused.
    wrong: Vec<String>,
}

impl Watchers {
    /// They hold what there is.
    pub(crate) async fn begin(ground: &Ground, deleted: &Deleted) -> Self {
        let of_kube = Watcher::start(Api::all(ground.client().await), watcher::Config::default());
        eventually("the reflector holds something", || async {
            (of_kube.seen().lists == 1 && !of_kube.seen().held.is_empty()).then_some(())
        })
        .await;
        let mut informer = JoinSet::new();
        let enough = Arc::<Notify>::default();
        let go = GoClient::synced(ground.operator(), &["informer", "--client=json"])
            .await
            .unwrap();
        informer.spawn(read(go, enough.clone()));
        let door = ground.door().await;
        let list = door.get(ALL, &[]).await.unwrap().json();
        let resumed = Arc::new(Mutex::new(Resumed {
            held: held(&list).unwrap(),
            at: version(&list).1,
            ..Resumed::default()
        }));
        let mut resumer = JoinSet::new();
        let (told, asked) = (resumed.clone(), deleted.clone());
        resumer.spawn(async move {
            loop {
                if let Err(error) = go_on(&door, &told, &asked).await {
                    told.lock().wrong.push(format!("{error:#}"));
                    return;
                }
            }
        });
        Self {
            deleted: deleted.clone(),
            of_kube,
            resumed,
            enough,
            informer,
            _resumer: resumer,
        }
    }

    /// All hold what there is, nobody was told of an end that was none, and nobody had to begin anew.
    pub(crate) async fn end(mut self, ground: &Ground) {
        let truth = ground.truth().await;
        eventually("the one that goes on holds what there is", || async {
            let resumed = self.resumed.lock();
            ensure!(resumed.wrong.is_empty(), "{:?}", resumed.wrong);
            same(&resumed.held, &truth)
        })
        .await;
        println!("watches, one after the other: {}", self.resumed.lock().watches);
        let versions: BTreeMap<_, _> = truth.iter().map(|(key, (_, version))| (key, version)).collect();
        eventually("the reflector holds what there is", || async {
            let seen = self.of_kube.seen();
            ensure!(seen.held.iter().eq(versions.clone()), "{seen:?}");
            Ok(())
        })
        .await;
        self.reflector_was_told();
        self.enough.notify_one();
        let mut go = self.informer.join_next().await.unwrap().unwrap().unwrap();
        let dump = holding(&mut go, &truth).await.unwrap();
        let lists = dump.count("list") + dump.count("watch-list");
        assert_eq!((lists, dump.count("error")), (1, 0), "{:?}", dump.counts);
        println!("what client-go was told: {:?}", dump.counts);
        let gone = go.seen().iter().filter(|line| line["type"] == "delete");
        self.were_deleted(&gone.map(|line| line["key"].as_str().unwrap().to_owned()).collect());
    }

    fn reflector_was_told(&self) {
        let seen = self.of_kube.seen();
        assert_eq!((seen.lists, &seen.errors), (1, &Vec::new()));
        self.were_deleted(&seen.deleted);
    }

    fn were_deleted(&self, told: &BTreeSet<String>) {
        let asked = self.deleted.lock();
        assert_eq!(told.difference(&asked).collect::<Vec<_>>(), Vec::<&String>::new());
        assert!(!told.is_empty(), "nobody was told of anything");
    }
}

/// Reads its lines until it is enough.
async fn read(mut go: GoClient, enough: Arc<Notify>) -> anyhow::Result<GoClient> {
    loop {
        tokio::select! {
            () = enough.notified() => return Ok(go),
            line = go.wait("a line", |_| true) => {
                let line = line?;
                ensure!(line["type"] != "error", "client-go complains: {line}");
            }
        }
    }
}

/// Waits until the informer holds this.
async fn holding(go: &mut GoClient, truth: &Held) -> anyhow::Result<Dump> {
    let mut last = go.dump().await?;
    for _ in 0..TRIES {
        let held = last
            .items
            .iter()
            .map(|item| (item.key.clone(), (item.uid.clone(), item.rv.clone())));
        if held.collect::<Held>() == *truth {
            return Ok(last);
        }
        tokio::time::sleep(ASK_AGAIN).await;
        last = go.dump().await?;
    }
    bail!("the informer holds {last:?}, and there is {truth:?}")
}

fn same(held: &Held, truth: &Held) -> anyhow::Result<()> {
    let odd = |one: &Held, other: &Held| -> Vec<String> {
        one.iter()
            .filter(|(key, version)| other.get(*key) != Some(*version))
            .map(|(key, _)| key.clone())
            .collect()
    };
    let (lacks, has) = (odd(truth, held), odd(held, truth));
    ensure!(lacks.is_empty() && has.is_empty(), "lacks {lacks:?}, has {has:?}");
    Ok(())
}

/// One watch, to its end.
async fn go_on(door: &Door, told: &Mutex<Resumed>, deleted: &Deleted) -> anyhow::Result<()> {
    let from = told.lock().at.clone();
    let mut watch = Watch::open(door, &format!("{ALL}?resourceVersion={from}"))
        .await
        .context("a watch")?;
    told.lock().watches += 1;
    while let Some(event) = watch.next().await? {
        let wrong = told.lock().is_wrong(&event, deleted);
        if let Some(wrong) = wrong {
            bail!("{wrong}: {event}");
        }
    }
    Ok(())
}

impl Resumed {
    /// Takes an event in; says what about it cannot be.
    fn is_wrong(&mut self, event: &Value, deleted: &Deleted) -> Option<&'static str> {
        let object = &event["object"];
        let (key, version) = (key(object), version(object));
        let known = self.held.get(&key);
        let wrong = match event["type"].as_str()? {
            "BOOKMARK" => None,
            "ADDED" => known.map(|_| "added twice"),
            "MODIFIED" if known.is_none() => Some("changed before it was added"),
            "MODIFIED" => known.filter(|known| **known == version).map(|_| "told twice"),
            "DELETED" if known.is_none() => Some("deleted before it was added"),
            "DELETED" => (!deleted.lock().contains(&key)).then_some("deleted by nobody"),
            _ => Some("the end of all"),
        };
        self.at.clone_from(&version.1);
        match event["type"].as_str()? {
            "ADDED" | "MODIFIED" => drop(self.held.insert(key, version)),
            "DELETED" => drop(self.held.remove(&key)),
            _ => {}
        }
        wrong
    }
}
