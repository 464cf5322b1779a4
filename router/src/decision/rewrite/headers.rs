//! Which headers do not pass, and what becomes of those that pass changed.

use http::header::{ACCEPT, CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_PROTOCOL, TE, UPGRADE};
use http::{HeaderMap, Uri};

use super::begins;
use crate::value::classify::impersonate;
use crate::value::fault::Fault;
use crate::value::media::{self, JSON, Media, Range, elements};

/// Who the client says it is, or who forwarded it: never believed, never passed on.
/// `x-real-ip` would stand in the member's audit log.
const CLAIMS: [&str; 4] = ["x-remote-", "x-forwarded-", "x-real-ip", impersonate::PREFIX];
/// A WebSocket subprotocol by which browsers hand their token to an API server.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";
/// What an API server takes of one head, as HTTP/2 sends it. What is larger by a little it refuses; by more it ends the connection, which
/// is everybody's.
const SENT_BYTES: usize = (1 << 20) - (4 << 10);
/// What each header counts beside its bytes (RFC 9113, 6.5.2).
const HEADER_BYTES: usize = 32;

/// 431 for a head that the member would not take.
pub(super) fn check_sent(uri: &Uri, headers: &HeaderMap) -> Result<(), Fault> {
    let path = uri.path_and_query().map_or(0, |path| sent(path.as_str().as_bytes()));
    let each = headers
        .iter()
        .map(|(name, value)| sent(name.as_str().as_bytes()) + sent(value.as_bytes()) + HEADER_BYTES);
    if path + each.sum::<usize>() <= SENT_BYTES {
        return Ok(());
    }
    let message = format!(
        "the head of the request takes more than {SENT_BYTES} bytes on its way to a member cluster, where each header counts \
         {HEADER_BYTES} more and what is no plain text several times"
    );
    Err(Fault::HeadTooLarge(message))
}

/// The most that these bytes take, as they are or by the Huffman code of HPACK (RFC 7541, appendix B).
fn sent(bytes: &[u8]) -> usize {
    let most = |byte: &u8| match byte {
        b'a'..=b'z'
        | b'A'..=b'Z'
        | b'0'..=b'9'
        | b' '
        | b'%'
        | b'-'
        | b'.'
        | b'/'
        | b'='
        | b':'
        | b'_'
        | b'&'
        | b'*'
        | b','
        | b';' => 1,
        b'\\' => 3,
        b'!'..=b'~' => 2,
        _ => 4,
    };
    bytes.iter().map(most).sum()
}

/// Removes what must not reach a member. `upgrades` keeps the request to switch protocols.
pub(super) fn strip_request(headers: &mut HeaderMap, upgrades: bool) {
    let upgrade = headers.get(UPGRADE).cloned().filter(|_| upgrades);
    let trailers = has_token(headers, &TE, "trailers");
    remove_named(headers);
    remove(headers, |name| {
        let own = matches!(name.as_str(), "host" | "authorization" | "forwarded" | "expect" | "te");
        own || is_hop_by_hop(name) || CLAIMS.iter().any(|claim| begins(name, claim))
    });
    strip_token_protocol(headers);
    if let Some(upgrade) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, upgrade);
    } else if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Removes the headers of one connection and those that `Connection` names.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    remove_named(headers);
    remove(headers, is_hop_by_hop);
}

/// Of one connection, besides what `Connection` names.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Removes what `Connection` names.
fn remove_named(headers: &mut HeaderMap) {
    let named: Vec<_> = elements(headers, &CONNECTION)
        .filter_map(|token| HeaderName::try_from(token).ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
}

/// Removes those of such a name. There are few headers, and most of what must not pass is not among them: each is looked at once,
/// rather than each name looked up.
fn remove(headers: &mut HeaderMap, is_such: impl Fn(&HeaderName) -> bool) {
    let such: Vec<_> = headers.keys().filter(|name| is_such(name)).cloned().collect();
    for name in such {
        headers.remove(name);
    }
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    elements(headers, name).any(|element| element.eq_ignore_ascii_case(token))
}

fn strip_token_protocol(headers: &mut HeaderMap) {
    let carries = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.contains(TOKEN_PROTOCOL));
    if !headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().any(carries) {
        return;
    }
    let kept: Vec<&str> = elements(headers, &SEC_WEBSOCKET_PROTOCOL)
        .filter(|protocol| !protocol.starts_with(TOKEN_PROTOCOL))
        .collect();
    let kept = kept.join(", ");
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if let Ok(value) = HeaderValue::try_from(&kept)
        && !kept.is_empty()
    {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
    }
}

/// Leaves of `Accept` only what a Lease can be renamed in. A list is renamed as it comes, which protobuf cannot be: its lengths stand
/// before what they are of. So it is JSON for who takes that, too.
pub(super) fn accept_renamable(headers: &mut HeaderMap, is_list: bool) {
    if !headers.contains_key(ACCEPT) {
        return;
    }
    let ranges = media::ranges(headers);
    let takes_json = ranges.iter().any(|range| range.media() == Some(Media::Json));
    let kept = ranges.iter();
    let kept = kept.filter(|range| !(is_list && takes_json && range.media() == Some(Media::Protobuf)));
    let kept: Vec<String> = kept.filter_map(Range::narrowed).collect();
    let accept = HeaderValue::try_from(kept.join(",")).ok().filter(|_| !kept.is_empty());
    headers.insert(ACCEPT, accept.unwrap_or(HeaderValue::from_static(JSON)));
}
