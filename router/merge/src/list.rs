//! Bodies of lists, one per member, made into one body: JSON, protobuf, Table, and metadata-only lists of both kinds.
//!
//! Objects are not decoded: their bytes go on as they came, and only where the caller's namespaces or names decide
//! are items told apart. Nothing is held back but heads and an item in the making, so memory follows the bytes that the
//! driver has in flight. A list of which a member's part is broken or cut is an error that names the member, never a list.
//! The router's `fanout` feeds it: it asks [`ListMerge::wants`], reads, pushes, and sends what comes out.
//!
//! ```
//! use std::collections::VecDeque;
//!
//! use portolan_merge::list::{ListFormat, ListLeg, ListMerge, ListOptions, MergedMeta, Wants};
//!
//! let legs = ["east", "west"].map(|cluster| ListLeg { cluster: cluster.into(), filter: None });
//! let options = ListOptions { unique: false, cluster_column: false, hide_objects: false, max_item_bytes: 1 << 20 };
//! let mut merge = ListMerge::new(ListFormat::Json, legs.into(), options);
//! let mut out = VecDeque::new();
//! for leg in 0..2 {
//!     let head = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":"#;
//!     let body = format!(r#"{head}[{{"metadata":{{"name":"pod-{leg}"}}}}]}}"#);
//!     merge.push(leg, body.into(), &mut out)?;
//!     merge.end(leg, &mut out)?;
//! }
//! assert_eq!(merge.wants(), Wants::Meta);
//! // All metadata is known: a driver makes the merged cursor of it.
//! let meta = MergedMeta { resource_version: "the cursor".to_owned(), ..MergedMeta::default() };
//! merge.set_meta(meta, &mut out)?;
//! assert_eq!(merge.wants(), Wants::Done);
//! let list = String::from_utf8(out.into_iter().flatten().collect()).unwrap();
//! assert!(list.contains("pod-0") && list.contains("pod-1") && list.contains("the cursor"));
//! # Ok::<(), portolan_merge::list::ListError>(())
//! ```

mod joiner;
mod json;
mod merge;
mod protobuf;
mod reader;
mod scan;
mod selection;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;

use bytes::Bytes;

use crate::filter::NamespaceFilter;
pub use merge::ListMerge;

/// The encoding of members' answers, and so of the merged list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListFormat {
    /// `application/json`, objects or `PartialObjectMetadataList`.
    Json,
    /// `application/vnd.kubernetes.protobuf`, objects or `PartialObjectMetadataList`.
    Protobuf,
    /// `application/json;as=Table`.
    Table,
}

/// One member's part in a merged list.
#[derive(Debug, Clone)]
pub struct ListLeg {
    /// The member's name, for errors and in the CLUSTER column.
    pub cluster: Arc<str>,
    /// Which of the member's objects are the caller's. `None`: all it sends.
    pub filter: Option<NamespaceFilter>,
}

/// How lists are merged.
#[derive(Debug, Clone)]
pub struct ListOptions {
    /// A name counts once, and the earlier leg has it (cluster-scoped kinds).
    pub unique: bool,
    /// Tables get a CLUSTER column (`-o wide`).
    pub cluster_column: bool,
    /// Tables lose the rows' objects: the client asked `includeObject=None`, but the filter needed them.
    pub hide_objects: bool,
    /// Largest item that is held to tell whose it is.
    pub max_item_bytes: usize,
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// Bytes or the end of this leg. Another leg's bytes may be pushed too: they are kept until their turn.
    Leg(usize),
    /// [`ListMerge::set_meta`]: the metadata of every leg is known.
    Meta,
    /// Nothing: the list is complete.
    Done,
}

/// A member's list metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LegMeta {
    /// The member's raw resourceVersion; empty if it sent none.
    pub resource_version: String,
    /// The member's continue token, if its list goes on.
    pub continue_: Option<String>,
    /// How many objects follow, if the member says so.
    pub remaining: Option<i64>,
    /// The `shardSelector` that the member has kept to (KEP-5866).
    pub shard_selector: Option<String>,
}

/// The merged list's metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MergedMeta {
    /// The merged cursor.
    pub resource_version: String,
    /// The merged continue token.
    pub continue_: Option<String>,
    /// `remainingItemCount`; where several members are asked nobody knows.
    pub remaining: Option<i64>,
    /// The `shardSelector` that all members have kept to, echoed as `shardInfo`: who finds none selects for itself.
    pub shard_selector: Option<String>,
}

/// What all members have kept to. One that knows no such selector has sent all.
pub fn shard_selector(metas: &[Option<LegMeta>]) -> Option<String> {
    let mut selectors = metas.iter().map(|meta| meta.as_ref()?.shard_selector.as_ref());
    let first = selectors.next()??;
    selectors.all(|other| other == Some(first)).then(|| first.clone())
}

/// Why there is no list, and whose fault it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cluster}: {fault}")]
pub struct ListError {
    /// Index of the leg.
    pub leg: usize,
    /// Name of its cluster.
    pub cluster: Arc<str>,
    /// What is wrong with the answer.
    pub fault: ListFault,
}

/// What is wrong with a member's answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListFault {
    /// HTML, or an object in another encoding; with how it begins.
    #[error("the answer is not a list; it begins with {0:?}")]
    NotAList(String),
    /// An object, but none that lists.
    #[error("the answer of kind {kind:?} has no items")]
    NoItems {
        /// The kind that the answer says it is.
        kind: String,
    },
    /// The body ended too early.
    #[error("the answer ends in the middle")]
    Cut,
    /// Bytes that have no place in a list.
    #[error("the answer is not a proper list: {0}")]
    Broken(&'static str),
    /// An item that had to be held as a whole, to tell whose it is.
    #[error("an object is larger than {limit} bytes")]
    ItemTooLarge {
        /// The bound of held items.
        limit: usize,
    },
    /// A list of another type than the first member's, or of none.
    #[error("the answer is a {found}, but other clusters answer with a {expected}")]
    TypeDiffers {
        /// The first leg's type.
        expected: TypeMeta,
        /// This leg's type.
        found: TypeMeta,
    },
    /// A row without the object that tells whose it is.
    #[error("a row of the table has no object, so its namespace is unknown")]
    NoObject,
    /// The driver did not do what was wanted.
    #[error("the merge was driven out of turn")]
    OutOfTurn,
}

/// The type that a list says it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TypeMeta {
    /// Kind, for instance `PodList`.
    pub kind: String,
    /// API version, for instance `v1`.
    pub api_version: String,
}

impl std::fmt::Display for TypeMeta {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {}", self.api_version, self.kind)
    }
}

/// What a reader found in a member's body.
#[derive(Debug)]
enum Piece {
    /// All that stands before the items.
    Begin,
    /// Items, or parts of them, with what is between them.
    Raw(Bytes),
    /// One whole item.
    Item {
        raw: Bytes,
        /// Where the object begins in it, behind tag and length.
        object: usize,
    },
}

impl Piece {
    fn item(raw: Bytes) -> Self {
        Self::Item { raw, object: 0 }
    }
}
