//! A document on its way to the client: ETag and 304, cache headers as the API server has them, gzip, warnings. No rules.
//! Caller: `discovery`.

use std::io::Write as _;
use std::sync::OnceLock;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, EXPIRES, HeaderValue, IF_NONE_MATCH, LOCATION, VARY, WARNING,
};
use http::{HeaderMap, Response, StatusCode};

use crate::decision::rewrite;
use crate::resource::upstream::Body;
use crate::value::media::{elements, takes_gzip};

/// From this size on documents are compressed, as API servers do with their answers.
const GZIP_FROM: usize = 128 << 10;
/// `Warning` headers of one answer. Clients print every one.
const MAX_WARNINGS: usize = 8;
/// What an API server says of whatever says nothing itself.
const PRIVATE: &str = "no-cache, private";

/// A document, ready to be sent any number of times.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) content_type: HeaderValue,
    /// Without quotes; empty for what has none.
    pub(super) hash: String,
    pub(super) body: Bytes,
    /// Made when somebody first asks for it: most clients have the document already.
    gzip: OnceLock<Bytes>,
}

/// How long clients may keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caching {
    /// Ask every time.
    Private,
    /// Aggregated discovery.
    Public,
    /// OpenAPI v3 by its hash.
    Immutable,
}

impl Ready {
    pub(super) fn new(content_type: HeaderValue, hash: String, body: Bytes) -> Self {
        Self {
            content_type,
            hash,
            body,
            gzip: OnceLock::new(),
        }
    }

    fn gzipped(&self) -> Option<Bytes> {
        if let Some(done) = self.gzip.get() {
            return Some(done.clone());
        }
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&self.body).ok()?;
        let bytes = Bytes::from(encoder.finish().ok()?);
        Some(self.gzip.get_or_init(|| bytes).clone())
    }

    /// The answer to a request with these headers.
    pub(super) fn answer(&self, asked: &HeaderMap, caching: Caching, warnings: &[String]) -> Response<Body> {
        let mut response = Response::new(Body::Empty);
        if let Ok(etag) = HeaderValue::try_from(format!("\"{}\"", self.hash))
            && !self.hash.is_empty()
        {
            response.headers_mut().insert(ETAG, etag);
            response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
        }
        cache(response.headers_mut(), caching);
        warn(response.headers_mut(), warnings);
        if self.is_known(asked) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return response;
        }
        response.headers_mut().insert(CONTENT_TYPE, self.content_type.clone());
        let packed = (self.body.len() >= GZIP_FROM && takes_gzip(asked))
            .then(|| self.gzipped())
            .flatten();
        if packed.is_some() {
            response
                .headers_mut()
                .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            response
                .headers_mut()
                .append(VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        *response.body_mut() = Body::from(packed.unwrap_or_else(|| self.body.clone()));
        response
    }

    fn is_known(&self, asked: &HeaderMap) -> bool {
        let mut tags = elements(asked, &IF_NONE_MATCH);
        !self.hash.is_empty()
            && tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"') == self.hash)
    }
}

/// Where the document is now.
pub(super) fn moved(to: &str) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = HeaderValue::try_from(to) {
        response.headers_mut().insert(LOCATION, location);
    }
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    cache(response.headers_mut(), Caching::Private);
    response
}

fn cache(headers: &mut HeaderMap, caching: Caching) {
    let value = match caching {
        Caching::Private => PRIVATE,
        Caching::Public => "public",
        Caching::Immutable => "public, immutable",
    };
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(value));
    if caching == Caching::Immutable {
        // A year from now, as the API server has it: for ever.
        let year = jiff::Zoned::now().with_time_zone(jiff::tz::TimeZone::UTC) + jiff::Span::new().hours(365 * 24);
        let text = year.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        headers.extend(HeaderValue::try_from(text).ok().map(|value| (EXPIRES, value)));
    }
}

fn warn(headers: &mut HeaderMap, warnings: &[String]) {
    for warning in warnings
        .iter()
        .take(MAX_WARNINGS)
        .filter_map(|text| rewrite::warning(text))
    {
        headers.append(WARNING, warning);
    }
}

#[cfg(test)]
mod tests {
    use http::header::ACCEPT_ENCODING;

    use super::*;

    fn asked(pairs: &[(http::header::HeaderName, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_static(value)))
            .collect()
    }

    fn ready(size: usize) -> Ready {
        Ready::new(
            HeaderValue::from_static("application/json"),
            "AB".to_owned(),
            Bytes::from(vec![b' '; size]),
        )
    }

    #[test]
    fn a_known_document_is_not_sent_again() {
        for (tag, status) in [
            ("\"AB\"", 304),
            ("W/\"AB\", \"x\"", 304),
            ("*", 304),
            ("\"ABC\"", 200),
            ("AB,", 304),
        ] {
            let answer = ready(3).answer(&asked(&[(IF_NONE_MATCH, tag)]), Caching::Public, &["beware".to_owned()]);
            assert_eq!(answer.status(), status, "{tag}");
            let headers = answer.headers();
            assert_eq!(
                (headers[ETAG].as_bytes(), headers[VARY].as_bytes()),
                (&b"\"AB\""[..], &b"Accept"[..])
            );
            assert_eq!(headers[CACHE_CONTROL], "public");
            assert!(headers.contains_key(WARNING));
        }
    }

    #[test]
    fn large_documents_are_compressed_for_who_asks() {
        let gzip = asked(&[(ACCEPT_ENCODING, "br;q=1, gzip")]);
        let packed = |size, asked: &HeaderMap| {
            let answer = ready(size).answer(asked, Caching::Private, &[]);
            answer.headers().contains_key(CONTENT_ENCODING)
        };
        assert!(packed(GZIP_FROM, &gzip) && !packed(GZIP_FROM - 1, &gzip));
        assert!(!packed(GZIP_FROM, &asked(&[(ACCEPT_ENCODING, "gzip;q=0")])) && !packed(GZIP_FROM, &HeaderMap::new()));
    }

    #[test]
    fn a_document_by_its_hash_is_for_ever() {
        let answer = ready(1).answer(&HeaderMap::new(), Caching::Immutable, &[]);
        assert_eq!(answer.headers()[CACHE_CONTROL], "public, immutable");
        let expires = answer.headers()[EXPIRES].to_str().expect("text");
        assert!(expires.ends_with("GMT") && expires.contains(", "), "{expires}");
        let moved = moved("/openapi/v3/api?hash=X");
        assert_eq!(
            (moved.status().as_u16(), &moved.headers()[LOCATION]),
            (301, &HeaderValue::from_static("/openapi/v3/api?hash=X"))
        );
    }
}
