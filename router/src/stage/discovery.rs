//! Discovery and OpenAPI of the merged view: what the members of a shard serve, as if one API server served it.
//!
//! Groups, versions and resources are the union over the members, verbs what all that serve a resource allow, the order
//! the primary's; how they are united is `portolan_merge::discovery` and `::openapi`. Here: whose documents count
//! (`value::document`), reading and keeping them (`cache`, `warm`), keeping what was made of them (`united`), and the answer. A
//! member that is away counts with what it said last; one that never said anything is left out with a `Warning`, and nothing
//! is called absent meanwhile.
//!
//! What each member serves is also kept as [`Kinds`], for whoever must know a kind beyond its path: `plan` (its scope),
//! `fanout` (who serves it at all), ownerReferences (kind → resource). Callers: `edge` for each [`Wanted`], `app` for the
//! warming.

mod answer;
mod cache;
mod learn;
mod metrics;
pub(crate) mod page;
#[cfg(test)]
mod tests;
mod united;
mod warm;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::hash::Hash;
use std::sync::Arc;

use futures::future::join_all;
use http::header::{HOST, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Response};
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use parking_lot::Mutex;
use portolan_merge::discovery::{protobuf, render};
use portolan_merge::openapi::{self, Edition};
use portolan_runtime::Tasks;
use serde_json::Value;
use tokio::time::Instant;

use self::answer::{Caching, Ready};
use self::cache::{Copies, Copy, Key, Paper};
use self::learn::Learning;
pub(crate) use self::metrics::DiscoveryMetrics;
use self::united::{Half, Made, Union};
use crate::resource::routing::RoutingStore;
use crate::resource::upstream::Body;
use crate::stage::dispatch::OwnRequests;
use crate::value::document::{self, Discovered, Document, DocumentSource, Wanted};
use crate::value::fault::Fault;
use crate::value::media::{JSON, PROTOBUF};
use crate::value::snapshot::Snapshot;

/// Answers discovery. One per process.
pub(crate) struct Discovery {
    copies: Arc<Copies>,
    /// Filled with what members serve, and asked who they are.
    routing: Arc<RoutingStore>,
    made: Made,
    learning: Learning,
    metrics: DiscoveryMetrics,
}

/// What members have given, and who gave nothing.
struct Gathered<T> {
    found: Vec<T>,
    /// Member and why.
    missing: Vec<(Arc<str>, String)>,
}

impl<T> Gathered<T> {
    /// 503 when nobody has answered.
    fn some(self) -> Result<Self, Fault> {
        if self.found.is_empty() {
            return Err(self.unknown("no member cluster has said what it serves"));
        }
        Ok(self)
    }

    /// What is not found may be at a member that is not known yet: 503 then, and never "there is no such thing".
    fn absent(&self, what: &str) -> Fault {
        if self.missing.is_empty() {
            return Fault::NotFound(format!("the server could not find the requested resource: {what}"));
        }
        self.unknown(&format!(
            "{what} is not served by the member clusters that have answered"
        ))
    }

    fn unknown(&self, what: &str) -> Fault {
        let why: Vec<_> = self.missing.iter().map(|(_, why)| why.as_str()).collect();
        Fault::Unavailable {
            message: format!("{what}: {}", why.join("; ")),
            cluster: self.missing.first().map(|(cluster, _)| cluster.to_string()),
            sent: false,
        }
    }

    fn warnings(&self) -> Vec<String> {
        let each = self.missing.iter();
        each.map(|(cluster, why)| format!("without member cluster {cluster}: {why}"))
            .collect()
    }
}

impl Discovery {
    /// Looks at members are tasks of `tasks`.
    pub(crate) fn new(documents: OwnRequests, metrics: DiscoveryMetrics, tasks: Tasks) -> Arc<Self> {
        Arc::new(Self {
            routing: documents.routing.clone(),
            copies: Copies::new(documents, metrics.clone(), tasks),
            made: Made::new(metrics.clone()),
            learning: Learning::default(),
            metrics,
        })
    }

