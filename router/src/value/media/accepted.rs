//! Which of the client's formats can be merged, and which one a member chose of them.
//!
//! Members choose as they would for the client itself, from the client's own words: what cannot be merged here (YAML, CBOR)
//! is left out, the rest keeps its text and order. Where nothing is left the answer is 406, as an API server's to what it
//! does not speak: clients fall back on it. Callers: `fanout::watch` and `fanout::list`.

use http::HeaderMap;
use http::header::HeaderValue;
use portolan_merge::watch::WatchFormat;

use super::{JSON, Media, PROTOBUF, Range, YAML, ranges};
use crate::value::fault::Fault;

/// For a member that is to answer in what the client does not take.
const NOTHING: HeaderValue = HeaderValue::from_static("application/vnd.portolan.nothing");
/// What objects can be asked to be turned into.
const METADATA: [&str; 2] = ["PartialObjectMetadata", "PartialObjectMetadataList"];
const TABLE: &str = "Table";

/// How the members' answers are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Objects or their metadata.
    Json,
    /// Objects or their metadata, in protobuf.
    Protobuf,
    /// Tables are JSON always.
    Table,
}

impl Shape {
    pub(crate) fn watch(self) -> WatchFormat {
        match self {
            Self::Json => WatchFormat::Json,
            Self::Protobuf => WatchFormat::Protobuf,
            Self::Table => WatchFormat::Table,
        }
    }

    /// What it is written in.
    pub(crate) fn media(self) -> Media {
        match self {
            Self::Json | Self::Table => Media::Json,
            Self::Protobuf => Media::Protobuf,
        }
    }
}

/// What a client accepts, as far as it can be merged; most wanted first.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Accepted {
    clauses: Vec<Clause>,
}

#[derive(Debug, Clone, PartialEq)]
struct Clause {
    /// As the client wrote it; instead of any type JSON, as API servers answer then.
    text: String,
    shape: Shape,
    /// `as=…` with its group and version, as the client wrote them.
    conversion: String,
}

impl Accepted {
    /// 406 if nothing of it can be merged.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, Fault> {
        let clauses: Vec<Clause> = ranges(headers).iter().filter_map(Clause::of).collect();
        Self::some(clauses, &format!("{JSON}, {PROTOBUF}"))
    }

    /// The same for what ends by itself: YAML is written of JSON.
    pub(crate) fn of_whole(headers: &HeaderMap) -> Result<Self, Fault> {
        let ranges = ranges(headers);
        let clauses = ranges.iter().filter_map(|range| {
            if range.kind != YAML {
                return Clause::of(range);
            }
            let json = format!("{JSON}{}", range.text.strip_prefix(YAML).unwrap_or_default());
            Clause::of(&Range::parse(&json)?)
        });
        Self::some(clauses.collect(), &format!("{JSON}, {YAML}, {PROTOBUF}"))
    }

    fn some(clauses: Vec<Clause>, there_are: &str) -> Result<Self, Fault> {
        if clauses.is_empty() {
            let message = format!("only the following media types are accepted: {there_are}");
            return Err(Fault::NotAcceptable(message));
        }
        Ok(Self { clauses })
    }

    /// Whole objects in JSON.
    pub(crate) fn plain() -> Self {
        Self::one_json(Shape::Json, String::new())
    }

    fn one_json(shape: Shape, conversion: String) -> Self {
        Self {
            clauses: vec![Clause {
                text: format!("{JSON}{conversion}"),
                shape,
                conversion,
            }],
        }
    }

    /// What to ask for in JSON alone, where members answer in different types.
    pub(crate) fn json(&self) -> Self {
        match self.clauses.first() {
            None => Self::plain(),
            Some(clause) if clause.shape == Shape::Table => Self::one_json(Shape::Table, clause.conversion.clone()),
            Some(clause) => Self::one_json(Shape::Json, clause.conversion.clone()),
        }
    }

    /// For the members.
    pub(crate) fn header(&self) -> HeaderValue {
        let texts: Vec<&str> = self.clauses.iter().map(|clause| clause.text.as_str()).collect();
        HeaderValue::try_from(texts.join(",")).unwrap_or(NOTHING)
    }

    /// For a member that must answer as another one did.
    pub(crate) fn header_for(&self, shape: Shape) -> HeaderValue {
        let same = |clause: &&Clause| clause.shape == shape;
        let text = self.clauses.iter().find(same).map(|clause| clause.text.as_str());
        text.and_then(|text| HeaderValue::try_from(text).ok())
            .unwrap_or(NOTHING)
    }

    /// For a list in which each object is as the events of a watch in this shape have it.
    pub(crate) fn list_header_for(&self, shape: Shape) -> HeaderValue {
        let clause = self.clauses.iter().find(|clause| clause.shape == shape);
        let conversion = clause.map(|clause| clause.conversion.as_str()).unwrap_or_default();
        let kind = |part: &str| match part.strip_prefix("as=") {
            Some(kind) if kind == METADATA[0] => format!(";as={}", METADATA[1]),
            _ => format!(";{part}"),
        };
        let parts = conversion.split(';').filter(|part| !part.is_empty());
        let conversion: String = parts.map(kind).collect();
        let media = match shape.media() {
            Media::Protobuf => PROTOBUF,
            Media::Json => JSON,
        };
        HeaderValue::try_from(format!("{media}{conversion}")).unwrap_or(NOTHING)
    }

    /// What an answer with these headers is. `None`: nothing that was asked for, or that can be read.
    pub(crate) fn shape(&self, answer: &HeaderMap) -> Option<Shape> {
        self.shape_of(Media::of(answer)?)
    }

    /// What an answer of this type is, as far as the request tells.
    pub(crate) fn shape_of(&self, media: Media) -> Option<Shape> {
        let of_it = |clause: &&Clause| clause.shape.media() == media;
        self.clauses.iter().find(of_it).map(|clause| clause.shape)
    }

    /// For an answer of the router's own, where no member has chosen: JSON if the client reads it, as not every kind has
    /// protobuf.
    pub(crate) fn own(&self) -> Shape {
        let json = |clause: &&Clause| clause.shape.media() == Media::Json;
        match self.clauses.iter().find(json) {
            None => Shape::Protobuf,
            Some(_) => Shape::Json,
        }
    }
}

