//! Bodies of lists, one per member, made into one body: JSON, protobuf, Table, and metadata-only lists of both kinds.
//!
//! Objects are not decoded: their bytes go on as they came, and only where the caller's namespaces or names must be judged
//! are items told apart. Nothing is held back but heads and an item in the making, so memory follows the bytes that the
//! driver has in flight. A list of which a member's part is broken or cut is an error that names the member, never a list.
//! The router's `fanout` feeds it: it asks [`ListMerge::wants`], reads, pushes, and sends what comes out.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::filter::NamespaceFilter;

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
    /// It began otherwise.
    #[error("the answer is not a list but begins with {0:?}")]
    NotAList(String),
}

/// Many bodies, one list.
#[derive(Debug)]
pub struct ListMerge {
    metas: Vec<Option<LegMeta>>,
}

impl ListMerge {
    /// Of these legs, in this order.
    pub fn new(_format: ListFormat, legs: Vec<ListLeg>, _options: ListOptions) -> Self {
        Self {
            metas: vec![None; legs.len()],
        }
    }

    /// What is to be done next.
    pub fn wants(&self) -> Wants {
        Wants::Done
    }

    /// A piece of a leg's body.
    pub fn push(&mut self, _leg: usize, _chunk: Bytes, _out: &mut VecDeque<Bytes>) -> Result<(), ListError> {
        Ok(())
    }

    /// A leg's body has ended as HTTP says it should.
    pub fn end(&mut self, _leg: usize, _out: &mut VecDeque<Bytes>) -> Result<(), ListError> {
        Ok(())
    }

    /// What is known of the legs' metadata.
    pub fn metas(&self) -> &[Option<LegMeta>] {
        &self.metas
    }

    /// Answers [`Wants::Meta`].
    pub fn set_meta(&mut self, _meta: MergedMeta, _out: &mut VecDeque<Bytes>) -> Result<(), ListError> {
        Ok(())
    }

    /// Objects left out because an earlier leg has their name.
    pub fn collisions(&self) -> u64 {
        0
    }
}