    /// Answers one request.
    pub(crate) async fn answer(
        &self,
        wanted: &Wanted,
        asked: &Asked<'_>,
        snapshot: &Snapshot,
    ) -> Result<Response<Body>, Fault> {
        let Asked { head, hash, until } = asked;
        let call = Call {
            discovery: self,
            wanted,
            snapshot,
            headers: &head.headers,
            until: *until,
            old: Mutex::default(),
        };
        match &wanted.document {
            Document::OpenApiV2 => call.openapi_v2().await,
            Document::OpenApiIndex => call.openapi_index().await,
            Document::OpenApi(path) => call.openapi(path, hash.as_deref().unwrap_or_default()).await,
            _ => call.discovery(address(head)).await,
        }
    }
}

/// What is asked for beside the document.
pub(crate) struct Asked<'a> {
    pub(crate) head: &'a Parts,
    /// Of the document that the client knows of.
    pub(crate) hash: Option<Cow<'a, str>>,
    /// For the members.
    pub(crate) until: Instant,
}

/// One request.
struct Call<'a> {
    discovery: &'a Discovery,
    wanted: &'a Wanted,
    snapshot: &'a Snapshot,
    headers: &'a HeaderMap,
    until: Instant,
    /// What is said of copies that may not be what their members have now. A mutex: they are gathered side by side.
    old: Mutex<BTreeSet<String>>,
}

