//! The ledger as it lies in the hub's namespace: who holds which (cluster, namespace) pair since which view revision, and
//! the last accepted spec of each shard, in ConfigMaps of bounded size.
//!
//! One [`Record`] to a ConfigMap: the root, which lists all others (what it does not list does not count), chunks of
//! pairs by hash of the namespace, and one spec per shard. Pure: what a record says and how it is written down. The hub
//! writes records, `portolanctl ledger` shows and adopts them; neither decides here who may hold what.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use crate::labels::{CONFIG_MAP_LEDGER, LABEL_LEDGER};
use crate::names::ShardName;
use crate::operator::Contention;
use crate::sharding::{ObjectLimiter, ShardingConfigSpec};

mod chunk;
mod lock;
mod slot;

pub use chunk::{CHUNK_BYTES_MAX, Chunk, Departure, Pair, PairFence};
pub use lock::{LockHandover, LockInForce, LockPhase, LockPlace, Vacancy};
pub use slot::{Slot, SlotError};

/// Format of records in which each pair has one owner. Hubs of before there were others read it alone.
pub const FORMAT: u32 = 1;
/// Format of records in which pairs have an owner of each operator.
pub const FORMAT_OF_OPERATORS: u32 = 2;
/// Longest spec that a shard may have in force, in bytes of JSON: it must fit a ConfigMap. With the one before it, too, or that
/// is not kept.
pub const SPEC_BYTES_MAX: usize = 768 * 1024;

/// Bytes of the hash in the name of a spec's ConfigMap.
const SPEC_NAME_BYTES: usize = 16;
/// Key of a ConfigMap's data: the record as JSON.
const DATA_RECORD: &str = "record.json";
/// Key of a ConfigMap's data: what the record's bytes hash to.
const DATA_CHECKSUM: &str = "checksum";

/// What one ConfigMap of the ledger says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Of the hub that wrote it; grows with each hub that leads. A hub that meets a higher one than its own in the root is not the hub
    /// any more.
    pub term: u64,
    /// The highest view revision that the whole ledger had given when this was written.
    pub view_revision: u64,
    /// What the record says, by its kind.
    pub content: Content,
}

/// The kinds of records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Content {
    /// The list of all others.
    Root(Root),
    /// Some pairs of one member cluster.
    Chunk(Chunk),
    /// The spec of a shard that is in force.
    Spec(SpecInForce),
}

/// The record that lists all others. There is one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Root {
    /// Names this life of the ledger, the *hub incarnation*: made anew only if the ledger turns out to have lost something.
    pub incarnation: String,
    /// Random: which namespaces share a chunk is told by a hash with it, so that nobody can choose them.
    pub key: String,
    /// How complete the ledger is.
    pub phase: Phase,
    /// Chunks of each member cluster. Together they hold every namespace once.
    #[serde(default)]
    pub chunks: BTreeMap<String, BTreeSet<Slot>>,
    /// Shards with a spec in force.
    #[serde(default)]
    pub specs: BTreeSet<ShardName>,
    /// The format of cursors that routers are told to write.
    #[serde(default)]
    pub cursor_format: CursorFormat,
    /// Who contends for pairs with whom.
    #[serde(default, skip_serializing_if = "Contention::is_fleet")]
    pub contention: Contention,
    /// Whoever writes this ledger looks after each write whether it is the hub still, before it tells anybody of what it wrote: the
    /// term of the root alone keeps an earlier hub out. Absent, as hubs of before write it: every record has to be written anew.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confirmed: bool,
}

/// How routers write cursors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CursorFormat {
    /// All routers read it.
    #[default]
    One,
    /// With the view revision; routers of before it do not read it.
    Two,
}

/// How complete a ledger is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Begun, and not filled yet: nothing was ever granted by it.
    #[default]
    Begun,
    /// Filled by `portolanctl ledger adopt`: routers may hold pairs that it does not name.
    Adopted,
    /// Names every pair that any router may hold.
    Complete,
}

/// The spec of a shard that is in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpecInForce {
    /// The shard that the spec is of.
    pub shard: ShardName,
    /// metadata.uid of the ShardingConfig: one that is made anew under the same name starts anew.
    pub uid: String,
    /// metadata.generation of the spec.
    pub generation: i64,
    /// The spec. Untyped, so that a program of another version does not lose fields.
    pub spec: Value,
    /// What was in force before it, for whoever wants to go back. Absent if that is not known, or the two are too long for one
    /// record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<EarlierSpec>,
    /// How its leader lock came to be where the spec says. Absent: it never moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockInForce>,
    /// Limits that hold beside those of the spec, until every router has let go of what others had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withheld: Vec<ObjectLimiter>,
}

/// A spec of the same object that was in force once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EarlierSpec {
    /// metadata.generation of the spec.
    pub generation: i64,
    /// The spec, untyped like the one in force.
    pub spec: Value,
}

/// Why a ConfigMap of the ledger cannot be read.
#[derive(Debug, Error)]
pub enum RecordError {
    /// A key is missing.
    #[error("data[{0:?}] is missing")]
    Missing(&'static str),
    /// The data is not what was written.
    #[error("its checksum is {actual}, and it was written with {written}: it was changed by hand, or cut")]
    Checksum {
        /// Checksum of the data as it is.
        actual: String,
        /// Checksum that was written beside the data.
        written: String,
    },
    /// Written by another version.
    #[error("it has format {0}, and this program reads formats {FORMAT} and {FORMAT_OF_OPERATORS}")]
    Format(u32),
    /// No record.
    #[error("it cannot be read")]
    Unreadable(#[from] serde_json::Error),
    /// Another record than its name says.
    #[error("it holds the record of {0}")]
    Misnamed(String),
}

/// A record with its format, which is read before the rest.
#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    format: u32,
    #[serde(flatten)]
    rest: T,
}

/// Any record, of which nothing but the format is read.
#[derive(Deserialize)]
struct Anything {}

impl Record {
    /// Name of its ConfigMap.
    pub fn object_name(&self) -> String {
        match &self.content {
            Content::Root(_) => CONFIG_MAP_LEDGER.to_owned(),
            Content::Chunk(chunk) => chunk_object(&chunk.cluster, chunk.slot),
            Content::Spec(spec) => spec_object(&spec.shard),
        }
    }

