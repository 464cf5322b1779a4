//! One member's protobuf list taken apart: the envelope's head with the list's metadata, the items, the envelope's end.
//!
//! The list is one length-delimited field of the envelope, and its metadata comes first. Item headers are walked also where
//! items are not told apart, so that lengths that do not add up are found. Nothing is allocated by a claimed length.
//! `list` calls it.

use bytes::{Buf, Bytes, BytesMut};

use super::{LegMeta, ListFault, Piece, TypeMeta};
use crate::wire;

/// Bound of the envelope's head with the list's metadata (continue tokens are the largest part).
const MAX_HEAD: usize = 1 << 20;
/// Bound of what follows the list in its envelope: two short strings.
const MAX_TAIL: usize = 4 << 10;
/// Bytes of a field's header: a tag and a number.
const MAX_HEADER: usize = 2 * wire::VARINT_BYTES;
/// The field that left-out items become: no list has it, so every reader skips it.
const UNKNOWN_FIELD: u8 = 15 << 3 | 2;

/// What stands before the items of a protobuf list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListHead {
    pub(super) type_meta: TypeMeta,
    pub(super) meta: LegMeta,
    /// Bytes of the list without its metadata.
    pub(super) rest: u64,
}

/// The reader of one member's protobuf list.
#[derive(Debug)]
pub(super) struct ProtobufReader {
    head: Option<ListHead>,
    by_item: bool,
    max_item: usize,
    /// Bytes of the list that are still to come.
    left: u64,
    /// Bytes to come of the field under way, when items are not told apart.
    skip: u64,
    /// The head, a field's header, an item or the tail in the making.
    held: BytesMut,
}

impl ProtobufReader {
    /// `by_item`: items one by one, none larger than `max_item`; else the list's inside as it comes.
    pub(super) fn new(by_item: bool, max_item: usize) -> Self {
        Self {
            head: None,
            by_item,
            max_item,
            left: 0,
            skip: 0,
            held: BytesMut::new(),
        }
    }

    pub(super) fn head(&self) -> Option<&ListHead> {
        self.head.as_ref()
    }

    /// Reads on and takes what it read from `chunk`. `None`: the chunk is used up.
    pub(super) fn step(&mut self, chunk: &mut Bytes) -> Result<Option<Piece>, ListFault> {
        if chunk.is_empty() {
            return Ok(None);
        }
        if self.head.is_none() {
            return self.begin(chunk);
        }
        if self.left == 0 {
            return self.tail(chunk);
        }
        if self.by_item {
            self.item(chunk)
        } else {
            self.walk(chunk).map(Some)
        }
    }

