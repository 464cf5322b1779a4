//! All clients under test, and the one form in which each tells what it holds and what it was told.

mod kubectl;
mod plain;
mod program;
mod rust;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use portolan_tests::door::Door;
use portolan_tests::kubectl::Kubectl;
use portolan_tests::programs::program;
use portolan_tests::watch::Held;
use serde::Deserialize;

use self::kubectl::Printed;
use self::plain::{Asks, Plain};
use self::program::Program;
use self::rust::Watcher;
use crate::ground::{Ground, KINDS, ROAMING};
use crate::ledger::{self, Moment};

/// Clients end and resume their watches after so long; they would ask for minutes.
const WATCH_SECONDS: u32 = 4;

/// What one client tells when it is asked.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Report {
    /// Family and what it asks for.
    pub(crate) name: String,
    /// Plural.
    pub(crate) resource: String,
    /// Empty for all.
    pub(crate) namespace: String,
    items: Vec<Item>,
    /// What it was told or found to be gone since it was last asked.
    pub(crate) gone: Vec<Gone>,
    /// How often it was answered a list, or a list by stream.
    pub(crate) lists: u64,
    /// 410s by message.
    pub(crate) expired: BTreeMap<String, u64>,
    /// DELETED of what it did not hold; libraries do not tell.
    #[serde(default)]
    pub(crate) repeats: u64,
    /// What it did and was told before the first of them.
    #[serde(default)]
    pub(crate) trace: Vec<String>,
    /// What it did and was told of late; libraries do not tell.
    #[serde(default)]
    pub(crate) lately: Vec<String>,
}

/// What a trace goes back to.
const TRACE: usize = 200;
/// How much of it each report has.
const LATELY: usize = 30;

/// What a hand-kept cache holds and was told.
#[derive(Default)]
struct Seen {
    held: Held,
    /// Initial objects, until all are there.
    coming: Held,
    gone: Vec<Gone>,
    lists: u64,
    expired: BTreeMap<String, u64>,
    repeats: u64,
    lately: VecDeque<String>,
    trace: Vec<String>,
}

impl Seen {
    /// For the one who reads of a failure.
    fn note(&mut self, what: String) {
        self.lately.truncate(TRACE);
        self.lately.push_front(format!("{} {what}", ledger::now()));
    }

    fn apply(&mut self, key: String, version: (String, String)) {
        self.held.insert(key, version);
    }

    /// What it held under the key is what it lost, whatever the event was of.
    fn delete(&mut self, key: String) {
        if let Some((uid, _)) = self.held.remove(&key) {
            return self.lose(key, uid);
        }
        self.repeats += 1;
        if self.trace.is_empty() {
            self.trace = self.lately.iter().rev().cloned().collect();
            self.trace.push(format!("DELETED {key}, which it did not hold"));
        }
    }

    fn lose(&mut self, key: String, uid: String) {
        let at = ledger::now();
        self.gone.push(Gone { key, uid, at });
    }

    /// All that was coming is there.
    fn listed(&mut self) {
        self.lists += 1;
        let before = std::mem::replace(&mut self.held, std::mem::take(&mut self.coming));
        for (key, (uid, _)) in before {
            if !self.held.contains_key(&key) {
                self.lose(key, uid);
            }
        }
    }

    fn expire(&mut self, message: &str) {
        *self.expired.entry(message.to_owned()).or_default() += 1;
    }

    fn report(&mut self, name: String, resource: &str, namespace: &str) -> Report {
        let item = |(key, (uid, rv)): (&String, &(String, String))| Item {
            key: key.clone(),
            uid: uid.clone(),
            rv: rv.clone(),
        };
        Report {
            name,
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            items: self.held.iter().map(item).collect(),
            gone: std::mem::take(&mut self.gone),
            lists: self.lists,
            expired: self.expired.clone(),
            repeats: self.repeats,
            trace: self.trace.clone(),
            lately: self.lately.iter().take(LATELY).rev().cloned().collect(),
        }
    }
}

/// One object.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Item {
    key: String,
    uid: String,
    rv: String,
}

/// One object that is gone.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Gone {
    pub(crate) key: String,
    pub(crate) uid: String,
    pub(crate) at: Moment,
}

impl Report {
    pub(crate) fn held(&self) -> Held {
        let items = self.items.iter();
        items
            .map(|item| (item.key.clone(), (item.uid.clone(), item.rv.clone())))
            .collect()
    }
}