impl Clause {
    /// `None` for what cannot be merged.
    fn of(range: &Range<'_>) -> Option<Self> {
        let media = range.media()?;
        let shape = match (range.parameter("as"), media) {
            (Some(TABLE), Media::Json) => Shape::Table,
            (Some(kind), _) if !METADATA.contains(&kind) => return None,
            (_, Media::Protobuf) => Shape::Protobuf,
            (_, Media::Json) => Shape::Json,
        };
        let named = range.parameters().filter(|(name, _)| ["as", "g", "v"].contains(name));
        let conversion = named.fold(String::new(), |text, (name, value)| format!("{text};{name}={value}"));
        Some(Self {
            text: range.narrowed()?,
            shape,
            conversion,
        })
    }
}

#[cfg(test)]
mod tests {
    use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE};

    use super::*;

    const KUBECTL: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";

    fn answer(kind: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))])
    }

    fn of(accept: &str) -> Result<Accepted, Fault> {
        Accepted::of(&HeaderMap::from_iter([(
            ACCEPT,
            HeaderValue::try_from(accept).unwrap(),
        )]))
    }

    #[test]
    fn what_clients_send() {
        for (accept, header, json, protobuf) in [
            ("*/*", JSON, Some(Shape::Json), None),
            (JSON, JSON, Some(Shape::Json), None),
            (KUBECTL, KUBECTL, Some(Shape::Table), None),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                "application/vnd.kubernetes.protobuf,application/json",
                Some(Shape::Json),
                Some(Shape::Protobuf),
            ),
            (
                "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io, application/json;q=0.5,application/cbor",
                "application/json;q=0.5",
                Some(Shape::Json),
                None,
            ),
            (
                "application/json;q=0.1,application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;q=0.1",
                Some(Shape::Json),
                Some(Shape::Protobuf),
            ),
            (
                "text/html, application/vnd.kubernetes.protobuf;q=0.5, */*;q=0.1",
                "application/vnd.kubernetes.protobuf;q=0.5,application/json;q=0.1",
                Some(Shape::Json),
                Some(Shape::Protobuf),
            ),
        ] {
            let accepted = of(accept).unwrap();
            assert_eq!(accepted.header(), header, "{accept}");
            assert_eq!(accepted.shape(&answer("application/json")), json, "{accept}");
            let kind = "application/vnd.kubernetes.protobuf;stream=watch";
            assert_eq!(accepted.shape(&answer(kind)), protobuf, "{accept}");
            assert_eq!(accepted.shape(&answer("text/html")), None, "{accept}");
            let mut packed = answer("application/json");
            packed.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            assert_eq!(accepted.shape(&packed), None, "{accept}");
        }
    }

    #[test]
    fn a_list_in_the_shape_of_a_watch() {
        let metadata = "application/vnd.kubernetes.protobuf;stream=watch;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;q=0.1";
        for (accept, shape, list) in [
            ("*/*", Shape::Json, JSON),
            (metadata, Shape::Json, JSON),
            (KUBECTL, Shape::Table, "application/json;as=Table;v=v1;g=meta.k8s.io"),
            (
                metadata,
                Shape::Protobuf,
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            ),
        ] {
            assert_eq!(of(accept).unwrap().list_header_for(shape), list, "{accept}");
        }
    }

    #[test]
    fn who_takes_nothing_that_can_be_merged_is_told_so() {
        for accept in [
            "application/yaml",
            "application/cbor",
            "text/html",
            "application/json;q=0",
            "application/json;as=Picture",
        ] {
            assert!(matches!(of(accept), Err(Fault::NotAcceptable(_))), "{accept}");
        }
        let yaml = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/yaml;q=0.9"))]);
        assert_eq!(Accepted::of_whole(&yaml).unwrap().header(), "application/json;q=0.9");
        assert_eq!(Accepted::of(&HeaderMap::new()).unwrap().header(), JSON);
        assert_eq!(of("application/cbor,application/json").unwrap().header(), JSON);
    }

    #[test]
    fn one_type_for_all_members_keeps_what_was_asked_for() {
        let metadata = "as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        let json = of(&format!(
            "application/vnd.kubernetes.protobuf;{metadata},application/json"
        ));
        assert_eq!(json.unwrap().json().header(), format!("application/json;{metadata}"));
        let table = of(KUBECTL).unwrap().json();
        assert_eq!(table.shape_of(Media::Json), Some(Shape::Table));
        assert_eq!(table.json(), table);
    }

    #[test]
    fn what_the_router_answers_itself_is_json_if_the_client_reads_it() {
        let own = |accept: &str| of(accept).unwrap().own();
        for anything in ["*/*", "*", "", " "] {
            assert_eq!(own(anything), Shape::Json, "{anything:?}");
        }
        assert_eq!(own("application/vnd.kubernetes.protobuf"), Shape::Protobuf);
        assert_eq!(own("application/vnd.kubernetes.protobuf,application/json"), Shape::Json);
    }
}
