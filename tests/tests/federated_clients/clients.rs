//! One face for all clients: what each holds, what it was told is gone, how often it listed.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::ensure;
use kube::Api;
use kube::runtime::watcher;
use portolan_tests::go_client::GoClient;
use portolan_tests::watcher::{Objects, Watcher};
use portolan_tests::world::World;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::SHARD;
use crate::printed::Printed;

/// A client under test.
pub(crate) struct Client {
    pub(crate) name: &'static str,
    pub(crate) begins: Begins,
    of: Kind,
}

/// How a client comes to hold what there is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begins {
    /// By initial events: the router knows what it holds.
    WatchList,
    List,
    /// By a list, and it ends with its stream: people start it again.
    Manually,
}

enum Kind {
    Go(Mutex<GoClient>),
    Rust(Watcher),
    Kubectl(Mutex<Printed>),
}

impl Client {
    /// One of each, started.
    pub(crate) async fn all(world: &World) -> anyhow::Result<Vec<Self>> {
        let kubeconfig = world.fleet.merged_kubeconfig(SHARD);
        let rust = async |streaming| {
            let client = world.client(kubeconfig.clone(), None).await?;
            let config = watcher::Config::default();
            let config = if streaming { config.streaming_lists() } else { config };
            anyhow::Ok(Kind::Rust(Watcher::start(Api::all(client), config)))
        };
        let printed = world.fleet.dir().join("kubectl-watch.json");
        let all = [
            (
                "informer, watch-list",
                Begins::WatchList,
                go(&kubeconfig, &["informer"])?,
            ),
            (
                "informer, list",
                Begins::List,
                go(&kubeconfig, &["informer", "--watch-list=false"])?,
            ),
            (
                "controller-runtime",
                Begins::WatchList,
                go(&kubeconfig, &["controller-runtime"])?,
            ),
            ("kube-rs, list", Begins::List, rust(false).await?),
            ("kube-rs, streaming", Begins::WatchList, rust(true).await?),
            (
                "kubectl",
                Begins::Manually,
                Kind::Kubectl(Mutex::new(Printed::start(world.merged(SHARD), printed)?)),
            ),
        ];
        let all = all.into_iter();
        Ok(all.map(|(name, begins, of)| Self { name, begins, of }).collect())
    }

    /// `namespace/name` → resourceVersion, as it has them now.
    async fn held(&self) -> anyhow::Result<Objects> {
        Ok(match &self.of {
            Kind::Go(go) => {
                let dump = go.lock().await.dump().await?;
                dump.items.into_iter().map(|item| (item.key, item.rv)).collect()
            }
            Kind::Rust(watcher) => watcher.seen().held.clone(),
            Kind::Kubectl(printed) => printed.lock().await.read()?.held.clone(),
        })
    }

    /// An error that tells the difference unless it holds this.
    pub(crate) async fn holds(&self, wanted: &Objects) -> anyhow::Result<()> {
        let held = self.held().await?;
        let differs = |one: &Objects, other: &Objects| -> Vec<String> {
            let odd = one.iter().filter(|(key, rv)| other.get(*key) != Some(*rv));
            odd.map(|(key, rv)| format!("{key}@{rv}")).collect()
        };
        let (lacks, odd) = (differs(wanted, &held), differs(&held, wanted));
        ensure!(lacks.is_empty() && odd.is_empty(), "lacks {lacks:?}, has {odd:?}");
        Ok(())
    }

    /// Whether it holds an object of this key.
    pub(crate) async fn has(&self, key: &str) -> anyhow::Result<()> {
        ensure!(self.held().await?.contains_key(key), "it has no {key}");
        Ok(())
    }

    /// Keys of everything that it was told is gone, or found gone when it listed.
    pub(crate) async fn deletes(&self) -> BTreeSet<String> {
        match &self.of {
            Kind::Go(go) => {
                let go = go.lock().await;
                let deletes = go.seen().iter().filter(|line| line["type"] == "delete");
                deletes
                    .filter_map(|line| line["key"].as_str().map(ToOwned::to_owned))
                    .collect()
            }
            Kind::Rust(watcher) => watcher.seen().deleted.clone(),
            Kind::Kubectl(printed) => printed.lock().await.deleted().unwrap(),
        }
    }

    /// Lists and watch-lists so far.
    pub(crate) async fn relists(&self) -> u64 {
        match &self.of {
            Kind::Go(go) => {
                let dump = go.lock().await.dump().await.unwrap();
                dump.count("list") + dump.count("watch-list")
            }
            Kind::Rust(watcher) => watcher.seen().lists,
            Kind::Kubectl(printed) => printed.lock().await.lists().unwrap(),
        }
    }

    /// An error unless it has listed once, in the way it is said to.
    pub(crate) async fn has_begun(&self) -> anyhow::Result<()> {
        let once = self.relists().await;
        ensure!(once == 1, "{} listed {once} times", self.name);
        if let Kind::Go(go) = &self.of {
            let streamed = go.lock().await.dump().await?.count("watch-list");
            ensure!(
                streamed == u64::from(self.begins == Begins::WatchList),
                "{}: {streamed} watch-lists",
                self.name
            );
        }
        Ok(())
    }

    /// What it said lately, for the one who reads of a failure.
    pub(crate) async fn complaints(&self) -> Vec<String> {
        match &self.of {
            Kind::Go(go) => {
                let go = go.lock().await;
                let of = |line: &&Value| ["error", "request", "ended"].iter().any(|of| line["type"] == *of);
                let mut said: Vec<String> = go
                    .seen()
                    .iter()
                    .rev()
                    .filter(of)
                    .take(12)
                    .map(Value::to_string)
                    .collect();
                said.reverse();
                said
            }
            Kind::Rust(watcher) => watcher.seen().errors.clone(),
            Kind::Kubectl(printed) => vec![printed.lock().await.complaint()],
        }
    }

    /// kubectl ends with its stream, and people start it again; the others go on by themselves.
    pub(crate) async fn revive(&self, wait: bool) {
        if let Kind::Kubectl(printed) = &self.of {
            printed.lock().await.revive(wait).await.unwrap();
        }
    }
}

fn go(kubeconfig: &Path, arguments: &[&str]) -> anyhow::Result<Kind> {
    GoClient::start(kubeconfig, arguments).map(|go| Kind::Go(Mutex::new(go)))
}
