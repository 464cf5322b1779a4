//! Which discovery document a path asks for, and in which form it is to be written. Pure. Callers: `plan` and `answer`.

use std::sync::Arc;

use http::{HeaderMap, Method};
use portolan_merge::discovery::render::Format;

use crate::value::check::Check;
use crate::value::media::{Media, Range, YAML, ranges};

/// Type of OpenAPI v2 in protobuf, as every API server understands it.
pub(crate) const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// Type of OpenAPI v3 in protobuf, as every API server understands it.
pub(crate) const V3_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";

/// A document that is united from several members'.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Document {
    /// `/api`.
    Core,
    /// `/apis`.
    Groups,
    /// `/apis/<group>`.
    Group(String),
    /// `/api/v1` (no group) and `/apis/<group>/<version>`.
    Resources {
        /// API group.
        group: String,
        /// API version.
        version: String,
    },
    /// `/openapi/v2`.
    OpenApiV2,
    /// `/openapi/v3`.
    OpenApiIndex,
    /// `/openapi/v3/<path>`.
    OpenApi(String),
}

impl Document {
    /// The document at a path, for reads; `None` for what the primary alone answers, like `/version`.
    pub(crate) fn of(method: &Method, path: &str) -> Option<Self> {
        if *method != Method::GET {
            return None;
        }
        let decoded = percent_encoding::percent_decode_str(path).decode_utf8().ok()?;
        let path = decoded.strip_prefix('/')?;
        if let Some(path) = path.strip_prefix("openapi/v3/") {
            return Some(Self::OpenApi(path.to_owned()));
        }
        let words: Vec<&str> = path.strip_suffix('/').unwrap_or(path).split('/').collect();
        match words.as_slice() {
            ["api"] => Some(Self::Core),
            ["apis"] => Some(Self::Groups),
            ["apis", group] => Some(Self::Group((*group).to_owned())),
            ["api", version] => Some(Self::resources("", version)),
            ["apis", group, version] => Some(Self::resources(group, version)),
            ["openapi", "v2"] => Some(Self::OpenApiV2),
            ["openapi", "v3"] => Some(Self::OpenApiIndex),
            _ => None,
        }
    }

    fn resources(group: &str, version: &str) -> Self {
        Self::Resources {
            group: group.to_owned(),
            version: version.to_owned(),
        }
    }
}

/// A plan for one document.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    /// The document that is asked for.
    pub(crate) document: Document,
    /// Whose documents count: the primary first, the shard's members by name, then the home cluster if it is none of them.
    pub(crate) members: Vec<DocumentSource>,
    /// Questions to ask before, in order; a no is 403.
    pub(crate) checks: Vec<Check>,
}

/// One member whose documents count.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct DocumentSource {
    /// The member's name.
    pub(crate) cluster: Arc<str>,
    /// Whether this member's word decides order and preference.
    pub(crate) primary: bool,
    /// Only what no other serves counts.
    pub(crate) aside: bool,
}

impl Wanted {
    /// Members without those named before, primary first.
    pub(crate) fn sources<'a>(
        primary: &Arc<str>,
        members: impl Iterator<Item = &'a Arc<str>>,
        home: &Arc<str>,
    ) -> Vec<DocumentSource> {
        let mut names: Vec<&Arc<str>> = members.filter(|cluster| *cluster != primary).collect();
        names.sort_unstable();
        names.dedup();
        let aside = (home != primary && !names.contains(&home)).then(|| DocumentSource {
            cluster: home.clone(),
            primary: false,
            aside: true,
        });
        let source = |cluster: &Arc<str>| DocumentSource {
            cluster: cluster.clone(),
            primary: cluster == primary,
            aside: false,
        };
        let shard = std::iter::once(primary).chain(names).map(source);
        shard.chain(aside).collect()
    }
}

/// How `/api` and `/apis` are to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Discovered {
    Legacy,
    LegacyProtobuf,
    Aggregated(Format),
}

/// How OpenAPI is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum OpenApiEncoding {
    Json,
    Protobuf,
}

/// What the client likes best of what there is; `None` is 406. Protobuf only for who takes nothing else: JSON is what is kept.
pub(crate) fn discovered(headers: &HeaderMap, aggregates: bool) -> Option<Discovered> {
    let ranges = ranges(headers);
    let protobuf = |range: &Range| range.media() == Some(Media::Protobuf) && range.parameter("as").is_none();
    let protobuf = ranges.iter().any(protobuf).then_some(Discovered::LegacyProtobuf);
    let json = ranges.iter().find_map(|range| {
        let yaml = range.kind == YAML && range.parameter("as").is_none();
        let json = yaml || range.media() == Some(Media::Json);
        let form = match range.parameter("as") {
            None => Discovered::Legacy,
            Some("APIGroupDiscoveryList") if aggregates && range.parameter("g") == Some("apidiscovery.k8s.io") => {
                match range.parameter("v") {
                    Some("v2") => Discovered::Aggregated(Format::V2),
                    Some("v2beta1") => Discovered::Aggregated(Format::V2beta1),
                    _ => return None,
                }
            }
            Some(_) => return None,
        };
        json.then_some(form)
    });
    json.or(protobuf)
}

