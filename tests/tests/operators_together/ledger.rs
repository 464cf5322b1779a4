//! Whose each namespace was, as the ledger says it in etcd: by operator, with the epoch of each owner and how long it was open.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::Mutex;
use portolan_crds::labels::SYSTEM_NAMESPACE;
use portolan_crds::ledger::{Content, Pair, Record};
use portolan_tests::etcd::Changes;
use portolan_tests::world::{HUB, World};
use tokio::task::{AbortHandle, JoinSet};

use crate::judge::{Epoch, Micros, now};
use crate::places::NAMESPACES;

/// An operator and a namespace.
pub(crate) type Place = (String, &'static str);

/// What happened to one namespace of one operator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Story {
    pub(crate) epochs: Vec<Epoch>,
    /// By the ledger, now.
    owner: Option<String>,
    releasing: bool,
}

/// A lock: a follower writes, who moves namespaces reads.
type Stories = Arc<Mutex<BTreeMap<Place, Story>>>;

/// Followed until it is dropped.
pub(crate) struct Ledger {
    stories: Stories,
    follower: AbortHandle,
    _ends_with: JoinSet<()>,
}

impl Ledger {
    pub(crate) async fn follow(world: &World) -> anyhow::Result<Self> {
        let stories = Stories::default();
        let prefix = format!("/registry/configmaps/{SYSTEM_NAMESPACE}/portolan-ledger-");
        let changes = Changes::of(world.cluster(HUB), &prefix).await?;
        let mut tasks = JoinSet::new();
        Ok(Self {
            follower: tasks.spawn(follow(changes, stories.clone())),
            stories,
            _ends_with: tasks,
        })
    }

    /// All that was followed, up to now: a follower that has ended has missed the rest.
    pub(crate) fn all(&self) -> BTreeMap<Place, Story> {
        assert!(!self.follower.is_finished(), "the ledger is followed no more");
        self.stories.lock().clone()
    }

    /// Whether the namespace is this shard's of the operator, and on no way.
    pub(crate) fn has(&self, operator: &str, namespace: &str, shard: &str) -> bool {
        let stories = self.stories.lock();
        let mut found = stories
            .iter()
            .filter(|((of, name), _)| of == operator && *name == namespace);
        found.any(|(_, story)| !story.releasing && story.owner.as_deref() == Some(shard))
    }
}

async fn follow(mut changes: Changes, stories: Stories) {
    loop {
        let change = changes.next().await.unwrap();
        let Some(value) = change.value else { continue };
        let at = now();
        for (place, pair) in pairs_of(&value).unwrap() {
            stories.lock().entry(place).or_default().becomes(&pair, at);
        }
    }
}

impl Story {
    fn becomes(&mut self, pair: &Pair, at: Micros) {
        self.releasing = pair.releasing;
        self.owner = pair.owner.as_ref().map(|owner| owner.name().to_owned());
        let open = self.owner.clone().filter(|_| !pair.releasing);
        let last = self.epochs.last_mut().filter(|last| last.closed.is_none());
        let goes_on = last
            .as_ref()
            .is_some_and(|last| last.number == pair.owner_count && Some(&last.shard) == open.as_ref());
        if goes_on {
            return;
        }
        if let Some(last) = last {
            last.closed = Some(at);
        }
        // Of one that is taken back before it was released there are two entries.
        self.epochs.extend(open.map(|shard| Epoch {
            shard,
            number: pair.owner_count,
            opened: at,
            closed: None,
        }));
    }
}

fn pairs_of(value: &[u8]) -> anyhow::Result<Vec<(Place, Pair)>> {
    let object: ConfigMap = serde_json::from_slice(value).context("etcd has JSON")?;
    let name = object.metadata.name.context("a name")?;
    let Content::Chunk(chunk) = Record::decode(&name, &object.data.unwrap_or_default())?.content else {
        return Ok(Vec::new());
    };
    let mut pairs = Vec::new();
    for (namespace, of_operators) in chunk.pairs {
        let Some(namespace) = NAMESPACES.into_iter().find(|name| **name == namespace) else {
            continue;
        };
        for (operator, pair) in of_operators {
            let name = operator.name().unwrap_or_default().to_owned();
            pairs.push(((name, namespace), pair));
        }
    }
    Ok(pairs)
}
