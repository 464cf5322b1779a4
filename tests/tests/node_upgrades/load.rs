//! What operators ask all the while: short requests over connections that are new or kept, of Rust and of Go; and a person who edits.
//! Each is tried once: what fails has failed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use portolan_crds::ShardingConfig;
use portolan_tests::door::{Answer, Door, Line, request};
use portolan_tests::go_client::GoClient;
use portolan_tests::kubectl::Kubectl;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::ground::{Ground, HOME, PLACES, STAY};

/// Between two requests of one kind.
const PACE: Duration = Duration::from_millis(50);
/// Of what costs more: a program each time, or a question to the hub.
const SLOWLY: Duration = Duration::from_millis(700);
/// Requests that the Go program is told to send at a time.
const ROUND: &str = "10";
const ALL: &str = "/api/v1/configmaps";
const ONE: &str = "/api/v1/namespaces/shop-east/configmaps/stays-0";

/// `namespace/name` of what was to be deleted.
pub(crate) type Deleted = Arc<Mutex<BTreeSet<String>>>;

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Requests that were answered as they are to be, by kind.
    pub(crate) counts: BTreeMap<&'static str, usize>,
    pub(crate) failures: Vec<String>,
}

/// Goes on until it is ended.
pub(crate) struct Load {
    teller: Teller,
    tasks: JoinSet<()>,
}

#[derive(Clone)]
struct Teller {
    begun: Instant,
    done: Arc<Mutex<Done>>,
    ended: Arc<AtomicBool>,
}

/// One kind of request.
trait Asks: Send + 'static {
    /// Once, with the whole answer.
    fn ask(&mut self) -> impl Future<Output = anyhow::Result<()>> + Send;
}

impl Load {
    pub(crate) async fn begin(ground: &Ground, deleted: &Deleted) -> Self {
        let teller = Teller {
            begun: Instant::now(),
            done: Arc::default(),
            ended: Arc::default(),
        };
        let (mut tasks, door, client) = (JoinSet::new(), ground.door().await, ground.client().await);
        let hub = ground.cluster(HOME).client().await.unwrap();
        let tell = || teller.clone();
        tasks.spawn(tell().run("get, new HTTP/2", PACE, Get(door.clone())));
        tasks.spawn(tell().run("list, new HTTP/1.1", PACE, ListHttp1(door.clone())));
        let kept = List {
            door: door.clone(),
            line: None,
        };
        tasks.spawn(tell().run("list, kept HTTP/2", PACE, kept));
        let written = Written::new(deleted, "door");
        tasks.spawn(tell().run("create and delete, new HTTP/2", PACE, Write(door, written)));
        tasks.spawn(tell().run("get, kube-rs", PACE, GetByKube(client.clone())));
        let written = Written::new(deleted, "kube");
        tasks.spawn(tell().run("create and delete, kube-rs", PACE, WriteByKube(client, written)));
        let go = ["gets", "--connections=2", "--at-once=2", ONE];
        let go = GoClient::start(ground.operator(), &go).unwrap();
        tasks.spawn(tell().run("tens of gets, client-go", PACE, Tens(go)));
        tasks.spawn(tell().run("kubectl", SLOWLY, ByKubectl(Kubectl::new(ground.operator()))));
        tasks.spawn(tell().run("edit of a ShardingConfig", SLOWLY, Edit(hub, 0)));
        Self { teller, tasks }
    }

    /// So far.
    pub(crate) fn failures(&self) -> Vec<String> {
        self.teller.done.lock().failures.clone()
    }

    /// Waits for the answers that are still to come.
    pub(crate) async fn end(mut self) -> Done {
        self.teller.ended.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        std::mem::take(&mut *self.teller.done.lock())
    }
}

impl Teller {
    async fn run(self, kind: &'static str, pace: Duration, mut one: impl Asks) {
        let mut ticks = tokio::time::interval(pace);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !self.ended.load(Ordering::Relaxed) {
            ticks.tick().await;
            let outcome = one.ask().await;
            let (mut done, after) = (self.done.lock(), self.begun.elapsed());
            match outcome {
                Ok(()) => *done.counts.entry(kind).or_default() += 1,
                Err(error) => done.failures.push(format!("{kind}, after {after:?}: {error:#}")),
            }
        }
    }
}

fn is(answer: &Answer, status: u16) -> anyhow::Result<()> {
    let said = String::from_utf8_lossy(&answer.body);
    ensure!(answer.status == status, "{}: {said}", answer.status);
    Ok(())
}

/// On a connection of its own, as all that keep none.
struct Get(Door);

impl Asks for Get {
    async fn ask(&mut self) -> anyhow::Result<()> {
        is(&self.0.get(ONE, &[]).await?, 200)
    }
}

