//! Bodies of lists, one per member, made into one body: JSON, protobuf, Table, and metadata-only lists of both kinds.
//!
//! Objects are not decoded: their bytes go on as they came, and only where the caller's namespaces or names must be judged
//! are items told apart. Nothing is held back but heads and an item in the making, so memory follows the bytes that the
//! driver has in flight. A list of which a member's part is broken or cut is an error that names the member, never a list.
//! The router's `fanout` feeds it: it asks [`ListMerge::wants`], reads, pushes, and sends what comes out.

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

/// In which form members answer, and so the merged list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListFormat {
    /// `application/json`, objects or `PartialObjectMetadataList`.
    Json,
    /// `application/vnd.kubernetes.protobuf`, objects or `PartialObjectMetadataList`.
    Protobuf,
    /// `application/json;as=Table`.
    Table,
}

/// One member's part.
#[derive(Debug, Clone)]
pub struct ListLeg {
    /// Named in errors and in the CLUSTER column.
    pub cluster: Arc<str>,
    /// Which of its objects are the caller's. `None`: all it sends.
    pub filter: Option<NamespaceFilter>,
}

/// How to merge.
#[derive(Debug, Clone)]
pub struct ListOptions {
    /// A name counts once, and the earlier leg has it (cluster-scoped kinds).
    pub unique: bool,
    /// Tables get a CLUSTER column (`-o wide`).
    pub cluster_column: bool,
    /// Tables lose the rows' objects: the client asked `includeObject=None`, but the filter needed them.
    pub hide_objects: bool,
    /// Largest item that is held to be judged.
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
    /// Its raw resourceVersion; empty if it sent none.
    pub resource_version: String,
    /// Its continue token, if the list goes on.
    pub continue_: Option<String>,
}

/// The merged list's metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MergedMeta {
    /// The cursor.
    pub resource_version: String,
    /// The merged continue token.
    pub continue_: Option<String>,
}

/// Why there is no list, and whose fault it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cluster}: {fault}")]
pub struct ListError {
    /// Which leg.
    pub leg: usize,
    /// Its cluster.
    pub cluster: Arc<str>,
    /// What is wrong with its answer.
    pub fault: ListFault,
}

/// What is wrong with a member's answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListFault {
    /// HTML, or an object in another form. How it begins.
    #[error("the answer is not a list; it begins with {0:?}")]
    NotAList(String),
    /// An object, but none that lists.
    #[error("the answer of kind {kind:?} has no items")]
    NoItems {
        /// What it says it is.
        kind: String,
    },
    /// The body ended too early.
    #[error("the answer ends in the middle")]
    Cut,
    /// Bytes that have no place in a list.
    #[error("the answer is not a proper list: {0}")]
    Broken(&'static str),
    /// An item that had to be held to be judged.
    #[error("an object is larger than {limit} bytes")]
    ItemTooLarge {
        /// The bound.
        limit: usize,
    },
    /// Not the first member's type, or none.
    #[error("the answer is a {found}, but other clusters answer with a {expected}")]
    TypeDiffers {
        /// The first leg's.
        expected: TypeMeta,
        /// This leg's.
        found: TypeMeta,
    },
    /// A row without the object that tells whose it is.
    #[error("a row of the table has no object, so its namespace is unknown")]
    NoObject,
    /// The driver did not do what was wanted.
    #[error("the merge was driven out of turn")]
    OutOfTurn,
}

/// What a list says it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TypeMeta {
    /// `PodList`.
    pub kind: String,
    /// `v1`.
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
