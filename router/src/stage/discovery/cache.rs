//! What each member answered last, and when it was looked at: the only place that asks members for documents.
//!
//! Every copy is revalidated by its ETag before it is served, once for all who wait: nobody is told less than the member
//! would have told at the same moment. One that could not be in time is served as old.
//! A member that is away, slow or broken keeps its last good copy for as long as it is a target: what a cluster serves does
//! not end because it cannot be reached. Keyed by cluster and cluster UID, not by the target's version, which changes with
//! every report of its agent. Callers: `discovery` for requests and `warm`.

mod kinds;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, ETAG, HeaderValue};
use http::{Response, StatusCode};
use moka::sync::Cache;
use parking_lot::Mutex;
use portolan_merge::discovery::{self, Group};
use portolan_merge::openapi::{self, Index};
use portolan_runtime::Tasks;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;

use self::kinds::kinds_of;
use super::metrics::{DiscoveryMetrics, Fetched};
use crate::stage::dispatch::{DocumentRequest, OwnRequests};
use crate::value::document::{OpenApiEncoding, V2_PROTOBUF, V3_PROTOBUF};
use crate::value::media::JSON;

/// Who has failed is not looked at again for as long.
pub(super) const FRESH: Duration = Duration::from_secs(2);
/// A client with a copy to fall back on waits this long for a better one.
const PATIENCE: Duration = Duration::from_secs(1);
/// A client without one waits this long, if somebody else has answered.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);
/// Copies of OpenAPI documents, over all members, each counted once; small documents are not counted.
const MAX_BYTES: u64 = 64 << 20;
/// The only form of discovery that is read: Kubernetes 1.26 and later.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                          application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// A document that every member has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Paper {
    /// `/api`, aggregated.
    Core,
    /// `/apis`, aggregated.
    Groups,
    /// `/<path>` of a version's resources, unaggregated: for the hashes of their storage versions alone.
    Resources(String),
    /// `/openapi/v3`.
    Index,
    /// `/openapi/v2`.
    OpenApiV2(OpenApiEncoding),
    /// `/openapi/v3/<path>`.
    OpenApi(OpenApiEncoding, String),
}

impl Paper {
    fn path(&self) -> String {
        match self {
            Self::Core => "/api".to_owned(),
            Self::Groups => "/apis".to_owned(),
            Self::Resources(path) => format!("/{path}"),
            Self::Index => "/openapi/v3".to_owned(),
            Self::OpenApiV2(_) => "/openapi/v2".to_owned(),
            Self::OpenApi(_, path) => format!("/openapi/v3/{path}"),
        }
    }

    fn accept(&self) -> &'static str {
        match self {
            Self::Core | Self::Groups => AGGREGATED,
            Self::OpenApiV2(OpenApiEncoding::Protobuf) => V2_PROTOBUF,
            Self::OpenApi(OpenApiEncoding::Protobuf, _) => V3_PROTOBUF,
            Self::Resources(_)
            | Self::Index
            | Self::OpenApiV2(OpenApiEncoding::Json)
            | Self::OpenApi(OpenApiEncoding::Json, _) => JSON,
        }
    }

    /// Large, or many, and kept elsewhere.
    fn is_large(&self) -> bool {
        matches!(self, Self::OpenApiV2(_) | Self::OpenApi(..) | Self::Resources(_))
    }
}

/// Which document of which cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) cluster: Arc<str>,
    /// A cluster made anew under an old name begins with nothing.
    pub(super) uid: Arc<str>,
    pub(super) paper: Paper,
}

/// What a member answered. Shared by all that answered the same.
#[derive(Debug, PartialEq)]
pub(super) struct Copy {
    pub(super) etag: Option<HeaderValue>,
    /// Changes with the content: the member's ETag without its quotes, or a hash.
    pub(super) hash: String,
    pub(super) content_type: HeaderValue,
    pub(super) content: Content,
}

#[derive(Debug, PartialEq)]
pub(super) enum Content {
    Groups(Vec<Group>),
    Index(Index),
    /// Hash of the storage version by resource; empty for who has none.
    Hashes(BTreeMap<String, String>),
    Bytes(Bytes),
}

