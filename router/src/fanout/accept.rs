//! Which of the client's formats can be merged, and which one a member chose of them.
//!
//! Members choose as they would for the client itself, from the client's own words: what cannot be merged here (YAML, CBOR)
//! is left out, the rest keeps its text and order. Pure. Callers: `watch` and `list`.

use http::HeaderMap;
use http::header::{ACCEPT, HeaderValue};
use portolan_merge::watch::WatchFormat;

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Nothing of the client's can be merged: members say so themselves, as 406 with the list of what they speak.
const NOTHING: HeaderValue = HeaderValue::from_static("application/vnd.portolan.nothing");
/// What objects can be asked to be turned into.
const METADATA: [&str; 2] = ["PartialObjectMetadata", "PartialObjectMetadataList"];
const TABLE: &str = "Table";

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

impl Shape {
    pub(crate) fn watch(self) -> WatchFormat {
        match self {
            Self::Json => WatchFormat::Json,
            Self::Protobuf => WatchFormat::Protobuf,
            Self::Table => WatchFormat::Table,
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
    text: String,
    shape: Shape,
}

impl Accepted {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        if !headers.contains_key(ACCEPT) {
            return Self::parse("*/*");
        }
        let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        Self::parse(&values.collect::<Vec<_>>().join(","))
    }

    fn parse(text: &str) -> Self {
        let mut clauses: Vec<(f32, Clause)> = text.split(',').filter_map(clause).collect();
        // Stable: of equals the first counts, as in the API server.
        clauses.sort_by(|one, other| other.0.total_cmp(&one.0));
        Self {
            clauses: clauses.into_iter().map(|(_, clause)| clause).collect(),
        }
    }

    /// For the members.
    pub(crate) fn header(&self) -> HeaderValue {
        let texts: Vec<&str> = self.clauses.iter().map(|clause| clause.text.as_str()).collect();
        match HeaderValue::try_from(texts.join(",")) {
            Ok(value) if !texts.is_empty() => value,
            _ => NOTHING,
        }
    }

    /// For a member that must answer as another one did.
    pub(crate) fn header_for(&self, shape: Shape) -> HeaderValue {
        let same = |clause: &&Clause| clause.shape == shape;
        let text = self.clauses.iter().find(same).map(|clause| clause.text.as_str());
        text.and_then(|text| HeaderValue::try_from(text).ok())
            .unwrap_or(NOTHING)
    }

    /// What an answer with this `Content-Type` is. `None`: nothing that was asked for.
    pub(crate) fn shape(&self, answer: &HeaderMap) -> Option<Shape> {
        let kind = answer.get(http::header::CONTENT_TYPE)?.to_str().ok()?;
        let mime = kind.split(';').next().unwrap_or_default().trim();
        let protobuf = match mime {
            JSON => false,
            PROTOBUF => true,
            _ => return None,
        };
        let of_it = |clause: &&Clause| (clause.shape == Shape::Protobuf) == protobuf;
        self.clauses.iter().find(of_it).map(|clause| clause.shape)
    }

    /// For an answer of the router's own, where no member has chosen: JSON if the client reads it, as not every kind has
    /// protobuf.
    pub(crate) fn own(&self) -> Shape {
        match self.clauses.iter().find(|clause| clause.shape != Shape::Protobuf) {
            None if !self.clauses.is_empty() => Shape::Protobuf,
            _ => Shape::Json,
        }
    }

    /// Whether what is wanted most is a Table.
    pub(crate) fn wants_table(&self) -> bool {
        self.clauses.first().is_some_and(|clause| clause.shape == Shape::Table)
    }
}

fn clause(text: &str) -> Option<(f32, Clause)> {
    let text = text.trim();
    let mut parts = text.split(';').map(str::trim);
    let protobuf = match parts.next()? {
        JSON | "*/*" | "application/*" => false,
        PROTOBUF => true,
        _ => return None,
    };
    let (mut quality, mut turned) = (1.0, None);
    for (key, value) in parts.filter_map(|part| part.split_once('=')) {
        match key {
            "q" => quality = value.parse().unwrap_or(1.0),
            "as" => turned = Some(value),
            _ => {}
        }
    }
    let shape = match turned {
        Some(TABLE) if !protobuf => Shape::Table,
        Some(kind) if !METADATA.contains(&kind) => return None,
        _ if protobuf => Shape::Protobuf,
        _ => Shape::Json,
    };
    let wildcard = text.contains('*');
    let text = if wildcard { JSON.to_owned() } else { text.to_owned() };
    (quality > 0.0).then_some((quality, Clause { text, shape }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(kind: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(http::header::CONTENT_TYPE, HeaderValue::from_static(kind))])
    }

    #[test]
    fn what_clients_send() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        for (accept, header, json, protobuf) in [
            ("*/*", JSON, Some(Shape::Json), None),
            (JSON, JSON, Some(Shape::Json), None),
            (table, table, Some(Shape::Table), None),
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
            ("application/yaml", "application/vnd.portolan.nothing", None, None),
        ] {
            let accepted = Accepted::parse(accept);
            assert_eq!(accepted.header(), header, "{accept}");
            assert_eq!(accepted.shape(&answer("application/json")), json, "{accept}");
            let kind = "application/vnd.kubernetes.protobuf;stream=watch";
            assert_eq!(accepted.shape(&answer(kind)), protobuf, "{accept}");
            assert_eq!(accepted.shape(&answer("text/html")), None, "{accept}");
        }
    }

    #[test]
    fn what_the_router_answers_itself_is_json_if_the_client_reads_it() {
        assert_eq!(Accepted::of(&HeaderMap::new()).own(), Shape::Json);
        assert_eq!(
            Accepted::parse("application/vnd.kubernetes.protobuf").own(),
            Shape::Protobuf
        );
        assert_eq!(
            Accepted::parse("application/vnd.kubernetes.protobuf,application/json").own(),
            Shape::Json
        );
        assert_eq!(Accepted::parse("application/yaml").own(), Shape::Json);
    }
}
