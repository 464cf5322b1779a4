//! Media types: what a client accepts, what a body is. The one reader of `Accept`, `Content-Type` and their like; pure.
//!
//! Callers ask what they need of the [`ranges`]: `reply` for a Status, [`Accepted`] for answers that are merged, `document`
//! for discovery and OpenAPI, `rewrite` for Leases, [`takes_gzip`] for packing.

mod accepted;

use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue};

pub(crate) use self::accepted::{Accepted, Shape};

/// What everything can be asked for in.
pub(crate) const JSON: &str = "application/json";
/// What is written of JSON, for who takes no other.
pub(crate) const YAML: &str = "application/yaml";
/// What most kinds can be asked for in.
pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const PROTOBUF_WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// The serialization of one answer, of those that are read and written here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Media {
    #[default]
    Json,
    Protobuf,
}

/// One element of `Accept`, with a quality above zero.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range<'a> {
    /// As the client wrote it.
    pub(crate) text: &'a str,
    /// Without parameters.
    pub(crate) kind: &'a str,
    quality: f32,
}

/// What a client accepts, kept for a refusal: hardly any is needed, and reading it takes longer than keeping it.
#[derive(Debug)]
pub(crate) struct Accepts {
    /// The lines of `Accept`, of which there is one as a rule.
    first: Option<HeaderValue>,
    more: Vec<HeaderValue>,
}

impl Accepts {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut lines = headers.get_all(ACCEPT).iter().cloned();
        Self {
            first: lines.next(),
            more: lines.collect(),
        }
    }

    /// As it stood in the request.
    pub(crate) fn headers(self) -> HeaderMap {
        self.first
            .into_iter()
            .chain(self.more)
            .map(|line| (ACCEPT, line))
            .collect()
    }
}

impl Media {
    fn named(kind: &str) -> Option<Self> {
        match kind {
            JSON => Some(Self::Json),
            PROTOBUF => Some(Self::Protobuf),
            _ => None,
        }
    }

    /// By the `Content-Type` of a body, whatever it is packed in.
    pub(crate) fn of_content(headers: &HeaderMap) -> Option<Self> {
        Self::named(essence(content_type(headers)?))
    }

    /// Of an answer. `None`: it cannot be read here, packed as it is or in another type.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let packed = headers.get(CONTENT_ENCODING).is_some_and(|value| value != "identity");
        Self::of_content(headers).filter(|_| !packed)
    }

    /// Of what the client likes best, for what can be written in both; JSON if it takes neither.
    pub(crate) fn preferred(headers: &HeaderMap) -> Self {
        let ranges = ranges(headers);
        ranges.iter().find_map(Range::media).unwrap_or_default()
    }

    /// For `Content-Type`.
    pub(crate) fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Json => JSON,
            Self::Protobuf => PROTOBUF,
        })
    }

    /// The same for a watch.
    pub(crate) fn watch_content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Json => JSON,
            Self::Protobuf => PROTOBUF_WATCH,
        })
    }
}

impl<'a> Range<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let kind = essence(text);
        let mut range = Self {
            text,
            kind,
            quality: 1.0,
        };
        let quality = range.parameter("q").and_then(|value| value.parse().ok());
        range.quality = quality.unwrap_or(1.0);
        (!kind.is_empty() && range.quality > 0.0).then_some(range)
    }

    /// Parameters after the type, in the client's order: name and value.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let parts = self.text.split(';').skip(1);
        parts.filter_map(|part| part.trim().split_once('='))
    }

    pub(crate) fn parameter(&self, name: &str) -> Option<&'a str> {
        self.parameters().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// What an API server answers in; in JSON where the client takes any type.
    pub(crate) fn media(&self) -> Option<Media> {
        match self.kind {
            // The last as some old libraries write it.
            "*/*" | "application/*" | "*" => Some(Media::Json),
            kind => Media::named(kind),
        }
    }

    /// The range for a member, which shall not choose what we could not read: instead of any type JSON.
    pub(crate) fn narrowed(&self) -> Option<String> {
        Some(match self.media()? {
            Media::Json => format!("{JSON}{}", self.text.strip_prefix(self.kind).unwrap_or_default()),
            Media::Protobuf => self.text.to_owned(),
        })
    }
}

/// What a body says that it is, parameters included.
pub(crate) fn content_type(headers: &HeaderMap) -> Option<&str> {
    headers.get(CONTENT_TYPE)?.to_str().ok()
}

/// A media type without its parameters.
pub(crate) fn essence(text: &str) -> &str {
    text.split_once(';').map_or(text, |(kind, _)| kind).trim()
}

/// Whether a patch of this type makes what is not there: a server-side apply.
pub(crate) fn is_apply(content_type: &str) -> bool {
    essence(content_type)
        .to_ascii_lowercase()
        .starts_with("application/apply-patch+")
}

