//! One member's JSON list taken apart: what stands around the array of items, and the array's bytes.
//!
//! Bytes may be cut anywhere and keys may stand in any order (custom resources have `metadata` behind `items`). Only the
//! outermost object is read; what is inside values is skipped by its brackets, so nothing nested can be taken for the
//! list's own. Items are slices of what came in unless a cut goes through them. `list` calls it.

use bytes::{Buf, Bytes, BytesMut};

use super::scan::Scan;
use super::{LegMeta, ListFault, Piece, TypeMeta};

/// Bound of what is held of the outer object: `metadata` with its continue token, and column definitions.
const MAX_HELD: usize = 1 << 20;
/// How much of something that is no list goes into the error.
const SHOWN: usize = 48;

/// What stood around the array so far.
#[derive(Debug, Default)]
pub(super) struct Outside {
    pub(super) kind: Option<String>,
    pub(super) api_version: Option<String>,
    pub(super) meta: Option<LegMeta>,
    /// `columnDefinitions`, as they came.
    pub(super) columns: Option<Bytes>,
    /// Which array it was.
    pub(super) array: Option<Array>,
}

/// The array of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Array {
    /// `items`, of a list of objects.
    Items,
    /// `rows`, of a Table.
    Rows,
}

/// The reader of one member's JSON list.
#[derive(Debug)]
pub(super) struct JsonReader {
    outside: Outside,
    by_item: bool,
    max_item: usize,
    state: State,
    key: Key,
    scan: Scan,
    escaped: bool,
    held: BytesMut,
}

/// Where in the outer object the reader is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Start,
    FirstKey,
    NextKey,
    InKey,
    Colon,
    Value,
    InString,
    InScalar,
    InContainer,
    FirstItem,
    NextItem,
    InItem,
    BehindItem,
    InArray,
    BehindValue,
    End,
}

/// The key whose value stands where the reader is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Kind,
    ApiVersion,
    Metadata,
    Columns,
    Array(Array),
    Other,
}

impl JsonReader {
    /// `by_item`: items one by one, none larger than `max_item`; else the array's inside as it comes.
    pub(super) fn new(by_item: bool, max_item: usize) -> Self {
        Self {
            outside: Outside::default(),
            by_item,
            max_item,
            state: State::Start,
            key: Key::Other,
            scan: Scan::before(),
            escaped: false,
            held: BytesMut::new(),
        }
    }

    pub(super) fn outside(&self) -> &Outside {
        &self.outside
    }

    /// The list's type, when the list is whole.
    pub(super) fn type_meta(&self) -> Option<TypeMeta> {
        Some(TypeMeta {
            kind: self.outside.kind.clone()?,
            api_version: self.outside.api_version.clone()?,
        })
    }

    /// Reads on and takes what it read from `chunk`. `None`: the chunk is used up.
    pub(super) fn step(&mut self, chunk: &mut Bytes) -> Result<Option<Piece>, ListFault> {
        while let Some(first) = chunk.first().copied() {
            let piece = match self.state {
                State::InKey | State::InString => self.string(chunk)?,
                State::InScalar => self.scalar(chunk)?,
                State::InContainer => self.container(chunk)?,
                State::InItem => self.item(chunk)?,
                State::InArray => Some(self.array(chunk)),
                _ if first.is_ascii_whitespace() => {
                    chunk.advance(1);
                    None
                }
                State::Start if first != b'{' => return Err(not_a_list(chunk)),
                _ => self.turn(first, chunk)?,
            };
            if piece.is_some() {
                return Ok(piece);
            }
        }
        Ok(None)
    }

    /// The body has ended: whether it may.
    pub(super) fn end(&self) -> Result<(), ListFault> {
        match (self.state, self.outside.array) {
            (State::End, Some(_)) => Ok(()),
            (State::End, None) => Err(ListFault::NoItems {
                kind: self.outside.kind.clone().unwrap_or_default(),
            }),
            _ => Err(ListFault::Cut),
        }
    }

    /// One byte between values.
    fn turn(&mut self, byte: u8, chunk: &mut Bytes) -> Result<Option<Piece>, ListFault> {
        let (state, taken) = match (self.state, byte) {
            (State::Start, _) => (State::FirstKey, 1),
            (State::FirstKey | State::NextKey, b'"') => (State::InKey, 0),
            (State::FirstKey | State::BehindValue, b'}') => (State::End, 1),
            (State::Colon, b':') => (State::Value, 1),
            (State::Value, _) => return self.value(byte, chunk),
            (State::BehindValue, b',') => (State::NextKey, 1),
            (State::FirstItem | State::BehindItem, b']') => (State::BehindValue, 1),
            (State::FirstItem, _) if !self.by_item => (State::InArray, 0),
            (State::FirstItem | State::NextItem, b'{') => (State::InItem, 0),
            (State::BehindItem, b',') => (State::NextItem, 1),
            (State::End, _) => return Err(ListFault::Broken("bytes behind its end")),
            _ => return Err(ListFault::Broken("no JSON where a list goes on")),
        };
        chunk.advance(taken);
        self.scan = if state == State::InArray {
            Scan::inside()
        } else {
            Scan::before()
        };
        self.state = state;
        Ok(None)
    }

