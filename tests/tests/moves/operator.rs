//! One replica of the operator: in each namespace that its watch of the merged view shows, it reads the counter and writes one more, by
//! a patch without any condition, and makes marks, which take their time. It does not stop at once when it loses a namespace, as controllers with a stale cache do not.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher;
use kube::{Client, Error};
use parking_lot::Mutex;
use portolan_tests::watcher::Watcher;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::crashes::HELD_UP_MOST;
use crate::ground::{COUNTER, Ground, MEMBERS, NAMESPACES, member_of};
use crate::judge::{Answer, Attempt, Author, told};
use crate::slow::MARK;
use crate::slow::WAITS_MOST;

/// Between two writes of one counter.
const PACE: Duration = Duration::from_millis(250);
/// For so long it goes on with a namespace that its watch has lost: shorter than a namespace takes to come back from somebody else.
const STALE: Duration = Duration::from_secs(3);
/// Longer than a router lets a request last.
const GIVES_UP: Duration = Duration::from_secs(20);
/// After an answer that says nothing: until the write cannot arrive any more.
const REST: Duration = HELD_UP_MOST
    .saturating_add(WAITS_MOST)
    .saturating_add(Duration::from_secs(1));

/// A write as the operator knows it.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) author: Author,
    pub(crate) namespace: &'static str,
    pub(crate) attempt: Attempt,
    /// Of an answer that is not plain.
    pub(crate) said: String,
}

/// What its workers have together.
struct Shared {
    shard: &'static str,
    clients: [Client; 2],
    /// Of each member, past the router.
    direct: BTreeMap<&'static str, Client>,
    watcher: Watcher,
    /// Numbers its writes.
    number: AtomicU64,
    /// A lock: workers add a line each.
    lines: Mutex<Vec<Line>>,
    stop: AtomicBool,
}

/// Running until it is dropped, or ended.
pub(crate) struct Operator {
    shared: Arc<Shared>,
    workers: JoinSet<()>,
}

impl Operator {
    pub(crate) async fn start(shard: &'static str, ground: &Ground) -> anyhow::Result<Self> {
        let kubeconfig = &ground.kubeconfigs[shard];
        let mut direct = BTreeMap::new();
        for member in MEMBERS {
            direct.insert(member, ground.world.cluster(member).client().await?);
        }
        let watching = client(kubeconfig, true).await?;
        let shared = Arc::new(Shared {
            shard,
            // Of two connections each is to another router, as the balancer goes by turns.
            clients: [client(kubeconfig, false).await?, client(kubeconfig, false).await?],
            direct,
            watcher: Watcher::start(Api::all(watching), watcher::Config::default()),
            number: AtomicU64::new(0),
            lines: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let mut workers = JoinSet::new();
        for namespace in NAMESPACES {
            for does in [Does::Count, Does::Mark] {
                workers.spawn(work(shared.clone(), namespace, does));
            }
        }
        Ok(Self { shared, workers })
    }

    /// How many of its writes were answered in which way.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for line in self.shared.lines.lock().iter() {
            let what = match line.attempt.answer {
                Answer::Taken => "taken",
                Answer::Refused => "refused",
                Answer::Unknown => "unknown",
            };
            *counts.entry(what).or_default() += 1;
        }
        counts
    }

    /// Stops it, waits for what is under way, and returns all that it knows.
    pub(crate) async fn end(mut self) -> Vec<Line> {
        self.shared.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.workers.join_next().await {
            ended.unwrap();
        }
        std::mem::take(&mut self.shared.lines.lock())
    }
}

/// `retries`: as kube-rs does it by itself. A write is sent once: what the operator is told of it must be of all that was sent.
async fn client(kubeconfig: &Path, retries: bool) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = retries;
    Ok(Client::try_from(config)?)
}

async fn work(shared: Arc<Shared>, namespace: &'static str, does: Does) {
    let mut worker = Worker {
        shared,
        namespace,
        does,
        seen: None,
    };
    while !worker.shared.stop.load(Ordering::Relaxed) {
        worker.round().await;
        sleep(PACE).await;
    }
}

