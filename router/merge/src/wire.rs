//! Protobuf without a schema: fields by number, and Kubernetes' envelope around every object.
//!
//! Everything is bounded by the input and nothing recurses by what it finds: only known paths are descended, nothing is
//! allocated by a claimed length. Broken input is `None`. Unknown fields are kept as they are, in their order. `object_meta` and
//! `list` read with it; the router changes single objects with it.

/// The four bytes that an object in protobuf begins with.
pub const MAGIC: &[u8] = b"k8s\0";

/// `runtime.Unknown`: type of the object in the envelope.
pub const UNKNOWN_TYPE_META: u64 = 1;
/// `runtime.Unknown`: the object.
pub const UNKNOWN_RAW: u64 = 2;
/// `runtime.Unknown`: how the object is compressed; never set on the wire.
pub const UNKNOWN_ENCODING: u64 = 3;
/// `runtime.TypeMeta`: the apiVersion.
pub const TYPE_META_VERSION: u64 = 1;
/// `runtime.TypeMeta`: the kind.
pub const TYPE_META_KIND: u64 = 2;
/// Every object: its `ObjectMeta`.
pub const OBJECT_META: u64 = 1;
/// Every list: its `ListMeta`.
pub const LIST_META: u64 = 1;
/// Every list: one item.
pub const LIST_ITEMS: u64 = 2;
/// `ListMeta`: the resourceVersion.
pub const LIST_META_VERSION: u64 = 2;
/// `ListMeta`: the continue token.
pub const LIST_META_CONTINUE: u64 = 3;
/// `ListMeta`: a number, not bytes.
pub const LIST_META_REMAINING: u64 = 4;
/// `metav1.ListMeta.shardInfo`.
pub const LIST_META_SHARD_INFO: u64 = 5;
/// `metav1.ShardInfo.selector`.
pub const SHARD_INFO_SELECTOR: u64 = 1;
/// `ObjectMeta`: the name.
pub const META_NAME: u64 = 1;
/// `ObjectMeta`: the namespace.
pub const META_NAMESPACE: u64 = 3;
/// `ObjectMeta`: the UID.
pub const META_UID: u64 = 5;
/// `ObjectMeta`: the resourceVersion.
pub const META_VERSION: u64 = 6;
/// `ObjectMeta`: one label.
pub const META_LABELS: u64 = 11;
/// `ObjectMeta`: one annotation.
pub const META_ANNOTATIONS: u64 = 12;
/// An entry of a map: its key.
pub const ENTRY_KEY: u64 = 1;
/// An entry of a map: its value.
pub const ENTRY_VALUE: u64 = 2;

/// Wire type of strings, bytes and messages.
const LENGTH_DELIMITED: u64 = 2;
/// Bytes of the longest varint.
pub const VARINT_BYTES: usize = 10;
/// Largest number a field can have. Go's readers keep 32 bits of a number, so a larger one could be any field to them.
const MAX_FIELD: u64 = (1 << 29) - 1;

/// One field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// The field's number.
    pub number: u64,
    /// The whole field as it stands: tag, length and content.
    pub raw: &'a [u8],
    /// The content, if it is length-delimited.
    pub content: Option<&'a [u8]>,
}

/// The fields of a message, one after the other; `None` where it breaks, and nothing after that.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

/// Cuts a message into its fields.
pub fn fields(message: &[u8]) -> Fields<'_> {
    Fields { rest: message }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<Field<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let message = std::mem::take(&mut self.rest);
        Some(field(message).map(|(field, rest)| {
            self.rest = rest;
            field
        }))
    }
}

fn field(message: &[u8]) -> Option<(Field<'_>, &[u8])> {
    let (tag, rest) = varint(message)?;
    let tag = Tag::of(tag)?;
    let (content, rest) = match tag.wire_type {
        WireType::Varint => (None, varint(rest)?.1),
        WireType::Fixed(width) => (None, rest.get(width..)?),
        WireType::Delimited => {
            let (length, after) = varint(rest)?;
            let (content, after) = after.split_at_checked(usize::try_from(length).ok()?)?;
            (Some(content), after)
        }
    };
    let raw = message.get(..message.len() - rest.len())?;
    let number = tag.number;
    Some((Field { number, raw, content }, rest))
}

/// What a field begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// The field's number.
    pub number: u64,
    /// What follows the tag.
    pub wire_type: WireType,
}

/// What follows a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireType {
    /// A number, as a varint.
    Varint,
    /// That many bytes.
    Fixed(usize),
    /// A length and that many bytes.
    Delimited,
}

impl Tag {
    /// Reads a tag from the varint that it is on the wire; `None` for what Kubernetes never writes.
    pub fn of(tag: u64) -> Option<Self> {
        let number = tag >> 3;
        let wire_type = match tag & 7 {
            0 => WireType::Varint,
            1 => WireType::Fixed(8),
            LENGTH_DELIMITED => WireType::Delimited,
            5 => WireType::Fixed(4),
            // Groups are of proto1; Kubernetes has none.
            _ => return None,
        };
        (1..=MAX_FIELD).contains(&number).then_some(Self { number, wire_type })
    }
}

/// Reads a varint: the number, and what follows it.
pub fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    let mut shift = 0;
    for (index, byte) in bytes.iter().enumerate().take(VARINT_BYTES) {
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(index + 1..)?));
        }
        shift += 7;
    }
    None
}

/// Appends a number as a varint.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or_default());
}

