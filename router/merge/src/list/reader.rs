//! One member's body in whichever form: the few questions that the merge asks of it.

use bytes::Bytes;

use super::json::{Array, JsonReader};
use super::{LegMeta, ListFault, ListFormat, Piece, TypeMeta, protobuf};

#[derive(Debug)]
pub(super) enum Reader {
    Json(Box<JsonReader>),
    Protobuf(protobuf::ProtobufReader),
}

impl Reader {
    pub(super) fn new(format: ListFormat, by_item: bool, max_item: usize) -> Self {
        match format {
            ListFormat::Json | ListFormat::Table => Self::Json(Box::new(JsonReader::new(by_item, max_item))),
            ListFormat::Protobuf => Self::Protobuf(protobuf::ProtobufReader::new(by_item, max_item)),
        }
    }

    /// Reads on and takes what it read from `chunk`. `None`: the chunk is used up.
    pub(super) fn step(&mut self, chunk: &mut Bytes) -> Result<Option<Piece>, ListFault> {
        match self {
            Self::Json(reader) => reader.step(chunk),
            Self::Protobuf(reader) => reader.step(chunk),
        }
    }

    /// The body has ended: whether it may.
    pub(super) fn end(&self) -> Result<(), ListFault> {
        match self {
            Self::Json(reader) => reader.end(),
            Self::Protobuf(reader) => reader.end(),
        }
    }

    /// The list's metadata, if it was read already: custom resources tell it last.
    pub(super) fn meta(&self) -> Option<LegMeta> {
        match self {
            Self::Json(reader) => reader.outside().meta.clone(),
            Self::Protobuf(reader) => reader.head().map(|head| head.meta.clone()),
        }
    }

    pub(super) fn type_meta(&self) -> Option<TypeMeta> {
        match self {
            Self::Json(reader) => reader.type_meta(),
            Self::Protobuf(reader) => reader.head().map(|head| head.type_meta.clone()),
        }
    }

    /// Which array a JSON list has.
    pub(super) fn array(&self) -> Option<Array> {
        match self {
            Self::Json(reader) => reader.outside().array,
            Self::Protobuf(_) => Some(Array::Items),
        }
    }

    /// The column definitions of a Table.
    pub(super) fn columns(&self) -> Option<Bytes> {
        match self {
            Self::Json(reader) => reader.outside().columns.clone(),
            Self::Protobuf(_) => None,
        }
    }

    /// Bytes of a protobuf list's items.
    pub(super) fn rest(&self) -> u64 {
        match self {
            Self::Json(_) => 0,
            Self::Protobuf(reader) => reader.head().map_or(0, |head| head.rest),
        }
    }
}
