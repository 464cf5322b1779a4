//! Several members' documents at hand → the one that is answered, kept as long as none of them changes.
//!
//! No waiting here: `discovery` has gathered the copies. Everything is made at most once per set of copies.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::header::HeaderValue;
use moka::sync::Cache;
use portolan_merge::discovery::render::{self, Format};
use portolan_merge::discovery::union::{self, Served, United};
use portolan_merge::openapi::{self, Edition};

use super::answer::Ready;
use super::bounded;
use super::cache::Copy;
use super::metrics::DiscoveryMetrics;
use crate::value::document::{DocumentSource, OpenApiEncoding};
use crate::value::media::JSON;

/// Unions of discovery: one per set of members that some shard has, some hundred KB each.
const MAX_DISCOVERY_BYTES: u64 = 16 << 20;
/// What one union is reckoned with; its documents are about as large.
const UNION_BYTES: usize = 1 << 20;
/// OpenAPI documents of several members, made into one.
const MAX_OPENAPI_BYTES: u64 = 32 << 20;

/// One member's discovery.
#[derive(Debug, Clone)]
pub(super) struct Half {
    pub(super) source: DocumentSource,
    pub(super) core: Arc<Copy>,
    pub(super) groups: Arc<Copy>,
}

impl Half {
    /// Whether it has the version; `Some(false)`: what serves it is away.
    pub(super) fn serves(&self, group: &str, version: &str) -> Option<bool> {
        let mut groups = self.core.groups().iter().chain(self.groups.groups());
        let group = groups.find(|one| one.metadata.name == group)?;
        let version = group.versions.iter().find(|one| one.version == version)?;
        Some(version.freshness != "Stale")
    }
}

/// A union of discovery, and the documents made of it so far.
#[derive(Debug)]
pub(super) struct Union {
    pub(super) united: United,
    /// `/api` and `/apis`, v2 and v2beta1.
    aggregated: [OnceLock<Arc<Ready>>; 4],
}

impl Union {
    pub(super) fn aggregated(&self, core: bool, format: Format) -> Arc<Ready> {
        let place = usize::from(core) * 2 + usize::from(format == Format::V2beta1);
        let make = || {
            let body = render::aggregated(&self.united.groups, core, format);
            let kind = format!(
                "{JSON};g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList",
                format.version()
            );
            let kind = HeaderValue::try_from(kind).unwrap_or(HeaderValue::from_static(JSON));
            Arc::new(Ready::new(kind, render::etag(&body), body.into()))
        };
        self.aggregated
            .get(place)
            .map_or_else(make, |slot| slot.get_or_init(make).clone())
    }
}

/// Sources with the hashes of their two documents.
type UnionKey = Vec<(DocumentSource, String, String)>;
/// What was asked for, in which encoding, and the hash of all it was made of.
type OpenApiKey = (String, OpenApiEncoding, String);

/// What has been made.
pub(super) struct Made {
    unions: Cache<UnionKey, Arc<Union>>,
    openapi: Cache<OpenApiKey, Arc<Ready>>,
    metrics: DiscoveryMetrics,
}

impl Made {
    pub(super) fn new(metrics: DiscoveryMetrics) -> Self {
        Self {
            unions: bounded(MAX_DISCOVERY_BYTES, |_| UNION_BYTES),
            openapi: bounded(MAX_OPENAPI_BYTES, |ready: &Arc<Ready>| ready.body.len()),
            metrics,
        }
    }

    pub(super) fn union(&self, halves: &[Half]) -> Arc<Union> {
        let part = |half: &Half| (half.source.clone(), half.core.hash.clone(), half.groups.hash.clone());
        let key: UnionKey = halves.iter().map(part).collect();
        if let Some(made) = self.unions.get(&key) {
            return made;
        }
        let groups: Vec<_> = halves
            .iter()
            .map(|half| [half.core.groups(), half.groups.groups()].concat())
            .collect();
        let served = halves.iter().zip(&groups).map(|(half, groups)| Served {
            cluster: &half.source.cluster,
            primary: half.source.primary,
            aside: half.source.aside,
            groups,
        });
        let united = union::unite(&served.collect::<Vec<_>>());
        for conflict in &united.conflicts {
            tracing::warn!(%conflict, "a resource is not offered");
        }
        self.metrics.conflicts(united.conflicts.len());
        let made = Arc::new(Union {
            united,
            aggregated: Default::default(),
        });
        self.unions.insert(key, made.clone());
        made
    }

    /// One document of these copies, the first one's word first. `name`: what was asked for. `None`: one of them is broken.
    pub(super) fn openapi(
        &self,
        name: &str,
        edition: Edition,
        encoding: OpenApiEncoding,
        copies: &[Arc<Copy>],
    ) -> Option<Arc<Ready>> {
        let mut distinct: Vec<&Arc<Copy>> = Vec::new();
        for copy in copies {
            if distinct.iter().all(|known| known.hash != copy.hash) {
                distinct.push(copy);
            }
        }
        let hashes: Vec<&str> = distinct.iter().map(|copy| copy.hash.as_str()).collect();
        let key = (name.to_owned(), encoding, openapi::combined(&hashes));
        if let Some(made) = self.openapi.get(&key) {
            return Some(made);
        }
        let first = distinct.first()?;
        let bodies: Vec<Bytes> = distinct.iter().map(|copy| copy.bytes()).collect();
        let parts: Vec<&[u8]> = bodies.iter().map(AsRef::as_ref).collect();
        let body = match (parts.as_slice(), encoding) {
            ([_], _) => first.bytes(),
            (parts, OpenApiEncoding::Json) => openapi::unite_json(edition, parts)?.into(),
            (parts, OpenApiEncoding::Protobuf) => openapi::unite_protobuf(edition, parts)?.into(),
        };
        let made = Arc::new(Ready::new(first.content_type.clone(), key.2.clone(), body));
        self.openapi.insert(key, made.clone());
        Some(made)
    }
}