/// What a worker writes.
#[derive(Clone, Copy)]
enum Does {
    /// The next number of the counter.
    Count,
    /// A new object, which is admitted long before it is written.
    Mark,
}

/// Of one namespace: one write at a time.
struct Worker {
    shared: Arc<Shared>,
    namespace: &'static str,
    does: Does,
    /// When the watch showed the counter last.
    seen: Option<Instant>,
}

impl Worker {
    async fn round(&mut self) {
        let key = format!("{}/{COUNTER}", self.namespace);
        if self.shared.watcher.seen().held.contains_key(&key) {
            self.seen = Some(Instant::now());
        }
        if self.seen.is_none_or(|seen| seen.elapsed() > STALE) {
            return;
        }
        let number = self.shared.number.fetch_add(1, Ordering::Relaxed) + 1;
        let client = &self.shared.clients[usize::from(number.is_multiple_of(2))];
        let api = Api::<ConfigMap>::namespaced(client.clone(), self.namespace);
        match self.does {
            Does::Count => self.count(&api, number).await,
            Does::Mark => self.mark(&api, number).await,
        }
    }

    async fn count(&self, api: &Api<ConfigMap>, number: u64) {
        let read = match timeout(GIVES_UP, api.get(COUNTER)).await {
            Ok(Ok(counter)) => Some(count_of(&counter)),
            // Not its namespace: it tries all the same.
            Ok(Err(Error::Api(status))) if status.code == 403 => None,
            _ => return,
        };
        let count = read.map_or(0, |count| count + 1);
        let patch = json!({"data": {"count": count.to_string(), "writer": told(&self.author(number))}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        self.write(number, read.is_none(), api.patch(COUNTER, &params, &patch))
            .await;
    }

    async fn mark(&self, api: &Api<ConfigMap>, number: u64) {
        let name = format!("{MARK}{}-{number}", self.shared.shard);
        let mark = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                ..ObjectMeta::default()
            },
            data: Some([("writer".to_owned(), told(&self.author(number)))].into()),
            ..ConfigMap::default()
        };
        let answer = self
            .write(number, true, api.create(&PostParams::default(), &mark))
            .await;
        if answer == Answer::Taken {
            let direct = self.shared.direct[member_of(self.namespace)].clone();
            let marks = Api::<ConfigMap>::namespaced(direct, self.namespace);
            // It has done its work; a member that is away just now keeps it.
            let _ = timeout(GIVES_UP, marks.delete(&name, &DeleteParams::default())).await;
        }
    }

    fn author(&self, number: u64) -> Author {
        (self.shared.shard.to_owned(), number)
    }

    async fn write(&self, number: u64, blind: bool, sent: impl Future<Output = kube::Result<ConfigMap>>) -> Answer {
        let asked = Instant::now();
        let (answer, said) = match timeout(GIVES_UP, sent).await {
            Ok(Ok(_)) => (Answer::Taken, String::new()),
            Ok(Err(error)) => (answer_of(&error), error.to_string()),
            Err(_) => (Answer::Unknown, "no answer".to_owned()),
        };
        self.shared.lines.lock().push(Line {
            author: self.author(number),
            namespace: self.namespace,
            attempt: Attempt { answer, blind, asked },
            said,
        });
        if answer == Answer::Unknown {
            sleep(REST).await;
        }
        answer
    }
}

/// An answer of 4xx says that nothing was written, and one that says when to come again that nothing was sent.
fn answer_of(error: &Error) -> Answer {
    let Error::Api(status) = error else {
        return Answer::Unknown;
    };
    let again = status
        .details
        .as_ref()
        .is_some_and(|details| details.retry_after_seconds > 0);
    if (400..500).contains(&status.code) || status.code == 503 && again {
        Answer::Refused
    } else {
        Answer::Unknown
    }
}

fn count_of(counter: &ConfigMap) -> u64 {
    let count = counter.data.as_ref().and_then(|data| data.get("count"));
    count.and_then(|count| count.parse().ok()).unwrap_or_default()
}