    fn value(&mut self, byte: u8, chunk: &mut Bytes) -> Result<Option<Piece>, ListFault> {
        if let Key::Array(array) = self.key {
            if self.outside.array.replace(array).is_some() {
                return Err(ListFault::Broken("two arrays of items"));
            }
            if byte == b'[' {
                chunk.advance(1);
                self.state = State::FirstItem;
                return Ok(Some(Piece::Begin));
            }
            if byte != b'n' {
                return Err(ListFault::Broken("items that are no array"));
            }
        }
        self.scan = Scan::before();
        self.state = match byte {
            b'"' => State::InString,
            b'{' | b'[' => State::InContainer,
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => State::InScalar,
            _ => return Err(ListFault::Broken("no JSON where a list goes on")),
        };
        Ok(None)
    }

    fn string(&mut self, chunk: &mut Bytes) -> Result<Option<Piece>, ListFault> {
        let mut end = None;
        // The opening quote is the first byte held, or of the chunk.
        let opening = usize::from(self.held.is_empty());
        for (index, byte) in chunk.iter().enumerate().skip(opening) {
            let escaped = self.escaped;
            self.escaped = *byte == b'\\' && !escaped;
            if *byte == b'"' && !escaped {
                end = Some(index + 1);
                break;
            }
        }
        self.hold(chunk, end.unwrap_or(chunk.len()))?;
        match end {
            None => Ok(None),
            Some(_) if self.state == State::InKey => self.named().map(|()| None),
            Some(_) => self.valued(),
        }
    }

    fn scalar(&mut self, chunk: &mut Bytes) -> Result<Option<Piece>, ListFault> {
        let end = chunk
            .iter()
            .position(|byte| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace());
        self.hold(chunk, end.unwrap_or(chunk.len()))?;
        if end.is_some() { self.valued() } else { Ok(None) }
    }

    fn container(&mut self, chunk: &mut Bytes) -> Result<Option<Piece>, ListFault> {
        let end = self.scan.close(chunk);
        let length = end.unwrap_or(chunk.len());
        if self.key == Key::Other {
            chunk.advance(length);
        } else {
            self.hold(chunk, length)?;
        }
        if end.is_some() { self.valued() } else { Ok(None) }
    }

    fn hold(&mut self, chunk: &mut Bytes, length: usize) -> Result<(), ListFault> {
        if self.held.len() + length > MAX_HELD {
            return Err(ListFault::Broken("an outer value beyond all measure"));
        }
        self.held.extend_from_slice(&chunk[..length]);
        chunk.advance(length);
        Ok(())
    }

    /// A key is whole.
    fn named(&mut self) -> Result<(), ListFault> {
        let key: String = read(&self.held.split())?;
        self.key = match key.as_str() {
            "kind" => Key::Kind,
            "apiVersion" => Key::ApiVersion,
            "metadata" => Key::Metadata,
            "columnDefinitions" => Key::Columns,
            "items" => Key::Array(Array::Items),
            "rows" => Key::Array(Array::Rows),
            _ => Key::Other,
        };
        self.state = State::Colon;
        Ok(())
    }

    /// A value is whole.
    fn valued(&mut self) -> Result<Option<Piece>, ListFault> {
        let value = self.held.split().freeze();
        self.state = State::BehindValue;
        match self.key {
            Key::Kind => self.outside.kind = read(&value)?,
            Key::ApiVersion => self.outside.api_version = read(&value)?,
            Key::Metadata => {
                let meta: Option<MetaJson> = read(&value)?;
                self.outside.meta = Some(meta.map(LegMeta::from).unwrap_or_default());
            }
            Key::Columns => self.outside.columns = Some(value),
            Key::Array(_) if *value == *b"null" => return Ok(Some(Piece::Begin)),
            Key::Array(_) => return Err(ListFault::Broken("items that are no array")),
            Key::Other => {}
        }
        Ok(None)
    }

    fn item(&mut self, chunk: &mut Bytes) -> Result<Option<Piece>, ListFault> {
        let end = self.scan.close(chunk);
        let length = end.unwrap_or(chunk.len());
        if self.held.len() + length > self.max_item {
            return Err(ListFault::ItemTooLarge { limit: self.max_item });
        }
        if end.is_some() {
            self.state = State::BehindItem;
            if self.held.is_empty() {
                return Ok(Some(Piece::item(chunk.split_to(length))));
            }
        }
        self.held.extend_from_slice(&chunk[..length]);
        chunk.advance(length);
        Ok(end.map(|_| Piece::item(self.held.split().freeze())))
    }

    fn array(&mut self, chunk: &mut Bytes) -> Piece {
        let Some(end) = self.scan.close(chunk) else {
            return Piece::Raw(std::mem::take(chunk));
        };
        let inside = chunk.split_to(end - 1);
        chunk.advance(1);
        self.state = State::BehindValue;
        Piece::Raw(inside)
    }
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetaJson {
    resource_version: Option<String>,
    r#continue: Option<String>,
    remaining_item_count: Option<i64>,
    shard_info: Option<ShardInfo>,
}

#[derive(serde::Deserialize)]
struct ShardInfo {
    selector: String,
}

impl From<MetaJson> for LegMeta {
    fn from(meta: MetaJson) -> Self {
        Self {
            resource_version: meta.resource_version.unwrap_or_default(),
            continue_: meta.r#continue.filter(|token| !token.is_empty()),
            remaining: meta.remaining_item_count,
            shard_selector: meta.shard_info.map(|info| info.selector),
        }
    }
}

fn read<'a, T: serde::Deserialize<'a>>(value: &'a [u8]) -> Result<T, ListFault> {
    serde_json::from_slice(value).map_err(|_| ListFault::Broken("an outer value of another type"))
}

fn not_a_list(chunk: &Bytes) -> ListFault {
    ListFault::NotAList(String::from_utf8_lossy(&chunk[..chunk.len().min(SHOWN)]).into_owned())
}
