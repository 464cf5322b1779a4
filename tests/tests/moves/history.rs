//! What really happened, as it lies in etcd: each write of each counter in a member's own order, and each change of the ledger. API
//! servers are killed meanwhile; etcd is not, and forgets nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::Mutex;
use portolan_crds::ledger::{Content, Pair, Record};
use portolan_testbed::Cluster;
use portolan_tests::etcd::{self, Changes};
use portolan_tests::world::{HUB, World};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::ground::{COUNTER, Ground, MEMBERS, NAMESPACES, member_of};
use crate::judge::{Grant, Write};
use crate::late::Former;
use crate::slow::MARK;

const COUNTERS: &str = "/registry/configmaps/m-";
const LEDGER: &str = "/registry/configmaps/portolan-system/portolan-ledger-";

/// A write, and when it was seen.
pub(crate) type Seen<T> = (Instant, T);

/// What happened to one namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Story {
    pub(crate) writes: Vec<Seen<Write>>,
    pub(crate) grants: Vec<Grant>,
    /// By the ledger, now.
    owner: Option<Owner>,
    releasing: bool,
    /// Who was granted it last.
    last: Option<Owner>,
}

/// A shard that has a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owner {
    shard: String,
    epoch: u64,
    /// The member takes nothing of earlier epochs.
    fenced: bool,
}

/// A lock: three followers write, who moves namespaces reads.
type Stories = Arc<Mutex<BTreeMap<&'static str, Story>>>;

/// Followed until it is dropped.
pub(crate) struct History {
    stories: Stories,
    /// The last revision that was seen of each member's counters.
    read: Arc<Mutex<BTreeMap<&'static str, u64>>>,
    _followers: JoinSet<()>,
}

impl History {
    /// Tells of each owner that is over, if its member is to refuse what it still writes.
    pub(crate) async fn follow(ground: &'static Ground, formers: mpsc::Sender<Former>) -> anyhow::Result<Self> {
        let world = &ground.world;
        let stories = Stories::default();
        let read = Arc::new(Mutex::new(BTreeMap::new()));
        let mut followers = JoinSet::new();
        for member in MEMBERS {
            let changes = Changes::of(world.cluster(member), COUNTERS).await?;
            followers.spawn(counters(member, changes, stories.clone(), read.clone()));
        }
        let changes = Changes::of(world.cluster(HUB), LEDGER).await?;
        followers.spawn(ledger(ground, changes, stories.clone(), formers));
        Ok(Self {
            stories,
            read,
            _followers: followers,
        })
    }

    pub(crate) fn of(&self, namespace: &str) -> Story {
        self.stories.lock().get(namespace).cloned().unwrap_or_default()
    }

    /// Whether the namespace is this shard's, and on no way.
    pub(crate) fn is_settled(&self, namespace: &str, shard: &str) -> bool {
        let stories = self.stories.lock();
        let story = stories.get(namespace);
        story.is_some_and(|story| !story.releasing && story.owner.as_ref().is_some_and(|owner| owner.shard == shard))
    }

    /// Whether its owner has written since it was seen to be the owner.
    pub(crate) fn is_in_use(&self, namespace: &str) -> bool {
        let stories = self.stories.lock();
        let last = stories
            .get(namespace)
            .map(|story| (story.writes.last(), story.grants.last()));
        let Some((Some((_, write)), Some(grant))) = last else {
            return false;
        };
        write.author.0 == grant.shard && write.revision > grant.revision
    }

