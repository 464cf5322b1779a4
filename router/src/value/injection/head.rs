//! What a rule says of a request's head: host, path, method and headers.

use http::header::{HOST, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::Authority;
use portolan_crds::fault_injection::{HttpMatch, TextMatch};
use regex::{Regex, RegexBuilder};

/// For one compiled expression; what is larger is refused, whatever it matches.
const MAX_REGEX_BYTES: usize = 1 << 20;
/// Any method.
const ANY: &str = "*";

/// A request's head, as the client sent it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head<'a>(pub(crate) &'a Parts);

/// All that is given must hold.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HeadMatch {
    host: Option<Text>,
    path: Option<Text>,
    method: Option<String>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

#[derive(Debug, Clone)]
enum Text {
    Exact(String),
    Regex(Regex),
}

/// Expressions of the same text are the same.
impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(one), Self::Exact(other)) => one == other,
            (Self::Regex(one), Self::Regex(other)) => one.as_str() == other.as_str(),
            (Self::Exact(_), Self::Regex(_)) | (Self::Regex(_), Self::Exact(_)) => false,
        }
    }
}

impl Head<'_> {
    /// Without its port, in small letters.
    fn host(&self) -> Option<String> {
        let named = || self.0.headers.get(HOST)?.to_str().ok()?.parse::<Authority>().ok();
        let authority = self.0.uri.authority().cloned().or_else(named)?;
        Some(authority.host().to_ascii_lowercase())
    }
}

impl HeadMatch {
    pub(super) fn compile(of: &HttpMatch) -> Result<Self, String> {
        let header = |header: &portolan_crds::fault_injection::HeaderMatch| {
            let name = HeaderName::try_from(&header.name).map_err(|error| format!("{:?}: {error}", header.name))?;
            let value = HeaderValue::try_from(&header.value).map_err(|error| format!("{name}: {error}"))?;
            Ok::<_, String>((name, value))
        };
        let host = of.host.as_ref().map(|host| TextMatch {
            exact: host.exact.as_deref().map(str::to_ascii_lowercase),
            regex: host.regex.clone(),
        });
        Ok(Self {
            host: Text::compile(host.as_ref())?,
            path: Text::compile(of.path.as_ref())?,
            method: of.method.clone().filter(|method| !method.is_empty() && method != ANY),
            headers: of.headers.iter().map(header).collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn matches(&self, head: Head<'_>) -> bool {
        let Parts {
            method, uri, headers, ..
        } = head.0;
        let has = |(name, value): &(HeaderName, HeaderValue)| headers.get_all(name).iter().any(|sent| sent == value);
        let host = |text: &Text| head.host().is_some_and(|host| text.matches(&host));
        self.method
            .as_deref()
            .is_none_or(|wanted| wanted.eq_ignore_ascii_case(method.as_str()))
            && self.path.as_ref().is_none_or(|text| text.matches(uri.path()))
            && self.headers.iter().all(has)
            && self.host.as_ref().is_none_or(host)
    }
}

impl Text {
    /// `None`: any. Exact wins where both are given.
    fn compile(of: Option<&TextMatch>) -> Result<Option<Self>, String> {
        let Some(of) = of else { return Ok(None) };
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        match (given(&of.exact), given(&of.regex)) {
            (Some(exact), _) => Ok(Some(Self::Exact(exact))),
            (None, Some(regex)) => {
                let compile = |text: &str| RegexBuilder::new(text).size_limit(MAX_REGEX_BYTES).build();
                // By itself first: what closes a group that it does not open would undo the anchors.
                let compiled = compile(&regex).and_then(|_| compile(&format!(r"\A(?:{regex})\z")));
                compiled
                    .map(|compiled| Some(Self::Regex(compiled)))
                    .map_err(|error| format!("{regex:?} is no regular expression of reasonable size: {error}"))
            }
            (None, None) => Ok(None),
        }
    }

    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == text,
            Self::Regex(regex) => regex.is_match(text),
        }
    }
}
