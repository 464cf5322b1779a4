//! What members are asked to answer in, and what form their answers have. Pure.
//!
//! All members are asked for what the client wants, less what cannot be merged (CBOR, YAML). Which of the client's types
//! an API server chose is told by its content type; a Table says so only in its body.

use http::HeaderMap;
use http::header::{ACCEPT, HeaderValue};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// How much of a body is looked at for its kind.
const SNIFFED: usize = 256;

/// The serialization of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Media {
    Json,
    Protobuf,
}

/// The client's types that can be merged, most preferred first.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wanted {
    clauses: Vec<Clause>,
}

#[derive(Debug, Clone, PartialEq)]
struct Clause {
    /// `None`: any.
    media: Option<Media>,
    /// `as=…` with its group and version, as the client wrote them.
    conversion: Option<String>,
    quality: f32,
}

impl Media {
    /// Of an answer. `None`: nothing that is merged.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let kind = headers.get(http::header::CONTENT_TYPE)?.to_str().ok()?;
        Self::named(kind.split(';').next()?.trim())
    }

    fn named(name: &str) -> Option<Self> {
        match name {
            JSON => Some(Self::Json),
            PROTOBUF => Some(Self::Protobuf),
            _ => None,
        }
    }

    pub(super) fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Json => JSON,
            Self::Protobuf => PROTOBUF,
        })
    }
}

impl Wanted {
    /// The client's own, as far as it can be merged; JSON if nothing is left.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut clauses: Vec<Clause> = headers
            .get_all(ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|text| text.split(','))
            .filter_map(Clause::parse)
            .collect();
        clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality));
        if clauses.is_empty() {
            clauses.push(Clause::json(None));
        }
        Self { clauses }
    }

    /// The same in JSON alone: where members answer in different types.
    pub(super) fn json(&self) -> Self {
        let conversion = self.clauses.first().and_then(|clause| clause.conversion.clone());
        Self {
            clauses: vec![Clause::json(conversion)],
        }
    }

    /// Whole objects in JSON: where not all members make Tables.
    pub(super) fn plain() -> Self {
        Self {
            clauses: vec![Clause::json(None)],
        }
    }

    /// For `Accept`.
    pub(super) fn header(&self) -> HeaderValue {
        let clauses: Vec<String> = self.clauses.iter().map(Clause::to_string).collect();
        HeaderValue::try_from(clauses.join(",")).unwrap_or_else(|_| HeaderValue::from_static(JSON))
    }

    /// Whether an answer of this type is a Table, as far as the request tells.
    pub(super) fn is_table(&self, media: Media) -> bool {
        let chosen = self
            .clauses
            .iter()
            .find(|clause| clause.media.is_none_or(|of| of == media));
        let conversion = chosen.and_then(|clause| clause.conversion.as_deref());
        media == Media::Json && conversion.is_some_and(|text| text.split(';').any(|part| part == "as=Table"))
    }
}

impl Clause {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let media = match parts.next()? {
            "*/*" | "application/*" => None,
            name => Some(Media::named(name)?),
        };
        let (mut quality, mut conversion) = (1.0, Vec::new());
        for part in parts {
            match part.split_once('=') {
                Some(("q", value)) => quality = value.parse().unwrap_or(1.0),
                Some(("as" | "g" | "v", _)) => conversion.push(part),
                _ => {}
            }
        }
        let conversion = (!conversion.is_empty()).then(|| conversion.join(";"));
        Some(Self {
            media,
            conversion,
            quality,
        })
    }

    fn json(conversion: Option<String>) -> Self {
        Self {
            media: Some(Media::Json),
            conversion,
            quality: 1.0,
        }
    }
}

impl std::fmt::Display for Clause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.media {
            Some(Media::Json) => JSON,
            Some(Media::Protobuf) => PROTOBUF,
            None => "*/*",
        })?;
        if let Some(conversion) = &self.conversion {
            write!(f, ";{conversion}")?;
        }
        // In order already: members read no quality where there is none.
        if self.quality < 1.0 {
            write!(f, ";q={}", self.quality)?;
        }
        Ok(())
    }
}

/// Whether a JSON body begins as a Table does. API servers write the type first.
pub(super) fn begins_as_table(body: &[u8]) -> bool {
    let head = &body[..body.len().min(SNIFFED)];
    let text: Vec<u8> = head
        .iter()
        .copied()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    text.windows(14).any(|window| window == b"\"kind\":\"Table\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBECTL: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";

    fn of(accept: &str) -> Wanted {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::try_from(accept).unwrap());
        Wanted::of(&headers)
    }

    #[test]
    fn what_cannot_be_merged_is_not_asked_for() {
        for (accept, asked) in [
            (KUBECTL, KUBECTL),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                "application/vnd.kubernetes.protobuf,application/json",
            ),
            ("application/cbor,application/json", "application/json"),
            ("application/yaml", "application/json"),
            ("application/cbor", "application/json"),
            ("*/*", "*/*"),
            (
                "text/html, application/json;q=0.5, */*;q=0.1",
                "application/json;q=0.5,*/*;q=0.1",
            ),
            (
                "application/json;q=0.5,application/vnd.kubernetes.protobuf",
                "application/vnd.kubernetes.protobuf,application/json;q=0.5",
            ),
        ] {
            assert_eq!(of(accept).header(), asked, "{accept}");
        }
        assert_eq!(Wanted::of(&HeaderMap::new()).header(), JSON);
    }

    #[test]
    fn a_table_is_what_the_first_clause_of_its_type_says() {
        assert!(of(KUBECTL).is_table(Media::Json));
        assert!(!of("application/json").is_table(Media::Json));
        assert!(!of("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").is_table(Media::Json));
        assert!(!of(KUBECTL).is_table(Media::Protobuf));
        let json =
            of("application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json")
                .json();
        assert_eq!(
            json.header(),
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
        );
        assert_eq!(Wanted::plain().header(), JSON);
    }

    #[test]
    fn tables_are_known_by_their_beginning() {
        assert!(begins_as_table(b"{\"kind\":\"Table\",\"apiVersion\""));
        assert!(begins_as_table(b"{\n  \"kind\": \"Table\",\n"));
        assert!(!begins_as_table(b"{\"kind\":\"PodList\",\"apiVersion\":\"v1\""));
        assert!(!begins_as_table(b""));
    }
}