    /// The data of its ConfigMap.
    pub fn encode(&self) -> BTreeMap<String, String> {
        let versioned = Versioned {
            format: self.content.format(),
            rest: self,
        };
        let text = serde_json::to_string(&versioned).expect("a record has keys of text only");
        let checksum = checksum(&text);
        [(DATA_RECORD, text), (DATA_CHECKSUM, checksum)]
            .map(|(key, value)| (key.to_owned(), value))
            .into()
    }

    /// Reads the data of the ConfigMap `name`.
    pub fn decode(name: &str, data: &BTreeMap<String, String>) -> Result<Self, RecordError> {
        let text = data.get(DATA_RECORD).ok_or(RecordError::Missing(DATA_RECORD))?;
        let written = data.get(DATA_CHECKSUM).ok_or(RecordError::Missing(DATA_CHECKSUM))?;
        let actual = checksum(text);
        if actual != *written {
            let written = written.clone();
            return Err(RecordError::Checksum { actual, written });
        }
        let versioned: Versioned<Anything> = serde_json::from_str(text)?;
        if ![FORMAT, FORMAT_OF_OPERATORS].contains(&versioned.format) {
            return Err(RecordError::Format(versioned.format));
        }
        let record = serde_json::from_str::<Self>(text)?;
        if record.object_name() == name {
            Ok(record)
        } else {
            Err(RecordError::Misnamed(record.object_name()))
        }
    }
}

impl Content {
    /// The lowest that says all of it.
    fn format(&self) -> u32 {
        let is_of_operators = match self {
            Self::Root(root) => !root.contention.is_fleet(),
            Self::Chunk(chunk) => chunk.is_of_operators(),
            Self::Spec(_) => false,
        };
        if is_of_operators { FORMAT_OF_OPERATORS } else { FORMAT }
    }
}

impl Root {
    /// Names of the ConfigMaps that it lists.
    pub fn objects(&self) -> BTreeSet<String> {
        let chunks = self
            .chunks
            .iter()
            .flat_map(|(cluster, slots)| slots.iter().map(|slot| chunk_object(cluster, *slot)));
        chunks.chain(self.specs.iter().map(spec_object)).collect()
    }

    /// Whether a hub can start from these records, if they are all that it lists.
    ///
    /// # Errors
    /// What is wrong, with the name of the entry.
    pub fn check<'a>(&self, contents: impl IntoIterator<Item = &'a Content>) -> Result<(), String> {
        for (cluster, slots) in &self.chunks {
            if !Slot::is_partition(slots) {
                return Err(format!(
                    "its chunks of cluster {cluster} overlap, or leave namespaces out"
                ));
            }
        }
        let mut specs = BTreeSet::new();
        for content in contents {
            if let Content::Spec(spec) = content {
                spec.read()?;
                specs.insert(&spec.shard);
            }
        }
        let missing = self.specs.iter().find(|shard| !specs.contains(shard));
        missing.map_or(Ok(()), |shard| {
            Err(format!("the spec of {shard} is missing, and it is listed"))
        })
    }
}

impl SpecInForce {
    /// The spec as this program understands it.
    ///
    /// # Errors
    /// What this program does not understand of it: a later one may have written it.
    pub fn read(&self) -> Result<ShardingConfigSpec, String> {
        let read = ShardingConfigSpec::deserialize(&self.spec);
        read.map_err(|error| format!("the spec of {} in force cannot be read: {error}", self.shard))
    }
}

impl Phase {
    /// Whether routers may hold pairs that the ledger does not name.
    pub fn may_lack_pairs(self) -> bool {
        self == Self::Adopted
    }
}

/// Name of the ConfigMap of a chunk.
pub fn chunk_object(cluster: &str, slot: Slot) -> String {
    format!("{CONFIG_MAP_LEDGER}-{cluster}-{slot}")
}

/// Name of the ConfigMap of a shard's spec. A shard's own name may be too long for it; of two shards nobody can make names
/// that are equal here.
pub fn spec_object(shard: &ShardName) -> String {
    let hash = Sha256::digest(shard.to_string());
    let name = format!("{CONFIG_MAP_LEDGER}-spec-");
    hash[..SPEC_NAME_BYTES]
        .iter()
        .fold(name, |name, byte| format!("{name}{byte:02x}"))
}

/// The ConfigMap `name` of the ledger, to be created, or to be put in place of the one of `resource_version`.
pub fn config_map(name: &str, data: BTreeMap<String, String>, resource_version: Option<String>) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([(LABEL_LEDGER.to_owned(), String::new())].into()),
            resource_version,
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..ConfigMap::default()
    }
}

/// The checksum that stands in the data of a ConfigMap: equal for equal records.
pub fn checksum_of(data: &BTreeMap<String, String>) -> Option<&str> {
    data.get(DATA_CHECKSUM).map(String::as_str)
}

fn checksum(text: &str) -> String {
    format!("{:016x}", xxh3_64(text.as_bytes()))
}

#[cfg(test)]
mod tests;