/// The elements of a header that is a list, of all its lines.
pub(crate) fn elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> + use<'a> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Whether some range of `Accept` says `as=<form>`. Hardly any does: nothing is parsed where the word is nowhere.
pub(crate) fn asks_as(headers: &HeaderMap, form: &str) -> bool {
    elements(headers, &ACCEPT).any(|text| text.contains(form))
        && ranges(headers).iter().any(|range| range.parameter("as") == Some(form))
}

/// `Accept`, best first; in the client's order where it does not say, as an API server has it. Without the header, or with
/// an empty one (scripts and proxies unset it so), anything.
pub(crate) fn ranges(headers: &HeaderMap) -> Vec<Range<'_>> {
    let mut texts = elements(headers, &ACCEPT).filter(|text| !text.is_empty()).peekable();
    if texts.peek().is_none() {
        return Range::parse("*/*").into_iter().collect();
    }
    let mut ranges: Vec<_> = texts.filter_map(Range::parse).collect();
    ranges.sort_by(|one, other| other.quality.total_cmp(&one.quality));
    ranges
}

/// Whether the client likes YAML best of what there is: what ends by itself is written so.
pub(crate) fn prefers_yaml(headers: &HeaderMap) -> bool {
    // Hardly any does: nothing is parsed where the word is nowhere.
    let named = elements(headers, &ACCEPT).any(|text| text.contains(YAML));
    let ranges = if named { ranges(headers) } else { Vec::new() };
    let mut known = ranges
        .iter()
        .filter(|range| range.kind == YAML || range.media().is_some());
    known.next().is_some_and(|first| first.kind == YAML)
}

/// Whether the client unpacks gzip. `q=0` is a refusal.
pub(crate) fn takes_gzip(headers: &HeaderMap) -> bool {
    let mut codings = elements(headers, &ACCEPT_ENCODING).filter_map(Range::parse);
    codings.any(|coding| coding.kind.eq_ignore_ascii_case("gzip"))
}

/// What an answer that cannot be read says of itself.
pub(crate) fn described(headers: &HeaderMap) -> String {
    let header = |name| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("none")
    };
    format!(
        "content type {}, encoding {}",
        header(CONTENT_TYPE),
        header(CONTENT_ENCODING)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(text: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(text))])
    }

    #[test]
    fn the_media_is_the_clients() {
        for (text, expected) in [
            ("", Media::Json),
            ("*/*", Media::Json),
            ("application/vnd.kubernetes.protobuf", Media::Protobuf),
            ("application/vnd.kubernetes.protobuf,application/json", Media::Protobuf),
            ("application/vnd.kubernetes.protobuf;stream=watch", Media::Protobuf),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
                Media::Json,
            ),
            (
                "application/vnd.kubernetes.protobuf;q=0.5, application/json",
                Media::Json,
            ),
            (
                "application/cbor, application/vnd.kubernetes.protobuf;q=0.9, application/json;q=0.8",
                Media::Protobuf,
            ),
            ("text/html", Media::Json),
            ("application/vnd.kubernetes.protobuf;q=0", Media::Json),
        ] {
            assert_eq!(Media::preferred(&accept(text)), expected, "{text}");
        }
        assert_eq!(Media::preferred(&HeaderMap::new()), Media::Json);
    }

    #[test]
    fn ranges_are_read_as_an_api_server_reads_them() {
        let headers = accept("a/b;q=0.5 , c/d; as=Table;v=v1,e/f;q=0,, g/h;q=x");
        let read = ranges(&headers);
        let kinds: Vec<_> = read.iter().map(|range| range.kind).collect();
        assert_eq!(kinds, ["c/d", "g/h", "a/b"]);
        assert_eq!((read[0].parameter("as"), read[0].parameter("g")), (Some("Table"), None));
        for nothing in ["", " ", ","] {
            assert_eq!(ranges(&accept(nothing))[0].kind, "*/*", "{nothing:?}");
        }
        assert!(ranges(&accept("a/b;q=0")).is_empty());
    }

    #[test]
    fn yaml_is_for_who_likes_it_best() {
        for (text, yaml) in [
            ("application/yaml", true),
            ("application/yaml;q=0.5, application/json;q=0.4", true),
            ("application/json, application/yaml", false),
            ("text/html, application/yaml, */*", true),
            ("application/yaml;q=0", false),
            ("*/*", false),
        ] {
            assert_eq!(prefers_yaml(&accept(text)), yaml, "{text}");
        }
    }

    #[test]
    fn gzip_is_taken_by_name() {
        for (text, taken) in [
            ("gzip", true),
            ("br;q=1, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip; q=0.0", false),
            ("*", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(text))]);
            assert_eq!(takes_gzip(&headers), taken, "{text}");
        }
    }
}