impl Call<'_> {
    fn warnings<T>(&self, gathered: &Gathered<T>) -> Vec<String> {
        let mut warnings = gathered.warnings();
        warnings.extend(self.old.lock().iter().cloned());
        warnings
    }

    async fn discovery(&self, address: &str) -> Result<Response<Body>, Fault> {
        let aggregates = matches!(self.wanted.document, Document::Core | Document::Groups);
        let form = document::discovered(self.headers, aggregates).ok_or_else(not_acceptable)?;
        let halves = self.halves().await.some()?;
        let union = self.discovery.made.union(&halves.found);
        let mut warnings = self.warnings(&halves);
        warnings.extend(self.conflicts(&union));
        if let Discovered::Aggregated(format) = form {
            let ready = union.aggregated(self.wanted.document == Document::Core, format);
            return Ok(ready.answer(self.headers, Caching::Public, &warnings));
        }
        let groups = &union.united.groups;
        let document = match &self.wanted.document {
            Document::Core => render::core_versions(groups, address),
            Document::Group(name) => {
                render::group(groups, name).ok_or_else(|| halves.absent(&format!("API group {name}")))?
            }
            Document::Resources { group, version } => {
                warnings.extend(stale(&halves.found, (group, version))?);
                let document = render::resources(groups, group, version);
                let absent = || halves.absent(format!("{group}/{version}").trim_start_matches('/'));
                self.with_storage_hashes(document.ok_or_else(absent)?, &halves.found, (group, version))
                    .await
            }
            _ => render::group_list(groups),
        };
        let ready = match form {
            Discovered::LegacyProtobuf => in_protobuf(&document)?,
            _ => legacy(&document),
        };
        Ok(ready.answer(self.headers, Caching::Private, &warnings))
    }

    /// With the hash of each resource's storage version, which aggregated discovery lacks, where all members that serve the
    /// resource say the same; with none while one of them cannot be asked.
    async fn with_storage_hashes(&self, mut document: Value, halves: &[Half], (group, version): (&str, &str)) -> Value {
        let path = if group.is_empty() {
            format!("api/{version}")
        } else {
            format!("apis/{group}/{version}")
        };
        let serving = halves.iter().filter(|half| half.serves(group, version) == Some(true));
        let each = serving.map(|half| self.copy(&half.source, Paper::Resources(path.clone())));
        let copies: Result<Vec<_>, _> = join_all(each).await.into_iter().collect();
        let Ok(copies) = copies else { return document };
        for resource in document["resources"].as_array_mut().into_iter().flatten() {
            let name = resource["name"].as_str().unwrap_or_default();
            let mut said = copies.iter().filter_map(|copy| copy.storage_hashes()?.get(name));
            let first = said.next().filter(|first| !first.is_empty());
            if let Some(hash) = first.filter(|first| said.all(|other| other == *first)) {
                resource["storageVersionHash"] = hash.as_str().into();
            }
        }
        document
    }

    /// What is left out of what was asked for.
    fn conflicts(&self, union: &Union) -> Vec<String> {
        let asked = |group: &str| match &self.wanted.document {
            Document::Core => group.is_empty(),
            Document::Groups => !group.is_empty(),
            Document::Group(name) | Document::Resources { group: name, .. } => group == name,
            _ => false,
        };
        let conflicts = union.united.conflicts.iter();
        conflicts
            .filter(|one| asked(&one.group))
            .map(ToString::to_string)
            .collect()
    }

    async fn halves(&self) -> Gathered<Half> {
        let each = self.wanted.members.iter().map(|source| async move {
            let (core, groups) = tokio::join!(self.copy(source, Paper::Core), self.copy(source, Paper::Groups));
            Ok(Half {
                source: source.clone(),
                core: core?,
                groups: groups?,
            })
        });
        self.sort(join_all(each).await)
    }

    async fn copies(&self, paper: &Paper) -> Gathered<(&DocumentSource, Arc<Copy>)> {
        let each = self.wanted.members.iter().map(|source| async move {
            let copy = self.copy(source, paper.clone()).await?;
            Ok((source, copy))
        });
        self.sort(join_all(each).await)
    }

    /// Answers in the order of the sources.
    fn sort<T>(&self, answers: Vec<Result<T, String>>) -> Gathered<T> {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for (source, answer) in self.wanted.members.iter().zip(answers) {
            match answer {
                Ok(one) => found.push(one),
                Err(why) => {
                    self.discovery.metrics.without(&source.cluster);
                    missing.push((source.cluster.clone(), why));
                }
            }
        }
        Gathered { found, missing }
    }

    async fn copy(&self, source: &DocumentSource, paper: Paper) -> Result<Arc<Copy>, String> {
        let cluster = &source.cluster;
        let target = self.snapshot.targets.get(cluster);
        let target = target.ok_or_else(|| format!("member cluster {cluster} is not known to this router (yet)"))?;
        let key = Key {
            cluster: cluster.clone(),
            uid: target.cluster_uid.as_str().into(),
            paper,
        };
        let found = self.discovery.copies.get(&key, self.until).await?;
        if let Some(why) = found.old {
            let said = format!("what member cluster {cluster} serves may have changed since it was read: {why}");
            self.old.lock().insert(said);
        }
        Ok(found.copy)
    }

    async fn openapi_v2(&self) -> Result<Response<Body>, Fault> {
        let encoding = document::openapi_encoding(self.headers).ok_or_else(not_acceptable)?;
        let copies = self.copies(&Paper::OpenApiV2(encoding)).await.some()?;
        let found: Vec<_> = copies.found.iter().map(|(_, copy)| copy.clone()).collect();
        let made = self.discovery.made.openapi("v2", Edition::V2, encoding, &found);
        let made = made.ok_or_else(|| unreadable("/openapi/v2"))?;
        Ok(made.answer(self.headers, Caching::Private, &self.warnings(&copies)))
    }

    async fn openapi_index(&self) -> Result<Response<Body>, Fault> {
        let copies = self.copies(&Paper::Index).await.some()?;
        let indexes = copies
            .found
            .iter()
            .filter_map(|(source, copy)| Some((&*source.cluster, copy.index()?)));
        let body = openapi::unite_indexes(&indexes.collect::<Vec<_>>());
        let json = HeaderValue::from_static(JSON);
        let ready = Ready::new(json, render::etag(&body), body.into());
        Ok(ready.answer(self.headers, Caching::Private, &self.warnings(&copies)))
    }

    /// One document of v3. Its hash is of the copies that are at hand, so that what may be kept for ever under a hash is
    /// always the same, also while a member is away.
    async fn openapi(&self, path: &str, hash: &str) -> Result<Response<Body>, Fault> {
        let encoding = document::openapi_encoding(self.headers).ok_or_else(not_acceptable)?;
        let indexes = self.copies(&Paper::Index).await.some()?;
        let serves = |copy: &Copy| copy.index().is_some_and(|index| index.contains_key(path));
        let having = indexes
            .found
            .iter()
            .filter(|(_, copy)| serves(copy))
            .map(|(source, _)| *source);
        let paper = Paper::OpenApi(encoding, path.to_owned());
        let having: Vec<_> = having.collect();
        if having.is_empty() {
            return Err(indexes.absent(&format!("/openapi/v3/{path}")));
        }
        let answers = join_all(having.iter().map(|source| self.copy(source, paper.clone()))).await;
        let why = answers
            .iter()
            .find_map(|answer| answer.as_ref().err().cloned())
            .unwrap_or_default();
        let copies: Vec<_> = answers.into_iter().filter_map(Result::ok).collect();
        if copies.is_empty() {
            let missing = vec![(having[0].cluster.clone(), why)];
            return Err(Gathered::<()> {
                found: Vec::new(),
                missing,
            }
            .unknown("nobody has the document"));
        }
        let made = self.discovery.made.openapi(path, Edition::V3, encoding, &copies);
        let made = made.ok_or_else(|| unreadable(path))?;
        if !hash.is_empty() && hash != made.hash {
            return Ok(answer::moved(&format!("/openapi/v3/{path}?hash={}", made.hash)));
        }
        let caching = if hash.is_empty() {
            Caching::Private
        } else {
            Caching::Immutable
        };
        Ok(made.answer(self.headers, caching, &self.warnings(&indexes)))
    }
}