/// In which encoding the client likes OpenAPI best, whose protobuf has an old and a new name; `None` is 406.
pub(crate) fn openapi_encoding(headers: &HeaderMap) -> Option<OpenApiEncoding> {
    ranges(headers).iter().find_map(|range| {
        if range.media() == Some(Media::Json) {
            return Some(OpenApiEncoding::Json);
        }
        let protobuf = range.kind.starts_with("application/com.github.proto-openapi.spec.v");
        protobuf.then_some(OpenApiEncoding::Protobuf)
    })
}

#[cfg(test)]
mod tests {
    use http::header::ACCEPT;

    use super::*;

    #[test]
    fn paths_are_documents() {
        let of = |path: &str| Document::of(&Method::GET, path);
        assert_eq!(of("/api"), Some(Document::Core));
        assert_eq!(of("/apis/"), Some(Document::Groups));
        assert_eq!(of("/api/v1"), Some(Document::resources("", "v1")));
        assert_eq!(of("/apis/apps"), Some(Document::Group("apps".into())));
        assert_eq!(of("/apis/apps/v1"), Some(Document::resources("apps", "v1")));
        assert_eq!(of("/openapi/v2"), Some(Document::OpenApiV2));
        assert_eq!(of("/openapi/v3"), Some(Document::OpenApiIndex));
        assert_eq!(
            of("/openapi/v3/apis/apps/v1"),
            Some(Document::OpenApi("apis/apps/v1".into()))
        );
        for path in [
            "/",
            "/version",
            "/openapi",
            "/metrics",
            "/apis/apps/v1/x",
            "/.well-known/openid-configuration",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
        assert_eq!(Document::of(&Method::POST, "/api"), None);
    }

    fn accept(text: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, text.parse().expect("a header"));
        headers
    }

    #[test]
    fn the_client_gets_what_it_likes_best() {
        const KUBECTL: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
            application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        for (text, aggregates, expected) in [
            (KUBECTL, true, Some(Discovered::Aggregated(Format::V2))),
            (KUBECTL, false, Some(Discovered::Legacy)),
            (
                "application/json;as=APIGroupDiscoveryList;v=v2beta1;g=apidiscovery.k8s.io",
                true,
                Some(Discovered::Aggregated(Format::V2beta1)),
            ),
            (
                "application/json;g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList",
                true,
                None,
            ),
            (
                "application/vnd.kubernetes.protobuf, */*",
                true,
                Some(Discovered::Legacy),
            ),
            (
                "application/vnd.kubernetes.protobuf",
                true,
                Some(Discovered::LegacyProtobuf),
            ),
            ("application/json;q=0.1,*/*;q=0", true, Some(Discovered::Legacy)),
            ("application/yaml", true, Some(Discovered::Legacy)),
            (
                "application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                true,
                None,
            ),
            ("text/html", true, None),
        ] {
            assert_eq!(discovered(&accept(text), aggregates), expected, "{text}");
        }
        assert_eq!(discovered(&HeaderMap::new(), true), Some(Discovered::Legacy));
        assert_eq!(openapi_encoding(&accept(V3_PROTOBUF)), Some(OpenApiEncoding::Protobuf));
        assert_eq!(
            openapi_encoding(&accept(
                "application/json;q=0.5, application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
            )),
            Some(OpenApiEncoding::Protobuf)
        );
        assert_eq!(openapi_encoding(&accept("*/*")), Some(OpenApiEncoding::Json));
        assert_eq!(openapi_encoding(&accept("text/plain")), None);
    }

    #[test]
    fn sources_are_primary_first_and_each_once() {
        let name = |text: &str| -> Arc<str> { text.into() };
        let members = [name("west"), name("east"), name("north")];
        let names = |primary: &str, home: &str| {
            let sources = Wanted::sources(&name(primary), members.iter(), &name(home));
            sources
                .iter()
                .map(|one| {
                    format!(
                        "{}{}{}",
                        one.cluster,
                        if one.primary { "!" } else { "" },
                        if one.aside { "~" } else { "" }
                    )
                })
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(names("north", "east"), "north! east west");
        assert_eq!(names("hub", "home"), "hub! east north west home~");
        assert_eq!(names("hub", "hub"), "hub! east north west");
    }
}
