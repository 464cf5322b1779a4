//! Which of the client's formats can be merged, and which one a member chose of them.
//!
//! Members choose as they would for the client itself, from the client's own words: what cannot be merged here (YAML, CBOR)
//! is left out, the rest keeps its text and order. Where nothing is left the answer is 406, as an API server's to what it
//! does not speak: clients fall back on it. Pure. Callers: `watch` and `list`.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use portolan_merge::watch::WatchFormat;

use crate::value::fault::Fault;

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// For a member that is to answer in what the client does not take.
const NOTHING: HeaderValue = HeaderValue::from_static("application/vnd.portolan.nothing");
/// What objects can be asked to be turned into.
const METADATA: [&str; 2] = ["PartialObjectMetadata", "PartialObjectMetadataList"];
const TABLE: &str = "Table";

/// The serialization of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Media {
    Json,
    Protobuf,
}

/// How the members' answers are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Objects or their metadata.
    Json,
    /// The same in protobuf.
    Protobuf,
    /// Tables are JSON always.
    Table,
}

impl Media {
    /// Of an answer. `None`: it cannot be read here, packed as it is or in another type.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let packed = headers.get(CONTENT_ENCODING).is_some_and(|value| value != "identity");
        let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let media = Self::named(kind.split(';').next()?.trim())?;
        (!packed).then_some(media)
    }

    fn named(name: &str) -> Option<Self> {
        match name {
            JSON => Some(Self::Json),
            PROTOBUF => Some(Self::Protobuf),
            _ => None,
        }
    }

    pub(crate) fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Json => JSON,
            Self::Protobuf => PROTOBUF,
        })
    }
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

impl Shape {
    pub(crate) fn watch(self) -> WatchFormat {
        match self {
            Self::Json => WatchFormat::Json,
            Self::Protobuf => WatchFormat::Protobuf,
            Self::Table => WatchFormat::Table,
        }
    }

    fn media(self) -> Media {
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
        let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let text = values.collect::<Vec<_>>().join(",");
        // Scripts and proxies empty the header to unset it.
        if text.trim().is_empty() {
            return Ok(Self::plain());
        }
        Self::parse(&text).ok_or_else(|| {
            Fault::NotAcceptable(format!(
                "only the following media types are accepted: {JSON}, {PROTOBUF}"
            ))
        })
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

    fn parse(text: &str) -> Option<Self> {
        let mut clauses: Vec<(f32, Clause)> = text.split(',').filter_map(clause).collect();
        // Stable: of equals the first counts, as in the API server.
        clauses.sort_by(|one, other| other.0.total_cmp(&one.0));
        let clauses: Vec<Clause> = clauses.into_iter().map(|(_, clause)| clause).collect();
        (!clauses.is_empty()).then_some(Self { clauses })
    }

    /// The same in JSON alone: where members answer in different types.
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

fn clause(text: &str) -> Option<(f32, Clause)> {
    let text = text.trim();
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next()?;
    let media = match name {
        // The last as some old libraries write it.
        "*/*" | "application/*" | "*" => Media::Json,
        name => Media::named(name)?,
    };
    let (mut quality, mut turned, mut conversion) = (1.0, None, String::new());
    for part in parts {
        match part.split_once('=') {
            Some(("q", value)) => quality = value.parse().unwrap_or(1.0),
            Some((key @ ("as" | "g" | "v"), value)) => {
                conversion.push(';');
                conversion.push_str(part);
                if key == "as" {
                    turned = Some(value);
                }
            }
            _ => {}
        }
    }
    let shape = match (turned, media) {
        (Some(TABLE), Media::Json) => Shape::Table,
        (Some(kind), _) if !METADATA.contains(&kind) => return None,
        (_, Media::Protobuf) => Shape::Protobuf,
        (_, Media::Json) => Shape::Json,
    };
    let text = if media == Media::Json {
        format!("{JSON}{}", text.strip_prefix(name).unwrap_or_default())
    } else {
        text.to_owned()
    };
    let clause = Clause {
        text,
        shape,
        conversion,
    };
    (quality > 0.0).then_some((quality, clause))
}

#[cfg(test)]
mod tests {
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