impl Copy {
    pub(super) fn groups(&self) -> &[Group] {
        if let Content::Groups(groups) = &self.content {
            groups
        } else {
            &[]
        }
    }

    pub(super) fn index(&self) -> Option<&Index> {
        if let Content::Index(index) = &self.content {
            Some(index)
        } else {
            None
        }
    }

    pub(super) fn storage_hashes(&self) -> Option<&BTreeMap<String, String>> {
        if let Content::Hashes(hashes) = &self.content {
            Some(hashes)
        } else {
            None
        }
    }

    /// In bytes, of what is kept by size.
    fn size(&self) -> usize {
        match &self.content {
            Content::Bytes(bytes) => bytes.len(),
            Content::Hashes(hashes) => hashes.iter().map(|(name, hash)| name.len() + hash.len() + 64).sum(),
            Content::Groups(_) | Content::Index(_) => 0,
        }
    }

    pub(super) fn bytes(&self) -> Bytes {
        if let Content::Bytes(bytes) = &self.content {
            bytes.clone()
        } else {
            Bytes::new()
        }
    }
}

/// A copy to answer with.
pub(super) struct Found {
    pub(super) copy: Arc<Copy>,
    /// Why it may not be what the member has now.
    pub(super) old: Option<String>,
}

/// Whether who asks has to wait.
enum Joined {
    Known(Result<Found, String>),
    /// For this look, until then.
    Looking(Instant, watch::Receiver<()>),
}

/// The cache. One per process.
pub(crate) struct Copies {
    documents: OwnRequests,
    metrics: DiscoveryMetrics,
    /// Looks at members go on when the client that caused them has gone.
    tasks: Tasks,
    // A mutex: held for map operations, never across an await.
    inner: Mutex<Inner>,
}

struct Inner {
    looks: HashMap<Key, Look>,
    large: Cache<Key, Arc<Copy>>,
}

/// The last look at one document.
#[derive(Default)]
struct Look {
    copy: Option<Arc<Copy>>,
    checked: Option<Instant>,
    /// When the last one that is over began.
    began: Option<Instant>,
    /// Why the last look brought nothing.
    failed: Option<String>,
    /// The look that is under way: since when; closed when it is over.
    running: Option<(Instant, watch::Receiver<()>)>,
}

impl Look {
    fn is_fresh(&self) -> bool {
        self.checked.is_some_and(|checked| checked.elapsed() < FRESH)
    }
}

impl Copies {
    pub(super) fn new(documents: OwnRequests, metrics: DiscoveryMetrics, tasks: Tasks) -> Arc<Self> {
        let inner = Inner {
            looks: HashMap::new(),
            large: super::bounded(MAX_BYTES, |copy: &Arc<Copy>| match Arc::strong_count(copy) {
                1 => copy.size(),
                _ => 0,
            }),
        };
        Arc::new(Self {
            documents,
            metrics,
            tasks,
            inner: Mutex::new(inner),
        })
    }

    /// The document as the member has it now, or the last one if that cannot be had in time; an error says why there is none at
    /// all. A look that began before is waited for and not believed: one more, which all who wait share, begins after it.
    /// `until`: for the request that waits, where it is better served late than by an old one.
    pub(super) async fn get(self: &Arc<Self>, key: &Key, until: Instant) -> Result<Found, String> {
        let arrived = Instant::now();
        // A new definition takes the member a second or more, and clients validate by it what they send next.
        let is_slow = matches!(key.paper, Paper::OpenApiV2(_));
        let patient = is_slow && self.documents.is_answered(&key.cluster);
        // Two looks: one that began before and one that did not.
        for _ in 0..2 {
            let (until, mut running) = match self.join(key, arrived) {
                Joined::Known(found) => return found,
                Joined::Looking(_, running) if patient => (until, running),
                Joined::Looking(until, running) => (until, running),
            };
            // An error: the look is over and its sender gone.
            if tokio::time::timeout_at(until, running.changed()).await.is_err() {
                let why = format!("member cluster {} has not answered yet", key.cluster);
                return self.inner.lock().old(key, why);
            }
        }
        match self.join(key, arrived) {
            Joined::Known(found) => found,
            Joined::Looking(..) => Err(format!(
                "{} of member cluster {} is not kept",
                key.paper.path(),
                key.cluster
            )),
        }
    }