    /// The body has ended: whether it may.
    pub(super) fn end(&self) -> Result<(), ListFault> {
        if self.head.is_none() || self.left > 0 {
            return Err(ListFault::Cut);
        }
        for field in wire::fields(&self.held) {
            let field = field.ok_or(ListFault::Cut)?;
            match (field.number, field.content) {
                (wire::UNKNOWN_RAW, _) => return Err(ListFault::Broken("two lists in one envelope")),
                (wire::UNKNOWN_ENCODING, Some(encoding)) if !encoding.is_empty() => {
                    return Err(ListFault::Broken("a list in an encoding of its own"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn begin(&mut self, chunk: &mut Bytes) -> Result<Option<Piece>, ListFault> {
        let gathered = !self.held.is_empty();
        if gathered {
            self.held.extend_from_slice(chunk);
        }
        let bytes: &[u8] = if gathered { &self.held } else { chunk };
        let Some((head, length)) = read_head(bytes)? else {
            if bytes.len() > MAX_HEAD {
                return Err(ListFault::Broken("a head beyond all measure"));
            }
            if !gathered {
                self.held.extend_from_slice(chunk);
            }
            chunk.clear();
            return Ok(None);
        };
        if gathered {
            *chunk = self.held.split().freeze();
        }
        chunk.advance(length);
        self.left = head.rest;
        self.head = Some(head);
        Ok(Some(Piece::Begin))
    }

    fn walk(&mut self, chunk: &mut Bytes) -> Result<Piece, ListFault> {
        let slice = chunk.split_to(within(self.left, chunk.len()));
        let mut rest = &slice[..];
        while !rest.is_empty() {
            let skipped = within(self.skip, rest.len());
            rest = &rest[skipped..];
            self.skip -= skipped as u64;
            self.left -= skipped as u64;
            if self.skip == 0 && !rest.is_empty() {
                rest = self.header(rest)?;
            }
        }
        if self.left == 0 && (self.skip > 0 || !self.held.is_empty()) {
            return Err(LENGTHS);
        }
        Ok(Piece::Raw(slice))
    }

    /// Reads a field's header that may have begun in earlier chunks.
    fn header<'a>(&mut self, rest: &'a [u8]) -> Result<&'a [u8], ListFault> {
        let begun = self.held.len();
        let taken = rest.len().min(MAX_HEADER);
        self.held.extend_from_slice(&rest[..taken]);
        let Some(header) = read_header(&self.held)? else {
            self.left -= taken as u64;
            return Ok(&rest[taken..]);
        };
        let new = header.length - begun;
        self.held.clear();
        self.left -= new as u64;
        self.skip = header.content;
        if self.skip > self.left {
            return Err(LENGTHS);
        }
        Ok(&rest[new..])
    }

    fn item(&mut self, chunk: &mut Bytes) -> Result<Option<Piece>, ListFault> {
        // The header first, then as much as it says: both may be cut.
        let begun = self.held.len();
        let peeked = MAX_HEADER.saturating_sub(begun).min(chunk.len());
        let header = if begun == 0 {
            read_header(&chunk[..peeked])?
        } else {
            let whole = [&self.held[..begun.min(MAX_HEADER)], &chunk[..peeked]].concat();
            read_header(&whole)?
        };
        let Some(header) = header else {
            if self.left <= (begun + chunk.len()) as u64 {
                return Err(LENGTHS);
            }
            self.held.extend_from_slice(chunk);
            chunk.clear();
            return Ok(None);
        };
        let whole = header
            .content
            .checked_add(header.length as u64)
            .filter(|whole| *whole <= self.left);
        let whole = whole.ok_or(LENGTHS)?;
        let too_large = ListFault::ItemTooLarge { limit: self.max_item };
        let size = usize::try_from(whole)
            .ok()
            .filter(|size| *size <= self.max_item)
            .ok_or(too_large)?;
        let raw = if begun == 0 && chunk.len() >= size {
            chunk.split_to(size)
        } else {
            let part = (size - begun).min(chunk.len());
            self.held.extend_from_slice(&chunk[..part]);
            chunk.advance(part);
            if self.held.len() < size {
                return Ok(None);
            }
            self.held.split().freeze()
        };
        self.left -= whole;
        Ok(Some(match header.number {
            wire::LIST_ITEMS => Piece::Item {
                raw,
                object: header.length,
            },
            _ => Piece::Raw(raw),
        }))
    }

    fn tail(&mut self, chunk: &mut Bytes) -> Result<Option<Piece>, ListFault> {
        if self.held.len() + chunk.len() > MAX_TAIL {
            return Err(ListFault::Broken("bytes behind its end"));
        }
        self.held.extend_from_slice(chunk);
        chunk.clear();
        Ok(None)
    }
}

const LENGTHS: ListFault = ListFault::Broken("lengths that do not add up");

fn within(length: u64, available: usize) -> usize {
    usize::try_from(length).map_or(available, |length| length.min(available))
}

/// The header of one field of the list.
struct Header {
    number: u64,
    /// Bytes of tag and length.
    length: usize,
    content: u64,
}

/// Reads a field's header; `None`: more bytes are needed.
fn read_header(bytes: &[u8]) -> Result<Option<Header>, ListFault> {
    let Some((tag, rest)) = part_varint(bytes)? else {
        return Ok(None);
    };
    let tag = wire::Tag::of(tag).ok_or(ListFault::Broken("no protobuf"))?;
    if tag.number == wire::LIST_META {
        return Err(ListFault::Broken("metadata behind its items"));
    }
    // Left out, it would be written as a field of the length that its number happens to be.
    if tag.number == wire::LIST_ITEMS && tag.wire_type != wire::WireType::Delimited {
        return Err(ListFault::Broken("items that are no objects"));
    }
    let (content, rest) = match tag.wire_type {
        wire::WireType::Fixed(width) => (width as u64, rest),
        wire_type => match part_varint(rest)? {
            None => return Ok(None),
            Some((length, rest)) => (
                if wire_type == wire::WireType::Delimited {
                    length
                } else {
                    0
                },
                rest,
            ),
        },
    };
    Ok(Some(Header {
        number: tag.number,
        length: bytes.len() - rest.len(),
        content,
    }))
}

/// Reads a varint that may be cut; `None`: more bytes are needed.
fn part_varint(bytes: &[u8]) -> Result<Option<(u64, &[u8])>, ListFault> {
    match wire::varint(bytes) {
        None if bytes.len() >= wire::VARINT_BYTES => Err(ListFault::Broken("no protobuf")),
        read => Ok(read),
    }
}

/// The head, and its length in bytes. `None`: more bytes are needed.
fn read_head(body: &[u8]) -> Result<Option<(ListHead, usize)>, ListFault> {
    let magic = body.len().min(wire::MAGIC.len());
    if body[..magic] != wire::MAGIC[..magic] {
        let shown = String::from_utf8_lossy(&body[..body.len().min(48)]).into_owned();
        return Err(ListFault::NotAList(shown));
    }
    let mut rest = &body[magic..];
    let mut type_meta = None;
    loop {
        let Some((tag, after)) = part_varint(rest)? else {
            return Ok(None);
        };
        let Some((length, after)) = part_varint(after)? else {
            return Ok(None);
        };
        let tag = wire::Tag::of(tag).filter(|tag| tag.wire_type == wire::WireType::Delimited);
        match tag.ok_or(ListFault::Broken("no envelope"))?.number {
            wire::UNKNOWN_RAW => {
                let type_meta = type_meta.ok_or(ListFault::Broken("an envelope without a type"))?;
                return read_list_meta(after, length).map(|read| {
                    let ((meta, rest), after) = read?;
                    Some((ListHead { type_meta, meta, rest }, body.len() - after.len()))
                });
            }
            number => {
                let Some((content, after)) = part_content(after, length)? else {
                    return Ok(None);
                };
                if number == wire::UNKNOWN_TYPE_META {
                    type_meta = Some(read_type(content).ok_or(ListFault::Broken("an envelope without a type"))?);
                }
                rest = after;
            }
        }
    }
}

/// A part of the head, and what follows it; `None`: more bytes are needed.
type Part<'a> = Option<(&'a [u8], &'a [u8])>;

/// Reads content of this length; `None`: more bytes are needed. A head's part cannot be longer than a head.
fn part_content(bytes: &[u8], length: u64) -> Result<Part<'_>, ListFault> {
    let length = usize::try_from(length).ok().filter(|length| *length <= MAX_HEAD);
    Ok(bytes.split_at_checked(length.ok_or(ListFault::Broken("a head beyond all measure"))?))
}

type ListMetaRead<'a> = Option<((LegMeta, u64), &'a [u8])>;

/// The metadata at the front of a list of this length, and how long the rest of the list is.
fn read_list_meta(list: &[u8], length: u64) -> Result<ListMetaRead<'_>, ListFault> {
    if length == 0 {
        return Ok(Some(((LegMeta::default(), 0), list)));
    }
    let Some((tag, after)) = part_varint(list)? else {
        return Ok(None);
    };
    if tag != wire::LIST_META << 3 | 2 {
        return Ok(Some(((LegMeta::default(), length), list)));
    }
    let Some((meta_length, after)) = part_varint(after)? else {
        return Ok(None);
    };
    let Some((meta, after)) = part_content(after, meta_length)? else {
        return Ok(None);
    };
    let rest = length.checked_sub((list.len() - after.len()) as u64).ok_or(LENGTHS)?;
    let text = |number| {
        wire::text(meta, number)
            .map(str::to_owned)
            .ok_or(ListFault::Broken("no list metadata"))
    };
    let meta = LegMeta {
        resource_version: text(wire::LIST_META_VERSION)?,
        continue_: Some(text(wire::LIST_META_CONTINUE)?).filter(|token| !token.is_empty()),
        remaining: read_remaining(meta),
        shard_selector: read_shard_selector(meta),
    };
    Ok(Some(((meta, rest), after)))
}

fn read_remaining(meta: &[u8]) -> Option<i64> {
    let mut fields = wire::fields(meta).map_while(|field| field);
    let field = fields.find(|field| field.number == wire::LIST_META_REMAINING)?;
    let (_, value) = wire::varint(field.raw)?;
    i64::try_from(wire::varint(value)?.0).ok()
}

fn read_shard_selector(meta: &[u8]) -> Option<String> {
    let info = wire::last(meta, wire::LIST_META_SHARD_INFO)??;
    wire::text(info, wire::SHARD_INFO_SELECTOR).map(str::to_owned)
}

fn read_type(type_meta: &[u8]) -> Option<TypeMeta> {
    Some(TypeMeta {
        api_version: wire::text(type_meta, wire::TYPE_META_VERSION)?.to_owned(),
        kind: wire::text(type_meta, wire::TYPE_META_KIND)?.to_owned(),
    })
}

/// What a merged list begins with: the envelope, and the list's metadata. `rest`: bytes of all the members' items.
/// `None`: longer than a length can say.
pub(super) fn write_head(type_meta: &TypeMeta, meta: &super::MergedMeta, rest: u64) -> Option<Vec<u8>> {
    let mut list_meta = Vec::new();
    // Kubernetes writes strings also when they are empty, and a selfLink that has been empty for years.
    wire::put(&mut list_meta, 1, b"");
    wire::put(
        &mut list_meta,
        wire::LIST_META_VERSION,
        meta.resource_version.as_bytes(),
    );
    let token = meta.continue_.as_deref().unwrap_or_default();
    wire::put(&mut list_meta, wire::LIST_META_CONTINUE, token.as_bytes());
    if let Some(remaining) = meta.remaining.and_then(|count| u64::try_from(count).ok()) {
        wire::put_varint(&mut list_meta, wire::LIST_META_REMAINING << 3);
        wire::put_varint(&mut list_meta, remaining);
    }
    if let Some(selector) = &meta.shard_selector {
        let mut info = Vec::new();
        wire::put(&mut info, wire::SHARD_INFO_SELECTOR, selector.as_bytes());
        wire::put(&mut list_meta, wire::LIST_META_SHARD_INFO, &info);
    }
    let mut list = Vec::new();
    wire::put(&mut list, wire::LIST_META, &list_meta);
    let mut kind = Vec::new();
    wire::put(&mut kind, wire::TYPE_META_VERSION, type_meta.api_version.as_bytes());
    wire::put(&mut kind, wire::TYPE_META_KIND, type_meta.kind.as_bytes());
    let mut head = wire::MAGIC.to_vec();
    wire::put(&mut head, wire::UNKNOWN_TYPE_META, &kind);
    wire::put_header(&mut head, wire::UNKNOWN_RAW, rest.checked_add(list.len() as u64)?);
    head.extend(list);
    Some(head)
}

/// What a merged list ends with: no encoding, no content type, both written as Kubernetes does.
pub(super) const TAIL: &[u8] = &[3 << 3 | 2, 0, 4 << 3 | 2, 0];

/// Writes an item that is left out: an unknown field as long as the item, with nothing of it. The length of the whole has
/// been told already.
pub(super) fn hollow(out: &mut BytesMut, raw: &[u8], header: usize) {
    let at = out.len();
    out.extend_from_slice(&raw[..header]);
    if let Some(tag) = out.get_mut(at) {
        // The tag may be written longer than it need be; its other bytes are zeros then.
        *tag = *tag & 0x80 | UNKNOWN_FIELD;
    }
    out.resize(at + raw.len(), 0);
}
