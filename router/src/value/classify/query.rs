//! The query string as Go's `net/url` reads it, kept raw so that what is not ours travels on byte for byte.
//!
//! Called by `classify` to read and by `rewrite` to change single parameters. Pairs that Go drops (a `;` in them, a broken
//! escape) are dropped from every answer here too, and still travel on.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// What a query value must not contain as it is. `+` is a space to Go.
const VALUE: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'&')
    .add(b'+')
    .add(b';')
    .add(b'<')
    .add(b'=')
    .add(b'>')
    .add(b'`')
    .add(b'{')
    .add(b'}');

/// A query string, or none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Query {
    raw: Option<String>,
}

impl Query {
    /// Takes the query of a URI as it is.
    pub(crate) fn new(raw: Option<&str>) -> Self {
        Self {
            raw: raw.map(str::to_owned),
        }
    }

    /// The query for the member's URI.
    pub(crate) fn raw(&self) -> Option<&str> {
        self.raw.as_deref()
    }

    /// Pairs, empty and broken ones included, as Go counts them.
    pub(super) fn length(&self) -> usize {
        self.segments().count()
    }

    /// The pairs that Go would see, in order, decoded.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
        self.segments().filter_map(decode)
    }

    /// The first value of `key`, which is the one that counts for the API server.
    pub(crate) fn first(&self, key: &str) -> Option<Cow<'_, str>> {
        self.pairs().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// A boolean as the API server converts it: absent, `false` and `0` are false, all else is true, a bare key too.
    pub(crate) fn flag(&self, key: &str) -> bool {
        self.first(key)
            .is_some_and(|value| !(value.eq_ignore_ascii_case("false") || value == "0"))
    }

    /// Puts `value` in the place of the first `key` (at the end if there is none) and drops every other `key`, so that
    /// no reader can take another one for the first.
    pub(crate) fn set(&mut self, key: &str, value: &str) {
        let pair = format!("{key}={}", utf8_percent_encode(value, VALUE));
        let mut next: Vec<&str> = Vec::new();
        let mut placed = false;
        for segment in self.segments() {
            if !names(segment, key) {
                next.push(segment);
            } else if !placed && decode(segment).is_some() {
                next.push(&pair);
                placed = true;
            }
        }
        if !placed {
            next.push(&pair);
        }
        self.raw = Some(next.join("&"));
    }

    /// Drops every `key`, for any reader.
    pub(crate) fn remove(&mut self, key: &str) {
        let kept: Vec<&str> = self.segments().filter(|segment| !names(segment, key)).collect();
        self.raw = (!kept.is_empty()).then(|| kept.join("&"));
    }

    fn segments(&self) -> impl Iterator<Item = &str> {
        self.raw.iter().flat_map(|raw| raw.split('&'))
    }
}

/// Whether a segment might be taken for `key` by any reader: also where Go would drop the pair for its value.
fn names(segment: &str, key: &str) -> bool {
    segment.split(';').any(|part| {
        let name = part.split_once('=').map_or(part, |(name, _)| name);
        unescape(name).is_some_and(|name| name == key)
    })
}

fn decode(segment: &str) -> Option<(Cow<'_, str>, Cow<'_, str>)> {
    if segment.is_empty() || segment.contains(';') {
        return None;
    }
    let (key, value) = segment.split_once('=').unwrap_or((segment, ""));
    Some((unescape(key)?, unescape(value)?))
}

/// Go's `QueryUnescape`; `None` where it fails. Bytes that are not UTF-8 become replacement characters, which no name or
/// selector contains.
fn unescape(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains(['%', '+']) {
        return Some(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => super::path::hex_pair(rest.next(), rest.next())?,
            other => other,
        });
    }
    Some(Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_the_api_servers() {
        let table = [
            ("watch", true),
            ("watch=", true),
            ("watch=1", true),
            ("watch=true", true),
            ("watch=yes", true),
            ("watch=0", false),
            ("watch=false", false),
            ("watch=FALSE", false),
            ("watch=False&watch=true", false),
            ("watch=true&watch=false", true),
            ("w%61tch=1", true),
            ("Watch=1", false),
            ("a=1&watch", true),
            ("watch=%zz", false),
            ("watch;=1", false),
            ("", false),
            ("limit=500", false),
        ];
        for (query, expected) in table {
            assert_eq!(Query::new(Some(query)).flag("watch"), expected, "{query}");
        }
        assert!(!Query::default().flag("watch"));
    }

    #[test]
    fn first_value_counts_and_is_decoded() {
        let query = Query::new(Some("a=%zz&a=b+c%2Cd&a=e&b;a=f&&x"));
        assert_eq!(query.first("a").unwrap(), "b c,d");
        assert_eq!(query.first("x").unwrap(), "");
        assert_eq!(query.first("b"), None);
    }

    #[test]
    fn set_keeps_the_place_and_leaves_no_second() {
        let mut query = Query::new(Some("z=%20&labelSelector=a&&q;r&label%53elector=b&labelSelector=%zz&y"));
        query.set("labelSelector", "a in (b,c),d=e f");
        assert_eq!(query.raw(), Some("z=%20&labelSelector=a%20in%20(b,c),d%3De%20f&&q;r&y"));
        let mut query = Query::default();
        query.set("labelSelector", "a");
        assert_eq!(query.raw(), Some("labelSelector=a"));
    }

    #[test]
    fn remove_leaves_the_others_as_they_were() {
        let mut query = Query::new(Some("a=%20&limit=5&b&lim%69t=6&c=1"));
        query.remove("limit");
        assert_eq!(query.raw(), Some("a=%20&b&c=1"));
        let mut query = Query::new(Some("limit=5"));
        query.remove("limit");
        assert_eq!(query.raw(), None);
    }

    #[test]
    fn a_semicolon_cannot_hide_a_second() {
        let mut query = Query::new(Some("x=1;labelSelector=b"));
        query.set("labelSelector", "a");
        assert_eq!(query.raw(), Some("labelSelector=a"));
    }
}