    /// What the last look brought, if that is good enough for who came then; else the look to wait for.
    fn join(self: &Arc<Self>, key: &Key, arrived: Instant) -> Joined {
        let inner = &mut *self.inner.lock();
        let known = inner.copy(key);
        let look = inner.looks.entry(key.clone()).or_default();
        let looked_since = look.began.is_some_and(|began| began >= arrived);
        match (&look.failed, known) {
            (None, Some(copy)) if looked_since => Joined::Known(Ok(Found { copy, old: None })),
            // Nobody insists on a member that cannot be had.
            (Some(why), _) if looked_since || look.is_fresh() => {
                let why = why.clone();
                Joined::Known(inner.old(key, why))
            }
            (failed, known) => {
                let patience = if known.is_none() && failed.is_none() {
                    FIRST_PATIENCE
                } else {
                    PATIENCE
                };
                let running = look.running.clone();
                let running = running.filter(|(_, running)| running.has_changed().is_ok());
                let (since, running) = running.unwrap_or_else(|| self.look(look, key, known.as_deref()));
                // From the look's beginning: of a member that hangs only who asks first has to wait.
                Joined::Looking(since + patience, running)
            }
        }
    }

    /// Starts to look. The task's end closes the channel.
    fn look(self: &Arc<Self>, look: &mut Look, key: &Key, known: Option<&Copy>) -> (Instant, watch::Receiver<()>) {
        let (over, running) = watch::channel(());
        let running = (Instant::now(), running);
        look.running = Some(running.clone());
        let request = DocumentRequest {
            cluster: key.cluster.clone(),
            path: key.paper.path(),
            accept: key.paper.accept(),
            etag: known.and_then(|copy| copy.etag.clone()),
        };
        let (this, key) = (self.clone(), key.clone());
        self.tasks.spawn("discovery", async move {
            let answer = this.documents.get(&request).await;
            this.record(&key, answer.map_err(|fault| fault.to_string()));
            drop(over);
        });
        running
    }

    fn record(&self, key: &Key, answer: Result<Response<Bytes>, String>) {
        let read = answer.and_then(|answer| read(key, answer));
        let fetched = match &read {
            Ok(None) => Fetched::Unchanged,
            Ok(Some(_)) => Fetched::Changed,
            Err(_) => Fetched::Failed,
        };
        self.metrics.fetched(&key.cluster, fetched);
        let mut inner = self.inner.lock();
        let look = inner.looks.entry(key.clone()).or_default();
        look.checked = Some(Instant::now());
        look.began = look.running.take().map(|(since, _)| since);
        match read {
            Ok(None) => look.failed = None,
            Ok(Some(copy)) => {
                look.failed = None;
                let copy = inner.shared(key, copy);
                inner.put(key, copy);
                self.tell(&inner, key);
            }
            Err(why) => {
                if look.failed.is_none() {
                    tracing::warn!(cluster = &*key.cluster, path = key.paper.path(), %why, "a member's discovery cannot be read");
                }
                look.failed = Some(why);
            }
        }
    }

    /// Both halves of a member's discovery, as kinds, if they are here.
    pub(super) fn tell_kinds(&self, key: &Key) {
        self.tell(&self.inner.lock(), key);
    }

    /// Under the lock: two that end at once must not overtake each other.
    fn tell(&self, inner: &Inner, key: &Key) {
        if !matches!(key.paper, Paper::Core | Paper::Groups) {
            return;
        }
        let half = |paper: Paper| inner.copy(&Key { paper, ..key.clone() });
        if let (Some(core), Some(groups)) = (half(Paper::Core), half(Paper::Groups)) {
            let mut kinds = kinds_of(core.groups().iter().chain(groups.groups()));
            let routing = &self.documents.routing;
            let known = &routing.load().kinds;
            if let Some(before) = known.member(&key.cluster) {
                kinds.keep_stale_of(before);
            }
            let same = known
                .members()
                .map(|(_, served)| served)
                .find(|served| ***served == kinds);
            let kinds = same.cloned().unwrap_or_else(|| Arc::new(kinds));
            routing.set_kinds(&key.cluster, &key.uid, &kinds);
        }
    }

