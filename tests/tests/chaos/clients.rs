//! Clients of three families with watches over both members, and what each had to list again: client-go and controller-runtime in a
//! program of their own, kube-rs here, and kubectl. The example operator is a fourth; what it does is seen by Greetings.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::StreamExt as _;
use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use portolan_tests::go_client::GoClient;
use portolan_tests::kubectl::Kubectl;
use portolan_tests::programs::program;
use portolan_tests::world::World;
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::ground::{Ground, WEST};

/// Watches end and are resumed after so long, also while the member is away.
const WATCH_SECONDS: u32 = 10;
const GO: [&str; 3] = [
    "typed:v1/configmaps",
    "metadata:v1/configmaps",
    "runtime-typed:v1/configmaps",
];

/// A machine under load is slow, and so is a client that backs off.
const SEEN_WITHIN: Duration = Duration::from_mins(1);

/// What one of kube-rs holds.
#[derive(Default)]
struct Seen {
    lists: u64,
    names: BTreeSet<String>,
}

/// All of them, running until dropped.
pub(crate) struct Clients {
    rust: Vec<(&'static str, Arc<Mutex<Seen>>)>,
    _watching: JoinSet<()>,
    go: GoClient,
    kubectl: Printed,
    _operator: Child,
    /// ConfigMaps, to be seen.
    made: usize,
}

impl Clients {
    pub(crate) async fn start(world: &World) -> anyhow::Result<Self> {
        let kubeconfig = world.fleet.merged_kubeconfig("alpha");
        let mut watching = JoinSet::new();
        let mut rust = Vec::new();
        for (name, streaming) in [("kube-rs list", false), ("kube-rs stream", true)] {
            let seen = Arc::new(Mutex::new(Seen::default()));
            let client = world.client(kubeconfig.clone(), None).await?;
            watching.spawn(watch(client, streaming, seen.clone()));
            rust.push((name, seen));
        }
        let seconds = format!("--watch-seconds={WATCH_SECONDS}");
        let mut arguments = vec!["soak", &seconds];
        arguments.extend(GO);
        Ok(Self {
            rust,
            _watching: watching,
            go: GoClient::start(&kubeconfig, &arguments)?,
            kubectl: Printed::start(Kubectl::new(&kubeconfig), world.fleet.dir().join("kubectl.names"))?,
            _operator: Command::new(program("greeting-operator")?)
                .env("KUBECONFIG", &kubeconfig)
                .stdout(Stdio::null())
                .stderr(File::create(world.fleet.dir().join("greeting-operator.log"))?)
                .kill_on_drop(true)
                .spawn()?,
            made: 0,
        })
    }

    /// How often each has listed; of kubectl how often it was started.
    pub(crate) async fn lists(&mut self) -> anyhow::Result<BTreeMap<String, u64>> {
        let rust = self.rust.iter();
        let mut all: BTreeMap<String, u64> = rust
            .map(|(name, seen)| ((*name).to_owned(), seen.lock().lists))
            .collect();
        self.go.tell("report").await?;
        let told = self.go.wait_type("report").await?;
        for client in told["clients"].as_array().into_iter().flatten() {
            let name = client["name"].as_str().unwrap_or_default();
            all.insert(format!("go {name}"), client["lists"].as_u64().unwrap_or_default());
        }
        self.kubectl.revive()?;
        all.insert("kubectl".to_owned(), self.kubectl.starts);
        Ok(all)
    }

    /// Makes a ConfigMap in west; those that do not see it in time.
    pub(crate) async fn see_anew(&mut self, ground: &Ground) -> anyhow::Result<Vec<String>> {
        self.made += 1;
        let name = format!("made-{}", self.made);
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        let door = ground.world.direct_door("west").await?;
        let made = door.post(WEST, &object).await?;
        anyhow::ensure!(made.status == 201, "{}", made.message());
        let blind = self.see(&name, SEEN_WITHIN).await?;
        // Lists are to stay as long as they are: a member's pace is by the size of its answers.
        door.call(Method::DELETE, &format!("{WEST}/{name}"), &[], &[]).await?;
        Ok(blind)
    }

    /// Waits until each has seen this ConfigMap; those that have not in time.
    pub(crate) async fn see(&mut self, name: &str, within: Duration) -> anyhow::Result<Vec<String>> {
        let begun = Instant::now();
        loop {
            let blind = self.blind(name).await?;
            if blind.is_empty() || begun.elapsed() > within {
                return Ok(blind);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn blind(&mut self, name: &str) -> anyhow::Result<Vec<String>> {
        let rust = self.rust.iter().filter(|(_, seen)| !seen.lock().names.contains(name));
        let mut blind: Vec<String> = rust.map(|(client, _)| (*client).to_owned()).collect();
        self.go.tell("report").await?;
        let told = self.go.wait_type("report").await?;
        for client in told["clients"].as_array().into_iter().flatten() {
            let items = client["items"].as_array().into_iter().flatten();
            let mut keys = items.filter_map(|item| item["key"].as_str());
            if !keys.any(|key| key.ends_with(&format!("/{name}"))) {
                blind.push(format!("go {}", client["name"]));
            }
        }
        self.kubectl.revive()?;
        if !self
            .kubectl
            .printed()?
            .lines()
            .any(|line| line.ends_with(&format!("/{name}")))
        {
            blind.push("kubectl".to_owned());
        }
        Ok(blind)
    }
}

async fn watch(client: Client, streaming: bool, seen: Arc<Mutex<Seen>>) {
    let mut config = watcher::Config::default().timeout(WATCH_SECONDS);
    if streaming {
        config = config.streaming_lists();
    }
    let mut events = watcher::watcher(Api::<ConfigMap>::all(client), config)
        .default_backoff()
        .boxed();
    while let Some(event) = events.next().await {
        let mut seen = seen.lock();
        match event {
            Ok(Event::InitDone) => seen.lists += 1,
            Ok(Event::Apply(object) | Event::InitApply(object)) => drop(seen.names.insert(object.name_any())),
            Ok(_) | Err(_) => {}
        }
    }
}

/// `kubectl get -w`, started again when it ends, as people do.
struct Printed {
    kubectl: Kubectl,
    file: PathBuf,
    child: Child,
    starts: u64,
}

impl Printed {
    fn start(kubectl: Kubectl, file: PathBuf) -> anyhow::Result<Self> {
        Ok(Self {
            child: spawn(&kubectl, &file)?,
            kubectl,
            file,
            starts: 1,
        })
    }

    fn revive(&mut self) -> anyhow::Result<()> {
        if self.child.try_wait()?.is_some() {
            self.child = spawn(&self.kubectl, &self.file)?;
            self.starts += 1;
        }
        Ok(())
    }

    fn printed(&self) -> anyhow::Result<String> {
        std::fs::read_to_string(&self.file).context("nothing printed")
    }
}

fn spawn(kubectl: &Kubectl, file: &PathBuf) -> anyhow::Result<Child> {
    let output = File::options().create(true).append(true).open(file)?;
    kubectl
        .command(&["get", "configmaps", "-A", "--watch", "--output=name"])
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()
        .context("cannot run kubectl")
}