    /// Whether all is read that there is now.
    pub(crate) async fn is_whole(&self, world: &World) -> anyhow::Result<bool> {
        for member in MEMBERS {
            let last = etcd::last_change(world.cluster(member), COUNTERS).await?;
            if self.read.lock().get(member).is_none_or(|read| *read < last) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

async fn counters(
    member: &'static str,
    mut changes: Changes,
    stories: Stories,
    read: Arc<Mutex<BTreeMap<&'static str, u64>>>,
) {
    loop {
        let change = changes.next().await.unwrap();
        let parts: Vec<_> = change
            .key
            .trim_start_matches("/registry/configmaps/")
            .split('/')
            .collect();
        if let ([namespace, name], Some(value)) = (parts.as_slice(), &change.value)
            && (*name == COUNTER || name.starts_with(MARK) && change.is_new)
            && let Some(namespace) = NAMESPACES.into_iter().find(|name| name == namespace)
            && let Some(write) = write_of(value, change.revision).unwrap()
        {
            stories.lock().entry(namespace).or_default().writes(write);
        }
        read.lock().insert(member, change.revision);
    }
}

/// `None`: as it was made.
fn write_of(value: &[u8], revision: u64) -> anyhow::Result<Option<Write>> {
    let object: ConfigMap = serde_json::from_slice(value).context("etcd has JSON")?;
    let data = object.data.unwrap_or_default();
    let Some(writer) = data.get("writer") else {
        return Ok(None);
    };
    let (shard, number) = writer.split_once('/').context("a writer")?;
    let count = data.get("count").map(|count| count.parse()).transpose()?;
    let author = (shard.to_owned(), number.parse()?);
    Ok(Some(Write {
        revision,
        count,
        author,
    }))
}

async fn ledger(ground: &'static Ground, mut changes: Changes, stories: Stories, formers: mpsc::Sender<Former>) {
    loop {
        let change = changes.next().await.unwrap();
        let Some(value) = change.value else { continue };
        for (namespace, pair) in pairs_of(&value).unwrap() {
            let Some(namespace) = NAMESPACES.into_iter().find(|name| **name == namespace) else {
                continue;
            };
            let at = Instant::now();
            let granted = stories.lock().entry(namespace).or_default().becomes(&pair);
            if pair.releasing {
                ground.slow.releasing.lock().insert(namespace);
            } else {
                ground.slow.releasing.lock().remove(namespace);
            }
            if let Some((former, owner)) = granted {
                let revision = revision(ground.world.cluster(member_of(namespace))).await;
                let grant = Grant {
                    shard: owner.shard.clone(),
                    revision,
                    fenced: owner.fenced,
                    at,
                };
                if let Some(former) = former.filter(|former| owner.fenced && former.shard != owner.shard) {
                    // Full or ended: there is enough of it.
                    let _ = formers.try_send(Former {
                        namespace,
                        shard: former.shard,
                        epoch: former.epoch,
                    });
                }
                let mut stories = stories.lock();
                let story = stories.entry(namespace).or_default();
                story.owner = Some(owner);
                story.grants.push(grant);
            }
        }
    }
}

impl Story {
    /// Labels of the agent are no write of a counter: they leave its writer as it was.
    fn writes(&mut self, write: Write) {
        if self.writes.last().is_none_or(|(_, last)| last.author != write.author) {
            self.writes.push((Instant::now(), write));
        }
    }

    /// Who had it last, and the shard that has it from now on, which counts as the owner when it is known by which revision it was.
    fn becomes(&mut self, pair: &Pair) -> Option<(Option<Owner>, Owner)> {
        self.releasing = pair.releasing;
        let Some(shard) = &pair.owner else {
            self.owner = None;
            return None;
        };
        let owner = Owner {
            shard: shard.name().to_owned(),
            epoch: pair.owner_count,
            fenced: pair.fence.epoch == pair.owner_count,
        };
        let is_new = self.last.as_ref().is_none_or(|last| last.epoch != owner.epoch);
        is_new.then(|| (self.last.replace(owner.clone()), owner))
    }
}

fn pairs_of(value: &[u8]) -> anyhow::Result<BTreeMap<String, Pair>> {
    let object: ConfigMap = serde_json::from_slice(value).context("etcd has JSON")?;
    let name = object.metadata.name.context("a name")?;
    match Record::decode(&name, &object.data.unwrap_or_default())?.content {
        Content::Chunk(chunk) => {
            // All shards of this fleet are one operator's.
            let pairs = chunk.pairs.into_iter();
            let pairs = pairs.filter_map(|(namespace, of)| Some((namespace, of.into_values().next()?)));
            Ok(pairs.collect())
        }
        _ => Ok(BTreeMap::new()),
    }
}

pub(crate) async fn revision(member: &Cluster) -> u64 {
    etcd::revision(member).await.unwrap()
}