    /// Forgets what is of no target any more.
    pub(super) fn retain(&self, known: impl Fn(&str, &str) -> bool) {
        let mut inner = self.inner.lock();
        inner.looks.retain(|key, _| known(&key.cluster, &key.uid));
        for (key, _) in &inner.large {
            if !known(&key.cluster, &key.uid) {
                inner.large.invalidate(&*key);
            }
        }
    }
}

impl Inner {
    /// The last copy, if there is one.
    fn old(&self, key: &Key, why: String) -> Result<Found, String> {
        match self.copy(key) {
            Some(copy) => Ok(Found { copy, old: Some(why) }),
            None => Err(why),
        }
    }

    fn copy(&self, key: &Key) -> Option<Arc<Copy>> {
        if key.paper.is_large() {
            return self.large.get(key);
        }
        self.looks.get(key)?.copy.clone()
    }

    /// Another member's copy, if it says the same: members of one version do. Compared whole: an ETag is what a member says.
    fn shared(&self, key: &Key, copy: Copy) -> Arc<Copy> {
        let others = self.looks.keys().filter(|other| other.paper == key.paper);
        let mut known = others.filter_map(|other| self.copy(other));
        known.find(|known| **known == copy).unwrap_or_else(|| Arc::new(copy))
    }

    fn put(&mut self, key: &Key, copy: Arc<Copy>) {
        if key.paper.is_large() {
            let large = &self.large;
            large.insert(key.clone(), copy);
            large.run_pending_tasks();
            // Documents come and go with their CRDs; what is kept of a look is nothing without its copy.
            self.looks
                .retain(|key, look| !key.paper.is_large() || look.running.is_some() || large.contains_key(key));
        } else if let Some(look) = self.looks.get_mut(key) {
            look.copy = Some(copy);
        }
    }
}

/// `None`: the copy is as good as before.
fn read(key: &Key, answer: Response<Bytes>) -> Result<Option<Copy>, String> {
    let (head, body) = answer.into_parts();
    let cluster = &key.cluster;
    match head.status {
        StatusCode::NOT_MODIFIED => return Ok(None),
        StatusCode::OK => {}
        code => {
            return Err(format!(
                "member cluster {cluster} answered {} with {code}",
                key.paper.path()
            ));
        }
    }
    let unreadable = || {
        format!(
            "member cluster {cluster} answered {} with something else",
            key.paper.path()
        )
    };
    let content = match key.paper {
        Paper::Core | Paper::Groups => Content::Groups(
            discovery::parse(&body)
                .ok_or_else(|| format!("{}: discovery of Kubernetes 1.26 or later is needed", unreadable()))?,
        ),
        Paper::Resources(_) => Content::Hashes(storage_hashes(&body).ok_or_else(unreadable)?),
        Paper::Index => Content::Index(openapi::parse_index(&body).ok_or_else(unreadable)?),
        Paper::OpenApiV2(_) | Paper::OpenApi(..) if body.is_empty() => return Err(unreadable()),
        Paper::OpenApiV2(_) | Paper::OpenApi(..) => Content::Bytes(body.clone()),
    };
    let etag = head.headers.get(ETAG).cloned();
    let tag = etag.as_ref().and_then(|etag| etag.to_str().ok());
    let hash = tag.map_or_else(
        || discovery::render::etag(&body),
        |tag| tag.trim_matches('"').to_owned(),
    );
    let json = HeaderValue::from_static(JSON);
    Ok(Some(Copy {
        hash,
        content_type: head.headers.get(CONTENT_TYPE).cloned().unwrap_or(json),
        content,
        etag,
    }))
}

fn storage_hashes(body: &[u8]) -> Option<BTreeMap<String, String>> {
    #[derive(Deserialize)]
    struct List {
        resources: Vec<Resource>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Resource {
        name: String,
        #[serde(default)]
        storage_version_hash: String,
    }
    let list: List = serde_json::from_slice(body).ok()?;
    let each = list.resources.into_iter();
    Some(each.map(|one| (one.name, one.storage_version_hash)).collect())
}