/// Appends the tag and the length of a length-delimited field.
pub fn put_header(out: &mut Vec<u8>, number: u64, length: u64) {
    put_varint(out, (number << 3) | LENGTH_DELIMITED);
    put_varint(out, length);
}

/// Appends a length-delimited field.
pub fn put(out: &mut Vec<u8>, number: u64, content: &[u8]) {
    put_header(out, number, u64::try_from(content.len()).unwrap_or(u64::MAX));
    out.extend_from_slice(content);
}

/// A message with the contents of some fields replaced: `change` returns the new content, or `None` to keep it.
pub fn replace(message: &[u8], change: impl Fn(u64, &[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(message.len() + 64);
    for field in fields(message) {
        let field = field?;
        match field.content.and_then(|content| change(field.number, content)) {
            Some(content) => put(&mut out, field.number, &content),
            None => out.extend_from_slice(field.raw),
        }
    }
    Some(out)
}

/// The content of the last length-delimited field of this number: the last one counts. `Some(None)` if there is none.
pub fn last(message: &[u8], number: u64) -> Option<Option<&[u8]>> {
    let mut found = None;
    for field in fields(message) {
        let field = field?;
        if field.number == number && field.content.is_some() {
            found = field.content;
        }
    }
    Some(found)
}

/// The last string of this number; empty if there is none.
pub fn text(message: &[u8], number: u64) -> Option<&str> {
    std::str::from_utf8(last(message, number)?.unwrap_or_default()).ok()
}

/// An object in its envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// The apiVersion; empty if the envelope does not say.
    pub api_version: &'a str,
    /// The kind; empty if the envelope does not say.
    pub kind: &'a str,
    /// The object itself.
    pub object: &'a [u8],
}

/// Opens an envelope. One without an object is broken: nobody writes it.
pub fn open(body: &[u8]) -> Option<Envelope<'_>> {
    let unknown = body.strip_prefix(MAGIC)?;
    let kind = last(unknown, UNKNOWN_TYPE_META)?.unwrap_or_default();
    Some(Envelope {
        api_version: text(kind, TYPE_META_VERSION)?,
        kind: text(kind, TYPE_META_KIND)?,
        object: last(unknown, UNKNOWN_RAW)??,
    })
}

/// Changes the object in an envelope and keeps the envelope.
pub fn replace_object(body: &[u8], change: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let unknown = body.strip_prefix(MAGIC)?;
    let mut out = MAGIC.to_vec();
    out.extend(replace(unknown, |number, content| {
        if number == UNKNOWN_RAW { change(content) } else { None }
    })?);
    Some(out)
}

/// The metadata of an object without its envelope: a message may come in several pieces, which a reader merges.
pub fn metas(object: &[u8]) -> impl Iterator<Item = Option<&[u8]>> {
    fields(object).filter_map(|field| match field {
        None => Some(None),
        Some(field) if field.number == OBJECT_META => Some(field.content),
        Some(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_cut_and_stop_where_they_break() {
        let mut message = Vec::new();
        put(&mut message, 1, b"ab");
        put_varint(&mut message, 7 << 3);
        put_varint(&mut message, 300);
        put(&mut message, 300, b"");
        let cut: Vec<_> = fields(&message)
            .map(|field| field.map(|field| (field.number, field.content)))
            .collect();
        assert_eq!(
            cut,
            [
                Some((1, Some(&b"ab"[..]))),
                Some((7, None)),
                Some((300, Some(&b""[..])))
            ]
        );
        for length in 1..message.len() {
            let whole = fields(&message[..length]).all(|field| field.is_some());
            assert_eq!(whole, [4, 7].contains(&length), "{length}");
        }
    }

    #[test]
    fn a_claimed_length_beyond_the_input_is_refused() {
        for length in [3, u64::from(u32::MAX), u64::MAX] {
            let mut message = Vec::new();
            put_header(&mut message, 2, length);
            message.extend(b"ab");
            assert!(fields(&message).any(|field| field.is_none()));
            assert_eq!(last(&message, 2), None);
        }
        assert_eq!(varint(&[0xff; 11]), None);
        assert_eq!(Tag::of(3), None, "groups");
        assert_eq!(Tag::of(2), None, "field 0");
        assert_eq!(Tag::of((1 << 32) | 2), None, "a number Go cuts to 32 bits");
    }

    #[test]
    fn envelopes_open_and_keep_what_is_unknown() {
        let mut kind = Vec::new();
        put(&mut kind, TYPE_META_VERSION, b"v1");
        put(&mut kind, TYPE_META_KIND, b"Pod");
        let mut meta = Vec::new();
        put(&mut meta, META_NAME, b"web");
        let mut object = Vec::new();
        put(&mut object, OBJECT_META, &meta);
        let mut body = MAGIC.to_vec();
        put(&mut body, UNKNOWN_TYPE_META, &kind);
        put(&mut body, 9, b"new");
        put(&mut body, UNKNOWN_RAW, &object);
        let opened = open(&body).unwrap();
        assert_eq!((opened.api_version, opened.kind), ("v1", "Pod"));
        let metas: Option<Vec<_>> = metas(opened.object).collect();
        assert_eq!(text(metas.unwrap()[0], META_NAME), Some("web"));
        assert_eq!(replace_object(&body, |_| None).as_ref(), Some(&body));
        assert_eq!(
            open(&replace_object(&body, |_| Some(Vec::new())).unwrap())
                .unwrap()
                .object,
            b""
        );
        assert_eq!(open(b"{}"), None);
    }
}
