//! What a rule says of a request's head: host, path, method and headers.

use http::header::{HOST, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::Authority;
use portolan_crds::fault_injection::{HeaderMatch, HttpMatch, TextMatch, TextPattern};

/// Any method.
const ANY: &str = "*";

/// A request's head, as the client sent it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head<'a>(pub(crate) &'a Parts);

/// All that is given must hold.
#[derive(Debug, Clone)]
pub(super) struct HeadMatch {
    written: HttpMatch,
    host: Option<TextPattern>,
    path: Option<TextPattern>,
    method: Option<String>,
    /// `None`: any value.
    headers: Vec<(HeaderName, Option<HeaderValue>)>,
}

/// What it was made of says all of it.
impl PartialEq for HeadMatch {
    fn eq(&self, other: &Self) -> bool {
        self.written == other.written
    }
}

impl Head<'_> {
    /// Without its port, in small letters.
    fn host(self) -> Option<String> {
        let named = || self.0.headers.get(HOST)?.to_str().ok()?.parse::<Authority>().ok();
        let authority = self.0.uri.authority().cloned().or_else(named)?;
        Some(authority.host().to_ascii_lowercase())
    }
}

impl HeadMatch {
    pub(super) fn compile(of: &HttpMatch) -> Result<Self, String> {
        let header = |header: &HeaderMatch| {
            let name = HeaderName::try_from(&header.name).map_err(|error| format!("{:?}: {error}", header.name))?;
            let value = Some(&header.value).filter(|value| !value.is_empty());
            let value = value.map(HeaderValue::try_from).transpose();
            Ok::<_, String>((name.clone(), value.map_err(|error| format!("{name}: {error}"))?))
        };
        let text = |of: Option<&TextMatch>| {
            let compiled = of.map(TextMatch::compile).transpose();
            compiled.map_err(|error| error.to_string())
        };
        // Hosts are the same in large letters and in small ones.
        let host = of.host.as_ref().map(|host| TextMatch {
            exact: host.exact.as_deref().map(str::to_ascii_lowercase),
            regex: host.regex.clone(),
        });
        Ok(Self {
            written: of.clone(),
            host: text(host.as_ref())?,
            path: text(of.path.as_ref())?,
            method: of.method.clone().filter(|method| !method.is_empty() && method != ANY),
            headers: of.headers.iter().map(header).collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn matches(&self, head: Head<'_>) -> bool {
        let Parts {
            method, uri, headers, ..
        } = head.0;
        let has = |(name, value): &(HeaderName, Option<HeaderValue>)| {
            let mut sent = headers.get_all(name).iter();
            sent.any(|sent| value.as_ref().is_none_or(|value| sent == value))
        };
        let host = |text: &TextPattern| head.host().is_some_and(|host| text.matches(&host));
        self.method
            .as_deref()
            .is_none_or(|wanted| wanted.eq_ignore_ascii_case(method.as_str()))
            && self.path.as_ref().is_none_or(|text| text.matches(uri.path()))
            && self.headers.iter().all(has)
            && self.host.as_ref().is_none_or(host)
    }
}