/// What the Go program keeps, beside informers of one namespace.
const GO: [&str; 8] = [
    "typed:v1/configmaps",
    "json:v1/configmaps",
    "metadata:v1/configmaps",
    "dynamic:example.com/v1/greetings",
    "metadata:example.com/v1/greetings",
    "runtime-typed:v1/configmaps",
    "runtime-dynamic:example.com/v1/greetings",
    "runtime-metadata:example.com/v1/greetings",
];

/// All of them, running until dropped.
pub(crate) struct Clients {
    watchers: Vec<Watcher>,
    plain: Vec<Plain>,
    printed: Vec<Printed>,
    programs: Vec<Program>,
}

impl Clients {
    /// `long`: also those that ask for no bookmarks, and those of other languages.
    pub(crate) async fn start(ground: &Ground, long: bool) -> anyhow::Result<Self> {
        let config = config(ground).await?;
        let door = Door::of_kubeconfig(&ground.kubeconfig, None).await?;
        let mut plain = Vec::new();
        let mut printed = Vec::new();
        for (root, resource) in KINDS {
            for (table, bookmarks) in [(true, true), (true, false), (false, false)] {
                if !bookmarks && !long {
                    continue;
                }
                let asks = Asks {
                    root,
                    resource,
                    table,
                    bookmarks,
                };
                plain.push(Plain::start(door.clone(), asks));
            }
            let file = ground.world.fleet.dir().join(format!("kubectl-{resource}.json"));
            printed.push(Printed::start(Kubectl::new(&ground.kubeconfig), resource, file)?);
        }
        let mut programs = vec![
            go(ground, "client-go list", "--watch-list=false")?,
            go(ground, "client-go stream", "--watch-list")?,
        ];
        if long {
            programs.extend(others(ground)?);
        }
        Ok(Self {
            watchers: rust::all(&config, ROAMING)?,
            plain,
            printed,
            programs,
        })
    }

    /// Starts again what ends with its stream, as people do.
    pub(crate) fn revive(&mut self) -> anyhow::Result<()> {
        self.printed.iter_mut().try_for_each(Printed::revive)
    }

    pub(crate) async fn report(&mut self) -> anyhow::Result<Vec<Report>> {
        let mut all: Vec<Report> = self.watchers.iter().map(Watcher::report).collect();
        all.extend(self.plain.iter().map(Plain::report));
        for printed in &mut self.printed {
            all.push(printed.report()?);
        }
        for program in &mut self.programs {
            all.extend(program.report().await?);
        }
        Ok(all)
    }
}

/// One process for each way to begin: client-go decides that for a whole process.
fn go(ground: &Ground, name: &str, flag: &str) -> anyhow::Result<Program> {
    let seconds = format!("--watch-seconds={WATCH_SECONDS}");
    let one = [
        format!("typed:v1/configmaps:{ROAMING}"),
        format!("runtime-metadata:v1/configmaps:{ROAMING}"),
    ];
    let mut arguments = vec!["soak", flag, &seconds];
    arguments.extend(GO);
    arguments.extend(one.iter().map(String::as_str));
    Program::start(name, &program("portolan-go-client")?, &arguments, &ground.kubeconfig)
}

/// Those that `PORTOLAN_SOAK_PROGRAMS` names, as `name=command line`, with `;` between them. Each is told the one namespace.
#[expect(clippy::disallowed_methods, reason = "a setting of this test alone")]
fn others(ground: &Ground) -> anyhow::Result<Vec<Program>> {
    let named = std::env::var("PORTOLAN_SOAK_PROGRAMS").unwrap_or_default();
    let start = |named: &str| {
        let (name, line) = named.split_once('=').context("name=command line")?;
        let mut words = line.split_whitespace().chain([ROAMING]);
        let program = words.next().context("a program")?;
        Program::start(
            name.trim(),
            Path::new(program),
            &words.collect::<Vec<_>>(),
            &ground.kubeconfig,
        )
    };
    named
        .split(';')
        .filter(|named| !named.trim().is_empty())
        .map(start)
        .collect()
}

async fn config(ground: &Ground) -> anyhow::Result<kube::Config> {
    let kubeconfig = Kubeconfig::read_from(&ground.kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    config.context("a kubeconfig")
}