struct ListHttp1(Door);

impl Asks for ListHttp1 {
    async fn ask(&mut self) -> anyhow::Result<()> {
        let line = self.0.open_http1().await?;
        is(&line.ask(request(Method::GET, ALL, &[], &[])?).await?, 200)
    }
}

/// As client-go: a connection for all, and another one once that is told to go.
struct List {
    door: Door,
    line: Option<Line>,
}

impl Asks for List {
    async fn ask(&mut self) -> anyhow::Result<()> {
        if let Some(line) = &self.line {
            match line.ask(request(Method::GET, ALL, &[], &[])?).await {
                Err(error) if was_not_sent(&error) => {}
                answer => return is(&answer?, 200),
            }
        }
        let line = self.line.insert(self.door.open().await?);
        is(&line.ask(request(Method::GET, ALL, &[], &[])?).await?, 200)
    }
}

/// Whether the connection took no request any more.
fn was_not_sent(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<hyper::Error>();
    error.is_some_and(|error| error.is_canceled() || error.is_closed())
}

/// Names of what is made and deleted, in both members by turns.
struct Written {
    deleted: Deleted,
    by: &'static str,
    count: usize,
}

impl Written {
    fn new(deleted: &Deleted, by: &'static str) -> Self {
        Self {
            deleted: deleted.clone(),
            by,
            count: 0,
        }
    }

    /// The next one: its namespace and its name.
    fn next(&mut self) -> (&'static str, String) {
        self.count += 1;
        (
            PLACES[self.count % PLACES.len()].1,
            format!("{}-{}", self.by, self.count),
        )
    }

    fn is_to_be_deleted(&self, namespace: &str, name: &str) {
        self.deleted.lock().insert(format!("{namespace}/{name}"));
    }
}

struct Write(Door, Written);

impl Asks for Write {
    async fn ask(&mut self) -> anyhow::Result<()> {
        let (namespace, name) = self.1.next();
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        is(&self.0.post(&path, &object).await.context("create")?, 201)?;
        self.1.is_to_be_deleted(namespace, &name);
        let path = format!("{path}/{name}");
        let deleted = self.0.call(Method::DELETE, &path, &[], &[]).await;
        is(&deleted.context("delete")?, 200)
    }
}

struct GetByKube(Client);

impl Asks for GetByKube {
    async fn ask(&mut self) -> anyhow::Result<()> {
        let maps = Api::<ConfigMap>::namespaced(self.0.clone(), PLACES[0].1);
        maps.get("stays-0").await.map(drop).map_err(told)
    }
}

struct WriteByKube(Client, Written);

impl Asks for WriteByKube {
    async fn ask(&mut self) -> anyhow::Result<()> {
        let (namespace, name) = self.1.next();
        let maps = Api::<ConfigMap>::namespaced(self.0.clone(), namespace);
        let object = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        let made = maps.create(&PostParams::default(), &object).await;
        made.map_err(told).context("create")?;
        self.1.is_to_be_deleted(namespace, &name);
        let deleted = maps.delete(&name, &DeleteParams::default()).await;
        deleted.map(drop).map_err(told).context("delete")
    }
}

/// With all that it comes of.
fn told(error: kube::Error) -> anyhow::Error {
    anyhow::anyhow!("{error:?}")
}

struct Tens(GoClient);

impl Asks for Tens {
    async fn ask(&mut self) -> anyhow::Result<()> {
        self.0.tell(&format!("get {ROUND}")).await?;
        let ended = |line: &Value| line["type"] == "got" || line["type"] == "error";
        let line = self.0.wait("an answer", ended).await?;
        ensure!(line["type"] == "got", "{line}");
        Ok(())
    }
}

struct ByKubectl(Kubectl);

impl Asks for ByKubectl {
    async fn ask(&mut self) -> anyhow::Result<()> {
        let list = ["get", "configmaps", "--all-namespaces", "-o", "name"];
        let said = self.0.ok(&list).await?;
        ensure!(
            said.matches("configmap/stays-").count() == PLACES.len() * STAY,
            "{said}"
        );
        Ok(())
    }
}

/// A person's, which the API server asks a hub about.
struct Edit(Client, usize);

impl Asks for Edit {
    async fn ask(&mut self) -> anyhow::Result<()> {
        self.1 += 1;
        let namespaces = [format!("edited-{}", self.1 % 2)];
        let patch = json!({"spec": {"clusters": [{"name": "east", "namespaces": namespaces}]}});
        let shards = Api::<ShardingConfig>::namespaced(self.0.clone(), "operators");
        let edited = shards
            .patch("edited", &PatchParams::default(), &Patch::Merge(patch))
            .await;
        edited.map(drop).map_err(told)
    }
}