/// What is said of members in which what serves this version is away; 503 where it is away in all that have it. An empty document
/// would be one that nothing can be wrong with.
fn stale(halves: &[Half], (group, version): (&str, &str)) -> Result<Option<String>, Fault> {
    let away = |wanted: bool| {
        let of = halves
            .iter()
            .filter(move |half| half.serves(group, version) == Some(!wanted));
        of.map(|half| &*half.source.cluster).collect::<Vec<_>>()
    };
    let (stale, serving) = (away(true), away(false));
    let Some(first) = stale.first() else { return Ok(None) };
    let message = format!(
        "what serves API {group}/{version} is not available in member clusters: {}",
        stale.join(", ")
    );
    if serving.is_empty() {
        return Err(Fault::Unavailable {
            message,
            cluster: Some((*first).to_owned()),
            sent: false,
        });
    }
    Ok(Some(message))
}

/// Things that can be made again, up to so many bytes: the longest unused goes first.
fn bounded<K, V>(bytes: u64, size: impl Fn(&V) -> usize + Send + Sync + 'static) -> Cache<K, V>
where
    K: Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    let weight = move |_: &K, value: &V| u32::try_from(size(value)).unwrap_or(u32::MAX);
    let cache = Cache::builder().max_capacity(bytes).weigher(weight);
    cache.eviction_policy(EvictionPolicy::lru()).build()
}

fn legacy(document: &Value) -> Ready {
    let body = serde_json::to_vec(document).unwrap_or_default();
    Ready::new(HeaderValue::from_static(JSON), String::new(), body.into())
}

fn in_protobuf(document: &Value) -> Result<Ready, Fault> {
    let body = protobuf::encode(document).ok_or_else(|| unreadable("discovery"))?;
    let kind = HeaderValue::from_static(PROTOBUF);
    Ok(Ready::new(kind, String::new(), body.into()))
}

/// Where the client found this router: clients of `/api` are told to come back to it, and not to a member.
fn address(head: &Parts) -> &str {
    let host = head.headers.get(HOST).and_then(|host| host.to_str().ok());
    head.uri
        .authority()
        .map(http::uri::Authority::as_str)
        .or(host)
        .unwrap_or_default()
}

fn not_acceptable() -> Fault {
    Fault::NotAcceptable(
        "only the following media types are accepted: application/json, application/vnd.kubernetes.protobuf, and for OpenAPI its own".to_owned(),
    )
}

fn unreadable(what: &str) -> Fault {
    Fault::Internal(format!("a member's {what} cannot be read"))
}
